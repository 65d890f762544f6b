"""What makes an utterance unfit for the recipe, found by decoding all of its audio.

Headers are claims: the length of an utterance is the number of samples that came out of the
decoder. This module stays free of torch and Lhotse, since worker processes import it.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile

from asr.audio.containers import Fault, check_container
from asr.cluster import SlurmJobs, worker_map
from asr.corpora import Utterance
from asr.errors import UserError
from asr.processes import WorkerDied
from asr.text import UnsafeText, normalise

# Why an utterance is rejected, and what to do about it.
REASONS = {
    "missing-audio": "a transcript line has no audio file; add it or delete the line",
    "missing-transcript": "an audio file has no transcript line; add it or delete the file",
    "unreadable": "the file cannot be opened; check its permissions",
    "empty-file": "the file has 0 bytes; copy it again",
    "not-audio": "no audio file of a kind that is read; copy it again or convert it to FLAC",
    "absurd-rate": "the header's sample rate cannot be true; convert the file anew",
    "chained": "several streams in one Ogg file; split them, or convert to FLAC",
    "scale": "samples far beyond 1: a float file in another scale; convert it",
    "shortened": "compressed by shorten; unpack it with the LDC's sph2pipe -f wav IN OUT",
    "wrong-rate": "set resample: true, or convert the corpus, e.g. sox IN -r 16000 OUT",
    "channels": "choose one with channel: 0 (or 1, ...), or channel: mix for their mean",
    "no-channel": "the file has no channel of that number; see channel, or the corpus' lists",
    "past-end": "the corpus has the utterance end after its audio; see overhang_seconds",
    "truncated": "cut short, damaged inside, or a false header; copy it again or convert to FLAC",
    "no-samples": "a header without audio; copy it again",
    "not-finite": "samples that are NaN or infinite; convert the file anew",
    "silent": "all samples are zero; check the recording",
    "too-short": "shorter than min_seconds",
    "too-long": "longer than max_seconds; cut it, or raise max_seconds",
    "excluded": "the corpus itself marks it as not to be used; nothing to do",
    "empty-text": "the transcript has no words after normalising; training needs some",
    "unsafe-text": "the transcript cannot be normalised without guessing; mend the line",
}
LOWEST_RATE, HIGHEST_RATE = 4_000, 192_000
# Of the kinds that libsndfile knows, those whose damage is noticed. None is without a header: any
# bytes are audio of such a kind.
KINDS = frozenset({"WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "AIFF", "AU", "NIST"})
LOUDEST = 2.0  # lossy decoders go a little beyond 1
OGG_TOLERANCE_SECONDS = 0.1
CHUNK = 16  # audio files that a process examines at a time
BLOCK = 1 << 18  # samples decoded at once, so that a header's claim never sizes a buffer


@dataclass(frozen=True)
class Rules:
    """What the recipe asks of an utterance: Hz, and seconds. See ``ManifestConfig``."""

    sample_rate: int
    min_seconds: float
    max_seconds: float
    resample: bool = False
    channel: int | Literal["mix"] | None = None
    overhang_seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """``reason`` is None for a fit utterance, else a key of ``REASONS``.

    A fit one is ``samples`` samples from ``first`` on, of channel ``channel`` (``mix``: the mean of
    all) of ``recording``. ``file`` is the audio file, or for a fault of the transcript its
    ``file:line``; ``seconds`` is None when the audio could not be measured.
    """

    text: str = ""
    samples: int = 0
    first: int = 0
    channel: int | Literal["mix"] = 0
    recording: "Recording | None" = None
    reason: str | None = None
    detail: str = ""
    file: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class Recording:
    """What an audio file decodes to: samples a channel, channels, Hz."""

    samples: int
    channels: int
    rate: int


@dataclass
class Stretch:
    """A part of a recording, in samples (``last`` None: to its end), and its greatest magnitude."""

    first: int
    last: int | None
    channel: int | Literal["mix"]
    peak: float = 0.0

    def see(self, block: np.ndarray, at: int) -> None:
        """Take in the samples ``(n, channels)`` that begin at sample ``at`` of the recording."""
        begin = max(0, self.first - at)
        end = len(block) if self.last is None else min(len(block), self.last - at)
        if begin < end:
            part = block[begin:end]
            part = part.mean(axis=1) if self.channel == "mix" else part[:, self.channel]
            self.peak = float(np.maximum(self.peak, np.abs(part).max()))  # max() would lose a NaN


def examine_all(
    utterances: Sequence[Utterance],
    may_be_empty: Sequence[bool],
    rules: Rules,
    jobs: int,
    cluster: str | SlurmJobs | None = None,
) -> Iterator[tuple[int, Verdict]]:
    """The utterances' places in the list with their verdicts, by ``jobs`` processes of one thread.

    Or by the workers of a ``cluster``; see ``worker_map``.

    Utterances of one audio file are examined together, since it is decoded once. ``may_be_empty``
    says for each utterance whether its transcript may lack words, as it may in a test set. The
    processes are started afresh, never forked from this one, whose threads (torch's, say) would be
    lost. UserError if one of them dies.
    """
    places: dict[Path, list[int]] = {}
    for place, utterance in enumerate(utterances):
        places.setdefault(utterance.audio, []).append(place)
    tasks = [
        [(utterances[place], may_be_empty[place]) for place in together]
        for together in places.values()
    ]
    for together, verdicts in zip(
        places.values(), _examine(tasks, rules, jobs, cluster), strict=True
    ):
        yield from zip(together, verdicts, strict=True)


Task = list[tuple[Utterance, bool]]


def _examine(
    tasks: list[Task], rules: Rules, jobs: int, cluster: str | SlurmJobs | None
) -> Iterator[list[Verdict]]:
    if jobs == 1 and cluster is None:
        yield from (examine(task, rules) for task in tasks)
        return
    chunks = [tasks[first : first + CHUNK] for first in range(0, len(tasks), CHUNK)]
    with worker_map(jobs, cluster, preload=__name__) as mapped:
        try:
            for verdicts in mapped(functools.partial(_examine_chunk, rules=rules), chunks):
                yield from verdicts
        except WorkerDied as died:
            raise UserError(
                "a process that decodes audio died at or soon after "
                f"{chunks[died.task][0][0][0].audio} (out of memory, or libsndfile crashed); "
                "jobs=1 without a cluster stops at the very file"
            ) from None


def _examine_chunk(tasks: list[Task], rules: Rules) -> list[list[Verdict]]:
    return [examine(task, rules) for task in tasks]


def examine(task: Task, rules: Rules) -> list[Verdict]:
    """Verdicts on the utterances of one audio file, with whether their texts may be empty.

    The audio is decoded fully; its faults come before those of a transcript.
    """
    audio = task[0][0].audio
    try:
        recording, stretches = scan(audio, [utterance for utterance, _ in task], rules)
    except Fault as fault:
        return [_reject(utterance, fault) for utterance, _ in task]
    return [
        _reject(utterance, stretch)
        if isinstance(stretch, Fault)
        else _judge(utterance, may_be_empty, recording, stretch, rules)
        for (utterance, may_be_empty), stretch in zip(task, stretches, strict=True)
    ]


def _reject(utterance: Utterance, fault: Fault) -> Verdict:
    if utterance.excluded is not None:
        fault = Fault("excluded", utterance.excluded, fault.seconds)
    missing = fault.reason in ("missing-audio", "excluded")
    file = utterance.source if missing else str(utterance.audio)
    return Verdict(reason=fault.reason, detail=fault.detail, file=file, seconds=fault.seconds)


def scan(
    path: Path, utterances: Sequence[Utterance], rules: Rules
) -> tuple[Recording, list["Stretch | Fault"]]:
    """Decode a file; raises Fault for what makes all of its utterances unfit, returns one's own."""
    told_seconds = check_container(path)
    try:
        audio = soundfile.SoundFile(path)
    except soundfile.LibsndfileError as error:
        raise Fault("not-audio", f"libsndfile says: {error.error_string.strip()}") from None
    except (TypeError, ValueError) as error:  # a name that soundfile takes for one without header
        raise Fault("not-audio", f"soundfile says: {error}") from None
    with audio:
        if audio.format not in KINDS:
            raise Fault(
                "not-audio", f"of kind {audio.format}, not one of {', '.join(sorted(KINDS))}"
            )
        _check_rate(audio, rules)
        stretches = [_stretch(utterance, audio, rules) for utterance in utterances]
        samples = _decode(audio, [s for s in stretches if isinstance(s, Stretch)])
        seconds = samples / audio.samplerate
    if samples == 0:
        raise Fault("no-samples", "the header is followed by no samples", 0.0)
    if told_seconds is not None and seconds < told_seconds - OGG_TOLERANCE_SECONDS:
        raise Fault("truncated", f"{told_seconds:.2f} s of Ogg decode to {seconds:.2f} s", seconds)
    return Recording(samples, audio.channels, audio.samplerate), stretches


def _check_rate(audio: soundfile.SoundFile, rules: Rules) -> None:
    rate, seconds = audio.samplerate, audio.frames / audio.samplerate
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise Fault("absurd-rate", f"the header says {rate} Hz")
    if rate != rules.sample_rate and not rules.resample:
        raise Fault("wrong-rate", f"{rate} Hz, the recipe's is {rules.sample_rate} Hz", seconds)


def _stretch(utterance: Utterance, audio: soundfile.SoundFile, rules: Rules) -> Stretch | Fault:
    """In samples, since sums of float seconds lose or gain one."""
    first = round(utterance.start * audio.samplerate)
    last = None if utterance.end is None else round(utterance.end * audio.samplerate)
    channel = utterance.channel if utterance.channel is not None else rules.channel
    if channel is None:
        channel = 0
        if audio.channels != 1:
            seconds = audio.frames / audio.samplerate
            return Fault("channels", f"{audio.channels} channels", seconds)
    if channel != "mix" and not 0 <= channel < audio.channels:
        return Fault("no-channel", f"channel {channel} of {audio.channels}, counted from 0")
    return Stretch(first, last, channel)


def _decode(audio: soundfile.SoundFile, stretches: list[Stretch]) -> int:
    """The number of samples a channel; every stretch has seen its part."""
    samples, failure = 0, None
    block = np.empty((min(BLOCK // audio.channels, audio.frames), audio.channels), dtype=np.float32)
    try:
        while len(decoded := audio.read(out=block)):
            for stretch in stretches:
                stretch.see(decoded, samples)
            samples += len(decoded)
    except soundfile.LibsndfileError as error:
        failure = error.error_string.strip()
    if failure is not None:
        raise Fault(
            "truncated",
            f"decoding stops after {samples} of {audio.frames} samples or soon after: {failure}",
        )
    if samples != audio.frames:
        raise Fault(
            "truncated",
            f"the header claims {audio.frames} samples, {samples} were decoded",
            samples / audio.samplerate,
        )
    return samples


def _judge(
    utterance: Utterance,
    may_be_empty: bool,
    recording: Recording,
    stretch: Stretch,
    rules: Rules,
) -> Verdict:
    if utterance.excluded is not None:
        seconds = _seconds_of_excluded(utterance, recording, stretch, rules)
        return _reject(utterance, Fault("excluded", utterance.excluded, seconds))
    samples, file = 0, str(utterance.audio)
    try:
        samples = _samples_of(utterance, recording, stretch, rules)
        _check_samples(samples, samples / recording.rate, stretch.peak, rules)
        file = utterance.source
        text = _usable_text(utterance.text, may_be_empty)
    except Fault as fault:
        seconds = samples / recording.rate
        return Verdict(reason=fault.reason, detail=fault.detail, file=file, seconds=seconds)
    return Verdict(
        text=text,
        samples=samples,
        first=stretch.first,
        channel=stretch.channel,
        recording=recording,
        seconds=samples / recording.rate,
    )


def _seconds_of_excluded(
    utterance: Utterance, recording: Recording, stretch: Stretch, rules: Rules
) -> float | None:
    """None for a stretch that the audio does not have: what is not used may be past its end."""
    try:
        return _samples_of(utterance, recording, stretch, rules) / recording.rate
    except Fault:
        return None


def _samples_of(utterance: Utterance, recording: Recording, stretch: Stretch, rules: Rules) -> int:
    """What there is of the utterance; an end that is a little too late is drawn in."""
    first, last = stretch.first, recording.samples if stretch.last is None else stretch.last
    beyond = (last - recording.samples) / recording.rate
    if first >= recording.samples or beyond > rules.overhang_seconds:
        raise Fault(
            "past-end",
            f"from {utterance.start:g} s to {last / recording.rate:g} s, in audio of "
            f"{recording.samples / recording.rate:g} s",
        )
    return max(0, min(last, recording.samples) - first)


def _check_samples(samples: int, seconds: float, peak: float, rules: Rules) -> None:
    if not np.isfinite(peak):
        raise Fault("not-finite", "a sample is NaN or infinite")
    if peak > LOUDEST:
        raise Fault("scale", f"a sample of {peak:g}, where 1 is full scale")
    if samples and peak == 0:
        raise Fault("silent", f"all {samples} samples are zero")
    if seconds < rules.min_seconds:
        raise Fault("too-short", f"{seconds:.3f} s, less than {rules.min_seconds:g} s")
    if seconds > rules.max_seconds:
        raise Fault("too-long", f"{seconds:.3f} s, more than {rules.max_seconds:g} s")


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
