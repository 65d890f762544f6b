"""The weights of beam search, chosen on the dev set alone from a small grid."""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from asr.files import write_text
from asr.pictures import save_sweep
from asr.recognition.beam_search import Weights
from asr.scoring.align import ErrorCounts, total_errors

log = logging.getLogger("asr")


@dataclasses.dataclass(frozen=True)
class Point:
    """One pair of weights, and the errors made with it."""

    weights: Weights
    counts: ErrorCounts


def sweep(
    weigh: Callable[[Weights], Callable[[Tensor], str]],
    grid: Sequence[Weights],
    log_probs: Mapping[str, Tensor],
    references: Mapping[str, str],
) -> list[Point]:
    """The errors of every pair of weights of ``grid`` in the same log-probabilities, by id."""
    points = []
    for weights in grid:
        search = weigh(weights)
        heard = {name: search(frames) for name, frames in log_probs.items()}
        points.append(Point(weights, total_errors(references, heard)))
    return points


def grid_of(lm_weights: Sequence[float], word_scores: Sequence[float]) -> list[Weights]:
    """Every pair of the two, sorted."""
    return [Weights(*pair) for pair in itertools.product(sorted(lm_weights), sorted(word_scores))]


def best_of(points: Sequence[Point]) -> Point:
    """The point with fewest errors; of equal ones, that with the smallest weights."""
    return min(
        points,
        key=lambda point: (
            point.counts.errors,
            abs(point.weights.lm_weight),
            abs(point.weights.word_score),
            point.weights.word_score,
        ),
    )


def on_edge(best: Weights, grid: Sequence[Weights]) -> list[str]:
    """The names of the weights of ``best`` than which the grid has none greater, or smaller.

    A weight that has one value only is not tuned, and on no edge.
    """
    edges = []
    for field in dataclasses.fields(Weights):
        values = sorted({getattr(weights, field.name) for weights in grid})
        if len(values) > 1 and getattr(best, field.name) in (values[0], values[-1]):
            edges.append(field.name)
    return edges


def write_sweep(directory: Path, points: Sequence[Point], title: str) -> list[Path]:
    """Write ``sweep.tsv`` and ``sweep.svg``, the word error rate at each point in per cent."""
    rates = [None if p.counts.rate is None else 100 * p.counts.rate for p in points]
    lines = ["lm_weight\tword_score\twer\terrors\twords\tinsertions\tdeletions\tsubstitutions"]
    for point, rate in zip(points, rates, strict=True):
        weights, counts = point.weights, point.counts
        columns = [weights.lm_weight, weights.word_score, "nan" if rate is None else f"{rate:.4f}"]
        columns += [counts.errors, counts.words, counts.insertions, counts.deletions]
        lines.append("\t".join(map(str, [*columns, counts.substitutions])))
    table, picture = directory / "sweep.tsv", directory / "sweep.svg"
    write_text(table, "\n".join(lines) + "\n")
    by_score: dict[float, list[tuple[float, float]]] = {}
    for point, rate in zip(points, rates, strict=True):
        if rate is not None:
            row = by_score.setdefault(point.weights.word_score, [])
            row.append((point.weights.lm_weight, rate))
    save_sweep(picture, by_score, title)
    return [table, picture]
