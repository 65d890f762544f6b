"""What the Slurm scripts ask of Slurm, and what they do with a job's end.

The tests need no Slurm: sbatch, srun and scontrol are stand-ins that write down what they are
called with. (docs/cluster.md tells what was tried with a real one.)
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SUBMIT, PREPARE, TRAIN = (
    ROOT / f"scripts/slurm/{job}.sh" for job in ("submit", "prepare", "train")
)


@pytest.fixture
def stand_in(tmp_path):
    """Makes programs that are found before others; each writes its words to ``calls``."""
    (tmp_path / "bin").mkdir()

    def make(name, body="exit 0"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/bash\necho "{name} $*" >> "{tmp_path}/calls"\n{body}\n')
        program.chmod(0o755)

    return make


def environment(tmp_path):
    return os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}


def calls(tmp_path):
    return (tmp_path / "calls").read_text().splitlines()


def submit(tmp_path, *words):
    return subprocess.run(
        [str(word) for word in (SUBMIT, *words)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )


def options(command):
    """``--name value`` of a printed command, and what is not an option."""
    words = shlex.split(command)[1:]
    named = {}
    while words:
        word = words.pop(0)
        if word in ("--parsable", "--requeue"):
            named[word] = None
        elif word.startswith("--"):
            named[word] = words.pop(0)
        else:  # the script, and its own words
            return named, [word, *words]
    return named, []


def test_a_dry_run_prints_every_job_and_what_it_waits_for(tmp_path):
    result = submit(
        tmp_path, "--recipe", "mini", "--dir", "exp", "--dry-run", "true", "--tasks-per-node", 2,
        "--partition", "gpu", "--cpu-partition", "cpu", "--account", "me", "--notice", 90,
        "--", "epochs=2",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    jobs = [options(line) for line in result.stdout.splitlines()]
    names = [named["--job-name"] for named, _ in jobs]
    assert names == ["prepare", "train-bmuf", "train-single", "train-two_tier", "evaluate"]
    prepare, bmuf, single, two_tier, evaluate = jobs
    assert (prepare[0]["--partition"], bmuf[0]["--partition"]) == ("cpu", "gpu")
    assert "--dependency" not in prepare[0]
    assert two_tier[0]["--dependency"] == "afterok:JOB-prepare"
    assert evaluate[0]["--dependency"] == (
        "afterok:JOB-train-bmuf:JOB-train-single:JOB-train-two_tier"
    )
    shape = ("--nodes", "--ntasks-per-node", "--gpus-per-node")
    assert [two_tier[0][name] for name in shape] == ["2", "2", "2"]
    assert [single[0][name] for name in shape] == ["1", "1", "1"]
    assert two_tier[0]["--signal"] == "B:USR1@90"
    assert two_tier[1][1:3] == [str(ROOT / "recipes/mini"), str(tmp_path / "exp")]
    assert two_tier[1][4:] == ["two_tier", "epochs=2"]
    assert evaluate[1][-1] == "bmuf"  # the baseline
    for named, _ in jobs:
        assert {"--requeue", "--open-mode", "--account"} <= named.keys()
        assert named["--chdir"] == str(ROOT)
    assert not (tmp_path / "exp").exists()


@pytest.mark.parametrize(
    ("words", "baseline"),
    [
        (["--system", "two_tier"], []),
        (["--system", "two_tier", "--system", "single"], ["two_tier"]),
        (["--system", "bmuf", "--system", "single", "--baseline", "single"], ["single"]),
        (["--system", "two_tier", "--baseline", "bmuf"], ["bmuf"]),  # trained before
    ],
)
def test_the_baseline_is_one_of_the_systems(tmp_path, words, baseline):
    result = submit(tmp_path, "--recipe", "mini", "--dir", "exp", "--dry-run", "true", *words)
    evaluate = options(result.stdout.splitlines()[-1])[1]
    assert [word for word in evaluate[4:] if word] == baseline


def test_ids_of_jobs_become_dependencies(tmp_path, stand_in):
    stand_in("sbatch", f'echo "$(wc -l < {tmp_path}/calls);cluster"')  # 1, 2, 3
    words = ["--recipe", ROOT / "recipes/mini", "--dir", tmp_path / "exp", "--gpus", "false"]
    result = submit(tmp_path, *words, "--system", "bmuf", "--system", "two_tier")
    assert result.returncode == 0, result.stderr
    bmuf, two_tier, evaluate = [options(call)[0] for call in calls(tmp_path)[1:]]
    assert "--gpus-per-node" not in bmuf and "--partition" not in bmuf
    assert (bmuf["--nodes"], bmuf["--ntasks-per-node"]) == ("1", "4")
    assert bmuf["--dependency"] == two_tier["--dependency"] == "afterok:1"
    assert evaluate["--dependency"] == "afterok:2:3"
    assert "train-two_tier: job 3" in result.stdout
    assert (tmp_path / "exp/slurm").is_dir()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dir", "x"], "--recipe is missing"),
        (["--recipe", "mini"], "--dir is missing"),
        (["--recipe", "nosuch", "--dir", "x"], "has no conf/systems"),
        (["--recipe", "mini", "--dir", "x", "--system", "nosuch"], "--system nosuch: no "),
        (["--recipe", "mini", "--dir", "x", "--tasks-per-node", "3"], "4 workers: no whole number"),
        (["--recipe", "mini", "--dir", "x", "--", "workers=12"], "12 workers: no whole number"),
        (["--recipe", "mini", "--dir", "x", "--", "workers=0"], "bmuf: workers=0 is no number"),
        (["--recipe", "mini", "--dir", "x", "--baseline", "bmfu"], "--baseline bmfu: no "),
        (["--recipe", "mini", "--dir", "x", "--gpus", "2"], "--gpus takes true or false"),
        (["--recipe", "mini", "--dir", "x", "--", "epochs"], "'epochs' is not key=value"),
    ],
)
def test_impossible_submissions_are_refused(tmp_path, words, message):
    result = submit(tmp_path, "--dry-run", "true", *words)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr


def test_nothing_is_submitted_before_all_is_checked(tmp_path, stand_in):
    stand_in("sbatch", "echo 1")
    words = ["--recipe", "mini", "--dir", tmp_path / "exp"]
    for wrong in (["--tasks-per-node", 3], ["--baseline", "bmfu"]):
        assert submit(tmp_path, *words, *wrong).returncode == 2
        assert not (tmp_path / "calls").exists()


def jobs_of(tmp_path, *words):
    """By the job's name: its options, and the script with its words."""
    result = submit(tmp_path, "--dir", "exp", "--dry-run", "true", *words)
    assert result.returncode == 0, result.stderr
    jobs = [options(line) for line in result.stdout.splitlines()]
    return {named["--job-name"]: (named, rest) for named, rest in jobs}


def test_the_corpus_place_is_told_to_the_preparation(tmp_path):
    words = ["--recipe", "fisher_swbd", "--corpus-dir", "my corpora", "--mirror", "/archives"]
    jobs = jobs_of(tmp_path, *words)
    told = ["--corpus-dir", str(tmp_path / "my corpora"), "--mirror", "/archives"]
    assert jobs["prepare"][1][4:] == told
    assert "--corpus-dir" not in jobs["evaluate"][1]
    assert jobs_of(tmp_path, "--recipe", "mini")["prepare"][1][4:] == []
    at_home = jobs_of(tmp_path, "--recipe", "mini", "--corpus-dir=~/corpus")["prepare"][1]
    assert at_home[-1] == os.path.expanduser("~/corpus")


def test_nothing_is_prepared_if_told_so(tmp_path):
    jobs = jobs_of(tmp_path, "--recipe", "english2k", "--prepare", "false", "--system", "two_tier")
    assert list(jobs) == ["train-two_tier", "evaluate"]
    assert "--dependency" not in jobs["train-two_tier"][0]


@pytest.mark.parametrize(
    ("done", "words", "stage"),
    [
        (False, [], "0"),
        (True, [], "1"),
        (True, ["--corpus-dir", "/corpora", "--mirror", "/archives"], "0"),
    ],
)
def test_a_corpus_that_is_there_is_not_got_again(done, words, stage, tmp_path):
    run = tmp_path / "run.sh"
    run.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    run.chmod(0o755)
    (tmp_path / "exp/corpus").mkdir(parents=True)
    if done:
        (tmp_path / "exp/corpus/stage.json").write_text("{}")
    said = subprocess.check_output(
        [PREPARE, tmp_path, tmp_path / "exp", "python3", *words], text=True
    )
    assert said.splitlines() == [
        "--dir", str(tmp_path / "exp"), "--python", "python3", "--stage", stage,
        "--stop-stage", "3", *words,
    ]  # fmt: skip


def test_workers_of_the_command_line_are_allocated(tmp_path):
    jobs = jobs_of(
        tmp_path, "--recipe", "english2k", "--system", "two_tier", "--", "workers=4", "workers=64"
    )
    named, words = jobs["train-two_tier"]
    assert (named["--nodes"], named["--ntasks-per-node"]) == ("8", "8")
    assert words[4:] == ["two_tier", "workers=4", "workers=64"]


def test_a_relative_interpreter_holds_in_the_job_s_folder(tmp_path):
    (tmp_path / "venv/bin").mkdir(parents=True)
    os.symlink(sys.executable, tmp_path / "venv/bin/python")
    words = ["--recipe", "mini", "--", "workers=1"]
    jobs = jobs_of(tmp_path, "--python", "venv/bin/python", *words)
    for _, script in jobs.values():
        assert script[3] == str(tmp_path / "venv/bin/python")


def test_where_there_is_no_slurm_it_says_so(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname", "env"):
        os.symlink(f"/usr/bin/{name}", tmp_path / "bin" / name)
    result = subprocess.run(
        [SUBMIT, "--recipe", "mini", "--dir", "x"],
        env={"PATH": f"{tmp_path}/bin"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2 and "no sbatch here" in result.stderr


def train(tmp_path, tasks="4"):
    return subprocess.Popen(
        [str(TRAIN), "recipes/mini", "exp", "python3", "two_tier", "epochs=2"],
        cwd=ROOT,
        env=environment(tmp_path) | {"SLURM_NTASKS": tasks},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("status", "requeued"),
    [(0, False), (1, False), (137, False), (75, True), (138, True), (143, True)],
)
def test_only_a_run_that_was_asked_to_stop_is_queued_again(status, requeued, tmp_path, stand_in):
    stand_in("srun", f"exit {status}")
    stand_in("scontrol")
    process = train(tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == status
    asked = calls(tmp_path)
    assert asked[0].endswith(
        " python3 -m asr train --recipe recipes/mini --dir exp --system two_tier epochs=2"
    )
    assert asked[1:] == (["scontrol requeue 17"] if requeued else [])


def test_the_warning_of_slurm_reaches_the_tasks(tmp_path, stand_in):
    stand_in("srun", f'trap "exit 75" USR1; touch {tmp_path}/ready; while :; do sleep 0.05; done')
    stand_in("scontrol")
    process = train(tmp_path)
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGUSR1)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 75, errors
    assert "stopped as it was asked to, back into the queue" in output
    assert calls(tmp_path)[-1] == "scontrol requeue 17"


def test_a_single_task_is_told_that_it_is_a_rank(tmp_path, stand_in):
    stand_in("srun", f'echo "$RANK $WORLD_SIZE $MASTER_ADDR" > {tmp_path}/told')
    for tasks, told in (("1", "0 1 localhost\n"), ("4", "  \n")):
        train(tmp_path, tasks).communicate(timeout=60)
        assert (tmp_path / "told").read_text() == told


def test_scripts_are_what_shellcheck_likes():
    checker = next(
        (p for f in os.environ["PATH"].split(":") if (p := Path(f) / "shellcheck").exists()), None
    )
    if checker is None:
        pytest.skip("no shellcheck here")
    scripts = [*ROOT.glob("scripts/*.sh"), *ROOT.glob("scripts/slurm/*.sh")]
    assert len(scripts) >= 7
    found = subprocess.run([checker, "-x", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
