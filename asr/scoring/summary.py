"""The content of wer.json, as docs/scoring.md has it: counts, and rates in per cent."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jiwer
import numpy as np

from asr.scoring.align import ErrorCounts, aligned_lines
from asr.scoring.error_tables import (
    DURATION_BINS,
    GroupCounts,
    confusions,
    counts_by,
    duration_bin,
    most_frequent,
    pair_counts,
    word_counts,
)
from asr.scoring.significance import bootstrap_interval
from asr.scoring.texts import Score, ScoredUtterance

SCHEMA = 1  # of wer.json
Rows = Mapping[str, Mapping[str, Any]]  # utterance id -> its speaker, corpus and duration


@dataclasses.dataclass
class ScoreConfig:
    """``replicas`` and ``seed`` of the bootstrap; what to list in wer.json.

    That is the ``worst`` utterances, and of the ``frequent`` errors so many of each kind.
    """

    replicas: int = 10_000
    seed: int = 0
    worst: int = 10
    frequent: int = 50

    def __post_init__(self) -> None:
        if self.replicas < 100:
            raise ValueError(f"replicas={self.replicas}: an interval takes 100 or more")
        for name in ("seed", "worst", "frequent"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: 0 or more")


def describe(score: Score, rows: Rows, config: ScoreConfig) -> dict[str, Any]:
    """The content of wer.json, as docs/scoring.md has it; rates are in per cent."""
    pairs = pair_counts(item.alignment for item in score.utterances)
    words = word_counts(pairs)
    return {
        "schema": SCHEMA,
        **describe_counts(score.total),
        "interval": _interval(score, config),
        "interval_by_speaker": _interval(score, config, rows),
        "utterances": len(score.utterances),
        "sentence_errors": score.sentence_errors,
        "sentence_error_rate": round(100 * score.sentence_errors / len(score.utterances), 4),
        "characters": _describe_characters(score),
        "empty_references": sum(item.counts.words == 0 for item in score.utterances),
        "missing": score.missing,
        "speakers": _describe_by("speaker", score, rows),
        "corpora": _describe_by("corpus", score, rows),
        "durations": _describe_durations(score, rows),
        "confusions": [
            {"said": said, "heard": heard, "count": count}
            for said, heard, count in confusions(pairs, config.frequent)
        ],
        "deleted_words": dict(most_frequent(words, "deleted", config.frequent)),
        "inserted_words": dict(most_frequent(words, "inserted", config.frequent)),
        "worst": [_describe_utterance(item) for item in score.worst(config.worst)],
    }


def _describe_by(key: str, score: Score, rows: Rows) -> dict[str, dict[str, Any]]:
    """Counts by what ``rows`` give as an utterance's speaker, or corpus."""
    groups = counts_by((rows[item.id][key], item.counts) for item in score.utterances)
    return {name: _describe_group(group) for name, group in groups.items()}


def _describe_durations(score: Score, rows: Rows) -> list[dict[str, Any]]:
    """Counts by bin of duration, shortest first, without empty bins; rows may lack durations."""
    bins = counts_by(
        (duration_bin(rows[item.id]["duration"]), item.counts)
        for item in score.utterances
        if "duration" in rows[item.id]
    )
    ends = [*DURATION_BINS[1:], None]
    return [
        {"from": DURATION_BINS[number], "to": ends[number], **_describe_group(group)}
        for number, group in bins.items()
    ]


def _describe_group(group: GroupCounts) -> dict[str, Any]:
    return {
        **describe_counts(group.counts),
        "utterances": group.utterances,
        "sentence_errors": group.sentence_errors,
    }


def describe_counts(counts: ErrorCounts) -> dict[str, Any]:
    """Rate in per cent (None without reference words), errors, and the counts behind them."""
    rate = None if counts.rate is None else round(100 * counts.rate, 4)
    return {"wer": rate, "errors": counts.errors, **dataclasses.asdict(counts)}


def _describe_characters(score: Score) -> dict[str, Any]:
    """Character error rate by jiwer; a space between words is a character."""
    counted = jiwer.process_characters(
        [item.reference for item in score.utterances],
        [item.hypothesis for item in score.utterances],
    )
    characters = counted.hits + counted.substitutions + counted.deletions
    errors = counted.substitutions + counted.deletions + counted.insertions
    rate = round(100 * errors / characters, 4) if characters else None
    return {"cer": rate, "errors": errors, "characters": characters}


def _describe_utterance(utterance: ScoredUtterance) -> dict[str, Any]:
    reference, hypothesis, operation = aligned_lines(utterance.alignment)
    lines = {"ref": reference, "hyp": hypothesis, "op": operation}
    return {"id": utterance.id, **describe_counts(utterance.counts), **lines}


def _interval(score: Score, config: ScoreConfig, rows: Rows | None = None) -> dict[str, Any] | None:
    """Bootstrap interval by utterance or, with ``rows``, by speaker; None where there is none."""
    counts = np.array([(item.counts.errors, item.counts.words) for item in score.utterances])
    drawn, groups = "utterances", None
    if rows is not None:
        drawn = "speakers"
        speakers = [rows[item.id]["speaker"] for item in score.utterances]
        groups = np.unique(speakers, return_inverse=True)[1]
    interval = bootstrap_interval(counts, config.replicas, config.seed, groups)
    if interval is None:
        return None
    return {
        "kind": f"95 % percentile bootstrap over {drawn}",
        "low": round(interval.low, 4),
        "high": round(interval.high, 4),
        "replicas": config.replicas,
        "seed": config.seed,
    }
