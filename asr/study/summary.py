"""The study's numbers: a row a system, its regime, rates over seeds, and the verdict."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asr.scoring.significance import (
    PairedDifference,
    difference_over_seeds,
    interval_over_seeds,
    not_worse,
)
from asr.scoring.texts import score_texts
from asr.study.config import Run, StudyConfig
from asr.study.kept import KeptResults

# In a run of fewer such spans a filter of momentum eta, which remembers 1/(1 - eta) blocks, has
# not shown what it does.
BMUF_SPANS = 5
# GTC delays a coordinate by about 1/density steps. AN4's two tiers were far behind after 23 of
# these spans (recipes/an4/RESULTS.md), the demo's were not after 28.
GTC_SPANS = 25


@dataclasses.dataclass(frozen=True)
class TestSet:
    """Reference words ``(U,)`` of each utterance, and its speaker's number ``(U,)``."""

    words: np.ndarray
    speakers: np.ndarray


class Numbers:
    """Errors by utterance of all finished runs of a study, read once."""

    def __init__(self, config: StudyConfig, kept: KeptResults, test_sets: Sequence[str]) -> None:
        self.config, self.kept = config, kept
        self.references = {name: kept.references(name) for name in test_sets}
        self.sets = {name: self._test_set(name) for name in test_sets}
        self._errors: dict[tuple[str, str], np.ndarray] = {}

    def errors(self, runs: Sequence[Run], test_set: str) -> np.ndarray:
        """Errors ``(S, U)`` of a system's runs, one a seed, in the references' order."""
        return np.stack([self._errors_of(run, test_set) for run in runs])

    def rate(self, runs: Sequence[Run], test_set: str) -> dict[str, Any]:
        """Mean WER in per cent over seeds, that of each seed, and the interval of the mean."""
        errors, of = self.errors(runs, test_set), self.sets[test_set]
        interval = interval_over_seeds(errors, of.words, of.speakers, *self._bootstrap())
        by_seed = [float(100 * row.sum() / of.words.sum()) for row in errors]
        return {"wer": float(np.mean(by_seed)), "by_seed": by_seed, "interval": interval}

    def difference(
        self, mine: Sequence[Run], theirs: Sequence[Run], test_set: str
    ) -> PairedDifference | None:
        """A system's mean against another's."""
        of = self.sets[test_set]
        return difference_over_seeds(
            self.errors(mine, test_set),
            self.errors(theirs, test_set),
            *(of.words, of.speakers, *self._bootstrap()),
        )

    def _bootstrap(self) -> tuple[int, int]:
        return self.config.replicas, self.config.bootstrap_seed

    def _errors_of(self, run: Run, test_set: str) -> np.ndarray:
        key = (run.name, test_set)
        if key not in self._errors:
            score = score_texts(self.references[test_set], self.kept.texts(run, test_set))
            self._errors[key] = np.array([row.counts.errors for row in score.utterances])
        return self._errors[key]

    def _test_set(self, name: str) -> TestSet:
        """In the order in which ``score_texts`` has utterances."""
        texts, speakers = self.references[name], self.kept.speakers(name)
        ids = sorted(texts, key=str.encode)
        numbers = {speaker: i for i, speaker in enumerate(sorted(set(speakers.values())))}
        return TestSet(
            np.array([len(texts[utterance].split()) for utterance in ids]),
            np.array([numbers[speakers[utterance]] for utterance in ids]),
        )


def summarise(
    config: StudyConfig, finished: Mapping[str, Sequence[Run]], numbers: Numbers
) -> dict[str, Any]:
    """Rows of all systems with finished runs, and the verdict where its three systems have some."""
    rows = [_row(config, name, finished, numbers) for name in finished]
    return {"systems": rows, "verdict": verdict(config, finished, numbers)}


def points_by_title(
    rows: Sequence[Mapping[str, Any]], test_set: str
) -> dict[str, list[tuple[int, float, float, float]]]:
    """Title -> workers, rate and its interval's ends of the systems that have it."""
    series: dict[str, list[tuple[int, float, float, float]]] = {}
    for row in rows:
        rate = row["rates"][test_set]
        low, high = rate["interval"] or (rate["wer"], rate["wer"])
        point = (row["workers"], rate["wer"], min(low, rate["wer"]), max(high, rate["wer"]))
        series.setdefault(row["title"], []).append(point)
    return series


def regime(summary: Mapping[str, Any]) -> dict[str, Any]:
    """How far a run was in the regime that its tiers are made for, from training's summary.

    ``bmuf_spans`` is blocks * (1 - eta), ``gtc_spans`` steps * density; None for a tier that it
    has not. ``outside`` names the tiers of fewer spans than ``BMUF_SPANS`` and ``GTC_SPANS``.
    """
    momentum, density = summary["block_momentum"], summary["density"]
    bmuf = None if momentum is None else summary["blocks"] * (1 - momentum)
    gtc = None if density is None else summary["steps"] * density
    outside = [
        name
        for name, spans, enough in (("BMUF", bmuf, BMUF_SPANS), ("GTC", gtc, GTC_SPANS))
        if spans is not None and spans < enough
    ]
    return {
        "steps": summary["steps"],
        "gtc_spans": gtc,
        "blocks": summary["blocks"],
        "bmuf_spans": bmuf,
        "samples": summary["samples"],
        "frames_a_step": summary["samples"] / summary["steps"],
        "outside": outside,
    }


def verdict(
    config: StudyConfig, finished: Mapping[str, Sequence[Run]], numbers: Numbers
) -> list[dict[str, Any]]:
    """For each test set, two tiers against one worker and against BMUF alone.

    ``resolved`` is the margin, in per cent, that the data can tell: half the width of the relative
    difference's interval.
    """
    names = (config.two_tier, config.reference, config.baseline)
    if not all(finished.get(name) for name in names):
        return []
    mine, reference, baseline = (finished[name] for name in names)
    rows = []
    for test_set in numbers.sets:
        against_one = numbers.difference(mine, reference, test_set)
        interval = against_one.relative_interval if against_one else None
        rows.append(
            {
                "test_set": test_set,
                "seeds": [len(mine), len(reference), len(baseline)],
                "against_reference": _as_dict(against_one),
                "not_worse": not_worse(interval, config.margin),
                "resolved": None if interval is None else (interval.high - interval.low) / 2,
                "against_baseline": _as_dict(numbers.difference(mine, baseline, test_set)),
            }
        )
    return rows


def _row(
    config: StudyConfig, name: str, finished: Mapping[str, Sequence[Run]], numbers: Numbers
) -> dict[str, Any]:
    runs = finished[name]
    summaries = [numbers.kept.summary(run) for run in runs]
    first, trained = summaries[0], runs[0].config
    others = {role: finished.get(getattr(config, role)) for role in ("reference", "baseline")}
    return {
        "system": name,
        "title": trained.title,
        "workers": trained.workers,
        "subgroups": first["subgroups"],
        "inner": first["inner"],
        "outer": first["outer"],
        "block_steps": first["block_steps"],
        "block_momentum": first["block_momentum"],
        "learning_rate": trained.optimizer.learning_rate,
        "density": first["density"],
        "seeds": [run.config.seed for run in runs],
        **regime(first),
        "train_seconds": [summary["train_seconds"] for summary in summaries],
        "bytes_per_worker": first["bytes_per_worker"],
        "dev_wer": [100 * summary["best_dev_wer"] for summary in summaries],
        "rates": {test_set: numbers.rate(runs, test_set) for test_set in numbers.sets},
        "differences": {
            role: {
                test_set: _as_dict(numbers.difference(runs, theirs, test_set))
                for test_set in numbers.sets
            }
            for role, theirs in others.items()
            if theirs and theirs is not runs
        },
    }


def _as_dict(difference: PairedDifference | None) -> dict[str, Any] | None:
    return None if difference is None else dataclasses.asdict(difference)
