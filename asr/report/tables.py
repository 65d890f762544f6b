"""The report's tables, each number worded once, for report.txt and report.html alike."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from asr.report.content import TIERS
from asr.report.figures import (
    ABSENT,
    duration,
    errors_of,
    interval,
    megabytes,
    number,
    yes_or_no,
)

Report = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Table:
    """``left`` columns of names, then figures. ``note`` says how to read them."""

    name: str
    title: str
    header: list[str]
    rows: list[list[str]]
    left: int = 1
    note: str = ""


def make_tables(report: Report) -> list[Table]:
    """All tables that have rows, in the order of the report."""
    tables = [
        _rates(report),
        _differences(report),
        _by_speaker(report),
        _systems(report),
        _training(report),
        _corpora(report),
        _speakers(report),
        _disagreements(report),
        _words(report),
        _confusions(report),
        _left_out(report),
    ]
    return [table for table in tables if table.rows]


def _rates(report: Report) -> Table:
    header = ["system", "test set", "WER %", "95 % interval", "by speaker", "errors / words"]
    header += ["ins", "del", "sub", "wrong utterances", "missing"]
    rows = []
    for test_set in report["test_sets"]:
        for system in report["systems"]:
            rate = system["rates"][test_set]
            rows.append(
                [
                    system["system"],
                    test_set,
                    number(rate["wer"], ".2f"),
                    _ends(rate["interval"]),
                    _ends(rate["interval_by_speaker"]),
                    errors_of(rate),
                    number(rate["insertions"]),
                    number(rate["deletions"]),
                    number(rate["substitutions"]),
                    f"{rate['sentence_errors']} / {rate['utterances']}",
                    number(rate["missing"]),
                ]
            )
    note = "Intervals: 95 %, bootstrap over utterances, or over speakers."
    return Table("rates", "Word error rates", header, rows, 2, note)


def _differences(report: Report) -> Table:
    margin = f"{report['margin']:g} %"
    header = ["system", "test set", "points", "95 % interval", "relative %", "95 % interval"]
    header += ["better", f"not worse by {margin}", "segments", "p"]
    rows = [
        [
            row["system"],
            row["test_set"],
            number(row["difference"], "+.2f"),
            interval(row["low"], row["high"], "+.2f"),
            number(row["relative"], "+.1f"),
            interval(row["relative_low"], row["relative_high"], "+.1f"),
            number(row["probability_better"], ".1%"),
            yes_or_no(row["not_worse"]),
            number(row["matched_pairs"]["segments"]),
            number(row["matched_pairs"]["p"], ".3f"),
        ]
        for row in report["differences"]
    ]
    note = (
        "Paired bootstrap over utterances; better: share of replicas with fewer errors, ties count "
        f"half; not worse: the relative interval's upper end is under {margin}; segments and p: "
        "matched-pairs test (MAPSSWE), two-sided."
    )
    return Table(
        "differences", f"Differences to {report['baseline']}, paired", header, rows, 2, note
    )


def _by_speaker(report: Report) -> Table:
    header = ["system", "test set", "95 % interval", "relative, 95 % interval", "better"]
    rows = [
        [
            row["system"],
            row["test_set"],
            interval(drawn["low"], drawn["high"], "+.2f"),
            interval(drawn["relative_low"], drawn["relative_high"], "+.1f"),
            number(drawn["probability_better"], ".1%"),
        ]
        for row in report["differences"]
        if (drawn := row["by_speaker"])
    ]
    note = "The same differences when whole speakers are drawn, in points and in per cent."
    title = f"Differences to {report['baseline']}, by speaker"
    return Table("differences-by-speaker", title, header, rows, 2, note)


def _systems(report: Report) -> Table:
    header = ["system", "title", "workers", "subgroups", "inner", "outer", "block steps"]
    header += ["block momentum", "parameters", "seed", "commit"]
    rows = [
        [
            row["system"],
            row["title"] or ABSENT,
            number(row["workers"]),
            number(row["subgroups"]),
            row["inner"] or ABSENT,
            row["outer"] or ABSENT,
            number(row["block_steps"]),
            number(row["block_momentum"], "g"),
            number(row["parameters"], ",d"),
            number(row["seed"]),
            (row["commit"] or ABSENT)[:10],
        ]
        for row in report["systems"]
        if row["title"]
    ]
    return Table("systems", "Systems", header, rows, 2)


def _training(report: Report) -> Table:
    header = ["system", "epochs", "steps", "blocks", "samples", "time", "frames/s", "density"]
    header += ["inner MB", "inner payload MB", "outer MB", "sent MB", "best dev WER %"]
    rows = [
        [
            row["system"],
            number(row["epochs"], "g"),
            number(row["steps"]),
            number(row["blocks"]),
            number(row["samples"], ",.0f"),
            duration(row["train_seconds"]),
            number(row["frames_per_second"], ".0f"),
            number(row["density"], ".3%"),
            *(megabytes(row["bytes_per_worker"][tier]) for tier in TIERS),
            megabytes(row["bytes_sent"]),
            number(_percent(row["best_dev_wer"]), ".2f"),
        ]
        for row in report["systems"]
        if row["title"]
    ]
    note = "Samples: 30 ms frames of all workers. MB: 10^6 bytes, as sent by each worker."
    for row in report["curves"]:
        if row.get("totals_measured") is False:
            note += f" {row['system']}: curves in proportion to steps."
    return Table("training", "Training", header, rows, 1, note)


def _corpora(report: Report) -> Table:
    """Only where a test set is of several."""
    sets = [row["test_set"] for row in report["corpora"]]
    mixed = [row for row in report["corpora"] if sets.count(row["test_set"]) > 1]
    return _by("corpora", "corpus", "Word error rates by corpus, %", mixed, report)


def _speakers(report: Report) -> Table:
    return _by("speakers", "speaker", "Word error rates by speaker, %", report["speakers"], report)


def _by(
    name: str, key: str, title: str, listing: Sequence[Mapping[str, Any]], report: Report
) -> Table:
    names = [row["system"] for row in report["systems"]]
    header = ["test set", key, "words"]
    for system in names:
        header += [system, f"{system} errors"]
    rows = []
    for row in listing:
        cells = [row["test_set"], row[key], number(row["rates"][names[0]]["words"])]
        for system in names:
            rate = row["rates"][system]
            cells += [number(rate["wer"], ".2f"), number(rate["errors"])]
        rows.append(cells)
    return Table(name, title, header, rows, 2)


def _disagreements(report: Report) -> Table:
    header = ["system", "test set", "only it right", f"only {report['baseline']} right"]
    header += ["both right", "both wrong"]
    rows = [
        [
            row["system"],
            row["test_set"],
            number(len(row["only_system_right"])),
            number(len(row["only_baseline_right"])),
            number(row["both_right"]),
            number(row["both_wrong"]),
        ]
        for row in report["disagreements"]
    ]
    return Table("agreement", "Utterances without any error", header, rows, 2)


def _words(report: Report) -> Table:
    names = [row["system"] for row in report["systems"]]
    header = ["word", "said"]
    for name in names:
        header += [f"{name} wrong", f"{name} inserted"]
    rows = []
    for row in report["words"]:
        cells = [row["word"], number(row["said"])]
        for name in names:
            cells += [number(row["wrong"][name]), number(row["inserted"][name])]
        rows.append(cells)
    return Table("words", "Words that cost most errors", header, rows, 1)


def _confusions(report: Report) -> Table:
    names = [row["system"] for row in report["systems"]]
    rows = [
        [
            row["reference"] or "(nothing)",
            row["hypothesis"] or "(nothing)",
            *(number(row["counts"][name]) for name in names),
        ]
        for row in report["confusions"]
    ]
    return Table(
        "confusions", "Most frequent confusions", ["reference", "hypothesis", *names], rows, 2
    )


def _left_out(report: Report) -> Table:
    header = ["what", "set", "reason", "the first", "utterances", "time"]
    rows = [
        [
            row["what"],
            row["set"],
            row["reason"],
            " ".join(row["ids"][:3]),
            number(row["utterances"]),
            duration(row["seconds"]),
        ]
        for row in report["left_out"]
    ]
    return Table("left-out", "Left out", header, rows, 4)


def _ends(ends: Mapping[str, float] | None) -> str:
    return interval(ends["low"], ends["high"]) if ends else ABSENT


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
