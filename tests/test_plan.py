"""A plan against the run that it foretold, and what it says before anything has run."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml
from speech_helpers import prepare_noise, small_recipe, speech_like

from asr.audio.validation import Rules
from asr.errors import UserError
from asr.filterbank.fbank import LogMelFbankConfig
from asr.plan import run
from asr.planning.config import PlanConfig
from asr.planning.estimates import ImaginedUtterances, speed_frames, spread_durations
from asr.planning.preparation_rate import measure_given, measure_made
from asr.planning.table import bytes_text
from asr.stages import Workspace

ROOT = Path(__file__).resolve().parents[1]
SMALL = {
    "train.yaml": {
        "epochs": 25,
        "batch_frames": 420,
        "evaluations": 2,
        "max_density": 0.2,
        "model": {"layers": 2, "hidden": 96},
    },
    "systems/two_tier.yaml": {
        "inner": {"density": 0.05, "density_start": 0.05},
        "outer": {"block_steps": 7},
    },
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return small_recipe(tmp_path_factory.mktemp("recipes") / "mini", SMALL)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, recipe):
    root = tmp_path_factory.mktemp("exp")
    prepare_noise(root, recipe)
    return root


def planned(recipe, root, *systems, folder):
    run(Workspace(recipe, root), systems, folder / "plan.json", None)
    return json.loads((folder / "plan.json").read_text())


def test_a_run_of_four_ranks_is_as_planned(recipe, prepared, tmp_path):
    plan = planned(recipe, prepared, "two_tier", folder=tmp_path)["systems"]["two_tier"]
    command = ["train", "--recipe", recipe, "--dir", prepared, "--system", "two_tier"]
    trained = subprocess.run(
        [sys.executable, "-m", "asr", *map(str, command)], cwd=ROOT, capture_output=True, text=True
    )
    assert trained.returncode == 0, trained.stderr[-3000:]
    directory = prepared / "train/two_tier"
    summary = json.loads((directory / "summary.json").read_text())
    for exact in ("steps", "blocks", "parameters", "subgroups", "block_momentum"):
        assert plan[exact] == summary[exact], exact
    sent = summary["bytes_per_worker"]
    assert plan["run_bytes"]["tier 2"] == pytest.approx(sent["outer"], rel=0.03)
    # GTC needs some steps to come to its density, and its room follows the worker that sends most.
    assert plan["run_bytes"]["tier 1"] == pytest.approx(sent["inner_wire"], rel=0.25)
    payload = plan["levels"]["subgroup"]["payload"] * plan["steps"]
    density = summary["density"] / 0.05
    assert payload * density == pytest.approx(sent["inner_payload"], rel=0.05)
    (checkpoint,) = (directory / "checkpoints").iterdir()
    written = sum(file.stat().st_size for file in checkpoint.iterdir())
    assert plan["checkpoint_bytes"] == pytest.approx(written, rel=0.04)
    models = list((directory / "models").iterdir())
    assert len(models) == 2
    written = sum(file.stat().st_size for file in models)
    assert plan["evaluated_models"] == pytest.approx(written, rel=0.04)


def test_a_prepared_corpus_is_counted(recipe, prepared, tmp_path):
    plan = planned(recipe, prepared, folder=tmp_path)
    assert set(plan["systems"]) == {"bmuf", "single", "two_tier"}
    preparation = plan["preparation"]
    assert preparation["counted"] == ["corpus", "manifests", "features", "tokens"]
    assert preparation["splits"]["train"] == {"hours": 0.03, "utterances": 80}
    files = [file for file in (prepared / "features").rglob("*") if file.is_file()]
    stored = sum(file.stat().st_size for file in files)
    assert preparation["disk"]["features"] == stored
    rate = preparation["rates"]["flac"]
    hours = 0.0313
    assert preparation["core_hours"]["validation"] == pytest.approx(hours / rate["validation"])


def test_before_anything_has_run_the_recipe_says_what_there_is(tmp_path, capsys):
    plan = planned(ROOT / "recipes/mini", tmp_path / "none", "single", "bmuf", folder=tmp_path)
    disk = plan["preparation"]["disk"]
    assert disk["features"] == pytest.approx(7.53 * 360_000 * 64 * 4, rel=0.01)
    assert disk["corpus"] == 459e6
    single, bmuf = plan["systems"]["single"], plan["systems"]["bmuf"]
    # 6.4 h in batches of up to 11 s of padded audio, of utterances of 2.3 s.
    assert 7 * 6.4 * 3600 / 11 < single["steps"] < 1.3 * 7 * 6.4 * 3600 / 11
    assert bmuf["steps"] == pytest.approx(single["steps"] / 4, rel=0.01)
    shown = capsys.readouterr().out
    assert "data (from conf/plan.yaml)" in shown and "about: activations" in shown
    assert "blocks * (1 - eta)" in shown


def test_systems_that_would_not_pass_are_warned_of(recipe, prepared, tmp_path, capsys):
    folder = tmp_path / "mini"
    shutil.copytree(recipe, folder)
    systems = {
        "short": {"workers": 16, "subgroup_size": 2, "inner": {"kind": "gtc"},
                  "outer": {"kind": "bmuf", "block_steps": 10}},
        "dense": {"workers": 8, "subgroup_size": 8,
                  "inner": {"kind": "gtc", "density": 0.45, "density_start": 0.45}},
        "alone": {"workers": 4, "inner": {"kind": "gtc"},
                  "outer": {"kind": "bmuf", "block_steps": 1}},
        "hosts": {"workers": 6, "subgroup_size": "host", "outer": {"kind": "bmuf"}},
        "levels": {"workers": 8, "subgroup_size": 8, "inner": {"kind": "dense_in_host"}},
    }  # fmt: skip
    for name, values in systems.items():
        file = folder / "conf/systems" / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"title": name, **values}))
    (folder / "conf/plan.yaml").write_text("ranks_per_host: 4\ngpu_gigabytes: 0.01\n")
    plans = planned(folder, prepared, *systems, folder=tmp_path)["systems"]
    warnings = {name: " | ".join(plan["warnings"]) for name, plan in plans.items()}
    assert "blocks, fewer than 10/(1 - eta) = 80" in warnings["short"]
    assert "a dense all-reduce" in warnings["dense"] and "dense all" not in warnings["short"]
    assert "GTC had nobody to exchange with" in warnings["alone"]
    assert "6 workers do not fill hosts of 4" in warnings["hosts"]
    assert "more than gpu_gigabytes=0.01" in warnings["levels"]
    assert plans["hosts"]["subgroups"] == 2
    assert set(plans["levels"]["levels"]) == {"in host", "between hosts"}
    assert "warning: short: " in capsys.readouterr().out


def test_what_cannot_be_planned_is_said(recipe, prepared, tmp_path):
    folder = tmp_path / "own"
    shutil.copytree(recipe, folder)
    (folder / "conf/plan.yaml").unlink()
    with pytest.raises(UserError, match="names no part of train, and stage 1 has not run"):
        run(Workspace(folder, tmp_path / "none"), [], None, None)
    with pytest.raises(UserError, match="no such configuration file"):
        run(Workspace(recipe, prepared), ["nosuch"], None, None)
    (folder / "conf/systems/long.yaml").write_text("title: x\nbatch_frames: 100\n")
    with pytest.raises(UserError, match="system long: utterance u\\d\\d has .* more than a batch"):
        run(Workspace(folder, prepared), ["long"], None, None)
    for hours, utterances, mean in ((1000, 5, "720000 s"), (1, 1_000_000, "0.0036 s")):
        part = f"{{name: talks, hours: {hours}, utterances: {utterances}, archive_bytes: 0, "
        text = f"parts: [{part} audio_bytes: 0}}]\n"
        (folder / "conf/plan.yaml").write_text(text)
        with pytest.raises(UserError, match=f"plan.yaml: part talks: .* {mean} each, which is no"):
            run(Workspace(folder, tmp_path / "none"), ["single"], None, None)
    with pytest.raises(ValueError, match="link_gigabits=0"):
        PlanConfig(link_gigabits=0)


def test_durations_sum_to_the_hours_within_their_bounds():
    drawn = spread_durations(36_000, 4_000, 0.5, 20.0, seed=1)
    assert drawn.sum() == pytest.approx(36_000, rel=0.01)
    assert drawn.min() >= 0.5 and drawn.max() <= 20.0 and drawn.std() > 3
    assert np.array_equal(drawn, spread_durations(36_000, 4_000, 0.5, 20.0, seed=1))
    frames = speed_frames(np.array([1.0, 2.0]), [0.5, 1.0, 2.0], 0.01)
    assert frames.tolist() == [[100, 200, 50], [200, 400, 100]]
    assert len(ImaginedUtterances(frames, ["a", "b"], np.array([0, 1]))) == 2


RULES = Rules(16_000, 0.1, 30.0)


@pytest.mark.parametrize("kind", ["flac", "ogg", "nist"])
def test_the_rate_is_measured_on_audio_that_passes(kind):
    rate = measure_made(kind, RULES, LogMelFbankConfig(), [0.9, 1.0])
    assert rate.validation > 1 and min(rate.features.values()) > 1
    assert set(rate.features) == {"0.9", "1"} and f"made as {kind}" in rate.sample


@pytest.mark.parametrize(
    "change", [{"max_seconds": 10.0}, {"min_seconds": 12.5}, {"channel": 1}, {"channel": "mix"}]
)
def test_the_rate_is_measured_whatever_the_recipe_asks_of_its_audio(change):
    rules = dataclasses.replace(RULES, **change)
    assert measure_made("flac", rules, LogMelFbankConfig(), [1.0]).validation > 1


def test_the_rate_on_a_folder_of_audio(tmp_path):
    soundfile.write(tmp_path / "a.wav", speech_like(1.0), 16_000)
    (tmp_path / "b.wav").write_bytes(b"no audio")
    assert (
        "first 2 audio files" in measure_given(tmp_path, RULES, LogMelFbankConfig(), [1.0]).sample
    )
    (tmp_path / "a.wav").unlink()
    with pytest.raises(UserError, match="nothing to measure: .*: not-audio"):
        measure_given(tmp_path, RULES, LogMelFbankConfig(), [1.0])


def test_sizes_in_words():
    assert [bytes_text(n) for n in (0, 999, 1234, 56_789_000, 3.2e12)] == [
        "-", "999 B", "1.23 kB", "56.8 MB", "3.2 TB",
    ]  # fmt: skip
