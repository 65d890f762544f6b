"""Studies: what is run, what is kept, and what is made of it."""

import gzip
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from speech_helpers import prepare_noise, small_recipe

from asr import compare
from asr.errors import UserError
from asr.files import read_id_text
from asr.scoring.significance import difference_over_seeds, interval_over_seeds
from asr.stages import Workspace
from asr.study import run
from asr.study.config import Study
from asr.study.kept import KeptResults
from asr.study.summary import regime
from asr.study.sweeps import Sweeps
from asr.study.time_left import Work, seconds_left

TINY = {
    "epochs": 2,
    "batch_frames": 900,
    "evaluations": 1,
    "min_memory_spans": 0,
    "max_density": 1,
    "model": {"layers": 1, "hidden": 8},
}
PAIR = {"workers": 2, "outer": {"kind": "bmuf", "block_steps": 2}}
STUDY = {
    "two_tier": "both",
    "baseline": "bmuf",
    "reference": "one",
    "replicas": 200,
    "settings": TINY,
    "systems": {
        "one": {"title": "one worker", "seeds": [0, 1]},
        "bmuf": {
            "title": "BMUF only",
            "settings": PAIR,
            "sweep": {"optimizer.learning_rate": [0.01, 0.1], "outer.block_steps": [1, 2]},
        },
        "both": {"title": "two tiers", "like": "bmuf", "settings": {"inner": {"kind": "dense"}}},
        "gone": {"title": "for later", "like": "both", "later": True},
    },
}


def written(folder: Path, changes=None) -> Path:
    """A recipe with the study; ``changes`` of the study's top level."""
    recipe = small_recipe(folder / "recipe", {})
    path = recipe / "conf/study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **(changes or {})}, sort_keys=False))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "b"}, "baseline=b: no such system; there are one, bmuf, both, gone"),
        ({"margn": 1}, "unknown key 'margn'; did you mean 'margin'"),
        (
            {"systems": {**STUDY["systems"], "odd": {"title": "x", "like": "even"}}},
            "odd: like=even: no system before it",
        ),
        (
            {"systems": {**STUDY["systems"], "odd": {"title": "x", "sweep": {"epochs": [1]}}}},
            r"sweep\.epochs=\[1\]: two values or more",
        ),
        (
            {"systems": {**STUDY["systems"], "odd": {"title": "x", "settings": {"epoch": 1}}}},
            "odd: unknown key 'epoch'; did you mean 'epochs'",
        ),
        (
            {"systems": {**STUDY["systems"], "odd": {"title": "x", "seeds": [1, 1]}}},
            r"seeds=\[1, 1\]: one or more, each once",
        ),
        (
            {
                "settings": {**TINY, "workers": 3},
            },
            "bmuf: .*subgroup_size|one: .*several subgroups",
        ),
    ],
)
def test_a_mistake_in_the_file_is_told_before_anything_runs(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        Study(written(tmp_path, changes))


def test_settings_lie_over_one_another(tmp_path):
    study = Study(written(tmp_path))
    names = [run.name for run in study.sweep_runs("bmuf", {})]
    assert names[0] == "bmuf.learning_rate=0.01,block_steps=1"
    assert len(names) == 4
    tuned = {"bmuf": {"optimizer.learning_rate": 0.1, "outer.block_steps": 1}}
    (both,) = study.seed_runs("both", tuned)
    assert both.config.title == "two tiers"
    assert (both.config.workers, both.config.epochs) == (2, 2)
    assert both.config.optimizer.learning_rate == 0.1
    assert both.config.optimizer.momentum == 0.9  # the recipe's
    assert both.config.outer.block_steps == 1
    assert [run.config.seed for run in study.seed_runs("one", tuned)] == [0, 1]
    (untuned,) = study.seed_runs("both", {})
    assert untuned.config.outer.block_steps == 2


def test_systems_are_chosen_with_those_that_they_are_like(tmp_path):
    study = Study(written(tmp_path))
    assert study.chosen([], later=False) == ["one", "bmuf", "both"]
    assert study.chosen([], later=True) == ["one", "bmuf", "both", "gone"]
    assert study.chosen(["gone"], later=False) == ["bmuf", "both", "gone"]
    with pytest.raises(UserError, match="no system two; there are one"):
        study.chosen(["two"], later=False)


def enumerated(errors, words, by_group):
    """Word error rates of every draw of speakers and seeds, each as likely as the others."""
    rates = []
    for speakers in itertools.product(range(len(by_group)), repeat=len(by_group)):
        drawn = np.concatenate([by_group[s] for s in speakers])
        for seeds in itertools.product(range(len(errors)), repeat=len(errors)):
            total = np.mean([errors[s][drawn].sum() for s in seeds])
            rates.append(100 * total / words[drawn].sum())
    return np.array(rates)


def test_the_interval_over_seeds_and_speakers_is_that_of_all_draws():
    random = np.random.default_rng(0)
    words = random.integers(3, 9, size=9)
    errors = np.stack([random.binomial(words, 0.3), random.binomial(words, 0.5)])
    groups = np.array([7, 7, 7, 1, 1, 4, 4, 4, 4])
    rates = enumerated(errors, words, [np.flatnonzero(groups == g) for g in (1, 4, 7)])
    low, high = np.percentile(rates, [2.5, 97.5], method="inverted_cdf")
    found = interval_over_seeds(errors, words, groups, 40_000, seed=3)
    assert found.low == pytest.approx(low, abs=0.5)
    assert found.high == pytest.approx(high, abs=0.5)


def test_a_difference_over_seeds_pairs_speakers_but_not_seeds():
    words = np.full(6, 10)
    groups = np.array([0, 0, 1, 1, 2, 2])
    hard = np.array([[9, 9, 1, 1, 0, 0]])
    same = difference_over_seeds(hard + 1, hard, words, groups, 500, seed=0)
    assert same.interval == (10.0, 10.0)  # what makes a speaker hard cancels
    assert same.difference == 10.0
    assert same.probability_better == 0.0
    apart = np.concatenate([hard, hard + 1])
    moved = difference_over_seeds(apart, apart, words, groups, 2000, seed=0)
    assert moved.difference == 0.0
    assert moved.interval == (-10.0, 10.0)  # seeds are drawn apart
    assert moved.probability_better == pytest.approx(0.5, abs=0.05)


def test_one_speaker_or_no_words_tell_nothing():
    errors, one = np.array([[1, 2]]), np.array([0, 0])
    assert interval_over_seeds(errors, np.array([5, 5]), one, 100, seed=0) is None
    assert interval_over_seeds(errors, np.array([0, 0]), np.array([0, 1]), 100, seed=0) is None


def test_runs_outside_the_regime_of_a_tier_are_marked():
    summary = {"block_momentum": 0.75, "blocks": 19, "density": None, "steps": 190, "samples": 1900}
    found = regime(summary)
    assert (found["bmuf_spans"], found["outside"]) == (4.75, ["BMUF"])
    assert found["frames_a_step"] == 10
    both = regime({**summary, "blocks": 20, "density": 0.01})
    assert both["gtc_spans"] == pytest.approx(1.9)
    assert both["outside"] == ["GTC"]


def test_time_left_follows_from_the_nearest_number_of_workers():
    done = [Work(1, 10, 100.0), Work(32, 10, 1000.0), Work(32, 10, 3000.0)]
    left = [Work(1, 2), Work(8, 1), Work(128, 4)]
    assert seconds_left([*done, *left]) == 2 * 10 + 200 + 4 * 200
    assert seconds_left(left) is None


def keep_summary(kept, run, wer):
    folder = kept.folder / run.name
    kept.keep_failure(run, "diverged")
    if wer is not None:
        (folder / "failed.txt").unlink()
        (folder / "summary.json").write_text(json.dumps({"best_dev_wer": wer}))


def test_the_best_point_of_a_finished_sweep_is_taken_and_its_edges_told(tmp_path):
    study = Study(written(tmp_path))
    kept = KeptResults(study.results)
    runs = study.sweep_runs("bmuf", {})
    for run_, wer in zip(runs[:3], [0.5, 0.4, None], strict=True):
        keep_summary(kept, run_, wer)
    assert not Sweeps(study, kept).settled("both")
    keep_summary(kept, runs[3], 0.45)
    sweeps = Sweeps(study, kept)
    assert sweeps.tuned["bmuf"] == {"optimizer.learning_rate": 0.01, "outer.block_steps": 2}
    assert sweeps.on_edge("bmuf") == ["optimizer.learning_rate", "outer.block_steps"]
    assert sweeps.points["bmuf"][2].dev_wer is None
    assert sweeps.settled("both")


def test_a_sweep_without_a_model_is_an_error(tmp_path):
    study = Study(written(tmp_path))
    for run_ in study.sweep_runs("bmuf", {}):
        keep_summary(KeptResults(study.results), run_, None)
    with pytest.raises(UserError, match="no run of the sweep of bmuf came to a model"):
        Sweeps(study, KeptResults(study.results))


def command(path, root, *words):
    return [sys.executable, "-m", "asr", "study", path, "--dir", root, *words]


def call(path, root, *words):
    return subprocess.run(
        list(map(str, command(path, root, *words))), capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study that has run with real ranks, its results committed; file and workspace."""
    folder, systems = tmp_path_factory.mktemp("study"), STUDY["systems"]
    bmuf = {**systems["bmuf"], "sweep": {"optimizer.learning_rate": [0.01, 0.1]}}
    path, root = written(folder, {"systems": {**systems, "bmuf": bmuf}}), folder / "exp"
    for words in (["init"], ["config", "user.email", "a@b"], ["config", "user.name", "a"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    prepare_noise(root, path.parents[1])
    done = call(path, root, "--commit")
    assert done.returncode == 0, done.stderr
    return path, root


def test_a_study_leaves_tables_figures_and_small_files(finished):
    path, root = finished
    results = Study(path).results
    content = json.loads((results / "study.json").read_text())
    rows = {row["system"]: row for row in content["systems"]}
    assert list(rows) == ["one", "bmuf", "both"]
    assert len(rows["one"]["rates"]["test-a"]["by_seed"]) == 2
    assert rows["bmuf"]["workers"] == 2
    assert rows["bmuf"]["blocks"] > 0
    assert set(rows["both"]["differences"]) == {"reference", "baseline"}
    text = (results / "study.md").read_text()
    assert "Sweep of bmuf" in text
    assert "On the edge of what was tried" in text
    assert (results / "workers-test-a.svg").read_text().startswith("<?xml")
    assert sorted(p.name for p in (results / "one.seed-1").iterdir()) == [
        "config.yaml", "curves.json", "summary.json", "test-a.hyp.txt.gz",
    ]  # fmt: skip
    assert not (root / "train/one.seed-1/checkpoints").exists()
    log = subprocess.run(
        ["git", "log", "--format=%s"], cwd=results, capture_output=True, text=True, check=True
    )
    assert "recipe: study run one.seed-1" in log.stdout.splitlines()


def test_kept_runs_can_be_compared_like_any_folders(finished, tmp_path):
    path, _ = finished
    results = Study(path).results
    compare.run(
        Workspace(Path(), Path()),
        [results / "bmuf.seed-0", results / "both.seed-0"],
        out=tmp_path / "report",
    )
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert [row["system"] for row in report["systems"]] == ["bmuf.seed-0", "both.seed-0"]
    assert [row["system"] for row in report["curves"]] == ["bmuf.seed-0", "both.seed-0"]
    assert report["curves"][0]["loss"]["step"]
    rates = json.loads((results / "study.json").read_text())["systems"][1]["rates"]["test-a"]
    assert report["systems"][0]["rates"]["test-a"]["wer"] == rates["by_seed"][0]


def test_a_packed_file_that_was_cut_is_told(tmp_path):
    path = tmp_path / "a.hyp.txt.gz"
    path.write_bytes(gzip.compress(b"u1 one two\n")[:-4])
    with pytest.raises(UserError, match=r"a\.hyp\.txt\.gz: not a whole gzip file"):
        read_id_text(path)


def test_finished_runs_are_not_run_again_even_without_their_workspace(finished, tmp_path):
    path, root = finished
    results = Study(path).results
    before = {p: p.stat().st_mtime_ns for p in results.rglob("summary.json")}
    shutil.copytree(root, tmp_path / "exp", ignore=shutil.ignore_patterns("train", "decode"))
    run(Workspace(path, tmp_path / "exp"), path)
    assert {p: p.stat().st_mtime_ns for p in results.rglob("summary.json")} == before
    assert not (tmp_path / "exp/train").exists()
    listed = call(path, root, "--list", "--later")
    assert "kept  bmuf.learning_rate=0.1\n" in listed.stdout
    assert "to run  gone.seed-0\n" in listed.stdout


def test_other_settings_or_other_test_sets_under_a_kept_name_are_refused(finished, tmp_path):
    path, root = finished
    shutil.copytree(path.parents[1], tmp_path / "recipe")
    copy = tmp_path / "recipe/conf/study.yaml"
    values = yaml.safe_load(copy.read_text())
    values["systems"]["one"]["settings"] = {"epochs": 3}
    copy.write_text(yaml.safe_dump(values, sort_keys=False))
    told = call(copy, root)
    assert told.returncode == 1
    assert "one.seed-0/config.yaml: a run of other settings is kept" in told.stderr
    shutil.copytree(root / "tokens", tmp_path / "exp/tokens")
    shutil.copytree(root / "corpus", tmp_path / "exp/corpus")
    listing = tmp_path / "exp/tokens/test-a.jsonl"
    listing.write_text(listing.read_text().replace("t1", "t2"))
    told = call(path, tmp_path / "exp")
    assert told.returncode == 1
    assert "test-a.ref.txt.gz: the test set has other utterances now" in told.stderr


def test_a_run_without_a_model_does_not_keep_the_others_from_running(tmp_path):
    broken = {"title": "broken", "settings": {"optimizer": {"learning_rate": 1e30}}}
    bmuf = {"title": "BMUF only", "settings": PAIR}
    systems = {**STUDY["systems"], "both": bmuf, "broken": broken, "bmuf": bmuf}
    path = written(tmp_path, {"systems": systems})
    prepare_noise(tmp_path / "exp", path.parents[1])
    told = call(path, tmp_path / "exp", "--only", "broken", "--only", "bmuf")
    assert told.returncode == 1
    assert "no model came of broken.seed-0" in told.stderr
    rows = json.loads((Study(path).results / "study.json").read_text())["systems"]
    assert [row["system"] for row in rows] == ["bmuf"]
