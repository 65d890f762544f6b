"""The samples of an utterance, as every stage and the trainer hear them."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import torch
import torchaudio
from lhotse.augmentation import Speed
from lhotse.cut import MonoCut
from lhotse.utils import perturb_num_samples

from asr.errors import UserError

SEEKS_EXACTLY = frozenset({"WAV", "WAVEX", "RF64", "FLAC", "AIFF", "AU", "NIST"})


class Utterance(NamedTuple):
    """A stretch of one channel of an audio file; all counts in samples of that file.

    ``channel`` None is the mean of all channels.
    """

    id: str
    path: Path
    channel: int | None
    start: int
    num_samples: int
    recording_samples: int
    sampling_rate: int

    @staticmethod
    def of(cut: MonoCut) -> "Utterance":
        """What a cut of stage 1 covers; UserError unless its audio is one file."""
        recording = cut.recording
        mixed = cut.custom is not None and cut.custom.get("mix", False)
        if len(recording.sources) != 1 or recording.sources[0].type != "file":
            raise UserError(
                f"utterance {cut.id}: its audio must be one file, not {recording.sources}"
            )
        return Utterance(
            id=cut.id,
            path=Path(recording.sources[0].source),
            channel=None if mixed else cut.channel,
            start=round(cut.start * recording.sampling_rate),
            num_samples=cut.num_samples,
            recording_samples=recording.num_samples,
            sampling_rate=recording.sampling_rate,
        )

    @property
    def seconds(self) -> float:
        """Duration as recorded."""
        return self.num_samples / self.sampling_rate

    def samples_at(self, rate: int, speed: float) -> int:
        """Samples after resampling to ``rate`` Hz and playing ``speed`` times as fast."""
        resampled = -(-self.num_samples * rate // self.sampling_rate)
        return perturb_num_samples(resampled, speed)


def read_audio(utterance: Utterance, rate: int, speed: float = 1.0) -> np.ndarray:
    """One utterance's samples, float32 in [-1, 1], at ``rate`` Hz, played ``speed`` times as fast.

    Raises UserError, with utterance and file, when the file does not hold what stage 1 saw.
    """
    samples = _read_stretch(utterance)
    samples = samples.mean(axis=1) if utterance.channel is None else samples[:, utterance.channel]
    samples = np.ascontiguousarray(samples)
    if utterance.sampling_rate != rate:
        old, wave = utterance.sampling_rate, torch.from_numpy(samples)
        samples = torchaudio.functional.resample(wave, old, rate).numpy()
    if speed != 1.0:
        samples = Speed(speed)(samples[None], rate)[0]
    # The resamplers round lengths up, the manifest to the nearest sample.
    return samples[: utterance.samples_at(rate, speed)]


def _read_stretch(utterance: Utterance) -> np.ndarray:
    """``(samples, channels)``."""
    problem = f"utterance {utterance.id}: {utterance.path}"
    remedy = "; put the file back, or rerun the manifests stage with --force to leave it out"
    try:
        with soundfile.SoundFile(utterance.path) as file:
            if file.samplerate != utterance.sampling_rate or file.channels <= (
                utterance.channel or 0
            ):
                raise UserError(f"{problem} changed its format since stage 1{remedy}")
            # One sample more than wanted, to notice a file that grew.
            samples = _read_from(file, utterance, utterance.num_samples + 1)
    except (soundfile.LibsndfileError, OSError) as error:
        raise UserError(f"{problem} cannot be read: {error}{remedy}") from None
    left = utterance.recording_samples - utterance.start
    if len(samples) != min(utterance.num_samples + 1, left):
        raise UserError(f"{problem} changed its length since stage 1{remedy}")
    return samples[: utterance.num_samples]


def _read_from(file: soundfile.SoundFile, utterance: Utterance, samples: int) -> np.ndarray:
    """``(samples, channels)`` or fewer from the utterance's start on, as decoding from the
    recording's beginning gives them.

    A lossy decoder that seeks begins with other samples (MP3: the first 5,000, measured), and
    soundfile seeks after every read: there the whole recording is decoded.
    """
    start = utterance.start
    if file.format in SEEKS_EXACTLY and file.seekable():
        if start:  # a seek makes FLAC decode a frame for nothing
            file.seek(start)
        return file.read(samples, dtype="float32", always_2d=True)
    if utterance.num_samples == utterance.recording_samples:
        return file.read(samples, dtype="float32", always_2d=True)
    status = os.stat(utterance.path)
    decoded = _decode(utterance.path, status.st_size, status.st_mtime_ns)
    return decoded[start : start + samples].copy()


# The next utterance is most often of the same recording.
_last_decoded: dict[tuple[Path, int, int], np.ndarray] = {}


def _decode(path: Path, size: int, modified: int) -> np.ndarray:
    """A whole recording, ``(samples, channels)``; a changed file is another one."""
    key = (path, size, modified)
    if key not in _last_decoded:
        _last_decoded.clear()  # first: an hour takes 230 MB
        _last_decoded[key] = soundfile.read(path, dtype="float32", always_2d=True)[0]
    return _last_decoded[key]
