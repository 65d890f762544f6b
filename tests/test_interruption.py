"""Training that is asked to stop: all ranks save at one block's end, and go on from there."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from ranks import run_ranks
from speech_helpers import prepare_noise, small_recipe

from asr import interruption
from asr.errors import STOPPED
from asr.training.checkpoint_clock import CheckpointClock
from tiered_dist import Topology, list_checkpoints

ROOT = Path(__file__).resolve().parents[1]
BLOCK = 3
SMALL = {
    "train.yaml": {
        "epochs": 24,
        "batch_frames": 420,
        "evaluations": 1,  # at the end: no other checkpoint than the ones asked for
        "max_density": 0.2,
        "model": {"layers": 1, "hidden": 16},
    },
    "systems/two_tier.yaml": {
        "inner": {"density": 0.05, "density_start": 0.05},
        "outer": {"block_steps": BLOCK},
    },
}


def answers():
    topology, cpu = Topology.build(1), torch.device("cpu")
    rank = topology.rank
    never, soon = CheckpointClock(topology, cpu, None), CheckpointClock(topology, cpu, 1.0)
    found = [never.agree(stop=False), never.agree(stop=rank == 1), soon.agree(stop=False)]
    soon._last -= 61 if rank == 1 else 0  # another rank's clock does not count
    found.append(soon.agree(stop=False))
    soon._last -= 61
    found.append(soon.agree(stop=False))
    soon.restart()
    return [*found, soon.agree(stop=False)]


def test_all_ranks_do_what_one_was_asked(tmp_path):
    no, save, stop = (False, False), (True, False), (True, True)
    assert run_ranks(3, answers, tmp_path) == [[no, stop, no, no, save, no]] * 3


def test_a_signal_is_remembered_until_nobody_listens():
    before = [signal.getsignal(number) for number in interruption.SIGNALS]
    for number in interruption.SIGNALS:
        interruption.listen()
        interruption.listen()  # twice is as once
        assert not interruption.asked_to_stop()
        os.kill(os.getpid(), number)
        assert interruption.asked_to_stop()
        interruption.listen_no_more()
        assert not interruption.asked_to_stop()
        assert [signal.getsignal(number) for number in interruption.SIGNALS] == before


LEAVING = """
import os
from asr import interruption

class Late:  # lives until the interpreter is taken apart
    def __init__(self):
        self.itself = self
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, {number})

interruption.listen()
late = Late()
{last}
"""


@pytest.mark.parametrize(
    ("last", "status"),
    [("", -signal.SIGUSR1), ("interruption.ignore()", 0)],
    ids=["not", "ignored"],
)
def test_a_signal_that_meets_a_process_on_its_way_out(last, status):
    script = LEAVING.format(number=int(signal.SIGUSR1), last=last)
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60).returncode == status


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return small_recipe(tmp_path_factory.mktemp("recipes") / "mini", SMALL)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, recipe):
    root = tmp_path_factory.mktemp("exp")
    prepare_noise(root, recipe)
    return root


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, recipe, prepared):
    """The model of a run of the same settings that nobody stopped."""
    root = tmp_path_factory.mktemp("whole") / "exp"
    shutil.copytree(prepared, root)
    finish(recipe, root)
    return model(root)


def command(recipe, root, *overrides):
    words = ["-m", "asr", "train", "--recipe", recipe, "--dir", root, "--system", "two_tier"]
    return [str(word) for word in [*words, *overrides]]


def finish(recipe, root, *overrides):
    """Train to the end by the local launcher; what it said."""
    result = subprocess.run(
        [sys.executable, *command(recipe, root, *overrides)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr


def start_job_step(recipe, root):
    """Training as a job step starts it: four processes that were each told a rank."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    return subprocess.Popen(
        [sys.executable, *launcher, *command(recipe, root)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def model(root):
    return torch.load(root / "train/two_tier/model.pt", weights_only=True)["state"]


def wait_until_training(process, root):
    """Until rank 0 has made its TensorBoard file, after all ranks have met."""
    events, deadline = root / "train/two_tier/tensorboard", time.monotonic() + 120
    while not (events.exists() and list(events.iterdir())):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.02)


def children(pid):
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return sorted(int(child) for child in text.split())


def test_a_run_that_was_stopped_goes_on_bit_for_bit(recipe, prepared, uninterrupted, tmp_path):
    root = tmp_path / "exp"
    shutil.copytree(prepared, root)
    process = start_job_step(recipe, root)
    wait_until_training(process, root)
    ranks = children(process.pid)
    assert len(ranks) == 4
    os.kill(ranks[2], signal.SIGUSR1)  # one of them; Slurm tells all, not all at once
    errors = process.communicate(timeout=100)[1]
    assert f"exitcode  : {STOPPED}" in errors, errors[-3000:]
    assert "two_tier: stopped at step" in errors
    (checkpoint,) = list_checkpoints(root / "train/two_tier/checkpoints")
    assert int(checkpoint.name.split("-")[1]) % BLOCK == 0
    assert len(list(checkpoint.iterdir())) == 1 + 2 + 4
    assert f"goes on from {checkpoint}" in finish(recipe, root)
    ours = model(root)
    assert all(torch.equal(ours[name], uninterrupted[name]) for name in uninterrupted)


def test_a_signal_while_a_rank_still_loads_is_not_lost(recipe, prepared, tmp_path):
    root = tmp_path / "exp"
    shutil.copytree(prepared, root)
    process = start_job_step(recipe, root)
    deadline = time.monotonic() + 60
    while not any(listens(rank) for rank in children(process.pid)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    rank = next(rank for rank in children(process.pid) if listens(rank))
    os.kill(rank, signal.SIGUSR1)
    errors = process.communicate(timeout=200)[1]
    assert f"two_tier: stopped at step {BLOCK} of" in errors, errors[-3000:]


def listens(pid):
    """Whether the process catches SIGUSR1, by what the kernel says."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = int(
        next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16
    )
    return bool(caught >> (signal.SIGUSR1 - 1) & 1)


def test_checkpoints_by_the_clock(recipe, prepared, uninterrupted, tmp_path):
    root = tmp_path / "exp"
    shutil.copytree(prepared, root)
    finish(recipe, root, "checkpoint_minutes=1e-9")
    steps = [int(path.name[5:]) for path in list_checkpoints(root / "train/two_tier/checkpoints")]
    assert len(steps) == 2 and steps[1] - steps[0] == BLOCK  # each block's end; two are kept
    ours = model(root)
    assert all(torch.equal(ours[name], uninterrupted[name]) for name in uninterrupted)
