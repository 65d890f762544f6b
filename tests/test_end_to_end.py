"""Every stage of a recipe on a corpus of about a minute, by the driver, with real workers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from asr.stages import MARKER
from tiered_dist import list_checkpoints

ROOT = Path(__file__).resolve().parents[1]

# A model and a corpus that take seconds; enough steps for the stages' own checks.
SMALL = {
    "corpus.yaml": {
        "synthetic": {
            "train_words": 220,
            "dev_words": 30,
            "test_words": 40,
            "voices": ["m1-us", "annie-us"],
            "unseen_voices": ["m3-us"],
            "jobs": 2,
        }
    },
    "train.yaml": {
        "epochs": 16,
        "batch_frames": 900,
        "evaluations": 4,
        "model": {"layers": 1, "hidden": 24},
    },
    "systems/bmuf.yaml": {"outer": {"block_steps": 1}},
    "systems/two_tier.yaml": {"inner": {"ramp": 0.4}, "outer": {"block_steps": 2}},
}


def run(*words, status=0, **options):
    result = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=300, **options
    )
    assert result.returncode == status, result.stdout[-3000:] + result.stderr[-6000:]
    return result


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """recipes/mini made small, under the same names."""
    folder = tmp_path_factory.mktemp("recipes") / "mini"
    shutil.copytree(ROOT / "recipes/mini/conf", folder / "conf")
    for name, changes in SMALL.items():
        path = folder / "conf" / name
        merged = _merge(_yaml().safe_load(path.read_text()), changes)
        path.write_text(_yaml().safe_dump(merged))
    return folder


def _yaml():
    import yaml

    return yaml


def _merge(values, changes):
    for key, value in changes.items():
        nested = isinstance(value, dict)
        values[key] = _merge(values.get(key) or {}, value) if nested else value
    return values


@pytest.fixture(scope="module")
def driver(recipe):
    def drive(directory, *options, status=0):
        command = [ROOT / "scripts/run_recipe.sh", "--recipe", recipe, "--dir", directory]
        return run(*command, "--python", sys.executable, *options, status=status)

    return drive


@pytest.fixture(scope="module")
def experiment(driver, tmp_path_factory):
    """The folder that a whole run, the optional stage included, has filled."""
    directory = tmp_path_factory.mktemp("exp")
    result = driver(directory, "--single", "true")
    assert result.stdout.endswith(f"report: {directory}/compare/report.html\n")
    return directory


def marker(directory, stage):
    return json.loads((directory / stage / MARKER).read_text())


def markers(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob(MARKER)}


def test_every_stage_leaves_what_the_next_one_needs(experiment):
    report = (experiment / "compare/report.txt").read_text()
    for title in ("BMUF only", "two tiers (GTC + BMUF)", "one worker"):
        assert title in report
    for system in ("bmuf", "two_tier", "single"):
        for test_set in ("test-seen", "test-unseen"):
            line = (experiment / f"score/{system}/{test_set}/wer.txt").read_text()
            assert line.startswith("%WER ")
    assert not list(experiment.rglob(".partial-*"))
    assert not list(experiment.rglob("stage.started.json"))


def test_two_tiers_were_what_ran(experiment):
    summary = json.loads((experiment / "train/two_tier/summary.json").read_text())
    assert (summary["workers"], summary["subgroups"]) == (4, 2)
    assert summary["density"] <= 0.01
    assert summary["blocks"] >= 20
    assert summary["least_spread"] > 0
    sent = summary["bytes_per_worker"]
    assert 0 < sent["inner_payload"] < sent["inner_wire"]
    assert sent["outer"] > 0
    baseline = json.loads((experiment / "train/bmuf/summary.json").read_text())
    assert baseline["samples"] == summary["samples"]
    assert baseline["bytes_per_worker"]["inner_wire"] == 0


def test_scalars_are_there_for_tensorboard(experiment):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(experiment / "train/two_tier/tensorboard"))
    events.Reload()
    assert {
        "dev/wer",
        "tier1/density",
        "tier1/residual_norm",
        "tier1/wire_bytes",
        "tier2/spread",
        "tier2/wire_bytes",
        "train/loss_per_frame",
    } <= set(events.Tags()["scalars"])


def test_the_report_draws_dev_wer_against_what_training_counted(experiment):
    curves = json.loads((experiment / "compare/report.json").read_text())["curves"]
    assert [curve["system"] for curve in curves] == ["bmuf", "single", "two_tier"]
    for curve in curves:
        summary = json.loads((experiment / f"train/{curve['system']}/summary.json").read_text())
        sent = summary["bytes_per_worker"]
        assert curve["totals_measured"]
        ends = {name: curve["dev"][name][-1] for name in ("step", "samples", "seconds", "bytes")}
        assert ends["step"] >= summary["steps"]
        assert ends["samples"] == pytest.approx(summary["samples"], abs=1)
        assert ends["bytes"] == pytest.approx(sent["inner_wire"] + sent["outer"], rel=1e-6)
        assert ends["seconds"] == pytest.approx(summary["train_seconds"], abs=0.1)


def test_a_second_run_finds_everything_done(driver, experiment):
    before = markers(experiment)
    driver(experiment, "--single", "true")
    assert markers(experiment) == before


def test_a_changed_parameter_reruns_what_follows_and_nothing_else(driver, experiment, tmp_path):
    directory = tmp_path / "copy"
    shutil.copytree(experiment, directory)
    before = {
        path.relative_to(directory).parent.as_posix(): t for path, t in markers(directory).items()
    }
    driver(directory, "--stage", 8, "--stop-stage", 8, "--", "seed=5")
    driver(directory, "--stage", 9)
    after = {
        path.relative_to(directory).parent.as_posix(): t for path, t in markers(directory).items()
    }
    changed = {stage for stage in after if after[stage] != before[stage]}
    assert {"score/bmuf", "compare"} <= changed
    assert not {"tokens", "train/bmuf", "decode/bmuf"} & changed


def train_command(recipe, directory, *overrides):
    return [
        sys.executable, "-m", "asr", "train", "--recipe", str(recipe), "--dir", str(directory),
        "--system", "two_tier", *overrides,
    ]  # fmt: skip


def test_killed_training_goes_on_bit_for_bit(recipe, experiment, tmp_path):
    directory = tmp_path / "killed"
    for stage in ("corpus", "manifests", "features", "tokens"):
        shutil.copytree(experiment / stage, directory / stage)
    process = subprocess.Popen(
        train_command(recipe, directory), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    checkpoints = directory / "train/two_tier/checkpoints"
    deadline = time.monotonic() + 120
    while not list_checkpoints(checkpoints):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert not (directory / "train/two_tier" / MARKER).exists()
    result = run(*train_command(recipe, directory), cwd=ROOT)
    assert "goes on from" in result.stderr
    ours, theirs = (
        torch.load(folder / "train/two_tier/model.pt", weights_only=True)["state"]
        for folder in (directory, experiment)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert (
        marker(directory, "train/two_tier")["counts"]
        == marker(experiment, "train/two_tier")["counts"]
    )


def test_resume_goes_on_with_other_settings_and_another_world(recipe, experiment, tmp_path):
    directory = tmp_path / "more"
    shutil.copytree(experiment, directory)
    changes = ("workers=2", "subgroup_size=1", "inner.kind=dense", "epochs=30", "evaluations=2")
    command = train_command(recipe, directory, *changes)
    result = run(*command, "--resume", cwd=ROOT)
    assert "goes on from" in result.stderr
    assert "rank 0's residual is empty" in result.stderr
    counts = marker(directory, "train/two_tier")["counts"]
    assert counts["steps"] > marker(experiment, "train/two_tier")["counts"]["steps"]
    result = run(*command, "model.hidden=8", "--resume", cwd=ROOT, status=1)
    assert "it cannot go on with another one" in result.stderr
    shutil.rmtree(directory / "train/two_tier/checkpoints")
    result = run(*command, "seed=2", "--resume", cwd=ROOT, status=1)
    assert "no checkpoint to resume from" in result.stderr
    assert (directory / "train/two_tier/model.pt").exists()


def test_a_killed_worker_ends_training_with_its_rank(recipe, experiment, tmp_path):
    directory = tmp_path / "worker"
    for stage in ("corpus", "manifests", "features", "tokens"):
        shutil.copytree(experiment / stage, directory / stage)
    process = subprocess.Popen(
        train_command(recipe, directory, "epochs=2000"), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    events = directory / "train/two_tier/tensorboard"
    deadline = time.monotonic() + 120
    while not (events.exists() and list(events.iterdir())):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.02)
    workers = _children(_children(process.pid)[0])
    assert len(workers) == 4
    os.kill(workers[2], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"rank 2 (pid {workers[2]}) was killed by signal 9 (SIGKILL)" in errors
    assert "The same command goes on from the last checkpoint" in errors
    assert not (directory / "train/two_tier" / MARKER).exists()


def _children(pid):
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return sorted(int(child) for child in text.split())


def test_a_run_that_is_not_in_two_tiers_is_refused(recipe, experiment, tmp_path):
    directory = tmp_path / "short"
    for stage in ("corpus", "manifests", "features", "tokens"):
        shutil.copytree(experiment / stage, directory / stage)
    result = run(
        *train_command(
            recipe, directory, "epochs=1", "inner.density=0.2", "inner.density_start=0.2"
        ),
        cwd=ROOT,
        status=1,
    )
    assert "not in the tiers it is named for" in result.stderr
    assert "blocks, fewer than 10/(1 - eta) = 20" in result.stderr
    assert "not 0.01 or less" in result.stderr
    assert not (directory / "train/two_tier" / MARKER).exists()


def test_torchrun_starts_the_same_training(recipe, experiment, tmp_path):
    directory = tmp_path / "torchrun"
    for stage in ("corpus", "manifests", "features", "tokens"):
        shutil.copytree(experiment / stage, directory / stage)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    words = train_command(recipe, directory)[1:]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run(*command, *words, cwd=ROOT, env=environment)
    ours, theirs = (
        torch.load(folder / "train/two_tier/model.pt", weights_only=True)["state"]
        for folder in (directory, experiment)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    run(*command, *words, cwd=ROOT, env=environment)  # done before: every rank leaves


def test_a_system_of_an_older_corpus_is_left_out_of_the_comparison(driver, experiment, tmp_path):
    directory = tmp_path / "older"
    shutil.copytree(experiment, directory)
    changed = json.loads((directory / "train/single" / MARKER).read_text())
    changed["inputs"]["tokens"] = "0" * 64
    (directory / "train/single" / MARKER).write_text(json.dumps(changed))
    result = driver(directory, "--stage", 7)
    assert "train/single was made from other inputs" in result.stderr
    assert "one worker" not in (directory / "compare/report.txt").read_text()


def test_a_stage_before_its_predecessor_is_named(driver, tmp_path):
    result = driver(tmp_path / "empty", "--stage", 4, "--stop-stage", 4, status=1)
    assert "stage 'features' has not run yet" in result.stderr
