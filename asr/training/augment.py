"""SpecAugment (Park et al., Interspeech 2019) without time warping, other vocal tracts (Jaitly and
Hinton, ICML workshop 2013), and per-utterance seeds."""

import dataclasses
import hashlib

import numpy as np


@dataclasses.dataclass(frozen=True)
class SpecAugmentConfig:
    """Numbers of masks and their greatest widths: in 10 ms frames, and in mel bins.

    All time masks together hide at most ``time_fraction`` of an utterance, all frequency masks
    at most ``freq_masks * freq_width`` bins. Zero masks switch a kind off. ``vocal_tract`` is the
    greatest share by which the mel axis is stretched or squeezed; 0: never.
    """

    time_masks: int = 2
    time_width: int = 40
    time_fraction: float = 0.2
    freq_masks: int = 2
    freq_width: int = 10
    vocal_tract: float = 0.0

    def __post_init__(self) -> None:
        if min(self.time_masks, self.time_width, self.freq_masks, self.freq_width) < 0:
            raise ValueError("SpecAugment: numbers and widths of masks cannot be negative")
        if not 0 <= self.time_fraction <= 1:
            raise ValueError(f"time_fraction={self.time_fraction} must lie between 0 and 1")
        if not 0 <= self.vocal_tract <= 0.3:
            raise ValueError(f"vocal_tract={self.vocal_tract} must lie between 0 and 0.3")


def stable_seed(*parts: int | str) -> int:
    """A 64-bit seed from, say, (seed, epoch, utterance id); the same in every process."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def spec_augment(
    features: np.ndarray,
    config: SpecAugmentConfig,
    mean: np.ndarray,
    generator: np.random.Generator,
) -> np.ndarray:
    """A copy of ``features`` (T, F) as of another vocal tract, with random stretches of time and
    bands set to ``mean`` (F,).

    The mean is what the model's normalisation turns into zero. Widths are uniform from 0 to
    their limit, both included, and so are positions.
    """
    frames, bins = features.shape
    masked = features.copy()
    if config.vocal_tract:
        stretch = 1 + generator.uniform(-config.vocal_tract, config.vocal_tract)
        masked = stretch_mel_axis(features, stretch)
    if config.time_masks:
        share = int(config.time_fraction * frames) // config.time_masks
        for first, last in _masks(
            config.time_masks, min(config.time_width, share), frames, generator
        ):
            masked[first:last] = mean
    for first, last in _masks(config.freq_masks, config.freq_width, bins, generator):
        masked[:, first:last] = mean[first:last]
    return masked


def stretch_mel_axis(features: np.ndarray, stretch: float) -> np.ndarray:
    """``features`` (T, F) whose bin b moves to ``stretch * b``, up to the last bin, which stays.

    The axis is bent where four fifths of it are stretched: below that point the stretch is as
    given, above it the rest of the axis makes room. Values between bins are interpolated.
    """
    last = features.shape[1] - 1
    bend = 0.8 * last * min(1.0, stretch)  # of the result
    source = np.interp(np.arange(last + 1), [0, bend, last], [0, bend / stretch, last])
    below = np.minimum(source.astype(np.int64), last - 1)
    share = (source - below).astype(features.dtype)
    return features[:, below] * (1 - share) + features[:, below + 1] * share


def _masks(
    number: int, widest: int, size: int, generator: np.random.Generator
) -> list[tuple[int, int]]:
    """``number`` ranges within [0, size), each at most ``widest`` long."""
    widths = generator.integers(0, min(widest, size), size=number, endpoint=True)
    firsts = generator.integers(0, size - widths, endpoint=True)
    return list(zip(firsts.tolist(), (firsts + widths).tolist(), strict=True))
