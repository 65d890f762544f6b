"""Audio for recognition, in parts: from files of any length, and from raw PCM."""

import io
import logging
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import torch
import torchaudio

from asr.audio.containers import Fault, check_container
from asr.audio.utterance import SEEKS_EXACTLY
from asr.audio.validation import HIGHEST_RATE, KINDS, LOWEST_RATE, REASONS
from asr.errors import UserError

log = logging.getLogger("asr")

Channel = int | Literal["mix"] | None
BLOCK_SECONDS = 10.0
PCM_BYTES = 1 << 15
# What a resampler's filter sees on either side is below 2 ms at any rate from 4 kHz up.
RESAMPLED_SECONDS, CONTEXT_SECONDS = 0.5, 0.05


def file_blocks(path: Path, rate: int, channel: Channel = None) -> Iterator[np.ndarray]:
    """A file's samples ``(n,)`` float32 in [-1, 1], at ``rate`` Hz, part by part.

    Of several channels, the number ``channel``, or their mean (``mix``). They are what training
    would read. UserError, with the file and the remedy, for what stage 1 would reject as no audio
    or damaged, and for several channels without a choice.
    """
    try:
        check_container(path)
        with soundfile.SoundFile(path) as file:
            _check(path, file, channel)
            yield from resampled(_mono(file, channel), file.samplerate, rate)
    except Fault as fault:
        if fault.reason == "missing-audio":
            raise UserError(f"{path}: no such file") from None
        raise UserError(
            f"{path}: {fault.reason}: {fault.detail}; {REASONS[fault.reason]}"
        ) from None
    except (soundfile.LibsndfileError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def pcm_blocks(stream: io.BufferedReader, given_rate: int, rate: int) -> Iterator[np.ndarray]:
    """16-bit little-endian samples of one channel, as ``file_blocks`` gives them, as they come.

    UserError for a rate that cannot be true. Half a sample at the end, where a recorder was killed,
    is left out with a warning: what was heard before it is not lost.
    """
    if not LOWEST_RATE <= given_rate <= HIGHEST_RATE:
        raise UserError(f"--rate {given_rate}: from {LOWEST_RATE} to {HIGHEST_RATE} Hz")
    return resampled(_pcm(stream), given_rate, rate)


def resampled(parts: Iterable[np.ndarray], old: int, new: int) -> Iterator[np.ndarray]:
    """Samples that come in parts at ``old`` Hz, at ``new`` Hz, as resampling in one piece does.

    Resampled are stretches of RESAMPLED_SECONDS, with CONTEXT_SECONDS on both sides.
    """
    if old == new:
        yield from parts
        return
    unit = old // math.gcd(old, new)  # so many samples are a whole number of new ones
    step = unit * math.ceil(RESAMPLED_SECONDS * old / unit)
    context = unit * math.ceil(CONTEXT_SECONDS * old / unit)
    waiting, before = np.zeros(0, dtype=np.float32), 0
    for part in parts:
        waiting = np.concatenate([waiting, part])
        while len(waiting) >= before + step + context:
            stretch = _resample(waiting[: before + step + context], old, new)
            yield stretch[before * new // old : (before + step) * new // old]
            waiting, before = waiting[before + step - context :], context
    if len(waiting):
        yield _resample(waiting, old, new)[before * new // old :]


def _resample(samples: np.ndarray, old: int, new: int) -> np.ndarray:
    return torchaudio.functional.resample(torch.from_numpy(samples), old, new).numpy()


def _check(path: Path, file: soundfile.SoundFile, channel: Channel) -> None:
    if file.format not in KINDS:
        raise UserError(f"{path}: {file.format}: {REASONS['not-audio']}")
    if not LOWEST_RATE <= file.samplerate <= HIGHEST_RATE:
        raise UserError(f"{path}: {file.samplerate} Hz: {REASONS['absurd-rate']}")
    if channel is None and file.channels > 1:
        raise UserError(f"{path}: {file.channels} channels; choose --channel 0 (or 1), or mix")
    if isinstance(channel, int) and channel >= file.channels:
        raise UserError(f"{path}: --channel {channel}, but it has {file.channels} channels")


def _mono(file: soundfile.SoundFile, channel: Channel) -> Iterator[np.ndarray]:
    for samples in _parts(file):
        yield samples.mean(axis=1) if channel == "mix" else samples[:, channel or 0].copy()


def _parts(file: soundfile.SoundFile) -> Iterator[np.ndarray]:
    """``(n, channels)``. soundfile seeks after every read, after which a lossy decoder begins with
    other samples: there the whole file is decoded."""
    size = round(BLOCK_SECONDS * file.samplerate)
    if file.format not in SEEKS_EXACTLY:
        size = -1
    while len(samples := file.read(size, dtype="float32", always_2d=True)):
        if not np.isfinite(samples).all():
            raise Fault("not-finite", "a sample is NaN or infinite")
        yield samples


def _pcm(stream: io.BufferedReader) -> Iterator[np.ndarray]:
    left = b""
    while data := stream.read1(PCM_BYTES):
        data = left + data
        whole = len(data) // 2 * 2
        left = data[whole:]
        yield np.frombuffer(data[:whole], dtype="<i2").astype(np.float32) / 32768
    if left:
        log.warning("stdin: the last byte is half a sample of 16-bit PCM, and is left out")
