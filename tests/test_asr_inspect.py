"""``python -m asr inspect``: what it says of a corpus whose contents are known."""

import gzip
import json
import shutil

import numpy as np
import pytest
from lhotse.cut import MonoCut
from speech_helpers import SPLITS, finish_stage, make_cut, small_corpus, small_recipe

from asr import features, tokens
from asr.__main__ import main
from asr.filterbank.cuts import write_cuts
from asr.filterbank.fbank import LogMelFbank, LogMelFbankConfig
from asr.filterbank.storage import load_cuts
from asr.listing import cut_of, nearest, read_rows
from asr.pictures import mel_centres
from asr.stages import Workspace

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def exp(tmp_path_factory):
    """Stages 0 to 3 of a corpus of 11 utterances, of which one more was rejected."""
    root = tmp_path_factory.mktemp("exp")
    small_corpus(root)
    rejected = {"id": "train-9", "split": "train", "file": "a.flac", "reason": "silent",
                "detail": "all zero", "seconds": 3.6}  # fmt: skip
    (root / "manifests/rejected.jsonl").write_text(json.dumps(rejected) + "\n")
    recipe = small_recipe(tmp_path_factory.mktemp("recipes") / "mini", {})
    features.run(Workspace(recipe, root))
    tokens.run(Workspace(recipe, root))
    return root


@pytest.fixture
def inspect(capsys):
    def inspect(*words, status=0):
        assert main(["inspect", *map(str, words)]) == status
        shown = capsys.readouterr()
        return shown.out if status == 0 else shown.err

    return inspect


def test_a_directory_is_told_on_one_screen(exp, inspect, tmp_path):
    shown = inspect(exp, "--out", tmp_path / "pictures")
    assert len(shown.splitlines()) < 50
    assert "stages           corpus, features, manifests, tokens" in shown
    assert "silent" in shown
    assert (tmp_path / "pictures/train-durations.png").read_bytes().startswith(PNG)
    told = json.loads(inspect(exp, "--json"))
    train = told["splits"]["train"]
    assert (train["utterances"], train["words"], train["speakers"]) == (7, 14, 1)
    seconds = [1.0 + 0.7137 * i for i in range(7)]
    assert train["hours"] == pytest.approx(sum(seconds) / 3600, abs=1e-4)
    assert train["seconds"]["median"] == pytest.approx(seconds[3], abs=1e-3)
    assert train["tokens"]["least"] == len("no")
    assert list(train["hours_by_corpus"]) == ["test"]
    assert told["rejected"] == {"silent": {"utterances": 1, "hours": 0.001}}
    assert sum(bar[2] for bar in told["histogram of train"]) == 7


def test_a_manifest(exp, inspect):
    told = json.loads(inspect(exp / "manifests/dev.jsonl.gz", "--json"))
    assert (told["utterances"], told["tokens"]) == (2, None)
    assert "utterances       2" in inspect(exp / "manifests/dev.jsonl.gz")


def test_a_file_of_features(exp, inspect, tmp_path):
    stored = exp / "features/train/00000.f32"
    told = json.loads(inspect(stored, "--json"))
    assert (told["utterances"], told["bins"], told["not finite"]) == (7, 64, 0)
    assert told["frames"]["greatest"] == 528
    damaged = tmp_path / "features"
    shutil.copytree(exp / "features", damaged)
    (damaged / "train" / stored.name).write_bytes(stored.read_bytes()[:-100])
    assert "utterance train-6: " in inspect(damaged / "train" / stored.name, status=1)
    said = inspect(damaged / "train" / stored.name, status=1)
    assert "cut short" in said and len(said.splitlines()) == 1 and "MonoCut" not in said
    lone = tmp_path / "lone" / "folder" / "x.f32"
    lone.parent.mkdir(parents=True)
    lone.write_bytes(b"1234")
    assert "lone/folder.jsonl.gz does not exist" in inspect(lone, status=1)


def test_an_utterance(exp, inspect, tmp_path):
    shown = inspect("train-1", "--dir", exp, "--out", tmp_path)
    assert "text             the second of may" in shown
    assert "0.000 to 1.714 s of 1.714 s, channel 0" in shown
    assert "171 frames of 64 bins" in shown
    picture = tmp_path / "train-1.png"
    assert picture.read_bytes().startswith(PNG)
    told = json.loads(inspect("train-1", "--dir", exp, "--json"))
    assert told["tokens"] == len("the second of may")
    assert told["pieces"].split()[:3] == ["t", "h", "e"]
    assert (told["split"], told["corpus"], told["speaker"]) == ("train", "test", "s")
    assert told["text as written"] is None  # this corpus has no transcripts of its own


def test_the_transcript_as_it_was_written(tmp_path, inspect):
    """In LibriSpeech's layout: upper case, in the speaker's own file."""
    chapter = tmp_path / "corpus/train/1/2"
    chapter.mkdir(parents=True)
    (chapter / "1-2.trans.txt").write_text("1-2-0000 CALL ANNA\n")
    (chapter / "1-2-0000.flac").write_bytes(b"")
    finish_stage(tmp_path, "manifests", {})
    part = {"source": "librispeech", "root": ".", "splits": {"train": ["train"]}}
    finish_stage(tmp_path, "corpus", {"splits": SPLITS, "parts": {"x": part}})
    cut = make_cut("1-2-0000", 16_000, "call anna", "x.flac")
    write_cuts(tmp_path / "manifests/train.jsonl.gz", [cut])
    told = json.loads(inspect("1-2-0000", "--dir", tmp_path, "--json"))
    assert (told["text as written"], told["text"]) == ("CALL ANNA", "call anna")
    assert (told["features"], told["tokens"]) == ("stage 2 has not run", "stage 3 has not run")
    words = ["1-2-0000", "--dir", tmp_path, "--out", tmp_path / "pictures"]
    assert "run the features stage first" in inspect(*words, status=1)


def test_what_is_not_there_is_named_with_what_is_near(exp, inspect, tmp_path):
    said = inspect("trian-3", "--dir", exp, status=1)
    assert "no utterance 'trian-3'" in said and "train-3" in said
    said = inspect("train-9", "--dir", exp, status=1)
    assert "was rejected by stage 1: silent: all zero (a.flac)" in said
    assert "stage 1 has not run" in inspect("train-1", "--dir", tmp_path, status=1)
    assert "give a directory in which stage 1 has run" in inspect(tmp_path, status=1)
    assert "no such file" in inspect(tmp_path / "no.jsonl.gz", status=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b'{"id": "a", "duration": 1}\n' * 999)[:-30], "damaged after line"),
        (b"no gzip", "damaged after line 0"),
        (gzip.compress(b'{"id": "a", "duration": 1}\n{"id"\n'), ":2: not a cut"),
        (gzip.compress(b'{"id": "a"}\n'), ":1: not a cut: it lacks id or duration"),
        (gzip.compress(b"[1]\n"), ":1: not a cut"),
        (gzip.compress(b"\xff\xff\n"), "damaged after line 0"),
    ],
)
def test_a_damaged_manifest_is_named(content, message, inspect, tmp_path):
    (tmp_path / "bad.jsonl.gz").write_bytes(content)
    assert message in inspect(tmp_path / "bad.jsonl.gz", status=1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('"duration": "2.5"', "duration='2.5' is no number of seconds"),
        ('"duration": null', "duration=None is no number"),
        ('"duration": NaN', "duration=nan is no number"),
        ('"duration": true', "duration=True is no number"),
        ('"duration": 1, "supervisions": [{"text": 7}]', "text=7 is no text"),
        ('"duration": 1, "supervisions": [{"speaker": ["s"]}]', "speaker=['s'] is no text"),
        ('"duration": 1, "supervisions": ["one"]', "a supervision is no JSON object"),
        ('"duration": 1, "supervisions": 1', "supervisions is no list"),
        ('"duration": 1, "custom": {"corpus": 1}', "corpus=1 is no text"),
        ('"duration": 1, "custom": [1]', "custom, features or a supervision is no"),
    ],
)
def test_a_row_of_other_types_is_named(row, message, inspect, tmp_path):
    good = '{"id": "a", "duration": 1, "supervisions": null, "custom": {"corpus": null}}'
    content = good + '\n{"id": "b", ' + row + "}\n"
    (tmp_path / "bad.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    said = inspect(tmp_path / "bad.jsonl.gz", status=1)
    assert "bad.jsonl.gz:2: not a cut: " in said and message in said
    assert "rerun its stage with --force" in said


@pytest.fixture
def prepared(exp, tmp_path):
    """A copy of what the stages left, to be damaged."""
    shutil.copytree(exp, tmp_path / "exp")
    return tmp_path / "exp"


def rewrite(manifest, change):
    """Each row of ``manifest`` as ``change`` returns it."""
    lines = "".join(json.dumps(change(row)) + "\n" for row in list(read_rows(manifest)))
    manifest.write_bytes(gzip.compress(lines.encode()))


@pytest.mark.parametrize("what", ["train-6", "features/train/00000.f32"])
def test_a_damaged_manifest_of_features_is_named(what, prepared, inspect):
    manifest = prepared / "features/train.jsonl.gz"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    words = [prepared / what] if "/" in what else [what, "--dir", prepared]
    assert "features/train.jsonl.gz: damaged after line" in inspect(*words, status=1)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("recording", None),
        ("recording", {}),
        ("supervisions", []),
        ("features", {"num_frames": 1}),
        ("nosuch", 1),
    ],
)
def test_a_row_that_is_no_cut_of_speech_is_named(part, value, prepared, inspect):
    rewrite(prepared / "features/train.jsonl.gz", lambda row: {**row, part: value})
    said = inspect("train-1", "--dir", prepared, status=1)
    assert "features/train.jsonl.gz: utterance train-1: not a cut of speech" in said


@pytest.mark.parametrize(
    ("listing", "row", "said"),
    [
        ("manifests/rejected.jsonl", {"id": "a", "seconds": 1}, "row 2 lacks reason"),
        ("tokens/train.jsonl", {"id": "a"}, "row 2 lacks tokens"),
        ("tokens/train.jsonl", ["a"], "row 2 lacks tokens"),
    ],
)
def test_a_row_of_a_list_that_lacks_something_is_named(listing, row, said, prepared, inspect):
    first = (prepared / listing).read_text().splitlines()[0]
    (prepared / listing).write_text(f"{first}\n{json.dumps(row)}\n")
    assert f"{listing}: {said}; mend the line" in inspect(prepared, status=1)


def test_an_unreadable_place_of_features_is_told(prepared, inspect):
    def lost(row):
        return {**row, "features": {**row["features"], "storage_key": "12"}}

    rewrite(prepared / "features/train.jsonl.gz", lost)
    assert "utterance train-1: " in inspect("train-1", "--dir", prepared, status=1)


@pytest.mark.parametrize("what", ["train-1", "features/train/00000.f32"])
def test_of_other_utterances_no_cuts_are_made(what, prepared, inspect, monkeypatch):
    made, make = [], MonoCut.from_dict

    def recorded(row):
        made.append(row["id"])
        return make(row)

    def alone(row):
        shard = "train/00000.f32" if row["id"] == "train-1" else "train/00001.f32"
        return {**row, "features": {**row["features"], "storage_path": shard}}

    rewrite(prepared / "features/train.jsonl.gz", alone)
    monkeypatch.setattr(MonoCut, "from_dict", staticmethod(recorded))
    inspect(*([prepared / what] if "/" in what else [what, "--dir", prepared]))
    assert made == ["train-1"]


def test_a_row_becomes_the_cut_that_the_trainer_sees(exp):
    for stage in ("manifests", "features"):
        manifest = exp / stage / "train.jsonl.gz"
        assert [cut_of(row, manifest) for row in read_rows(manifest)] == list(load_cuts(manifest))


def test_an_empty_manifest(inspect, tmp_path):
    (tmp_path / "none.jsonl.gz").write_bytes(gzip.compress(b""))
    told = json.loads(inspect(tmp_path / "none.jsonl.gz", "--json", "--out", tmp_path))
    assert (told["utterances"], told["seconds"]) == (0, None)


def test_neighbours_of_an_id_among_many():
    ids = [f"{speaker}-{number:04}" for speaker in range(100) for number in range(50)]
    assert all(near.startswith("42-00") for near in nearest("42-0051", ids))
    assert nearest("x", []) == []


@pytest.mark.parametrize("hertz", [300, 1000, 3000])
def test_a_tone_is_loudest_in_the_bin_whose_centre_is_nearest(hertz):
    config = LogMelFbankConfig()
    tone = 0.1 * np.sin(2 * np.pi * hertz * np.arange(16_000) / 16_000).astype(np.float32)
    loudest = LogMelFbank(config).extract(tone, 16_000).mean(axis=0).argmax()
    assert loudest == np.abs(mel_centres(config) - hertz).argmin()
