"""SpecAugment (Park et al., Interspeech 2019), without time warping, and per-utterance seeds."""

import dataclasses
import hashlib

import numpy as np


@dataclasses.dataclass(frozen=True)
class SpecAugmentConfig:
    """Numbers of masks and their greatest widths: in 10 ms frames, and in mel bins.

    All time masks together hide at most ``time_fraction`` of an utterance, all frequency masks
    at most ``freq_masks * freq_width`` bins. Zero masks switch a kind off.
    """

    time_masks: int = 2
    time_width: int = 40
    time_fraction: float = 0.2
    freq_masks: int = 2
    freq_width: int = 10

    def __post_init__(self) -> None:
        if min(self.time_masks, self.time_width, self.freq_masks, self.freq_width) < 0:
            raise ValueError("SpecAugment: numbers and widths of masks cannot be negative")
        if not 0 <= self.time_fraction <= 1:
            raise ValueError(f"time_fraction={self.time_fraction} must lie between 0 and 1")


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
    """A copy of ``features`` (T, F) with random stretches of time and bands set to ``mean`` (F,).

    The mean is what the model's normalisation turns into zero. Widths are uniform from 0 to
    their limit, both included, and so are positions.
    """
    frames, bins = features.shape
    masked = features.copy()
    if config.time_masks:
        share = int(config.time_fraction * frames) // config.time_masks
        for first, last in _masks(
            config.time_masks, min(config.time_width, share), frames, generator
        ):
            masked[first:last] = mean
    for first, last in _masks(config.freq_masks, config.freq_width, bins, generator):
        masked[:, first:last] = mean[first:last]
    return masked


def _masks(
    number: int, widest: int, size: int, generator: np.random.Generator
) -> list[tuple[int, int]]:
    """``number`` ranges within [0, size), each at most ``widest`` long."""
    widths = generator.integers(0, min(widest, size), size=number, endpoint=True)
    firsts = generator.integers(0, size - widths, endpoint=True)
    return list(zip(firsts.tolist(), (firsts + widths).tolist(), strict=True))
