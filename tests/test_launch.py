"""The local launcher, with real processes: what workers find, how they fail, that none is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiered_dist.launch import THREAD_VARIABLES, main, spawn_command

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = [sys.executable, "-m", "tiered_dist.launch"]

# Joins the world as both launchers announce it; what follows may use dist, rank and world.
JOIN = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from tiered_dist import init_process_group
init_process_group(timeout_seconds=50)
rank, world = dist.get_rank(), dist.get_world_size()
pids = torch.zeros(world, dtype=torch.int64)
pids[rank] = os.getpid()
dist.all_reduce(pids)
"""

# Ends when it is asked to; leaves its pid once it can be.
WAIT = """
import os, pathlib, signal, time
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
pathlib.Path("pids").mkdir(exist_ok=True)
pathlib.Path("pids", str(os.getpid())).touch()
deadline = time.monotonic() + 60
while not asked and time.monotonic() < deadline:
    time.sleep(0.02)
"""


@pytest.fixture
def environment(tmp_path):
    """Finds the package from any directory; thread variables set, which spares a re-exec."""
    others = ("TIERED_DIST_STORE", "PYTHONUNBUFFERED")
    kept = {key: value for key, value in os.environ.items() if key not in others}
    ours = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    return kept | dict.fromkeys(THREAD_VARIABLES, "1") | ours


@pytest.fixture
def script(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def launch(tmp_path, environment):
    def run(*words, **changes) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*LAUNCH, *map(str, words)],
            cwd=tmp_path,
            env=environment | changes,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


@pytest.fixture
def start(tmp_path, environment):
    """Start WAIT in the background; returns the launcher and its workers' pids."""
    started = []

    def run(script: Path, workers: int, command=LAUNCH) -> tuple[subprocess.Popen, list[int]]:
        process = subprocess.Popen(
            [*command, "--workers", str(workers), str(script)],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # as in a terminal's foreground, wherever pytest runs
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(process)
        until(lambda: len(list((tmp_path / "pids").glob("*"))) == workers)
        return process, [int(path.name) for path in (tmp_path / "pids").glob("*")]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited 30 s in vain"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_what_a_worker_finds(launch, script, tmp_path, environment):
    """Its place in the world, one thread, draws of its own, and python's way with a script."""
    (tmp_path / "shared.py").write_text(
        "import atexit, os\n"
        "print('imported', file=open('log.txt', 'a'))\n"
        "print('once')\n"
        "atexit.register(lambda: print('launcher exits', file=open('log.txt', 'a')))\n"
    )
    path = script(
        "import atexit, json, os, random, sys, numpy, torch, shared\n"
        "rank = os.environ['RANK']\n"
        "print('rank', rank)\n"
        "json.dump({'environment': dict(os.environ), 'argv': sys.argv, 'name': __name__,\n"
        "    'path': sys.path[0], 'pid': os.getpid(), 'threads': torch.get_num_threads(),\n"
        "    'draws': [random.random(), numpy.random.rand(), torch.rand(1).item()]},\n"
        "    open(f'found-{rank}.json', 'w'))\n"
        "atexit.register(lambda: print('worker exits', file=open('log.txt', 'a')))\n"
    )
    for name in THREAD_VARIABLES:
        del environment[name]
    result = launch(
        "--workers", 3, "--preload", "shared", path, "--workers", "x", "-m", OMP_NUM_THREADS="2"
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout == "once\nrank 0\n"
    assert sorted(result.stderr.splitlines()) == ["rank 1", "rank 2"]
    found = [json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in range(3)]
    for rank, one in enumerate(found):
        variables = one["environment"]
        assert variables["LOCAL_RANK"] == variables["RANK"] == str(rank)
        assert variables["LOCAL_WORLD_SIZE"] == variables["WORLD_SIZE"] == "3"
        assert variables["OMP_NUM_THREADS"] == "2", "the user's value"
        assert variables["OPENBLAS_NUM_THREADS"] == "1"
        assert one["threads"] == 1
        assert one["argv"] == [str(path), "--workers", "x", "-m"]
        assert one["path"] == str(tmp_path)
        assert one["name"] == "__main__"
    assert len({one["environment"]["TIERED_DIST_STORE"] for one in found}) == 1
    assert not Path(found[0]["environment"]["TIERED_DIST_STORE"]).parent.exists(), "left behind"
    assert len({one["pid"] for one in found}) == 3
    for generator in zip(*(one["draws"] for one in found), strict=True):
        assert len(set(generator)) == 3
    assert (tmp_path / "log.txt").read_text().split("\n") == [
        "imported",
        *["worker exits"] * 3,
        "launcher exits",
        "",
    ]


def test_module_form(tmp_path, environment):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "worker.py").write_text(
        "import sys; print(__name__, __package__, sys.argv[1:]); sys.exit()\n"
    )
    command = spawn_command(2, "package.worker", ["-a", "b"], preload=["json", "package"])
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout) == (0, "__main__ package ['-a', 'b']\n")


def test_many_workers_meet(launch, script):
    path = script(JOIN + "if rank == 0: print(*sorted(set(pids.tolist())))\n")
    result = launch("--workers", 128, path)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 128


def test_torchrun_starts_the_same_script(script, tmp_path, environment):
    path = script(JOIN + "if rank == 0: print(len(set(pids.tolist())))\n")
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", path],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (result.returncode, result.stdout) == (0, "2\n"), result.stderr


def test_a_process_leaves_the_world_when_it_exits(launch, script):
    """Gloo's threads would else abort it now and then, after its work is done."""
    path = script(
        "import atexit\n"
        "import torch.distributed as dist\n"
        "atexit.register(lambda: print(dist.is_initialized(), flush=True))\n"  # runs last
        + JOIN
        + "assert dist.is_initialized()\n"
    )
    result = launch("--workers", 2, path)
    assert (result.returncode, result.stdout) == (0, "False\n"), result.stderr


def test_exception_names_rank_and_stops_the_others(launch, script):
    path = script(
        "import os, time\n"
        "if os.environ['RANK'] == '2': raise ValueError('loss is NaN')\n"
        "time.sleep(60)\n"
    )
    begin = time.monotonic()
    result = launch("--workers", 4, path)
    assert time.monotonic() - begin < 20
    assert result.returncode == 1
    assert result.stderr.startswith(
        f'launch: rank 2:\nTraceback (most recent call last):\n  File "{path}", line 2'
    )
    assert "ValueError: loss is NaN\n" in result.stderr
    assert re.search(r"rank 2 \(pid \d+\) exited with status 1", result.stderr)
    assert result.stderr.count("Traceback") == 1


@pytest.mark.parametrize(
    ("exits", "status", "message"),
    [("sys.exit(7)", 7, "status 7"), ("sys.exit('mend it')", 1, "mend it")],
)
def test_exit_codes_are_honoured(launch, script, exits, status, message):
    result = launch("--workers", 2, script(f"import sys\n{exits}\n"))
    assert result.returncode == status
    assert message in result.stderr


def test_killed_worker_frees_those_in_a_collective(launch, script):
    path = script(
        JOIN
        + "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        + "while True:\n    dist.all_reduce(pids)\n"
    )
    begin = time.monotonic()
    result = launch("--workers", 4, path)
    assert time.monotonic() - begin < 20
    assert result.returncode == 128 + signal.SIGKILL
    first = next(line for line in result.stderr.splitlines() if line.startswith("launch: rank"))
    assert re.match(r"launch: rank 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\)", first)
    assert "Traceback" not in result.stderr


def test_worker_deaf_to_sigterm_is_killed_after_the_grace(launch, script):
    path = script(
        "import os, pathlib, signal, sys, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    pathlib.Path('deaf').touch()\n"
        "    time.sleep(60)\n"
        "while not pathlib.Path('deaf').exists(): time.sleep(0.01)\n"
        "sys.exit(3)\n"
    )
    begin = time.monotonic()
    result = launch("--workers", 2, "--timeout-grace", 0.5, path)
    assert 0.5 < time.monotonic() - begin < 20
    assert result.returncode == 3


def test_each_rank_has_its_log(launch, script, tmp_path):
    path = script(
        "import os, pathlib, subprocess, time\n"
        "rank = os.environ['RANK']\n"
        "print('printed by', rank)\n"
        "subprocess.run(['echo', 'echoed by ' + rank])\n"
        "pathlib.Path('done-' + rank).touch()\n"
        "while len(list(pathlib.Path().glob('done-*'))) < 3: time.sleep(0.01)\n"
        "if rank == '2': raise RuntimeError('on purpose')\n"
    )
    result = launch("--workers", 3, "--log-dir", "logs", path)
    assert result.returncode == 1
    assert result.stdout == "printed by 0\nechoed by 0\n"
    assert sorted(file.name for file in (tmp_path / "logs").iterdir()) == [
        "rank-001.log",
        "rank-002.log",
    ]
    assert (tmp_path / "logs/rank-001.log").read_text() == "printed by 1\nechoed by 1\n"
    failed = (tmp_path / "logs/rank-002.log").read_text()
    assert failed.startswith("printed by 2\nechoed by 2\nTraceback")
    assert f"launch: the end of logs/rank-002.log:\n{failed}launch: rank 2 (pid" in result.stderr


def test_ctrl_c_ends_all_quietly(start, script):
    launcher, workers = start(script(WAIT), 3)
    os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does: to every process
    _, errors = launcher.communicate(timeout=20)
    assert launcher.returncode == 130
    assert errors == "launch: SIGINT: stopping 3 workers\n"
    assert not any(map(is_running, workers))


def test_workers_die_with_a_killed_launcher(start, script):
    launcher, workers = start(script(WAIT), 3)
    assert all(map(is_running, workers))
    launcher.kill()
    until(lambda: not any(map(is_running, workers)))


def test_workers_end_with_the_process_that_ran_the_launcher(start, script):
    runs_it = (
        "import os, subprocess, sys\n"
        "subprocess.run([*sys.argv[1:4], '--with-parent', str(os.getpid()), *sys.argv[4:]])"
    )
    command = [sys.executable, "-c", runs_it, *LAUNCH]
    runner, workers = start(script(WAIT), 2, command)
    runner.kill()
    until(lambda: not any(map(is_running, workers)))


def test_preloaded_threads_are_refused(launch, script, tmp_path):
    (tmp_path / "threaded.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    result = launch("--workers", 2, "--preload", "threaded", script("print('ran')"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("launch: after importing threaded this process has 2 threads")
    assert "--preload" in result.stderr


def test_initialised_cuda_is_refused(launch, script, tmp_path):
    (tmp_path / "on_gpu.py").write_text(
        "import torch\ntorch.cuda.is_initialized = lambda: True  # as after a first CUDA call\n"
    )
    result = launch("--workers", 2, "--preload", "on_gpu", script("print('ran')"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("launch: CUDA was initialised")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "no_such.part"], "no module named 'no_such.part'"),
        (["--preload", "no_such", "-m", "json"], "cannot import no_such"),
    ],
)
def test_missing_module_is_found_before_any_worker_starts(launch, words, message):
    result = launch("--workers", 2, *words)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"launch: {message}")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "2", "no-such.py"], "no-such.py: no such script"),
        (["--workers", "0", "-m", "json"], "at least one worker"),
        (["--workers", "2"], "name a script"),
        (["--workers", "2", "--timeout-grace", "nan", "-m", "json"], "must be 0 or more"),
        (["--workers", "2", "--bogus", __file__], "--bogus"),
    ],
)
def test_mistakes_on_the_command_line(capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
