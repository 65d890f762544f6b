import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import jiwer
import pytest

from asr.errors import UserError
from asr.files import write_id_text, write_json, write_jsonl
from asr.score import (
    read_alignments,
    run,
    score_files,
    write_alignments,
)
from asr.scoring import texts as scored_texts
from asr.scoring.summary import ScoreConfig
from asr.scoring.texts import score_texts
from asr.stages import Workspace


def files(folder, references, hypotheses):
    write_id_text(folder / "ref.txt", references.items())
    write_id_text(folder / "hyp.txt", hypotheses.items())
    return folder / "ref.txt", folder / "hyp.txt"


def test_the_wer_line_is_kaldis(tmp_path):
    references = {"u1": "the cat sat", "u2": "on the mat", "u3": "all day"}
    hypotheses = {"u1": "the bat sat", "u2": "on mat", "u3": "all day long now"}
    score = score_files(*files(tmp_path, references, hypotheses))
    assert score.wer_line() == "%WER 50.00 [ 4 / 8, 2 ins, 1 del, 1 sub ]"
    assert score.ser_line() == "%SER 100.00 [ 3 / 3 ]"


def test_a_missing_hypothesis_is_deleted_and_named(tmp_path, caplog):
    references = {"u1": "one two", "u2": "three", "u3": "four five"}
    hypotheses = {"u1": "one two", "u3": "four five"}
    score = score_files(*files(tmp_path, references, hypotheses))
    assert score.wer_line() == "%WER 20.00 [ 1 / 5, 0 ins, 1 del, 0 sub ]"  # later ones not moved
    assert score.missing == ["u2"]
    assert "u2" in caplog.text and "1 of 3" in caplog.text


def test_an_extra_hypothesis_is_an_error_that_names_it(tmp_path):
    with pytest.raises(UserError, match=r"hyp\.txt: no reference in .*ref\.txt.*'u9'"):
        score_files(*files(tmp_path, {"u1": "a"}, {"u1": "a", "u9": "b"}))


def test_a_repeated_id_is_an_error_that_names_both_lines(tmp_path):
    reference, hypothesis = files(tmp_path, {"u1": "a", "u2": "b"}, {"u1": "a"})
    hypothesis.write_text("u1 a\nu2 b\nu1 a\n")
    with pytest.raises(UserError, match=r"hyp\.txt:3: .*'u1'.*line 1"):
        score_files(reference, hypothesis)


def test_a_reference_without_utterances_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"ref\.txt: no utterances"):
        score_files(*files(tmp_path, {}, {}))


@pytest.mark.parametrize(
    ("reference", "hypothesis", "line"),
    [
        ("", "", "%WER nan [ 0 / 0, 0 ins, 0 del, 0 sub ]"),
        ("", "a b", "%WER nan [ 2 / 0, 2 ins, 0 del, 0 sub ]"),
        ("a b", "", "%WER 100.00 [ 2 / 2, 0 ins, 2 del, 0 sub ]"),
    ],
)
def test_empty_sides(tmp_path, reference, hypothesis, line):
    assert score_files(*files(tmp_path, {"u": reference}, {"u": hypothesis})).wer_line() == line


def test_insertions_into_an_empty_reference_count_in_the_total(tmp_path):
    score = score_files(*files(tmp_path, {"a": "", "b": "one two"}, {"a": "x", "b": "one two"}))
    assert score.wer_line() == "%WER 50.00 [ 1 / 2, 1 ins, 0 del, 0 sub ]"
    assert score.sentence_errors == 1


def test_both_sides_pass_through_one_normaliser(tmp_path):
    reference, hypothesis = tmp_path / "ref.txt", tmp_path / "hyp.txt"
    reference.write_text("u1 THE\u00a0Cat\n", encoding="utf-8")
    hypothesis.write_text("u1 the cat\n", encoding="utf-8")
    assert score_files(reference, hypothesis).total.errors == 0
    assert score_files(hypothesis, reference).total.errors == 0


def test_a_reference_that_the_normaliser_refuses_is_an_error_that_names_it(tmp_path):
    with pytest.raises(UserError, match=r"ref\.txt: utterance 'u1': .*<unk>"):
        score_files(*files(tmp_path, {"u1": "hey <unk>"}, {"u1": "hey <unk>"}))


def test_a_hypothesis_that_the_normaliser_refuses_keeps_its_wrong_word(tmp_path, caplog):
    score = score_files(*files(tmp_path, {"u1": "hey joe"}, {"u1": "HEY <unk>"}))
    assert score.wer_line() == "%WER 50.00 [ 1 / 2, 0 ins, 0 del, 1 sub ]"
    assert "'u1'" in caplog.text and "<unk>" in caplog.text


@pytest.mark.parametrize(
    ("reference", "hypothesis", "line"),
    [
        ("twenty-one", "twenty one", "0 / 2, 0 ins, 0 del, 0 sub"),  # a hyphen parts words
        ("twentyone", "twenty-one", "2 / 1, 1 ins, 0 del, 1 sub"),
        ("Straße", "STRASSE", "1 / 1, 0 ins, 0 del, 1 sub"),  # lower case is all that is done
        ("ÜBER", "über", "0 / 1, 0 ins, 0 del, 0 sub"),
        ("cafe\u0301", "café", "0 / 1, 0 ins, 0 del, 0 sub"),
        ("john 's", "John’s", "0 / 1, 0 ins, 0 del, 0 sub"),
        ("東京 タワー", "東京タワー", "2 / 2, 0 ins, 1 del, 1 sub"),  # words are parted by spaces
        ("a b", "a <unk>", "1 / 2, 0 ins, 0 del, 1 sub"),  # never right, on neither side
    ],
)
def test_what_counts_as_the_same_word(tmp_path, reference, hypothesis, line):
    score = score_files(*files(tmp_path, {"u": reference}, {"u": hypothesis}))
    assert score.wer_line().endswith(f"[ {line} ]")


def test_one_file_may_hold_both_sides(tmp_path):
    recogs = tmp_path / "recogs-test.txt"
    recogs.write_text("u1:\tref=['ONE', 'TWO']\nu1:\thyp=['ONE']\nu2:\tref=['X']\n")
    score = score_files(recogs, recogs)
    assert score.wer_line() == "%WER 66.67 [ 2 / 3, 0 ins, 2 del, 0 sub ]"
    assert score.missing == ["u2"]


def test_references_and_hypotheses_may_be_of_different_formats(tmp_path):
    (tmp_path / "ref.trn").write_text("one two (u1)\nthree (u2)\n")
    (tmp_path / "hyp.csv").write_text("id,text\nu2,three\nu1,one too\n")
    score = score_files(tmp_path / "ref.trn", tmp_path / "hyp.csv")
    assert score.wer_line() == "%WER 33.33 [ 1 / 3, 0 ins, 0 del, 1 sub ]"


def test_alignments_read_back_as_written(tmp_path):
    references = {"é-1": "grüße aus köln", "u2": "", "u3": "one two three", "u4": ""}
    hypotheses = {"é-1": "grüsse köln", "u2": "", "u3": "one too three four", "u4": "x"}
    score = score_texts(references, hypotheses)
    write_alignments(tmp_path / "per_utt.txt", score)
    assert read_alignments(tmp_path / "per_utt.txt") == score
    lines = (tmp_path / "per_utt.txt").read_text(encoding="utf-8").splitlines()
    assert lines[4:8] == [
        "u3 ref   one two three ***",
        "u3 hyp   one too three four",
        "u3 op    C   S   C     I",
        "u3 #csid 2 1 1 0",
    ]


def test_a_count_that_jiwer_does_not_confirm_is_an_internal_error(monkeypatch):
    monkeypatch.setattr(
        scored_texts.jiwer, "process_words", lambda *_: jiwer_process(["a b"], ["a c"])
    )
    with pytest.raises(RuntimeError, match="0 errors in 2 words, jiwer 1"):
        score_texts({"u": "a b"}, {"u": "a b"})


jiwer_process = jiwer.process_words


def test_100_000_utterances_are_not_quadratic():
    references = {f"u{i:06d}": f"word{i % 7} and word{i % 5}" for i in range(100_000)}
    hypotheses = {name: text.replace("word3", "word4") for name, text in references.items()}
    begin = time.perf_counter()
    score = score_texts(references, hypotheses)
    assert time.perf_counter() - begin < 120  # quadratic would be hours
    assert score.total.words == 300_000
    assert score.total.substitutions == sum(
        text.split().count("word3") for text in references.values()
    )


def workspace_with_decoded_system(root):
    """Markers and files that the score stage reads, for one system and one test set."""
    recipe = root / "recipe"
    (recipe / "conf").mkdir(parents=True)
    (recipe / "conf" / "score.yaml").write_text("replicas: 500\n")
    workspace = Workspace(recipe=recipe, root=root / "exp")
    splits = {"train": "train", "dev": "dev", "tests": ["test"]}
    write_json(workspace.directory("corpus") / "stage.json", {"counts": {"splits": splits}})
    for stage in ("tokens", "decode/bmuf"):
        write_json(workspace.directory(stage) / "stage.json", {"counts": {}})
    speakers = ["s0", "s1", "s0", "s1", "silent"]
    rows = [
        {"id": f"u{i}", "speaker": speaker, "corpus": "ab"[i == 2], "duration": 1.5 + i}
        for i, speaker in enumerate(speakers)
    ]
    write_jsonl(workspace.directory("tokens") / "test.jsonl", rows)
    references = {f"u{i}": "" if i == 4 else "go to the red house" for i in range(5)}
    hypotheses = {**references, "u1": "go to a house", "u4": "uh"}
    del hypotheses["u2"]
    files(workspace.directory("decode/bmuf") / "test", references, hypotheses)
    return workspace


def test_the_stage_writes_totals_speakers_missing_and_worst(tmp_path):
    workspace = workspace_with_decoded_system(tmp_path)
    run(workspace)
    scored = workspace.directory("score/bmuf") / "test"
    assert (scored / "wer.txt").read_text() == (
        "%WER 40.00 [ 8 / 20, 1 ins, 6 del, 1 sub ]\n%SER 60.00 [ 3 / 5 ]\n"
    )
    report = json.loads((scored / "wer.json").read_text())
    assert report["wer"] == 40.0
    assert report["missing"] == ["u2"]
    assert report["empty_references"] == 1
    assert report["speakers"]["s1"]["errors"] == 2 and report["speakers"]["s1"]["words"] == 10
    assert report["corpora"]["b"]["wer"] == 100 and report["corpora"]["b"]["words"] == 5
    assert report["corpora"]["a"]["errors"] == 3
    assert report["speakers"]["silent"]["wer"] is None
    assert report["speakers"]["silent"]["insertions"] == 1
    assert [row["id"] for row in report["worst"]] == ["u2", "u1", "u4"]
    assert report["worst"][2]["wer"] is None
    interval = report["interval"]
    assert "bootstrap over utterances" in interval["kind"]
    assert 0 <= interval["low"] < 40 < interval["high"] <= 100
    by_speaker = report["interval_by_speaker"]
    assert by_speaker["kind"] == "95 % percentile bootstrap over speakers"
    # Of s1 alone 3 times: 20 %; of s0 and twice the silent one: 7 errors in 10 words.
    assert by_speaker["low"] == 20 and by_speaker["high"] == 70


def test_the_stage_writes_bins_of_duration_characters_words_and_confusions(tmp_path):
    workspace = workspace_with_decoded_system(tmp_path)
    run(workspace)
    report = json.loads((workspace.directory("score/bmuf") / "test" / "wer.json").read_text())
    bins = [
        (row["from"], row["to"], row["utterances"], row["errors"]) for row in report["durations"]
    ]
    assert bins == [(1, 2, 1, 0), (2, 4, 2, 7), (4, 8, 2, 1)]
    assert report["sentence_error_rate"] == 60.0
    # "the red" -> "a" of u1: 3 letters by one, and "red " deleted; u2's 19 characters; "uh".
    assert report["characters"] == {
        "cer": pytest.approx(100 * 28 / 76, abs=1e-4),
        "errors": 28,
        "characters": 76,
    }
    assert report["confusions"] == [{"said": "the", "heard": "a", "count": 1}]
    assert report["deleted_words"] == {"red": 2, "go": 1, "house": 1, "the": 1, "to": 1}
    assert report["inserted_words"] == {"uh": 1}


def test_other_tools_files_hold_the_same_counts(tmp_path):
    workspace = workspace_with_decoded_system(tmp_path)
    run(workspace)
    scored = workspace.directory("score/bmuf") / "test"
    rows = [line.split() for line in (scored / "ops").read_text().splitlines()]
    kinds = {kind: sum(int(row[3]) for row in rows if row[0] == kind) for kind, *_ in rows}
    assert kinds == {"correct": 13, "deletion": 6, "insertion": 1, "substitution": 1}
    speakers = (scored / "per_spk").read_text().splitlines()
    assert speakers[-2].split() == ["SUM", "raw", "5", "20", "13", "1", "1", "6", "8", "3"]
    words = [line.split("\t") for line in (scored / "words.tsv").read_text().splitlines()[1:]]
    assert [sum(int(row[i]) for row in words) for i in range(1, 5)] == [13, 1, 6, 1]
    again = score_files(scored / "ref.trn", scored / "hyp.trn")  # u2, missing, is empty now
    assert again.wer_line() == (scored / "wer.txt").read_text().splitlines()[0]
    segments = (scored / "ref.stm").read_text().splitlines()
    assert segments[0] == "u0 1 s0 0.00 1.50 go to the red house"
    listed = json.loads((scored.parent / "stage.json").read_text())["outputs"]
    assert {f"test/{path.name}" for path in scored.iterdir()} == listed.keys()


def test_a_listing_without_durations_gives_neither_bins_nor_an_stm(tmp_path):
    workspace = workspace_with_decoded_system(tmp_path)
    listing = workspace.directory("tokens") / "test.jsonl"
    rows = [json.loads(line) for line in listing.read_text().splitlines()]
    write_jsonl(listing, [{k: v for k, v in row.items() if k != "duration"} for row in rows])
    run(workspace)
    scored = workspace.directory("score/bmuf") / "test"
    assert json.loads((scored / "wer.json").read_text())["durations"] == []
    assert not (scored / "ref.stm").exists()


def test_a_set_without_reference_words_has_neither_rate_nor_interval(tmp_path):
    workspace = workspace_with_decoded_system(tmp_path)
    files(workspace.directory("decode/bmuf") / "test", {"u0": "", "u1": ""}, {"u0": "uh", "u1": ""})
    run(workspace)
    scored = workspace.directory("score/bmuf") / "test"
    assert (scored / "wer.txt").read_text().startswith("%WER nan [ 1 / 0, 1 ins,")
    report = json.loads((scored / "wer.json").read_text())
    assert report["wer"] is None and report["interval"] is None and report["insertions"] == 1
    assert report["interval_by_speaker"] is None
    assert report["characters"] == {"cer": None, "errors": 2, "characters": 0}


def test_the_stage_gives_the_same_files_twice_and_skips_when_done(tmp_path):
    workspace = workspace_with_decoded_system(tmp_path)
    run(workspace)
    report = workspace.directory("score/bmuf") / "test" / "wer.json"
    first, written = report.read_bytes(), report.stat().st_mtime_ns
    run(workspace)
    assert report.stat().st_mtime_ns == written
    run(dataclasses.replace(workspace, force=True))
    assert report.stat().st_mtime_ns != written
    assert report.read_bytes() == first


def test_scoring_before_decoding_names_the_stage(tmp_path):
    workspace = workspace_with_decoded_system(tmp_path)
    (workspace.directory("decode/bmuf") / "stage.json").unlink()
    with pytest.raises(UserError, match="decode stage first"):
        run(workspace)


def test_the_command_scores_two_files(tmp_path):
    reference, hypothesis = files(tmp_path, {"u1": "a b c d"}, {"u1": "a b x d"})
    command = [sys.executable, "-m", "asr.score", str(reference)]
    root = Path(__file__).parents[1]
    done = subprocess.run([*command, str(hypothesis)], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0
    assert done.stdout == "%WER 25.00 [ 1 / 4, 0 ins, 0 del, 1 sub ]\n%SER 100.00 [ 1 / 1 ]\n"
    failed = subprocess.run([*command, "nowhere.txt"], capture_output=True, text=True, cwd=root)
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: nowhere.txt: no such file")
    assert "Traceback" not in failed.stderr
    failed = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=root)
    assert failed.returncode == 1 and "directory" in failed.stderr
    assert failed.stderr.startswith("error: ")


def test_settings_that_mean_nothing_are_refused():
    for name in ("seed", "worst", "frequent"):
        with pytest.raises(ValueError, match=f"{name}=-1: 0 or more"):
            ScoreConfig(**{name: -1})
