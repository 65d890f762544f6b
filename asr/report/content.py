"""The content of report.json: every number that the report shows, and nothing read from files.

Rates are in per cent, differences in points, relative differences in per cent of the baseline's.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asr.errors import UserError
from asr.report import breakdown
from asr.report.inputs import Corpus, Results
from asr.report.verdict import CAVEAT, verdict
from asr.scoring.significance import (
    Interval,
    PairedDifference,
    bootstrap_interval,
    mapsswe,
    not_worse,
    paired_bootstrap,
    segment_pairs,
)
from asr.scoring.summary import describe_counts
from asr.scoring.texts import Score

FORMAT_VERSION = 1
SUMMARY_KEYS = (
    "title", "workers", "subgroups", "inner", "outer", "block_steps", "block_momentum",
    "parameters", "samples", "epochs", "steps", "blocks", "train_seconds", "frames_per_second",
    "bytes_per_worker", "density", "least_spread", "best_dev_wer", "seed", "config",
)  # fmt: skip
TIERS = ("inner_wire", "inner_payload", "outer")


@dataclasses.dataclass
class CompareConfig:
    """What to compare with what.

    ``baseline`` names a system; ``systems`` chooses the systems and their order (empty: all that
    are scored, the baseline first); ``replicas`` and ``seed`` belong to the bootstrap. A system is
    shown to be not worse if the upper end of the interval of its relative difference is under
    ``margin`` per cent. ``worst`` utterances are listed by system and test set, ``common`` words
    and confusions, on the page the ``listed`` utterances with most errors (report.json has all).
    At most ``audio`` utterances are converted for browsers.
    """

    baseline: str = "bmuf"
    systems: list[str] = dataclasses.field(default_factory=list)
    replicas: int = 10_000
    seed: int = 0
    margin: float = 2.0
    worst: int = 3
    common: int = 20
    listed: int = 6000
    audio: int = 200

    def __post_init__(self) -> None:
        if self.replicas < 100:
            raise ValueError(f"replicas={self.replicas}: an interval takes 100 or more")
        for name in ("seed", "margin", "worst", "common", "listed", "audio"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: 0 or more")
        if len(set(self.systems)) < len(self.systems):
            raise ValueError(f"systems={self.systems}: each may be named once")


def make_report(
    results: Sequence[Results], corpus: Corpus, config: CompareConfig
) -> dict[str, Any]:
    """The content of report.json, without curves, audio and commands.

    UserError when two systems were scored on different references.
    """
    test_sets = list(results[0].scores)
    baseline = next(result for result in results if result.system == config.baseline)
    others = [result for result in results if result is not baseline]
    for other in others:
        _check_references(other, baseline)
    groups = {
        name: _speakers(baseline.scores[name], corpus.rows.get(name, {})) for name in test_sets
    }
    systems = [_describe_system(result, groups, config) for result in results]
    described = {row["system"]: row for row in systems}
    differences = [
        difference(other, baseline, test_set, groups[test_set], config)
        for other in others
        for test_set in test_sets
    ]
    training = [
        {
            "system": other.system,
            "baseline": baseline.system,
            "seconds": _ratio(described, other, baseline, "train_seconds"),
            "bytes": _ratio(described, other, baseline, "bytes_sent"),
        }
        for other in others
    ]
    return {
        "format_version": FORMAT_VERSION,
        "baseline": config.baseline,
        "margin": config.margin,
        "listed": config.listed,
        "replicas": config.replicas,
        "seed": config.seed,
        "test_sets": test_sets,
        "verdicts": [
            verdict(
                [row for row in differences if row["system"] == other.system],
                described[other.system],
                described[baseline.system],
                trained,
            )
            for other, trained in zip(others, training, strict=True)
        ],
        "caveat": CAVEAT,
        "systems": systems,
        "differences": differences,
        "training": training,
        "speakers": breakdown.by("speaker", results, corpus.rows),
        "corpora": breakdown.by("corpus", results, corpus.rows),
        "words": breakdown.words(results, config.common),
        "confusions": breakdown.confusions(results, config.common),
        "disagreements": breakdown.disagreements(baseline, others),
        "worst": breakdown.worst(results, config.worst),
        "utterances": breakdown.utterances(results, corpus.rows),
        "left_out": breakdown.left_out(results, corpus.rejected),
    }


def difference(
    system: Results,
    baseline: Results,
    test_set: str,
    speakers: np.ndarray | None,
    config: CompareConfig,
) -> dict[str, Any]:
    """WER of ``system`` minus that of ``baseline``: paired bootstrap, margin, matched pairs.

    ``speakers`` ``(U,)`` numbers whose each utterance is, for the interval by speaker. Figures are
    None where there is nothing to compare: no reference words, or a single utterance.
    """
    mine, theirs = system.scores[test_set], baseline.scores[test_set]
    arguments = (_counts(mine), _counts(theirs), config.replicas, config.seed)
    drawn = paired_bootstrap(*arguments)
    by_speaker = None if speakers is None else paired_bootstrap(*arguments, groups=speakers)
    pairs = mapsswe(
        segment_pairs(
            [item.alignment for item in mine.utterances],
            [item.alignment for item in theirs.utterances],
        )
    )
    return {
        "system": system.system,
        "baseline": baseline.system,
        "test_set": test_set,
        **_describe_difference(drawn),
        "not_worse": not_worse(drawn.relative_interval, config.margin) if drawn else None,
        "by_speaker": _describe_difference(by_speaker) if by_speaker else None,
        "matched_pairs": {
            "segments": pairs.segments,
            "z": _rounded(pairs.z),
            "p": _rounded(pairs.p, 6),
        },
    }


def _describe_difference(drawn: PairedDifference | None) -> dict[str, Any]:
    relative = drawn.relative_interval if drawn else None
    return {
        "difference": _rounded(drawn.difference if drawn else None),
        "low": _rounded(drawn.interval.low if drawn else None),
        "high": _rounded(drawn.interval.high if drawn else None),
        "relative": _rounded(drawn.relative if drawn else None),
        "relative_low": _rounded(relative.low if relative else None),
        "relative_high": _rounded(relative.high if relative else None),
        "probability_better": _rounded(drawn.probability_better if drawn else None),
    }


def _describe_system(
    result: Results, groups: Mapping[str, np.ndarray | None], config: CompareConfig
) -> dict[str, Any]:
    sent = result.summary.get("bytes_per_worker") or {}
    paid = [sent.get("inner_wire"), sent.get("outer")]
    return {
        "system": result.system,
        **{key: result.summary.get(key) for key in SUMMARY_KEYS},
        "bytes_per_worker": {tier: sent.get(tier) for tier in TIERS},
        "bytes_sent": None if None in paid else sum(paid),
        "commit": result.commit,
        "rates": {
            name: _describe_rate(score, groups[name], config)
            for name, score in result.scores.items()
        },
    }


def _describe_rate(
    score: Score, speakers: np.ndarray | None, config: CompareConfig
) -> dict[str, Any]:
    arguments = (_counts(score), config.replicas, config.seed)
    by_speaker = None if speakers is None else bootstrap_interval(*arguments, groups=speakers)
    return {
        **describe_counts(score.total),
        "interval": _ends(bootstrap_interval(*arguments)),
        "interval_by_speaker": _ends(by_speaker),
        "utterances": len(score.utterances),
        "sentence_errors": score.sentence_errors,
        "missing": len(score.missing),
    }


def _check_references(system: Results, baseline: Results) -> None:
    for test_set, theirs in baseline.scores.items():
        mine, other = (
            {item.id: item.reference for item in score.utterances}
            for score in (system.scores[test_set], theirs)
        )
        if mine != other:
            ids = sorted(mine.keys() | other.keys())
            odd = [name for name in ids if mine.get(name) != other.get(name)]
            raise UserError(
                f"{test_set}: '{system.system}' and '{baseline.system}' were scored on different "
                f"references: {len(odd)} utterances differ, the first is {odd[0]!r}; decode and "
                "score both again, or give both the same references"
            )


def _counts(score: Score) -> np.ndarray:
    """Errors and reference words ``(U, 2)``."""
    return np.array([(item.counts.errors, item.counts.words) for item in score.utterances])


def _speakers(score: Score, rows: Mapping[str, Mapping[str, Any]]) -> np.ndarray | None:
    """A number for each utterance's speaker ``(U,)``; None where they are not known."""
    names = [rows.get(item.id, {}).get("speaker") for item in score.utterances]
    if not names or None in names:
        return None
    return np.unique(np.array(names, dtype=str), return_inverse=True)[1]


def _ratio(
    described: Mapping[str, Mapping[str, Any]], system: Results, baseline: Results, key: str
) -> float | None:
    """How much more than the baseline, in per cent; None where unknown, or of nothing."""
    mine, theirs = (described[one.system][key] for one in (system, baseline))
    return None if mine is None or not theirs else round(100 * (mine - theirs) / theirs, 2)


def _ends(interval: Interval | None) -> dict[str, float | None] | None:
    return interval and {"low": _rounded(interval.low), "high": _rounded(interval.high)}


def _rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(float(value), digits)
