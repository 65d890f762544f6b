"""Pictures: for ``python -m asr inspect`` as PNG, of decoding's tuning and of studies as SVG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from asr.files import atomic_write
from asr.filterbank.fbank import LogMelFbankConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEL_TICKS = 8


def save_durations(path: Path, seconds: np.ndarray, title: str) -> None:
    """A histogram of durations ``(n,)``."""
    figure = _figure(6, 3.5)
    axes = figure.subplots()
    axes.hist(seconds, bins=40)
    axes.set(xlabel="seconds", ylabel="utterances", title=title)
    _save(figure, path)


def save_spectrogram(
    path: Path, features: np.ndarray, config: LogMelFbankConfig, normalised: bool, title: str
) -> None:
    """Features ``(T, bins)`` over seconds and mel bins, with the bins' centres in Hz."""
    frames, bins = features.shape
    figure = _figure(max(6.0, min(16.0, frames / 100)), 4)
    axes = figure.subplots()
    image = axes.imshow(
        features.T,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=(0, frames * config.frame_shift, -0.5, bins - 0.5),
    )
    axes.set(xlabel="seconds", ylabel="mel bin", title=title)
    ticks = np.linspace(0, bins - 1, MEL_TICKS).round().astype(int)
    hertz = axes.twinx()
    hertz.set(
        ylim=axes.get_ylim(),
        yticks=ticks,
        yticklabels=[f"{centre:.0f}" for centre in mel_centres(config)[ticks]],
        ylabel="Hz",
    )
    label = "standard deviations from train's mean" if normalised else "natural log of energy"
    figure.colorbar(image, ax=[axes, hertz], label=label)
    _save(figure, path)


def save_sweep(
    path: Path, rates: Mapping[float, Sequence[tuple[float, float]]], title: str
) -> None:
    """By word score, the word error rate in per cent over the language model's weight."""
    figure = _figure(6, 4)
    axes = figure.subplots()
    for word_score, row in sorted(rates.items()):
        axes.plot(*zip(*row, strict=True), marker="o", label=f"{word_score:g}")
    axes.set(xlabel="lm_weight", ylabel="word error rate, %", title=title)
    if rates:
        figure.legend(title="word_score", loc="outside right upper")
    _save(figure, path)


def save_rates_by_workers(
    path: Path, series: Mapping[str, Sequence[tuple[int, float, float, float]]], title: str
) -> None:
    """Word error rates in per cent over the number of workers, a line a series.

    A point is workers, rate, and the ends of its interval.
    """
    figure = _figure(7, 4.2)
    axes = figure.subplots()
    for place, (name, points) in enumerate(series.items()):
        workers, rates, low, high = map(np.array, zip(*sorted(points), strict=True))
        shifted = workers * 1.03 ** (place - len(series) / 2)  # intervals beside each other
        marker = "osD^vPX*<>"[place % 10]
        axes.errorbar(
            shifted, rates, yerr=[rates - low, high - rates], marker=marker, capsize=2, label=name
        )
    counts = sorted({point[0] for points in series.values() for point in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, list(map(str, counts)))
    axes.minorticks_off()
    axes.set(xlabel="workers", ylabel="word error rate, %", title=title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    _save(figure, path)


def mel_centres(config: LogMelFbankConfig) -> np.ndarray:
    """Hz at which the filters peak, ``(bins,)``: equally spaced on Kaldi's mel scale."""
    high = config.high_freq
    high = high if high > 0 else config.sampling_rate / 2 + high
    edges = np.array([config.low_freq, high])
    low_mel, high_mel = 1127 * np.log1p(edges / 700)
    return 700 * np.expm1(np.linspace(low_mel, high_mel, config.bins + 2)[1:-1] / 1127)


def _figure(width: float, height: float) -> "Figure":
    # Imported when needed: it takes a second. Without pyplot no display is looked for.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: "Figure", path: Path) -> None:
    from matplotlib import rc_context

    # An SVG is the same each time without a date in it and with names that are not random.
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    with rc_context({"svg.hashsalt": "asr"}), atomic_write(path) as partial:
        figure.savefig(partial, format=path.suffix[1:], dpi=100, metadata=metadata)
