"""A synthetic corpus in LibriSpeech's layout: sentences of a grammar, spoken by two engines.

    <directory>/<split>/<speaker>/<chapter>/<speaker>-<chapter>-<nnnn>.flac   16 kHz, mono, 16 bit
    <directory>/<split>/<speaker>/<chapter>/<speaker>-<chapter>.trans.txt     <utterance-id> TEXT
    <directory>/SPEAKERS.TXT                                    ID | SEX | SUBSET | MINUTES | NAME

The splits are train, dev and test-seen, with the same voices, and test-unseen, with others. The
bytes depend on the configuration alone, not on the number of processes or on interruptions.
"""

import dataclasses
import random
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
from tqdm import tqdm

from asr.corpora import grammar
from asr.corpora.voices import SAMPLE_RATE, SEEN_VOICES, UNSEEN_VOICES, Voice, find_voices
from asr.corpora.voices import synthesise as speak
from asr.errors import UserError
from asr.files import atomic_write, read_json, write_json, write_text
from asr.processes import cores, worker_pool

SPLITS = ("train", "dev", "test-seen", "test-unseen")
CHAPTER_SIZE = 100
# What the directory holds; a directory made from other values is made anew.
RECIPE_FILE = "synthetic.json"
FORMAT = 1
SPEAKERS_FILE = "SPEAKERS.TXT"

EDGE_SILENCE = (0.1, 0.2)  # seconds
LEVEL = (-29.0, -23.0)  # RMS of the speech in dB below full scale
PEAK = 0.9
# A quiet room. Without it silence is exactly zero, which no microphone gives, and the log-mel
# energies of such frames lie far from all others.
ROOM_LEVEL = -75.0
# Speech begins and ends where the signal passes this share of its peak, give or take a margin.
SPEECH_THRESHOLD, SPEECH_MARGIN = 0.01, 0.02


@dataclass
class SyntheticConfig:
    """What to make. Split sizes are in words: 10,000 words are about an hour of speech.

    ``voices`` speak train, dev and test-seen, ``unseen_voices`` test-unseen; both are names out
    of ``voices.VOICES``, or "all". Two knobs set how hard the corpus is: ``snr_db`` is the range
    from which every utterance draws its ratio of speech to background noise (None: no noise),
    ``words_per_list`` keeps only the head of the grammar's word lists (None: all). ``jobs``
    processes share the work (None: one a core); they change nothing else.
    """

    seed: int = 1
    train_words: int = 37_000
    dev_words: int = 2_000
    test_words: int = 5_200  # in each of the two test splits
    voices: list[str] = field(default_factory=lambda: list(SEEN_VOICES))
    unseen_voices: list[str] = field(default_factory=lambda: list(UNSEEN_VOICES))
    words_per_list: int | None = 8
    snr_db: list[float] | None = None
    jobs: int | None = None

    def __post_init__(self) -> None:
        for name in ("train_words", "dev_words", "test_words", "words_per_list", "jobs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}; it must be 1 or more")
        if not self.voices or not self.unseen_voices:
            raise ValueError("voices and unseen_voices each need a voice or more")
        if self.snr_db is not None and not (
            len(self.snr_db) == 2 and self.snr_db[0] <= self.snr_db[1]
        ):
            raise ValueError(f"snr_db={self.snr_db}; give the lowest and the highest ratio in dB")


@dataclass(frozen=True)
class Line:
    """One utterance to speak, and all that its bytes depend on."""

    split: str
    voice: Voice
    chapter: int
    number: int
    text: str
    seed: int
    snr_db: float | None

    @property
    def utterance(self) -> str:
        """The utterance id, in LibriSpeech's form."""
        return f"{self.voice.number}-{self.chapter}-{self.number:04d}"

    @property
    def folder(self) -> Path:
        """The chapter's folder, relative to the corpus."""
        return Path(self.split, str(self.voice.number), str(self.chapter))


def make_corpus(directory: Path, config: SyntheticConfig) -> dict[str, Any]:
    """Write the corpus to ``directory``, or what is missing of it; returns counts by split.

    For every split: ``utterances``, ``hours``, ``words``, ``speakers``, and except for train
    ``unseen_pairs``, the share of its word pairs that train lacks.

    An utterance file that exists is complete, and stays. A directory that holds a corpus of
    other options is emptied first. UserError for an unknown voice, a voice in both ``voices``
    and ``unseen_voices``, a missing speech package, and a directory with a split of another
    origin.
    """
    sentences = draw_sentences(config)
    lines = plan(config, sentences)
    _claim(directory, config)
    frames = _speak_all(directory, lines, config.jobs or cores())
    _write_transcripts(directory, lines)
    _write_speakers(directory, lines, frames)
    return _count(sentences, lines, frames)


def draw_sentences(config: SyntheticConfig) -> dict[str, list[str]]:
    """The sentences of every split, in order; no audio needed."""
    words = {
        "train": config.train_words,
        "dev": config.dev_words,
        "test-seen": config.test_words,
        "test-unseen": config.test_words,
    }
    return grammar.draw_splits(random.Random(config.seed), words, config.words_per_list)


def plan(config: SyntheticConfig, sentences: dict[str, list[str]]) -> list[Line]:
    """Give every sentence a voice, an utterance id and a seed.

    The voices take turns, so that every voice speaks equally much of a split.
    """
    seen = find_voices(config.voices, leave_out=config.unseen_voices)
    unseen = find_voices(config.unseen_voices, leave_out=config.voices)
    both = {voice.name for voice in seen} & {voice.name for voice in unseen}
    if both:
        raise UserError(
            f"in both voices and unseen_voices: {', '.join(sorted(both))}; "
            f"test-unseen is for voices that train lacks, so take them out of one list"
        )
    lines = []
    for split, texts in sentences.items():
        voices = unseen if split == "test-unseen" else seen
        for i, text in enumerate(texts):
            position, turn = divmod(i, len(voices))
            block, number = divmod(position, CHAPTER_SIZE)
            # LibriSpeech's chapter numbers belong to one speaker and one split.
            chapter = 1000 * (SPLITS.index(split) + 1) + block
            rng = random.Random(f"{config.seed}/{split}/{text}")
            snr_db = rng.uniform(*config.snr_db) if config.snr_db else None
            seed = rng.getrandbits(32)
            lines.append(Line(split, voices[turn], chapter, number, text, seed, snr_db))
    return lines


def record(line: Line) -> npt.NDArray[np.float32]:
    """Speak one line: float32 ``(samples,)`` at 16 kHz, within -PEAK and PEAK.

    Adds a little silence at both ends, a level, a quiet room and, if asked for, noise.
    """
    speech = _trim(speak(line.voice, line.text, line.seed))
    rng = np.random.default_rng(line.seed)
    before, after = (round(SAMPLE_RATE * rng.uniform(*EDGE_SILENCE)) for _ in range(2))
    level = _amplitude(rng.uniform(*LEVEL))
    noise = rng.standard_normal(before + len(speech) + after) * _amplitude(ROOM_LEVEL)
    if line.snr_db is not None:
        noise += _coloured_noise(rng, len(noise)) * level * _amplitude(-line.snr_db)
    signal = np.pad(speech * (level / _rms(speech)), (before, after)) + noise
    loudest = float(np.abs(signal).max())
    return (signal * min(1.0, PEAK / loudest)).astype(np.float32)


def _trim(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Cut the silence at both ends, which differs from engine to engine."""
    level = np.abs(samples)
    loud = np.flatnonzero(level > SPEECH_THRESHOLD * level.max())
    margin = round(SPEECH_MARGIN * SAMPLE_RATE)
    return samples[max(0, loud[0] - margin) : loud[-1] + margin]


def _coloured_noise(rng: np.random.Generator, length: int) -> npt.NDArray[np.float64]:
    """Noise ``(length,)`` of RMS 1 with a slope from white (0) to brown (-6 dB an octave)."""
    spectrum = np.fft.rfft(rng.standard_normal(length))
    slope = rng.uniform(0.0, 1.0)
    spectrum *= np.arange(1, len(spectrum) + 1) ** -slope
    noise = np.fft.irfft(spectrum, length)
    return noise / _rms(noise)


def _rms(samples: npt.NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


def _amplitude(decibels: float) -> float:
    return float(10.0 ** (decibels / 20.0))


def _claim(directory: Path, config: SyntheticConfig) -> None:
    """Make sure that what ``directory`` holds, if anything, belongs to this very corpus."""
    options = dataclasses.asdict(config) | {"format": FORMAT}
    del options["jobs"]
    recipe = directory / RECIPE_FILE
    if recipe.exists():
        if read_json(recipe) == options:
            return
        for split in SPLITS:
            shutil.rmtree(directory / split, ignore_errors=True)
    else:
        for name in (*SPLITS, SPEAKERS_FILE):
            if (directory / name).exists():
                raise UserError(
                    f"{directory}: its {name} is not of a synthetic corpus (no {RECIPE_FILE} "
                    f"beside it); choose another directory, or move {name} away"
                )
    write_json(recipe, options)


def _speak_all(directory: Path, lines: Sequence[Line], jobs: int) -> list[int]:
    """Write the audio of every line that has none; returns every file's length in samples."""
    frames: list[int] = []
    total = 0
    with tqdm(total=len(lines), unit="utt", desc="speech", dynamic_ncols=True) as bar:
        for count in _in_parallel(directory, lines, min(jobs, len(lines))):
            frames.append(count)
            total += count
            bar.set_postfix_str(f"{total / SAMPLE_RATE / 3600:.2f} h", refresh=False)
            bar.update()
    return frames


def _in_parallel(directory: Path, lines: Sequence[Line], jobs: int) -> Iterator[int]:
    folders = [directory] * len(lines)
    if jobs == 1:
        yield from map(_speak_one, folders, lines)
        return
    pool = worker_pool(jobs, preload=__name__)
    try:
        yield from pool.map(_speak_one, folders, lines, chunksize=8)
    except BrokenProcessPool:
        raise UserError(
            "a process that makes speech died (out of memory, or the engine crashed); the same "
            "command goes on from here, with fewer processes if it happens again (jobs=1)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _speak_one(directory: Path, line: Line) -> int:
    """Write one utterance unless it is there; returns its length in samples."""
    path = directory / line.folder / f"{line.utterance}.flac"
    if path.exists():
        return int(soundfile.info(path).frames)
    samples = record(line)
    with atomic_write(path) as partial:
        soundfile.write(partial, samples, SAMPLE_RATE, subtype="PCM_16", format="FLAC")
    return len(samples)


def _write_transcripts(directory: Path, lines: Sequence[Line]) -> None:
    chapters: dict[Path, list[Line]] = {}
    for line in lines:
        chapters.setdefault(line.folder, []).append(line)
    for folder, chapter in chapters.items():
        path = directory / folder / f"{folder.parent.name}-{folder.name}.trans.txt"
        write_text(path, "".join(f"{line.utterance} {line.text.upper()}\n" for line in chapter))


def _write_speakers(directory: Path, lines: Sequence[Line], frames: Sequence[int]) -> None:
    """SUBSET is the first split in which the speaker occurs, MINUTES what it speaks in all."""
    first_split: dict[Voice, str] = {}
    samples: dict[Voice, int] = {}
    for line, count in zip(lines, frames, strict=True):
        first_split.setdefault(line.voice, line.split)
        samples[line.voice] = samples.get(line.voice, 0) + count
    rows = [";ID  |SEX| SUBSET           |MINUTES| NAME"]
    for voice in sorted(first_split, key=lambda voice: voice.number):
        minutes = samples[voice] / SAMPLE_RATE / 60
        rows.append(
            f"{voice.number:<4} | {voice.sex} | {first_split[voice]:<16} | {minutes:5.2f} "
            f"| {voice.name}"
        )
    write_text(directory / SPEAKERS_FILE, "\n".join(rows) + "\n")


def _count(
    sentences: dict[str, list[str]], lines: Sequence[Line], frames: Sequence[int]
) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    for split, texts in sentences.items():
        samples = sum(n for line, n in zip(lines, frames, strict=True) if line.split == split)
        counts[split] = {
            "utterances": len(texts),
            "hours": round(samples / SAMPLE_RATE / 3600, 4),
            "words": sum(len(text.split()) for text in texts),
            "speakers": len({line.voice for line in lines if line.split == split}),
        }
        if split != "train":
            share = grammar.unseen_pair_share(sentences["train"], texts)
            counts[split]["unseen_pairs"] = round(share, 4)
    return counts
