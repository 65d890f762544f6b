"""Hearing while audio comes: samples to features to log-probabilities, in parts, in little memory.

Everything is computed in blocks of BLOCK_STACKS model frames, counted from the beginning of the
audio, and always of that size: the last bits of a matrix product depend on its number of rows.
So the log-probabilities are the same, bit for bit, however the samples come: one by one, or the
whole recording at once. What comes is heard BLOCK_STACKS x 30 ms, and a little, later.

A model that needs the whole utterance hears windows of the recording, each with some context on
both sides whose log-probabilities are not used. A recording of up to one window is heard whole.
"""

from collections.abc import Iterable, Iterator

import kaldi_native_fbank
import numpy as np
import torch
from torch import Tensor

from asr.filterbank.fbank import LhotseFbank, LogMelFbank, LogMelFbankConfig, kaldi_options
from asr.filterbank.frames import STACKED_FRAMES, stacked_length
from asr.model import AcousticModel, LstmState
from asr.recognition.finished_model import FinishedModel

BLOCK_STACKS = 8
BLOCK_FRAMES = BLOCK_STACKS * STACKED_FRAMES
# In model frames: 30 s and 3 s.
WINDOW_STACKS, CONTEXT_STACKS = 1000, 100


def log_probs_of(finished: FinishedModel, audio: Iterable[np.ndarray]) -> Iterator[Tensor]:
    """Log-probabilities of a recording that comes in parts, ``(n, V)`` each, n model frames.

    ``audio``: samples (any number,) float32 in [-1, 1], at the model's sampling rate.
    """
    if finished.model.config.streams:
        return stream_log_probs(finished.model, stream_features(audio, finished.fbank))
    return window_log_probs(finished, audio)


def stream_log_probs(model: AcousticModel, blocks: Iterable[np.ndarray]) -> Iterator[Tensor]:
    """Log-probabilities ``(n, V)`` of features in blocks ``(BLOCK_FRAMES, F)``, the last shorter.

    ValueError for a model that needs the whole utterance.
    """
    state: LstmState | None = None
    for block in blocks:
        padded = torch.zeros(1, BLOCK_FRAMES, block.shape[1])
        padded[0, : len(block)] = torch.from_numpy(block)
        with torch.inference_mode():
            log_probs, state = model.go_on(padded, state)
        yield log_probs[0, : stacked_length(len(block))]


def stream_features(audio: Iterable[np.ndarray], config: LogMelFbankConfig) -> Iterator[np.ndarray]:
    """Log-mel features of samples that come in parts: ``(BLOCK_FRAMES, bins)``, the last shorter.

    They are those of ``LogMelFbank.extract``, within the rounding of a matrix product.
    """
    scaled = (part * np.float32(config.sample_scale) for part in audio)
    if config.back_end == "kaldi":
        return _in_blocks(_kaldi_frames(scaled, config))
    return _lhotse_blocks(scaled, config)


def window_log_probs(finished: FinishedModel, audio: Iterable[np.ndarray]) -> Iterator[Tensor]:
    """Log-probabilities ``(n, V)`` of windows, without their context but at the audio's ends."""
    stack = STACKED_FRAMES * finished.fbank.shift_samples
    window, step = WINDOW_STACKS * stack, (WINDOW_STACKS - 2 * CONTEXT_STACKS) * stack
    kept_from, waiting = 0, np.zeros(0, dtype=np.float32)
    for part in audio:
        waiting = np.concatenate([waiting, part])
        while len(waiting) > window:  # so that something is left to end with
            heard = _hear_window(finished, waiting[:window])
            yield heard[kept_from : WINDOW_STACKS - CONTEXT_STACKS]
            kept_from, waiting = CONTEXT_STACKS, waiting[step:]
    yield _hear_window(finished, waiting)[kept_from:]


def _hear_window(finished: FinishedModel, samples: np.ndarray) -> Tensor:
    """``(T, V)``; T is 0 for audio shorter than a model frame."""
    config = finished.fbank
    if not stacked_length(config.frames(len(samples))):
        return torch.zeros(0, finished.model.output.out_features)
    features = torch.from_numpy(LogMelFbank(config).extract(samples, config.sampling_rate))
    with torch.inference_mode():
        return finished.model(features[None], torch.tensor([len(features)]))[0][0]


def _lhotse_blocks(audio: Iterable[np.ndarray], config: LogMelFbankConfig) -> Iterator[np.ndarray]:
    """``stream_features`` by Lhotse's layers; the signal is mirrored at both ends."""
    fbank, shift = LhotseFbank(config), config.shift_samples
    stretch = (BLOCK_FRAMES + 2) * shift
    done = samples = 0
    # From a shift before the next frame's own on.
    signal = np.zeros(0, dtype=np.float32)
    for part in audio:
        signal = np.concatenate([signal, part])
        samples += len(part)
        while (done + BLOCK_FRAMES + 1) * shift <= samples:
            if not done:
                signal = np.pad(signal, (shift, 0), mode="symmetric")
            yield fbank.of_stretch(signal[:stretch])
            signal = signal[BLOCK_FRAMES * shift :]
            done += BLOCK_FRAMES
    frames = config.frames(samples)
    if done == frames:
        return
    if not done:
        signal = np.pad(signal, (shift, 0), mode="symmetric")
    signal = np.pad(signal, (0, (frames + 1) * shift - samples), mode="symmetric")
    for first in range(0, frames - done, BLOCK_FRAMES):
        last = signal[first * shift :][:stretch]
        last = np.pad(last, (0, stretch - len(last)))
        yield fbank.of_stretch(last)[: frames - done - first]


def _kaldi_frames(audio: Iterable[np.ndarray], config: LogMelFbankConfig) -> Iterator[np.ndarray]:
    """Features ``(bins,)`` frame by frame, by kaldi-native-fbank."""
    fbank = kaldi_native_fbank.OnlineFbank(kaldi_options(config))
    done = 0
    for part in audio:
        fbank.accept_waveform(config.sampling_rate, part)
        ready = fbank.num_frames_ready
        for frame in range(done, ready):
            yield fbank.get_frame(frame).copy()
        fbank.pop(ready)
        done = ready
    fbank.input_finished()
    for frame in range(done, fbank.num_frames_ready):
        yield fbank.get_frame(frame).copy()


def _in_blocks(frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    block: list[np.ndarray] = []
    for frame in frames:
        block.append(frame)
        if len(block) == BLOCK_FRAMES:
            yield np.stack(block)
            block = []
    if block:
        yield np.stack(block)
