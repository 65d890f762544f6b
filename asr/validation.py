"""What makes an utterance unfit for the recipe, found by decoding all of its audio.

Headers are claims: the length of an utterance is the number of samples that came out of the
decoder. This module stays free of torch and Lhotse, since worker processes import it.
"""

import functools
import io
import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from asr.corpora import Utterance
from asr.errors import UserError
from asr.processes import worker_pool
from asr.text import UnsafeText, normalise

# Why an utterance is rejected, and what to do about it.
REASONS = {
    "missing-audio": "a transcript line has no audio file; add it or delete the line",
    "missing-transcript": "an audio file has no transcript line; add it or delete the file",
    "unreadable": "the file cannot be opened; check its permissions",
    "empty-file": "the file has 0 bytes; copy it again",
    "not-audio": "not an audio file that libsndfile knows; copy it again or convert it to FLAC",
    "absurd-rate": "the header's sample rate cannot be true; convert the file anew",
    "wrong-rate": "convert the corpus to the recipe's sample rate, e.g. sox IN -r 16000 OUT",
    "channels": "choose a channel or mix to mono, e.g. sox IN OUT remix 1",
    "truncated": "cut short, damaged inside, or a false header; copy it again or convert to FLAC",
    "no-samples": "a header without audio; copy it again",
    "not-finite": "samples that are NaN or infinite; convert the file anew",
    "silent": "all samples are zero; check the recording",
    "too-short": "shorter than min_seconds",
    "too-long": "longer than max_seconds; cut it, or raise max_seconds",
    "empty-text": "the transcript has no words after normalising; training needs some",
    "unsafe-text": "the transcript cannot be normalised without guessing; mend the line",
}
LOWEST_RATE, HIGHEST_RATE = 4_000, 192_000
BLOCK = 1 << 18  # samples decoded at once, so that a header's claim never sizes a buffer
# From here on a WAV header's number of bytes means "not known yet": 2^31 or 2^32, less a header.
STREAMED = 0x7FFF_F000
OGG_TAIL = 1 << 17  # more than an Ogg page's greatest length, 65,307 bytes
OGG_LAST_PAGE = 0x04


@dataclass(frozen=True)
class Rules:
    """What the recipe asks of an utterance: Hz, and seconds."""

    sample_rate: int
    min_seconds: float
    max_seconds: float


@dataclass(frozen=True)
class Verdict:
    """``reason`` is None for a fit utterance, else a key of ``REASONS``.

    ``file`` is the audio file, or for a fault of the transcript its ``file:line``; ``seconds``
    is None when the audio could not be measured.
    """

    text: str = ""
    samples: int = 0
    reason: str | None = None
    detail: str = ""
    file: str = ""
    seconds: float | None = None


class Fault(Exception):
    """One utterance's first fault; ``seconds`` as in ``Verdict``."""

    def __init__(self, reason: str, detail: str, seconds: float | None = None) -> None:
        super().__init__(reason, detail, seconds)
        self.reason, self.detail, self.seconds = reason, detail, seconds


def examine_all(
    utterances: Sequence[Utterance], may_be_empty: Sequence[bool], rules: Rules, jobs: int
) -> Iterator[Verdict]:
    """Verdicts in the order of the utterances, by ``jobs`` processes of one thread each.

    ``may_be_empty`` says for each utterance whether its transcript may lack words, as it may in
    a test set. The processes are started afresh, never forked from this one, whose threads
    (torch's, say) would be lost. UserError if one of them dies.
    """
    examine_one = functools.partial(examine, rules=rules)
    if jobs == 1:
        yield from map(examine_one, utterances, may_be_empty)
        return
    pool = worker_pool(jobs, preload=__name__)
    done = 0
    try:
        for verdict in pool.map(examine_one, utterances, may_be_empty, chunksize=16):
            yield verdict
            done += 1
    except BrokenProcessPool:
        raise UserError(
            f"a process that decodes audio died at {utterances[done].audio} or soon after "
            "(out of memory, or libsndfile crashed); jobs=1 stops at the very file"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def examine(utterance: Utterance, may_be_empty: bool, rules: Rules) -> Verdict:
    """Decode the audio fully and normalise the transcript; the audio's faults come first."""
    try:
        samples = measure(utterance.audio, rules)
    except Fault as fault:
        file = str(utterance.audio)
        if fault.reason == "missing-audio":
            file = utterance.source
        return Verdict(reason=fault.reason, detail=fault.detail, file=file, seconds=fault.seconds)
    seconds = samples / rules.sample_rate
    try:
        text = _usable_text(utterance.text, may_be_empty)
    except Fault as fault:
        return Verdict(
            reason=fault.reason, detail=fault.detail, file=utterance.source, seconds=seconds
        )
    return Verdict(text=text, samples=samples, seconds=seconds)


def measure(path: Path, rules: Rules) -> int:
    """The number of samples that the file decodes to; raises Fault if it breaks a rule."""
    _check_container(path)
    try:
        audio = soundfile.SoundFile(path)
    except soundfile.LibsndfileError as error:
        raise Fault("not-audio", f"libsndfile says: {error.error_string.strip()}") from None
    with audio:
        _check_format(audio, rules)
        samples, peak = _decode(audio)
    seconds = samples / rules.sample_rate
    if samples == 0:
        raise Fault("no-samples", "the header is followed by no samples", 0.0)
    if not np.isfinite(peak):
        raise Fault("not-finite", "a sample is NaN or infinite", seconds)
    if peak == 0:
        raise Fault("silent", f"all {samples} samples are zero", seconds)
    if seconds < rules.min_seconds:
        raise Fault("too-short", f"{seconds:.3f} s, less than {rules.min_seconds:g} s", seconds)
    if seconds > rules.max_seconds:
        raise Fault("too-long", f"{seconds:.3f} s, more than {rules.max_seconds:g} s", seconds)
    return samples


def _check_container(path: Path) -> None:
    """What the file's bytes say before a decoder is asked, which is silent about these faults."""
    try:
        size = path.stat().st_size
        if size == 0:
            raise Fault("empty-file", "0 bytes", 0.0)
        with open(path, "rb") as file:
            start = file.read(12)
            if start[:4] == b"RIFF" and start[8:] == b"WAVE":
                _check_wav(file, size)
            elif start[:4] == b"OggS":
                _check_ogg(file, size)
    except FileNotFoundError:
        raise Fault("missing-audio", f"{path} does not exist") from None
    except OSError as error:
        raise Fault("unreadable", str(error)) from None


def _check_wav(file: io.BufferedReader, size: int) -> None:
    """Raise Fault if the data chunk claims more bytes than the file has.

    libsndfile shortens such a file to what is there. A claim near 2^31 or 2^32 is what programs
    write that stream and do not know the length: there the decoded length is the true one.
    """
    while len(header := file.read(8)) == 8:
        name, claim = struct.unpack("<4sI", header)
        if name == b"data":
            there = size - file.tell()
            if there < claim < STREAMED:
                raise Fault("truncated", f"the header claims {claim} bytes, {there} are there")
            return
        file.seek(claim + claim % 2, os.SEEK_CUR)


def _check_ogg(file: io.BufferedReader, size: int) -> None:
    """Raise Fault if the stream's last page is not there, up to its last byte.

    A decoder takes the last page it finds for the end, so that its lengths always agree.
    """
    file.seek(max(0, size - OGG_TAIL))
    tail = file.read()
    page = tail.rfind(b"OggS\0")
    header = tail[page : page + 27]
    if page < 0 or len(header) < 27 or not header[5] & OGG_LAST_PAGE:
        raise Fault("truncated", "the page that ends an Ogg stream is missing")
    segments = tail[page + 27 : page + 27 + header[26]]
    if page + 27 + header[26] + sum(segments) > len(tail):
        raise Fault("truncated", "the last Ogg page is cut short")


def _check_format(audio: soundfile.SoundFile, rules: Rules) -> None:
    rate, seconds = audio.samplerate, audio.frames / audio.samplerate
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise Fault("absurd-rate", f"the header says {rate} Hz")
    if rate != rules.sample_rate:
        raise Fault("wrong-rate", f"{rate} Hz, the recipe's is {rules.sample_rate} Hz", seconds)
    if audio.channels != 1:
        raise Fault("channels", f"{audio.channels} channels", seconds)


def _decode(audio: soundfile.SoundFile) -> tuple[int, float]:
    """The number of samples, and the greatest absolute sample: NaN or infinite if one is."""
    samples, peak = 0, 0.0
    block = np.empty(min(BLOCK, audio.frames), dtype=np.float32)
    try:
        while len(decoded := audio.read(out=block)):
            samples += len(decoded)
            peak = float(np.maximum(peak, np.abs(decoded).max()))  # max() would lose a NaN
    except soundfile.LibsndfileError as error:
        raise Fault(
            "truncated",
            f"decoding stops after {samples} of {audio.frames} samples or soon after: "
            f"{error.error_string.strip()}",
        ) from None
    if samples != audio.frames:
        raise Fault(
            "truncated",
            f"the header claims {audio.frames} samples, {samples} were decoded",
            samples / audio.samplerate,
        )
    return samples, peak


def _usable_text(text: str | None, may_be_empty: bool) -> str:
    if text is None:
        raise Fault("missing-transcript", "no transcript line names this utterance")
    try:
        normalised = normalise(text)
    except UnsafeText as error:
        raise Fault("unsafe-text", str(error)) from None
    if not normalised and not may_be_empty:
        raise Fault("empty-text", f"no words in {text!r}")
    return normalised
