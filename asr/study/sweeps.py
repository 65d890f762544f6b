"""Which point of a system's sweep is the best on dev, and whether it lies on the sweep's edge."""

from typing import NamedTuple

from asr.errors import UserError
from asr.study.config import Point, Run, Study
from asr.study.kept import KeptResults


class SweptPoint(NamedTuple):
    """A run of a sweep: dev WER in per cent, None where it came to no model."""

    point: Point
    dev_wer: float | None


class Sweeps:
    """The sweeps of a study, as far as their runs are kept."""

    def __init__(self, study: Study, kept: KeptResults) -> None:
        self.study, self.kept = study, kept
        self.tuned: dict[str, Point] = {}
        self.points: dict[str, list[SweptPoint]] = {}
        for name in study.config.systems:
            self.choose(name)

    def settled(self, name: str) -> bool:
        """Whether the settings of a system are known: its own sweep and those below are done."""
        system = self.study.config.systems[name]
        own = not system.sweep or name in self.tuned
        return own and (system.like is None or self.settled(system.like))

    def choose(self, name: str) -> None:
        """Take the best point of a sweep whose runs are all kept.

        UserError where none of them came to a model.
        """
        system = self.study.config.systems[name]
        if not system.sweep or (system.like and not self.settled(system.like)):
            return
        runs = self.study.sweep_runs(name, self.tuned)
        if not all(map(self.kept.has, runs)):
            return
        self.points[name] = points = [self._swept(run) for run in runs]
        models = [point for point in points if point.dev_wer is not None]
        if not models:
            raise UserError(
                f"{self.study.path}: no run of the sweep of {name} came to a model; see "
                f"{self.kept.folder}/{name}.*/failed.txt, and sweep other values"
            )
        self.tuned[name] = min(models, key=lambda point: point.dev_wer or 0.0).point

    def on_edge(self, name: str) -> list[str]:
        """The settings whose best value is the first or the last one tried."""
        best = self.tuned.get(name, {})
        tried = self.study.config.systems[name].sweep
        return [key for key, value in best.items() if value in (tried[key][0], tried[key][-1])]

    def _swept(self, run: Run) -> SweptPoint:
        assert run.point is not None
        failed = self.kept.failed(run)
        wer = None if failed else 100 * self.kept.summary(run)["best_dev_wer"]
        return SweptPoint(run.point, wer)
