import json
import random

import pytest

from asr import score
from asr.compare import (
    CompareConfig,
    Results,
    paired_difference,
    run,
    table,
    verdict,
    worst_utterances,
)
from asr.errors import UserError
from asr.files import write_id_text, write_json, write_jsonl
from asr.score import score_texts
from asr.stages import Workspace

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
        "bytes_per_worker": {"inner_wire": 12_300_000, "inner_payload": 9_900_000, "outer": 5e8},
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


def test_beam_search_is_reported_with_the_training_of_its_model(workspace):
    add_system(workspace, "bmuf", 0.2)
    add_system(workspace, "bmuf+lm", 0.1)
    (workspace.directory("train/bmuf+lm") / "stage.json").unlink()
    (workspace.directory("train/bmuf+lm") / "summary.json").unlink()
    run(workspace)
    report = read_report(workspace)
    assert [row["system"] for row in report["systems"]] == ["bmuf", "bmuf+lm"]
    assert {row["title"] for row in report["systems"]} == {"the system called bmuf"}
    trained = [line for line in report["commands"] if " train " in line]
    assert len(trained) == 1 and trained[0].endswith("--system bmuf")


def test_the_report_of_two_systems(workspace, capsys):
    add_system(workspace, "bmuf", 0.2, density=None)
    add_system(workspace, "two-tier", 0.05)
    run(workspace)
    report = read_report(workspace)
    assert [row["system"] for row in report["systems"]] == ["bmuf", "two-tier"]
    bmuf, two_tier = (row["rates"]["test-seen"] for row in report["systems"])
    assert bmuf["relative"] == 0.0
    assert two_tier["relative"] == pytest.approx(
        100 * (two_tier["wer"] / bmuf["wer"] - 1), abs=0.01
    )
    difference = report["differences"][0]
    assert (difference["system"], difference["test_set"]) == ("two-tier", "test-seen")
    assert difference["difference"] == pytest.approx(two_tier["wer"] - bmuf["wer"], abs=1e-3)
    assert difference["low"] < difference["difference"] < difference["high"] < 0
    assert difference["probability_better"] == 1.0
    assert report["verdicts"][0].startswith("two-tier against bmuf: fewer errors on test-seen (-")

    text = (workspace.directory("compare") / "report.txt").read_text()
    assert capsys.readouterr().out.startswith(text)
    lines = [line for line in text.splitlines() if str(workspace.root) not in line]
    assert max(map(len, lines)) <= 140
    by_corpus = report["systems"][1]["rates"]["test-unseen"]["corpora"]
    assert (
        sum(rate["errors"] for rate in by_corpus.values())
        == report["systems"][1]["rates"]["test-unseen"]["errors"]
    )
    assert f"{by_corpus['odd']['errors']} / {40 * 9}" in text
    assert list(report["systems"][1]["rates"]["test-seen"]["corpora"]) == ["even"]
    assert (
        len([line for line in lines if "  even  " in line]) == 2
    )  # one a system, not of test-seen
    for shown in ("0.420%", "12.3", "500.0", "0:04:11", "52346"):
        assert shown in text
    assert report["verdicts"][0] in " ".join(text.split())
    assert f"{bmuf['errors']} / {bmuf['words']}" in text
    assert f"train --recipe {workspace.recipe} --dir {workspace.root} --system two-tier" in text


def test_worst_utterances_show_their_alignment_in_columns(workspace):
    add_system(workspace, "bmuf", 0.3)
    run(workspace)
    worst = read_report(workspace)["worst"]
    assert [(row["system"], row["test_set"]) for row in worst] == [("bmuf", name) for name in SETS]
    assert [len(row["utterances"]) for row in worst] == [3, 3]
    first = worst[0]["utterances"][0]
    reference, hypothesis, operation = (line.split() for line in first["lines"])
    assert reference[0] == "ref" and hypothesis[0] == "hyp"
    assert operation[1:].count("S") == first["errors"] == hypothesis.count("wrong")
    starts = [
        [i for i, c in enumerate(line) if c != " " and line[i - 1] == " "]
        for line in first["lines"]
    ]
    assert starts[0] == starts[1] == starts[2]


def test_long_utterances_are_wrapped(workspace):
    text = " ".join(WORDS * 30)
    result = Results("a", {}, {}, {"t": score_texts({"u": text}, {"u": text.replace("echo", "x")})})
    (worst,) = worst_utterances(result.scores["t"], 1)
    assert max(map(len, worst["lines"])) <= 120
    words = [word for line in worst["lines"] if line.startswith("ref") for word in line.split()[1:]]
    assert " ".join(words) == text


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
    assert report["systems"][1]["rates"]["test-seen"]["relative"] is None  # of a perfect baseline
    text = (workspace.directory("compare") / "report.txt").read_text()
    training = next(
        line for line in text.splitlines() if line.startswith("bmuf  ") and "1200" in line
    )
    assert training.split() == ["bmuf", "4", "2", "-", "1200", *["-"] * 7]


def compared(system, hypotheses, references):
    return Results(system, {}, {}, {"t": score_texts(references, hypotheses)})


def test_different_references_cannot_be_compared():
    one = compared("a", {"u": "x"}, {"u": "x"})
    other = compared("b", {"u": "y"}, {"u": "y"})
    with pytest.raises(UserError, match="t: 'a' and 'b' were scored on different references"):
        paired_difference(one, other, "t", CompareConfig())


def test_pairing_takes_away_what_is_hard_for_both():
    references = {f"u{i}": "a b c d" for i in range(200)}
    hard = {name: "x y z w" if i % 4 == 0 else "a b c d" for i, name in enumerate(references)}
    better = {**hard, "u1": "a b c d", **{f"u{i}": "x y z d" for i in range(0, 80, 4)}}
    row = paired_difference(
        compared("new", better, references), compared("old", hard, references), "t", CompareConfig()
    )
    # Each system's own rate varies by about 6 points, their paired difference by about 1.
    assert row["difference"] == pytest.approx(-2.5)
    assert -4 < row["low"] < row["high"] < -1.2


def test_equal_systems_show_no_difference():
    references = {f"u{i}": "a b" for i in range(20)}
    same = compared("new", references, references), compared("old", references, references)
    row = paired_difference(*same, "t", CompareConfig())
    assert (row["low"], row["high"], row["probability_better"]) == (0, 0, 0.5)
    assert "no difference shown on t" in verdict([row])


def test_a_set_without_words_has_no_difference():
    silent = {"u1": "", "u2": ""}
    pair = compared("new", {"u1": "x"}, silent), compared("old", {}, silent)
    row = paired_difference(*pair, "t", CompareConfig())
    assert row["difference"] is None
    assert "no reference words" in verdict([row])


@pytest.mark.parametrize(
    ("low", "high", "claim"),
    [
        (-0.5, -0.1, "fewer errors"),
        (0.1, 0.5, "more errors"),
        (-0.5, 0.1, "no difference shown"),
        (-0.5, 0.0, "no difference shown"),
    ],
)
def test_the_verdict_claims_what_the_interval_allows(low, high, claim):
    row = {"system": "new", "baseline": "old", "test_set": "t", "low": low, "high": high}
    sentence = verdict([{**row, "difference": (low + high) / 2}])
    assert sentence.startswith(f"new against old: {claim} on t (")
    assert f"{low:+.2f} to {high:+.2f}" in sentence


def test_table_columns_are_aligned():
    assert table(["name", "n"], [["a", "12"], ["longer", "3"]], left=1) == [
        "name     n",
        "------  --",
        "a       12",
        "longer   3",
    ]
