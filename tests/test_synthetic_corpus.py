"""The synthetic corpus: its text, its voices, and that the same seed gives the same bytes."""

import collections
import dataclasses
import itertools
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from asr.corpora import grammar, synthetic, voices
from asr.corpora.synthetic import SyntheticConfig, draw_sentences, make_corpus
from asr.errors import UserError

SMALL = SyntheticConfig(
    seed=7,
    train_words=60,
    dev_words=12,
    test_words=12,
    voices=["hibari-1.00", "robert-us"],
    unseen_voices=["m1-us"],
    jobs=1,
)


@pytest.fixture(scope="module")
def splits() -> dict[str, list[str]]:
    """The sentences of the default corpus."""
    return draw_sentences(SyntheticConfig())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of half a minute, made without interruption by one process."""
    directory = tmp_path_factory.mktemp("corpus") / "small"
    make_corpus(directory, SMALL)
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_no_sentence_occurs_twice(splits: dict[str, list[str]]) -> None:
    sentences = list(itertools.chain.from_iterable(splits.values()))
    assert len(set(sentences)) == len(sentences)


def test_sentences_are_short_lower_case_words(splits: dict[str, list[str]]) -> None:
    for text in itertools.chain.from_iterable(splits.values()):
        assert re.fullmatch(r"[a-z']+( [a-z']+)*", text), text
        assert grammar.MIN_WORDS <= len(text.split()) <= grammar.MAX_WORDS, text


def test_vocabulary(splits: dict[str, list[str]]) -> None:
    train = grammar.vocabulary(splits["train"])
    assert len(train) >= 300
    for split in ("dev", "test-seen", "test-unseen"):
        assert grammar.vocabulary(splits[split]) <= train


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fifth_of_the_test_word_pairs_is_new(seed: int) -> None:
    splits = draw_sentences(SyntheticConfig(seed=seed))
    for split in ("dev", "test-seen", "test-unseen"):
        assert grammar.unseen_pair_share(splits["train"], splits[split]) >= 0.2


def test_sizes(splits: dict[str, list[str]]) -> None:
    words = {split: sum(len(text.split()) for text in splits[split]) for split in splits}
    assert words["test-seen"] >= 5000 and words["test-unseen"] >= 5000
    assert words["dev"] >= 2000 and words["train"] >= 37000


def test_the_tests_stay_when_train_grows(splits: dict[str, list[str]]) -> None:
    more = draw_sentences(SyntheticConfig(train_words=60_000))
    assert more["test-seen"] == splits["test-seen"]
    assert more["train"][:100] == splits["train"][:100]


def test_words_per_list_sets_the_size_of_the_vocabulary(splits: dict[str, list[str]]) -> None:
    whole = draw_sentences(SyntheticConfig(words_per_list=None))
    assert len(grammar.vocabulary(whole["train"])) >= 500
    assert grammar.vocabulary(splits["train"]) < grammar.vocabulary(whole["train"])


def test_every_word_of_train_occurs_often(splits: dict[str, list[str]]) -> None:
    counts = collections.Counter(word for text in splits["train"] for word in text.split())
    assert min(counts.values()) >= 10


def test_a_grammar_that_is_too_small_says_so() -> None:
    with pytest.raises(UserError, match="no more new sentences"):
        draw_sentences(SyntheticConfig(train_words=10**6, words_per_list=1))


def test_default_voices() -> None:
    seen, unseen = set(voices.SEEN_VOICES), set(voices.UNSEEN_VOICES)
    assert len(seen) >= 12 and len(unseen) >= 4 and not seen & unseen
    assert {voices.VOICES[name].engine for name in unseen} == {"hibari", "espeak"}
    numbers = [voice.number for voice in voices.VOICES.values()]
    assert len(set(numbers)) == len(numbers)


def test_all_voices_but_the_unseen() -> None:
    lines = synthetic.plan(
        dataclasses.replace(SMALL, voices=["all"]), {"train": ["some words"] * len(voices.VOICES)}
    )
    assert {line.voice.name for line in lines} == set(voices.VOICES) - {"m1-us"}


def test_an_unknown_voice_names_the_nearest(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, voices=["robrt-us"])
    with pytest.raises(UserError, match="did you mean 'robert-us'"):
        make_corpus(tmp_path / "corpus", config)
    assert not (tmp_path / "corpus").exists()


def test_a_voice_is_seen_or_unseen(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="both voices and unseen_voices: m1-us"):
        make_corpus(tmp_path / "corpus", dataclasses.replace(SMALL, voices=["m1-us"]))


@pytest.mark.parametrize(
    "change", [{"test_words": 0}, {"voices": []}, {"snr_db": [5.0]}, {"snr_db": [9.0, 3.0]}]
)
def test_impossible_options(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        dataclasses.replace(SMALL, **change)


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("hibari-1.00", "hibari", "hibari-tts"), ("m1-us", "espeakng_loader", "espeakng-loader")],
)
def test_a_missing_engine_names_its_package(
    name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders: list[Callable[[], object]] = [voices._hibari, voices._espeak_paths]
    monkeypatch.setitem(sys.modules, module, None)
    for loader in loaders:
        loader.cache_clear()  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=f"pip install {package}"):
        voices.synthesise(voices.VOICES[name], "hello", 0)


def test_speech_does_not_depend_on_what_was_said_before() -> None:
    names = ("m1-us", "robert-rp", "hibari-0.92", "f1-scot", "klatt4-us")
    texts = ("turn off the lamp", "call doctor smith")
    orders = [list(itertools.product(names, texts)) for _ in range(2)]
    random.Random(0).shuffle(orders[1])
    first, second = (
        {(name, text): voices.synthesise(voices.VOICES[name], text, 3) for name, text in order}
        for order in orders
    )
    for key, samples in first.items():
        assert np.array_equal(samples, second[key]), key


def test_speech_is_the_same_in_another_process() -> None:
    """For every eSpeak voice of the table, so that no variant with state in it slips in."""
    program = (
        "import hashlib\n"
        "from asr.corpora.voices import VOICES, synthesise\n"
        "for v in VOICES.values():\n"
        "    if v.accent == 'en-us' and v.engine == 'espeak' or v.name == 'hibari-0.84':\n"
        "        audio = synthesise(v, 'open the window please', 5)\n"
        "        print(v.name, hashlib.sha256(audio.tobytes()).hexdigest(), abs(audio).max())\n"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for _ in range(2)
    )
    assert first == second and len(first) > 40
    assert all(0.01 < float(row.split()[2]) < 0.99 for row in first), "silent, or clipped"


@pytest.mark.parametrize("name", ["hibari-0.76", "hibari-1.20", "m1-us"])
def test_the_seed_varies_the_speech(name: str) -> None:
    text = "the meeting starts at seven o'clock on monday"
    spoken = [voices.synthesise(voices.VOICES[name], text, seed) for seed in (1, 2)]
    assert spoken[0].dtype == np.float32 and spoken[0].ndim == 1
    assert len(spoken[0]) != len(spoken[1])
    assert all(1.5 < len(samples) / voices.SAMPLE_RATE < 5.0 for samples in spoken)


def test_noise_has_the_ratio_asked_for() -> None:
    (line,) = synthetic.plan(SMALL, {"train": ["the doctor lives in london"]})
    clean = synthetic.record(line).astype(np.float64)
    for snr_db in (0.0, 10.0):
        noisy = synthetic.record(dataclasses.replace(line, snr_db=snr_db)).astype(np.float64)
        noise = noisy - clean
        ratio = 10 * np.log10(np.mean(clean**2) / np.mean(noise**2))
        assert ratio == pytest.approx(snr_db, abs=1.5)  # clean counts the silent edges as well


def test_layout(small: Path) -> None:
    transcripts = sorted(small.rglob("*.trans.txt"))
    assert len(transcripts) == 2 + 2 + 2 + 1  # chapters: train, dev, test-seen by two voices
    for transcript in transcripts:
        speaker, chapter = transcript.parent.parent.name, transcript.parent.name
        assert transcript.name == f"{speaker}-{chapter}.trans.txt"
        rows = transcript.read_text().splitlines()
        audio = sorted(path.stem for path in transcript.parent.glob("*.flac"))
        assert [row.split()[0] for row in rows] == audio
        assert all(row.split(maxsplit=1)[1].isupper() for row in rows)
        assert all(re.fullmatch(rf"{speaker}-{chapter}-\d{{4}}", name) for name in audio)
    for path in small.rglob("*.flac"):
        info = soundfile.info(path)
        assert (info.samplerate, info.channels, info.subtype) == (16000, 1, "PCM_16")
        samples, _ = soundfile.read(path)
        assert 0.02 < np.abs(samples).max() <= synthetic.PEAK + 1e-3
        edge = round(0.07 * info.samplerate)
        assert max(np.abs(samples[:edge]).max(), np.abs(samples[-edge:]).max()) < 0.01
    speakers = [row.split("|") for row in (small / "SPEAKERS.TXT").read_text().splitlines()]
    assert [row[4].strip() for row in speakers[1:]] == ["hibari-1.00", "m1-us", "robert-us"]
    assert [row[2].strip() for row in speakers[1:]] == ["train", "test-unseen", "train"]


def test_counts(small: Path) -> None:
    counts = make_corpus(small, SMALL)
    assert list(counts) == list(synthetic.SPLITS)
    assert counts["train"]["words"] >= 60 and counts["train"]["speakers"] == 2
    files = list((small / "train").rglob("*.flac"))
    assert counts["train"]["utterances"] == len(files)
    seconds = sum(soundfile.info(path).duration for path in files)
    assert counts["train"]["hours"] == pytest.approx(seconds / 3600, abs=1e-4)


def test_two_processes_give_the_same_bytes(small: Path, tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus", dataclasses.replace(SMALL, jobs=2))
    assert contents(tmp_path / "corpus") == contents(small)


def test_an_interrupted_run_is_completed(small: Path, tmp_path: Path) -> None:
    expected = contents(small)
    directory = tmp_path / "corpus"
    make_corpus(directory, SMALL)
    made = sorted(directory.rglob("*.flac"))
    kept = made[0]
    kept_at = kept.stat().st_mtime_ns
    for path in (*made[1::2], *directory.rglob("*.txt"), directory / "SPEAKERS.TXT"):
        path.unlink(missing_ok=True)
    make_corpus(directory, SMALL)
    assert contents(directory) == expected
    assert kept.stat().st_mtime_ns == kept_at


def test_other_options_make_the_corpus_anew(small: Path, tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus", dataclasses.replace(SMALL, seed=8, train_words=90))
    make_corpus(tmp_path / "corpus", SMALL)
    assert contents(tmp_path / "corpus") == contents(small)


def test_a_corpus_of_another_origin_stays(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "recorded.flac").write_bytes(b"years of work")
    with pytest.raises(UserError, match="its train is not of a synthetic corpus"):
        make_corpus(tmp_path, SMALL)
    assert contents(tmp_path) == {"train/recorded.flac": b"years of work"}
