"""How fast one core of this machine prepares audio: measured on a little of it."""

import dataclasses
import functools
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile

from asr.audio.utterance import Utterance as Stretch
from asr.audio.utterance import read_audio
from asr.audio.validation import Rules, Verdict, examine
from asr.corpora import AUDIO_SUFFIXES, Utterance
from asr.errors import UserError
from asr.filterbank.fbank import LogMelFbank, LogMelFbankConfig

MADE_FILES, MADE_SECONDS = 8, 12.0
# Of a folder that is given: enough to measure, in a few seconds.
GIVEN_FILES = 40
# libsndfile's names of container and encoding, by what a plan calls the audio.
KINDS = {"flac": ("FLAC", "PCM_16"), "ogg": ("OGG", "VORBIS"), "nist": ("NIST", "PCM_16")}


@dataclasses.dataclass(frozen=True)
class Rate:
    """Seconds of audio that a core prepares in a second: ``validation`` decodes fully and looks at
    every sample, ``features`` reads and extracts, by speed factor. ``sample`` says of what."""

    sample: str
    validation: float
    features: dict[str, float]


def measure_made(
    kind: str, rules: Rules, fbank: LogMelFbankConfig, speeds: Sequence[float]
) -> Rate:
    """The rate on noise in the cadence of speech, stored as ``kind`` ("flac", "ogg", "nist")."""
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        files = _make(Path(folder), kind, rules.sample_rate)
        seconds = MADE_FILES * MADE_SECONDS
        # What the recipe asks of its own audio says nothing of how fast it is decoded.
        rules = dataclasses.replace(
            rules, min_seconds=0.1, max_seconds=5 * MADE_SECONDS, channel=None
        )
        sample = f"{seconds:.0f} s of noise made as {kind}, {rules.sample_rate} Hz, on one core"
        return _measure(files, sample, rules, fbank, speeds)


def measure_given(
    folder: Path, rules: Rules, fbank: LogMelFbankConfig, speeds: Sequence[float]
) -> Rate:
    """The rate on the first files of a folder of audio; UserError if none of them is fit."""
    found = (file for file in sorted(folder.rglob("*")) if file.suffix.lower() in AUDIO_SUFFIXES)
    files = list(itertools.islice(found, GIVEN_FILES))
    sample = f"the first {len(files)} audio files in {folder}, on one core"
    return _measure(files, sample, rules, fbank, speeds)


def _make(folder: Path, kind: str, rate: int) -> list[Path]:
    container, encoding = KINDS[kind]
    random, files = np.random.default_rng(0), []
    times = np.arange(round(MADE_SECONDS * rate)) / rate
    for number in range(MADE_FILES):
        loudness = 0.1 * np.clip(np.sin(2 * np.pi * 3 * times + number), 0.01, 1)
        file = folder / f"{number}.{kind}"
        soundfile.write(
            file, loudness * random.normal(0, 0.3, len(times)), rate, encoding, format=container
        )
        files.append(file)
    return files


def _measure(
    files: list[Path], sample: str, rules: Rules, fbank: LogMelFbankConfig, speeds: Sequence[float]
) -> Rate:
    utterances = [Utterance(file.stem, file, "text", "speaker", str(file)) for file in files]
    verdicts: list[Verdict] = []

    def validate() -> None:
        verdicts[:] = [examine([(utterance, False)], rules)[0] for utterance in utterances]

    validation_seconds = _timed(validate)
    fit = [
        (utterance, verdict)
        for utterance, verdict in zip(utterances, verdicts, strict=True)
        if verdict.reason is None
    ]
    if not fit:
        reasons = ", ".join(sorted({str(verdict.reason) for verdict in verdicts})) or "no audio"
        raise UserError(f"nothing to measure: {sample}: {reasons}")
    stretches = list(_stretches(fit))
    seconds = sum(stretch.num_samples / stretch.sampling_rate for stretch in stretches)
    extractor = LogMelFbank(fbank)

    def extract(speed: float) -> None:
        for stretch in stretches:
            extractor.extract(read_audio(stretch, fbank.sampling_rate, speed), fbank.sampling_rate)

    rates = {f"{s:g}": seconds / _timed(functools.partial(extract, s)) for s in speeds}
    return Rate(sample, seconds / validation_seconds, rates)


def _stretches(fit: list[tuple[Utterance, Verdict]]) -> Iterator[Stretch]:
    for utterance, verdict in fit:
        heard = verdict.recording
        assert heard is not None
        yield Stretch(
            id=utterance.id,
            path=utterance.audio,
            channel=None if verdict.channel == "mix" else verdict.channel,
            start=verdict.first,
            num_samples=verdict.samples,
            recording_samples=heard.samples,
            sampling_rate=heard.rate,
        )


def _timed(work: Callable[[], None]) -> float:
    """Seconds of processor time of the second run: the first one warms up."""
    work()
    begin = time.process_time()
    work()
    return max(time.process_time() - begin, 1e-9)
