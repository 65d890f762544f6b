"""What the figures allow to say, one sentence a system."""

from collections.abc import Mapping, Sequence
from typing import Any

from asr.report.figures import duration, megabytes, number
from asr.systems import model_of

CAVEAT = (
    "The intervals cover the choice of test utterances only; another training seed moves the "
    "rates as well, and one run of each system cannot tell how far."
)


def verdict(
    differences: Sequence[Mapping[str, Any]],
    system: Mapping[str, Any],
    baseline: Mapping[str, Any],
    training: Mapping[str, Any],
) -> str:
    """One sentence: errors by test set, then time and bytes; it claims what intervals allow."""
    parts = [_errors(row, system, baseline) for row in differences]
    if model_of(system["system"]) == model_of(baseline["system"]):
        return f"{system['system']} against {baseline['system']}: {'; '.join(parts)}; one model."
    if system["train_seconds"] is not None and baseline["train_seconds"] is not None:
        parts.append(
            f"trained in {duration(system['train_seconds'])}, the baseline in "
            f"{duration(baseline['train_seconds'])}{_percent(training['seconds'])}"
        )
    sent = (system["bytes_sent"], baseline["bytes_sent"])
    if None not in sent and any(sent):
        parts.append(
            f"each worker sent {megabytes(system['bytes_sent'])} MB, the baseline's "
            f"{megabytes(baseline['bytes_sent'])} MB{_percent(training['bytes'])}"
        )
    return f"{system['system']} against {baseline['system']}: {'; '.join(parts)}."


def claim(row: Mapping[str, Any]) -> str:
    """What an interval of the difference allows to say."""
    if row["high"] < 0:
        return "fewer errors"
    return "more errors" if row["low"] > 0 else "no difference shown"


def _errors(row: Mapping[str, Any], system: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
    where = row["test_set"]
    mine, theirs = (one["rates"][where]["wer"] for one in (system, baseline))
    if row["difference"] is None:
        reason = "no reference words" if mine is None else "one utterance alone"
        return f"nothing to compare on {where}, which has {reason}"
    return (
        f"{claim(row)} on {where} ({mine:.2f} % and {theirs:.2f} %, {row['difference']:+.2f} "
        f"points, 95 % interval {row['low']:+.2f} to {row['high']:+.2f}, better with "
        f"probability {number(row['probability_better'], '.1%')})"
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f" ({value:+.1f} %)"
