"""What a study is: systems, the settings that are tried for each, and seeds; from one YAML file."""

import dataclasses
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr.config import build_config, nested, read_yaml
from asr.errors import UserError
from asr.training.config import TrainConfig

Point = Mapping[str, Any]


@dataclasses.dataclass
class StudySystem:
    """A system: ``settings`` over the study's own, or over those of the system that it is ``like``.

    ``sweep`` names settings (``part.key``) and the values to try of each, in ascending order: all
    combinations are run with the first seed, and the best on dev is the system, for all ``seeds``
    and for the systems that are like it. ``later`` systems run when they are asked for.
    """

    title: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    like: str | None = None
    sweep: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    seeds: list[int] = dataclasses.field(default_factory=lambda: [0])
    later: bool = False

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"{self.title}: seeds={self.seeds}: one or more, each once")
        for key, values in self.sweep.items():
            if len(values) < 2:
                raise ValueError(f"{self.title}: sweep.{key}={values}: two values or more")

    @property
    def points(self) -> list[Point]:
        """All combinations of the sweep's values; none without a sweep."""
        if not self.sweep:
            return []
        return [
            dict(zip(self.sweep, values, strict=True))
            for values in itertools.product(*self.sweep.values())
        ]


@dataclasses.dataclass
class StudyConfig:
    """A study: ``settings`` of all systems, laid over the recipe's conf/train.yaml.

    The verdict is about system ``two_tier``: not worse than ``reference`` (one worker) by
    ``margin`` per cent or more, and better than ``baseline`` (BMUF alone). ``sweep_settings`` are
    laid over the runs of sweeps (fewer epochs, say). ``results`` is where finished runs are kept,
    from the recipe's folder. ``replicas`` and ``bootstrap_seed`` are of the bootstrap.
    """

    two_tier: str
    baseline: str
    reference: str
    systems: dict[str, StudySystem]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    sweep_settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    results: str = "results/study"
    margin: float = 2.0
    replicas: int = 10_000
    bootstrap_seed: int = 0

    def __post_init__(self) -> None:
        for role in ("two_tier", "baseline", "reference"):
            if getattr(self, role) not in self.systems:
                raise ValueError(
                    f"{role}={getattr(self, role)}: no such system; there are "
                    f"{', '.join(self.systems)}"
                )
        before: set[str] = set()
        for name, system in self.systems.items():
            if system.like is not None and system.like not in before:
                raise ValueError(f"{name}: like={system.like}: no system before it has this name")
            before.add(name)


@dataclasses.dataclass(frozen=True)
class Run:
    """One training: a system with a seed, or a ``point`` of its sweep. ``name`` is its folder's."""

    name: str
    system: str
    config: TrainConfig
    point: Point | None = None


class Study:
    """A study's YAML file, ``recipes/<corpus>/conf/<study>.yaml``, as runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path.resolve().parent.parent
        self.config = build_config(StudyConfig, [read_yaml(path)], str(path))
        self.base = read_yaml(self.recipe / "conf" / "train.yaml")
        self.results = self.recipe / self.config.results
        for name in self.config.systems:  # a mistake shows now, not hours later
            self.seed_runs(name, {})
            self.sweep_runs(name, {})

    def chosen(self, only: list[str], later: bool) -> list[str]:
        """The systems to run, in the file's order, with those that they are like.

        ``only`` these (none: all but the ``later`` ones). UserError for a name that is not there.
        """
        systems = self.config.systems
        for name in only:
            if name not in systems:
                raise UserError(f"{self.path}: no system {name}; there are {', '.join(systems)}")
        wanted = set(only) or {name for name in systems if later or not systems[name].later}
        for name in reversed(systems):
            if name in wanted and systems[name].like:
                wanted.add(str(systems[name].like))
        return [name for name in systems if name in wanted]

    def seed_runs(self, name: str, tuned: Mapping[str, Point]) -> list[Run]:
        """A system's runs, one a seed; ``tuned`` are the best points of systems with a sweep."""
        runs = []
        for seed in self.config.systems[name].seeds:
            layers = [*self._layers(name, tuned), {"seed": seed}]
            runs.append(Run(f"{name}.seed-{seed}", name, self._resolve(name, layers)))
        return runs

    def sweep_runs(self, name: str, tuned: Mapping[str, Point]) -> list[Run]:
        """The runs of a system's sweep, with its first seed."""
        system = self.config.systems[name]
        runs = []
        for point in system.points:
            values = [nested(key, value) for key, value in point.items()]
            layers = [*self._layers(name, tuned), self.config.sweep_settings, *values]
            config = self._resolve(name, [*layers, {"seed": system.seeds[0]}])
            label = ",".join(f"{key.rpartition('.')[2]}={v}" for key, v in point.items())
            runs.append(Run(f"{name}.{label}", name, config, point))
        return runs

    def _layers(self, name: str, tuned: Mapping[str, Point]) -> list[Mapping[str, Any]]:
        system = self.config.systems[name]
        below: list[Mapping[str, Any]] = [self.base, self.config.settings]
        if system.like is not None:
            below = self._layers(system.like, tuned)
        best = [nested(key, value) for key, value in tuned.get(name, {}).items()]
        return [*below, {"title": system.title}, system.settings, *best]

    def _resolve(self, name: str, layers: list[Mapping[str, Any]]) -> TrainConfig:
        return build_config(TrainConfig, layers, f"{self.path}: {name}")


def show_point(point: Point) -> str:
    """A sweep's point in words: ``learning_rate=0.5, block_steps=10``."""
    return ", ".join(f"{key.rpartition('.')[2]}={json.dumps(v)}" for key, v in point.items())
