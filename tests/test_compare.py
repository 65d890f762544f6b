import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asr import score
from asr.compare import run
from asr.errors import UserError
from asr.files import write_id_text, write_json, write_jsonl
from asr.stages import Workspace

ROOT = Path(__file__).parent.parent
WORDS = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"]
SETS = ("test-seen", "test-unseen")


def corrupted(text, share, generator):
    return " ".join("wrong" if generator.random() < share else word for word in text.split())


def summary(system, **changes):
    return {
        "system": system,
        "title": f"the system called {system}",
        "workers": 4,
        "subgroups": 2,
        "inner": "gtc",
        "outer": "bmuf",
        "parameters": 1_000_000,
        "train_seconds": 251.4,
        "frames_per_second": 52_345.6,
        "steps": 1200,
        "epochs": 6,
        "blocks": 120,
        "block_steps": 10,
        "block_momentum": 0.5,
        "density": 0.0042,
        "samples": 123_456,
        "bytes_per_worker": {
            "inner_wire": 12_300_000,
            "inner_payload": 9_900_000,
            "outer": 500_000_000,
        },
        "best_dev_wer": 0.05,
        "seed": 0,
        **changes,
    }


def add_system(workspace, system, share, **changes):
    """A trained and decoded system that gets ``share`` of the words wrong, and its score."""
    generator = random.Random(1)
    write_json(workspace.directory(f"train/{system}") / "stage.json", {"counts": {}})
    write_json(workspace.directory(f"train/{system}") / "summary.json", summary(system, **changes))
    write_json(workspace.directory(f"decode/{system}") / "stage.json", {"counts": {}})
    for test_set in SETS:
        texts = {f"{test_set}-{i:03d}": " ".join(generator.choices(WORDS, k=9)) for i in range(80)}
        folder = workspace.directory(f"decode/{system}") / test_set
        write_id_text(folder / "ref.txt", texts.items())
        noise = random.Random(system)
        hypotheses = {name: corrupted(text, share, noise) for name, text in texts.items()}
        write_id_text(folder / "hyp.txt", hypotheses.items())
        # Half of test-unseen is of another corpus.
        odd = "odd" if test_set == "test-unseen" else "even"
        corpora = {name: odd if int(name[-3:]) % 2 else "even" for name in texts}
        rows = [{"id": name, "speaker": "s", "corpus": corpora[name]} for name in texts]
        write_jsonl(workspace.directory("tokens") / f"{test_set}.jsonl", rows)
    score.run(workspace)


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "recipe" / "conf").mkdir(parents=True)
    for verb in ("score", "compare"):
        (tmp_path / "recipe" / "conf" / f"{verb}.yaml").write_text("replicas: 2000\n")
    workspace = Workspace(recipe=tmp_path / "recipe", root=tmp_path / "exp")
    splits = {"train": "train", "dev": "dev", "tests": list(SETS)}
    write_json(workspace.directory("corpus") / "stage.json", {"counts": {"splits": splits}})
    write_json(workspace.directory("tokens") / "stage.json", {"counts": {}})
    return workspace


def read_report(workspace):
    return json.loads((workspace.directory("compare") / "report.json").read_text())


def test_the_report_of_two_systems(workspace, capsys):
    add_system(workspace, "bmuf", 0.2, density=None)
    add_system(workspace, "two-tier", 0.05)
    run(workspace)
    report = read_report(workspace)
    assert [row["system"] for row in report["systems"]] == ["bmuf", "two-tier"]
    bmuf, two_tier = (row["rates"]["test-seen"] for row in report["systems"])
    difference = report["differences"][0]
    assert difference["relative"] == pytest.approx(
        100 * (two_tier["wer"] / bmuf["wer"] - 1), abs=0.01
    )
    assert (difference["system"], difference["test_set"]) == ("two-tier", "test-seen")
    assert difference["difference"] == pytest.approx(two_tier["wer"] - bmuf["wer"], abs=1e-3)
    assert difference["low"] < difference["difference"] < difference["high"] < 0
    assert difference["probability_better"] == 1.0
    assert difference["not_worse"] is True
    assert report["verdicts"][0].startswith("two-tier against bmuf: fewer errors on test-seen (")

    text = (workspace.directory("compare") / "report.txt").read_text()
    assert capsys.readouterr().out.startswith(text)
    by_corpus = [row for row in report["corpora"] if row["test_set"] == "test-unseen"]
    errors = [row["rates"]["two-tier"]["errors"] for row in by_corpus]
    assert sum(errors) == report["systems"][1]["rates"]["test-unseen"]["errors"]
    listed = text[text.index("Word error rates by corpus") : text.index("Word error rates by sp")]
    assert "test-unseen  odd" in listed and "test-seen" not in listed  # which is of one corpus
    for shown in ("0.420%", "12.3", "500.0", "512.3", "0:04:11", "52346"):
        assert shown in text
    assert report["verdicts"][0] in " ".join(text.split())
    assert f"{bmuf['errors']} / {bmuf['words']}" in text
    assert f"train --recipe {workspace.recipe} --dir {workspace.root} --system two-tier" in text


def test_worst_utterances_show_their_alignment_in_columns(workspace):
    add_system(workspace, "bmuf", 0.3)
    run(workspace)
    worst = read_report(workspace)["worst"]
    assert [(row["system"], row["test_set"]) for row in worst] == [
        ("bmuf", name) for name in SETS for _ in range(3)
    ]
    first = worst[0]
    reference, hypothesis, operation = (line.split() for line in first["lines"])
    assert reference[0] == "ref" and hypothesis[0] == "hyp"
    assert operation[1:].count("S") == first["errors"] == hypothesis.count("wrong")
    starts = [
        [i for i, c in enumerate(line) if c != " " and line[i - 1] == " "]
        for line in first["lines"]
    ]
    assert starts[0] == starts[1] == starts[2]


def test_a_single_system_is_reported_without_differences(workspace, capsys):
    add_system(workspace, "bmuf", 0.1)
    run(workspace)
    report = read_report(workspace)
    assert report["differences"] == [] and report["verdicts"] == []
    assert "Differences" not in capsys.readouterr().out


def test_a_missing_baseline_lists_what_there_is(workspace):
    add_system(workspace, "two-tier", 0.1)
    add_system(workspace, "single", 0.1)
    with pytest.raises(UserError, match="'bmuf' is not scored; scored are: single, two-tier"):
        run(workspace)
    assert not (workspace.directory("compare") / "report.txt").exists()


def test_a_chosen_order_is_kept_and_must_hold_the_baseline(workspace):
    add_system(workspace, "bmuf", 0.1)
    add_system(workspace, "two-tier", 0.1)
    conf = workspace.recipe / "conf" / "compare.yaml"
    conf.write_text("replicas: 200\nsystems: [two-tier, bmuf]\n")
    run(workspace)
    assert [row["system"] for row in read_report(workspace)["systems"]] == ["two-tier", "bmuf"]
    conf.write_text("systems: [bmuf, two-tier, bmuf]\n")
    with pytest.raises(UserError, match="each may be named once"):
        run(workspace)
    conf.write_text("replicas: 200\nsystems: [two-tier]\n")
    with pytest.raises(UserError, match="leaves out the baseline 'bmuf'"):
        run(workspace)


def test_a_new_system_makes_a_new_report(workspace, capsys):
    add_system(workspace, "bmuf", 0.1)
    run(workspace)
    add_system(workspace, "two-tier", 0.1)
    run(workspace)
    assert len(read_report(workspace)["systems"]) == 2
    first = capsys.readouterr().out
    run(workspace)  # skipped, and still printed
    assert first.endswith(capsys.readouterr().out)


def test_absent_figures_are_shown_as_such(workspace):
    nothing = dict.fromkeys(("inner_wire", "inner_payload", "outer"))
    absent = dict.fromkeys(("train_seconds", "frames_per_second", "blocks", "density", "epochs"))
    add_system(workspace, "bmuf", 0.0, bytes_per_worker=nothing, **absent)
    add_system(workspace, "two-tier", 0.1)
    run(workspace)
    report = read_report(workspace)
    first = report["differences"][0]
    assert first["difference"] > 0
    assert (first["relative"], first["not_worse"]) == (None, False)  # of a perfect baseline
    text = (workspace.directory("compare") / "report.txt").read_text()
    training = text[text.index("\nTraining\n") :].splitlines()
    (row,) = (line for line in training if line.startswith("bmuf  "))
    assert row.split() == [
        "bmuf",
        "-",
        "1200",
        "-",
        "123,456",
        "-",
        "-",
        "-",
        "-",
        "-",
        "-",
        "-",
        "5.00",
    ]


def test_beam_search_belongs_to_its_model(workspace):
    add_system(workspace, "bmuf", 0.2)
    add_system(workspace, "bmuf+lm", 0.1, title="not read")
    shutil.rmtree(workspace.directory("train/bmuf+lm"))
    run(workspace)
    titles = [row["title"] for row in read_report(workspace)["systems"]]
    assert titles == ["the system called bmuf"] * 2
    commands = read_report(workspace)["commands"]
    assert not any("--system bmuf+lm" in command for command in commands)
    (verdict,) = read_report(workspace)["verdicts"]
    assert verdict.endswith("; one model.") and "trained" not in verdict


def test_what_was_left_out_is_listed(workspace):
    add_system(workspace, "bmuf", 0.1)
    rows = [
        {"id": f"u{i}", "split": "train", "reason": "too long", "detail": "", "seconds": 40.0}
        for i in range(12)
    ]
    write_jsonl(workspace.directory("manifests") / "rejected.jsonl", rows)
    hypotheses = workspace.directory("decode/bmuf") / "test-seen/hyp.txt"
    hypotheses.write_text("".join(hypotheses.read_text().splitlines(keepends=True)[1:]))
    run(workspace)
    rejected, unscored = read_report(workspace)["left_out"]
    assert (rejected["set"], rejected["reason"]) == ("train", "too long")
    assert (rejected["utterances"], rejected["seconds"]) == (12, 480.0)
    assert rejected["ids"] == [f"u{i}" for i in range(10)]
    assert (unscored["what"], unscored["utterances"]) == ("bmuf", 1)
    assert unscored["ids"] == ["test-seen-000"]


def test_folders_are_compared_without_the_packages_of_training(tmp_path):
    for name, said in (("a", "one two"), ("b", "one three")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ref.txt").write_text("u1 one two\n")
        (tmp_path / name / "hyp.txt").write_text(f"u1 {said}\n")
    absent = ["torch", "torchaudio", "lhotse", "sentencepiece", "kaldi_native_fbank"]
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "from asr.__main__ import main; sys.exit(main(['compare', 'a', 'b']))"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert (tmp_path / "comparison/report.html").exists()
