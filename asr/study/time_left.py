"""How long the runs that are left will take, from those that are done."""

from collections.abc import Sequence
from typing import NamedTuple


class Work(NamedTuple):
    """A run: on how many workers, over how many epochs; ``seconds`` that it took, if it is done."""

    workers: int
    epochs: int
    seconds: float | None = None


def seconds_left(runs: Sequence[Work]) -> float | None:
    """Seconds for the runs without ``seconds``; None if no run is done.

    All work on the same data, so an epoch costs what it cost with the nearest number of workers.
    """
    done = [run for run in runs if run.seconds is not None]
    if not done:
        return None
    return sum(run.epochs * _epoch_seconds(run, done) for run in runs if run.seconds is None)


def _epoch_seconds(run: Work, done: Sequence[Work]) -> float:
    nearest = min(max(run.workers, d.workers) / min(run.workers, d.workers) for d in done)
    alike = [
        d for d in done if max(run.workers, d.workers) / min(run.workers, d.workers) == nearest
    ]
    return sum(d.seconds or 0.0 for d in alike) / sum(d.epochs for d in alike)


def in_words(seconds: float | None) -> str:
    """``about 3:05 h left``."""
    if seconds is None:
        return "time left unknown until a run is done"
    minutes = round(seconds / 60)
    return f"about {minutes // 60}:{minutes % 60:02} h left"
