import gzip
import json
import os
import shutil

import numpy as np
import pytest
import soundfile

from asr import manifests
from asr.__main__ import main
from asr.audio.validation import REASONS, Rules, examine_all
from asr.audio.validation import examine as examine_together
from asr.corpora import CorpusConfig, Splits, Utterance
from asr.errors import UserError
from asr.manifests import ManifestConfig

RULES = Rules(sample_rate=16000, min_seconds=0.1, max_seconds=30.0)
CONTAINERS = {
    "flac": {"format": "FLAC"},
    "wav": {"format": "WAV"},
    "ogg": {"format": "OGG", "subtype": "VORBIS"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "mp3": {"format": "MP3"},
}


def noise(seconds=0.5, rate=16000, channels=1, seed=0):
    shape = (round(seconds * rate), channels)
    return 0.1 * np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def write(path, samples=None, rate=16000, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, noise() if samples is None else samples, rate, **options)
    return path


def utterance(audio, text="some words"):
    return Utterance(id="u", audio=audio, text=text, speaker="1", source="t.trans.txt:7")


def examine(one, may_be_empty, rules):
    (verdict,) = examine_together([(one, may_be_empty)], rules)
    return verdict


def measure(path, rules):
    verdict = examine(utterance(path), False, rules)
    assert verdict.reason is None
    return verdict.samples


class Tree:
    """A corpus of three splits in LibriSpeech's layout, and a workspace for it."""

    def __init__(self, root):
        self.corpus, self.recipe, self.exp = root / "corpus", root / "recipe", root / "exp"
        self.transcripts = {}
        for number, split in enumerate(("train", "dev", "test")):
            for i in range(4):
                self.add(split, f"{number}-1-{i:04}", f"WORDS NUMBER {i}")
        (self.recipe / "conf").mkdir(parents=True)
        self.configure("corpus", source="librispeech", name="tiny", corpus_dir=str(self.corpus))
        self.configure("corpus", splits={"train": "train", "dev": "dev", "tests": ["test"]})
        self.configure("manifests", max_rejected=0.3)

    def configure(self, verb, **values):
        with open(self.recipe / "conf" / f"{verb}.yaml", "a") as file:
            file.writelines(f"{key}: {json.dumps(value)}\n" for key, value in values.items())

    def folder(self, split, identifier):
        speaker, chapter, _ = identifier.split("-")
        return self.corpus / split / speaker / chapter

    def add(self, split, identifier, text, **options):
        write(self.folder(split, identifier) / f"{identifier}.flac", **options)
        self.transcribe(split, identifier, f"{identifier} {text}\n".encode())

    def transcribe(self, split, identifier, line):
        speaker, chapter, _ = identifier.split("-")
        path = self.folder(split, identifier) / f"{speaker}-{chapter}.trans.txt"
        with open(path, "ab") as file:
            file.write(line)
        return path

    def verb(self, name, *words):
        return main([name, "--recipe", str(self.recipe), "--dir", str(self.exp), *words])

    def run(self, *words):
        assert self.verb("corpus") == 0
        return self.verb("manifests", *words)

    def rejected(self):
        lines = (self.exp / "manifests" / "rejected.jsonl").read_text().splitlines()
        return {row["id"]: row for row in map(json.loads, lines)}

    def cuts(self, split):
        from lhotse import CutSet  # here, since worker processes import this module too

        return CutSet.from_file(self.exp / "manifests" / f"{split}.jsonl.gz").to_eager()

    def marker(self, stage):
        return json.loads((self.exp / stage / "stage.json").read_text())


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


# Audio


@pytest.mark.parametrize("suffix", CONTAINERS)
def test_measures_the_decoded_length(tmp_path, suffix):
    path = write(tmp_path / f"a.{suffix}", **CONTAINERS[suffix])
    assert measure(path, RULES) == 8000


@pytest.mark.parametrize("kept", [0.5, 0.999])
@pytest.mark.parametrize("suffix", CONTAINERS)
def test_a_cut_off_file_is_truncated(tmp_path, suffix, kept):
    path = write(tmp_path / f"a.{suffix}", noise(2), **CONTAINERS[suffix])
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    assert examine(utterance(path), False, RULES).reason == "truncated"


def test_a_flac_that_breaks_midway_is_truncated(tmp_path):
    path = write(tmp_path / "a.flac", noise(20))
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 500] = bytes(500)
    path.write_bytes(content)
    verdict = examine(utterance(path), False, RULES)
    assert (verdict.reason, verdict.file) == ("truncated", str(path))


@pytest.mark.parametrize("claim", [0x7FFFFFFF, 0x7FFFFFFF - 36, 0xFFFFFFFF])
def test_a_streamed_wav_is_as_long_as_it_decodes(tmp_path, claim):
    path = write(tmp_path / "a.wav")
    content = bytearray(path.read_bytes())
    assert content[36:40] == b"data"
    content[40:44] = claim.to_bytes(4, "little")
    path.write_bytes(content)
    assert measure(path, RULES) == 8000


def absurd_wav(path):
    write(path)
    content = bytearray(path.read_bytes())
    content[24:28] = (1_092_676).to_bytes(4, "little")
    path.write_bytes(content)


def with_sample(value):
    samples = noise()
    samples[100] = value
    return samples


FAULTS = {
    "missing-audio": lambda path: None,
    "empty-file": lambda path: path.touch(),
    "not-audio": lambda path: path.write_text("these are words\n" * 50),
    "absurd-rate": absurd_wav,
    "wrong-rate": lambda path: write(path, noise(rate=8000), rate=8000),
    "channels": lambda path: write(path, noise(channels=2)),
    "no-samples": lambda path: write(path, noise(0)),
    "silent": lambda path: write(path, np.zeros(8000)),
    "too-short": lambda path: write(path, noise(0.09)),
    "too-long": lambda path: write(path, noise(30.1)),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_names_the_fault_of_the_audio(tmp_path, reason):
    path = tmp_path / "a.wav"
    FAULTS[reason](path)
    verdict = examine(utterance(path), False, RULES)
    assert verdict.reason == reason
    assert verdict.detail
    assert reason in REASONS


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sample_that_is_not_finite(tmp_path, value):
    path = write(tmp_path / "a.wav", with_sample(value), subtype="FLOAT")
    assert examine(utterance(path), False, RULES).reason == "not-finite"


def test_a_nan_is_found_before_louder_blocks(tmp_path):
    samples = np.concatenate([with_sample(np.nan), noise(20)])
    path = write(tmp_path / "a.wav", samples, subtype="FLOAT")
    assert examine(utterance(path), False, RULES).reason == "not-finite"


def test_bounds_of_duration_belong_to_it(tmp_path):
    assert measure(write(tmp_path / "a.flac", noise(0.1)), RULES) == 1600
    assert measure(write(tmp_path / "b.flac", noise(30.0)), RULES) == 480000


# Transcripts


@pytest.mark.parametrize("text", ["", " .. "])
def test_an_empty_transcript_is_legal_in_a_test_set_only(tmp_path, text):
    path = write(tmp_path / "a.flac")
    assert examine(utterance(path, text), False, RULES).reason == "empty-text"
    verdict = examine(utterance(path, text), True, RULES)
    assert (verdict.reason, verdict.text, verdict.samples) == (None, "", 8000)


@pytest.mark.parametrize(
    ("text", "reason"), [(None, "missing-transcript"), ("fifty %", "unsafe-text")]
)
def test_a_fault_of_the_transcript_names_its_line(tmp_path, text, reason):
    verdict = examine(utterance(write(tmp_path / "a.flac"), text), True, RULES)
    assert (verdict.reason, verdict.file, verdict.seconds) == (reason, "t.trans.txt:7", 0.5)


def test_processes_give_the_same_verdicts_in_order(tmp_path):
    utterances = []
    for i in range(40):
        path = write(tmp_path / f"{i}.flac", noise(0.1 + i / 1000))
        utterances.append(utterance(path, f"words {i}" if i % 7 else ""))
    may_be_empty = [i % 2 == 0 for i in range(40)]
    alone = list(examine_all(utterances, may_be_empty, RULES, jobs=1))
    together = list(examine_all(utterances, may_be_empty, RULES, jobs=2))
    assert alone == together
    assert {verdict.reason for _, verdict in alone} == {None, "empty-text"}
    assert sorted(place for place, _ in alone) == list(range(40))


class DeadlyPath:
    """Ends the process that looks at it, as a crash inside a decoder does."""

    def stat(self):
        os._exit(7)


def test_a_process_that_dies_is_reported(tmp_path):
    good = utterance(write(tmp_path / "good.flac"))
    utterances = [good] * 20 + [utterance(DeadlyPath())] * 20
    with pytest.raises(UserError, match="a process that decodes audio died"):
        list(examine_all(utterances, [False] * 40, RULES, jobs=2))


# The stages


def test_a_sound_corpus_becomes_cuts(tree):
    from lhotse.qa import validate

    assert tree.run() == 0
    for split in ("train", "dev", "test"):
        cuts = tree.cuts(split)
        validate(cuts, read_data=True)
        assert [cut.id for cut in cuts] == sorted(cut.id for cut in cuts)
    cut = tree.cuts("dev")[2]
    supervision = cut.supervisions[0]
    assert (cut.id, cut.duration, cut.num_samples) == ("1-1-0002", 0.5, 8000)
    assert (supervision.id, supervision.text, supervision.speaker) == (
        "1-1-0002",
        "words number 2",
        "1",
    )
    assert cut.custom == {"corpus": "tiny"}
    assert tree.rejected() == {}
    counts = {"utterances": 4, "hours": 0.0006, "words": 12, "speakers": 1, "rejected": 0}
    counts |= {"with_digits": 4, "corpora": {"tiny": {"utterances": 4, "hours": 0.0006}}}
    assert tree.marker("manifests")["counts"]["splits"]["train"] == counts
    corpus = tree.marker("corpus")["counts"]
    assert corpus["splits"] == {"train": "train", "dev": "dev", "tests": ["test"]}
    assert corpus["audio_files"] == {"train": 4, "dev": 4, "test": 4}
    assert corpus["parts"]["tiny"]["root"] == str(tree.corpus.resolve())


def test_the_same_corpus_gives_the_same_bytes(tree, monkeypatch):
    def contents():
        files = sorted((tree.exp / "manifests").glob("*.jsonl*"))
        return {file.name: file.read_bytes() for file in files}

    assert tree.run() == 0
    first = contents()
    # As if run at another time, by another process.
    monkeypatch.setattr(gzip.time, "time", lambda: 1.0e9)
    monkeypatch.setattr(os, "getpid", lambda: 12345)
    assert tree.verb("manifests", "--force", "jobs=1") == 0
    assert contents() == first
    assert len(first) == 4


def test_ids_are_sorted_bytewise(tree):
    for identifier in ("0-1-é", "0-1-a", "0-1-B"):
        tree.add("train", identifier, "WORDS")
    assert tree.run() == 0
    assert [cut.id for cut in tree.cuts("train")][-3:] == ["0-1-B", "0-1-a", "0-1-é"]


def test_other_audio_formats_are_found(tree):
    for i, (suffix, options) in enumerate(CONTAINERS.items()):
        identifier = f"0-2-{i:04}"
        write(tree.folder("train", identifier) / f"{identifier}.{suffix.upper()}", **options)
        tree.transcribe("train", identifier, f"{identifier} WORDS\n".encode())
    assert tree.run() == 0
    assert len(tree.cuts("train")) == 4 + len(CONTAINERS)


def test_transcripts_as_other_systems_write_them(tree):
    write(tree.folder("train", "0-2-0001") / "0-2-0001.flac")
    write(tree.folder("train", "0-2-0002") / "0-2-0002.flac")
    content = "\ufeff0-2-0001\u00a0IT’S\u3000WINDOWS \r\n\r\n0-2-0002 NO LINE END"
    tree.transcribe("train", "0-2-0001", content.encode())
    assert tree.run() == 0
    texts = {cut.id: cut.supervisions[0].text for cut in tree.cuts("train")}
    assert texts["0-2-0001"] == "it's windows"
    assert texts["0-2-0002"] == "no line end"


def test_nothing_is_dropped_silently(tree):
    for i in range(20):
        tree.add("train", f"0-2-{i:04}", "WORDS")
    (tree.folder("train", "0-2-0000") / "0-2-0000.flac").unlink()
    write(tree.folder("train", "0-3-0000") / "0-3-0000.flac")
    path = tree.transcribe("train", "0-2-0020", b"0-2-0020 CAF\xe9\n")
    write(tree.folder("train", "0-2-0020") / "0-2-0020.flac")
    (tree.folder("train", "0-2-0005") / "0-2-0005.flac").write_bytes(b"")
    assert tree.run() == 0
    rejected = tree.rejected()
    assert {name: row["reason"] for name, row in rejected.items()} == {
        "0-2-0000": "missing-audio",
        "0-2-0005": "empty-file",
        "0-2-0020": "unsafe-text",
        "0-3-0000": "missing-transcript",
    }
    assert rejected["0-2-0020"]["file"] == f"{path}:21"
    assert rejected["0-2-0000"]["file"] == f"{path}:1"
    assert rejected["0-3-0000"]["seconds"] == 0.5
    assert rejected["0-2-0000"]["split"] == "train"
    counts = tree.marker("manifests")["counts"]
    assert counts["splits"]["train"]["utterances"] == len(tree.cuts("train")) == 22
    assert counts["splits"]["train"]["rejected"] == 4
    assert counts["rejected"]["unsafe-text"]["utterances"] == 1


def test_too_many_rejected_fail_the_stage_with_the_reasons(tree, capsys):
    (tree.folder("dev", "1-1-0001") / "1-1-0001.flac").write_bytes(b"")
    assert tree.run("max_rejected=0.2") == 1
    message = capsys.readouterr().err
    assert "split 'dev': 1 of 4" in message
    assert "empty-file: 1" in message
    assert "1-1-0001.flac" in message
    assert tree.rejected()["1-1-0001"]["reason"] == "empty-file"
    assert not (tree.exp / "manifests" / "stage.json").exists()
    assert not list((tree.exp / "manifests").glob("*.gz"))
    assert tree.verb("manifests", "max_rejected=0.25") == 0


def test_a_split_must_keep_an_utterance(tree, capsys):
    for i in range(4):
        (tree.folder("dev", "1-1-0") / f"1-1-{i:04}.flac").unlink()
    assert tree.run("max_rejected=1.0") == 1
    assert "one must be left" in capsys.readouterr().err


def test_a_split_without_utterances(tree, capsys):
    shutil.rmtree(tree.corpus / "dev" / "1")
    assert tree.run() == 1
    assert "split 'dev' has no utterances" in capsys.readouterr().err


@pytest.mark.parametrize("split", ["train", "test"])
def test_duplicate_ids_name_both_places(tree, capsys, split):
    second = tree.folder(split, "9-9-0") / "9-9.trans.txt"
    second.parent.mkdir(parents=True)
    second.write_text("0-1-0002 AGAIN\n")
    write(second.parent / "0-1-0002.flac")
    assert tree.run() == 1
    message = capsys.readouterr().err
    assert "'0-1-0002' occurs twice" in message
    assert f"{tree.folder('train', '0-1-0') / '0-1.trans.txt'}:3" in message
    assert f"{second}:1" in message


def test_an_id_twice_in_one_transcript(tree, capsys):
    path = tree.transcribe("train", "0-1-0002", b"0-1-0002 AGAIN\n")
    assert tree.run() == 1
    message = capsys.readouterr().err
    assert f"{path}:3" in message
    assert f"{path}:5" in message


def test_two_audio_files_of_one_id(tree, capsys):
    path = write(tree.folder("train", "0-1-0") / "0-1-0002.wav")
    assert tree.run() == 1
    message = capsys.readouterr().err
    assert str(path) in message
    assert "0-1-0002.flac" in message


def test_a_missing_split_names_what_is_there(tree, capsys):
    (tree.corpus / "dev").rename(tree.corpus / "dev-clean")
    assert tree.verb("corpus") == 1
    assert "'dev'" in (message := capsys.readouterr().err)
    assert "dev-clean, test, train" in message


def test_a_missing_corpus_folder(tree, capsys):
    tree.corpus.rename(tree.corpus.with_name("elsewhere"))
    assert tree.verb("corpus") == 1
    assert "no such corpus folder" in capsys.readouterr().err


def test_audio_outside_a_speaker_folder(tree, capsys):
    write(tree.corpus / "train" / "0-1-0009.flac")
    assert tree.run() == 1
    assert "<split>/<speaker>/<chapter>" in capsys.readouterr().err


def test_an_id_that_is_not_utf8(tree, capsys):
    path = tree.transcribe("train", "0-1-0002", b"caf\xe9-1-1 WORDS\n")
    assert tree.run() == 1
    assert f"{path}:5" in capsys.readouterr().err


def test_manifests_before_the_corpus(tree, capsys):
    assert tree.verb("manifests") == 1
    assert "stage 'corpus' has not run" in capsys.readouterr().err


def test_unchanged_stages_are_skipped(tree, monkeypatch):
    assert tree.run() == 0
    before = tree.marker("corpus"), tree.marker("manifests")
    # Nothing is decoded or listed anew; the number of processes is no reason to.
    monkeypatch.setattr(manifests, "examine_all", None)
    assert tree.run("jobs=2") == 0
    assert (tree.marker("corpus"), tree.marker("manifests")) == before


def test_a_folder_written_in_another_way_is_the_same_corpus(tree, monkeypatch):
    assert tree.verb("corpus") == 0
    before = (tree.exp / "corpus" / "stage.json").stat().st_mtime_ns
    monkeypatch.chdir(tree.corpus.parent)
    assert tree.verb("corpus", f"corpus_dir={tree.corpus.name}/") == 0
    assert (tree.exp / "corpus" / "stage.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("change", ["touched", "removed", "added"])
def test_a_changed_corpus_file_reruns_both_stages(tree, change):
    assert tree.run() == 0
    before = tree.marker("corpus"), tree.marker("manifests")
    file = tree.folder("train", "0-1-0") / "0-1-0002.flac"
    if change == "touched":
        os.utime(file, ns=(0, 0))
    elif change == "removed":
        file.unlink()
    else:
        tree.add("train", "0-2-0000", "NEW WORDS")
    assert tree.run() == 0
    assert tree.marker("corpus")["outputs"] != before[0]["outputs"]
    assert tree.marker("manifests")["inputs"] != before[1]["inputs"]


def test_verify_compares_contents(tree):
    assert tree.verb("corpus") == 0
    assert tree.verb("corpus", "--verify") == 0
    path = tree.exp / "corpus" / "stage.json"
    before = path.stat().st_mtime_ns
    assert tree.verb("corpus", "--verify") == 0
    assert path.stat().st_mtime_ns == before
    file = tree.folder("train", "0-1-0") / "0-1.trans.txt"
    time = file.stat().st_mtime_ns
    file.write_text(file.read_text().replace("WORDS", "WARDS"))
    os.utime(file, ns=(time, time))
    assert tree.verb("corpus") == 0
    assert path.stat().st_mtime_ns == before
    assert tree.verb("corpus", "--verify") == 0
    assert path.stat().st_mtime_ns > before


def test_a_synthetic_corpus_passes_whole(tree):
    (tree.recipe / "conf" / "corpus.yaml").unlink()
    tree.configure(
        "corpus",
        source="synthetic",
        synthetic={
            "train_words": 60,
            "dev_words": 20,
            "test_words": 20,
            "voices": ["m1-us"],
            "unseen_voices": ["m7-us"],
        },
    )
    assert tree.run("max_rejected=0") == 0
    made = tree.marker("corpus")["counts"]["synthetic"]
    counts = tree.marker("manifests")["counts"]["splits"]
    assert list(counts) == ["train", "dev", "test-seen", "test-unseen"]
    for split in counts:
        assert counts[split]["utterances"] == made[split]["utterances"] > 0
        assert counts[split]["words"] == made[split]["words"]
    next((tree.exp / "corpus" / "train").rglob("*.flac")).unlink()
    before = tree.marker("manifests")["outputs"]
    assert tree.run("max_rejected=0") == 0
    assert tree.marker("manifests")["outputs"] == before


# Configuration


def test_paths_of_what_lies_in_the_workspace_move_with_it(tmp_path):
    directory = tmp_path / "exp" / "manifests"
    directory.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "exp")
    inside = (tmp_path / "exp/corpus/unpacked/a.flac").resolve()
    for folder in (directory, tmp_path / "link" / "manifests"):
        assert manifests._source(inside, folder) == "../corpus/unpacked/a.flac"
        outside = (tmp_path / "exponent/a.flac").resolve()
        assert manifests._source(outside, folder) == str(outside)


@pytest.mark.parametrize(
    "values",
    [
        {"sample_rate": 0},
        {"min_seconds": 2.0, "max_seconds": 1.0},
        {"min_seconds": 0.0},
        {"max_rejected": 1.5},
        {"jobs": 0},
        {"text_version": 999},
    ],
)
def test_manifest_values_are_checked(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        ManifestConfig(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": "librispeech"}, "needs corpus_dir"),
        ({"corpus_dir": "somewhere"}, "source=librispeech"),
        ({"splits": Splits(train="train-clean-5")}, "not in the synthetic corpus"),
    ],
)
def test_corpus_values_are_checked(values, message):
    with pytest.raises(ValueError, match=message):
        CorpusConfig(**values)


@pytest.mark.parametrize(
    "values", [{"dev": "train"}, {"tests": []}, {"train": "../train"}, {"dev": ""}]
)
def test_split_names_are_checked(values):
    with pytest.raises(ValueError, match="split"):
        Splits(**values)
