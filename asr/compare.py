"""Stage 9: the systems side by side, and each against the baseline.

The difference between two systems comes with a paired bootstrap over utterances: both systems
are scored on the same drawn utterances, so that what makes an utterance hard for both cancels.
It tells what other test utterances could have given, not what another training seed could.
"""

import dataclasses
import logging
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asr.align import Alignment, aligned_lines
from asr.errors import UserError
from asr.files import read_json, write_json, write_text
from asr.score import Score, read_alignments
from asr.significance import resampled_sums
from asr.stages import StageResult, Workspace, run_stage
from asr.systems import finished_systems, model_of

log = logging.getLogger("asr")

CAVEAT = (
    "The intervals cover the choice of test utterances only; another training seed moves the "
    "rates as well, and one run of each system cannot tell how far."
)
LINE_WIDTH = 120


@dataclasses.dataclass
class CompareConfig:
    """What to compare with what.

    ``baseline`` names a system; ``systems`` chooses the systems and their order (empty: all that
    are scored, the baseline first); ``replicas`` and ``seed`` belong to the paired bootstrap;
    ``worst`` utterances are listed by system and test set.
    """

    baseline: str = "bmuf"
    systems: list[str] = dataclasses.field(default_factory=list)
    replicas: int = 10_000
    seed: int = 0
    worst: int = 3

    def __post_init__(self) -> None:
        if self.replicas < 100:
            raise ValueError(f"replicas={self.replicas}: an interval takes 100 or more")
        if self.worst < 0:
            raise ValueError(f"worst={self.worst}: 0 or more")


@dataclasses.dataclass(frozen=True)
class Results:
    """One system: its training summary; by test set, its wer.json and its alignments."""

    system: str
    summary: Mapping[str, Any]
    rates: Mapping[str, Mapping[str, Any]]
    scores: Mapping[str, Score]


def run(workspace: Workspace) -> None:
    """Write ``compare/report.txt`` and ``compare/report.json``, and print the former."""
    config = workspace.config(CompareConfig, "compare")
    test_sets = workspace.require("corpus")["counts"]["splits"]["tests"]
    systems = choose_systems(config, finished_systems(workspace, "score"))
    compared = set(map(model_of, systems))
    for system in sorted(set(finished_systems(workspace, "train")) - compared):
        log.warning("system %s is trained, but not in this comparison", system)
    inputs = [f"train/{system}" for system in sorted(compared)]
    inputs += [f"score/{system}" for system in systems]

    def build(directory: Path) -> StageResult:
        results = [_read_results(workspace, system, test_sets) for system in systems]
        report = compare(results, test_sets, config)
        report["commands"] = _commands(workspace, systems)
        outputs = [directory / "report.txt", directory / "report.json"]
        write_text(outputs[0], format_report(report))
        write_json(outputs[1], report)
        return StageResult({"systems": systems, "test_sets": test_sets}, outputs)

    run_stage(workspace, "compare", config, inputs, build)
    path = workspace.directory("compare") / "report.txt"
    print(path.read_text(encoding="utf-8"))
    print(f"report: {path}")


def choose_systems(config: CompareConfig, scored: Sequence[str]) -> list[str]:
    """The systems to compare, in order; UserError when one, or the baseline, is not scored."""
    others = [system for system in scored if system != config.baseline]
    chosen = config.systems or [config.baseline, *others]
    for system in [config.baseline, *chosen]:
        if system not in scored:
            raise UserError(
                f"system '{system}' is not scored; scored are: {', '.join(scored)}. Train, decode "
                f"and score it, or choose others with baseline=... and systems=[...]"
            )
    if config.baseline not in chosen:
        raise UserError(
            f"systems={chosen} leaves out the baseline '{config.baseline}'; add it, or set "
            f"baseline=... to one of them"
        )
    return list(chosen)


def compare(
    results: Sequence[Results], test_sets: Sequence[str], config: CompareConfig
) -> dict[str, Any]:
    """The content of report.json, without the commands: rates in per cent, differences in points.

    UserError when two systems were scored on different references.
    """
    baseline = next(result for result in results if result.system == config.baseline)
    others = [result for result in results if result is not baseline]
    differences = [
        paired_difference(other, baseline, test_set, config)
        for other in others
        for test_set in test_sets
    ]
    return {
        "baseline": config.baseline,
        "test_sets": list(test_sets),
        "systems": [_describe_system(result, baseline, test_sets) for result in results],
        "differences": differences,
        "verdicts": [
            verdict([row for row in differences if row["system"] == other.system])
            for other in others
        ],
        "worst": [
            {"system": result.system, "test_set": test_set, "utterances": utterances}
            for result in results
            for test_set in test_sets
            if (utterances := worst_utterances(result.scores[test_set], config.worst))
        ],
    }


def paired_difference(
    system: Results, baseline: Results, test_set: str, config: CompareConfig
) -> dict[str, Any]:
    """WER of ``system`` minus WER of ``baseline`` in points, with its paired bootstrap.

    ``probability_better`` is the share of replicas in which ``system`` makes fewer errors, ties
    counted half. The figures are None when the test set has no reference words.
    """
    mine, theirs = system.scores[test_set], baseline.scores[test_set]
    if _references(mine) != _references(theirs):
        raise UserError(
            f"{test_set}: '{system.system}' and '{baseline.system}' were scored on different "
            f"references; run decode and score again for both"
        )
    counts = np.array(
        [
            (one.counts.errors - other.counts.errors, one.counts.words)
            for one, other in zip(mine.utterances, theirs.utterances, strict=True)
        ]
    )
    row: dict[str, Any] = {
        "system": system.system,
        "baseline": baseline.system,
        "test_set": test_set,
        "difference": None,
        "low": None,
        "high": None,
        "probability_better": None,
        "kind": "95 % percentile interval, paired bootstrap over utterances",
        "replicas": config.replicas,
        "seed": config.seed,
    }
    more_errors, all_words = counts.sum(axis=0)
    if all_words:
        errors, words = resampled_sums(counts, config.replicas, config.seed).T
        points = 100 * errors[words > 0] / words[words > 0]
        low, high = np.percentile(points, [2.5, 97.5])
        row["difference"] = round(float(100 * more_errors / all_words), 4)
        row["low"], row["high"] = round(float(low), 4), round(float(high), 4)
        better = np.mean(points < 0) + np.mean(points == 0) / 2
        row["probability_better"] = round(float(better), 4)
    return row


def verdict(differences: Sequence[Mapping[str, Any]]) -> str:
    """One sentence on one system's differences by test set; claims only what intervals allow."""
    parts = []
    for row in differences:
        if row["difference"] is None:
            parts.append(f"nothing to compare on {row['test_set']}, which has no reference words")
            continue
        if row["high"] < 0:
            claim = "fewer errors"
        elif row["low"] > 0:
            claim = "more errors"
        else:
            claim = "no difference shown"
        parts.append(
            f"{claim} on {row['test_set']} ({row['difference']:+.2f} points, 95 % interval "
            f"{row['low']:+.2f} to {row['high']:+.2f})"
        )
    first = differences[0]
    return f"{first['system']} against {first['baseline']}: {'; '.join(parts)}."


def worst_utterances(score: Score, number: int) -> list[dict[str, Any]]:
    """The ``number`` worst utterances: id, counts, and ref, hyp and op lines in columns."""
    return [
        {
            "id": item.id,
            "errors": item.counts.errors,
            "words": item.counts.words,
            "lines": [line for part in _wrap(item.alignment) for line in _labelled(part)],
        }
        for item in score.worst(number)
    ]


def format_report(report: Mapping[str, Any]) -> str:
    """The report for people, at most ``LINE_WIDTH`` columns wide unless names are long."""
    sections = [
        ("Systems", [f"{row['system']}: {row['title']}" for row in report["systems"]]),
        ("Word error rates", _rates_table(report)),
        ("Word error rates by corpus", _corpora_table(report)),
        (f"Differences to {report['baseline']}, paired", _differences_table(report)),
        ("Training, bytes as sent by each worker", _training_table(report["systems"])),
        ("Worst utterances", _worst_lines(report["worst"])),
        ("Made with", report["commands"]),
    ]
    texts = [f"{title}\n\n" + "\n".join(lines) + "\n" for title, lines in sections if lines]
    return "\n".join(texts)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Lines with aligned columns: the first ``left`` to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    return [
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, rule, *rows)
    ]


def _read_results(workspace: Workspace, system: str, test_sets: Sequence[str]) -> Results:
    scored = workspace.directory(f"score/{system}")
    return Results(
        system=system,
        summary=read_json(workspace.directory(f"train/{model_of(system)}") / "summary.json"),
        rates={name: read_json(scored / name / "wer.json") for name in test_sets},
        scores={name: read_alignments(scored / name / "per_utt.txt") for name in test_sets},
    )


def _describe_system(
    result: Results, baseline: Results, test_sets: Sequence[str]
) -> dict[str, Any]:
    rates = {}
    for test_set in test_sets:
        row = result.rates[test_set]
        rates[test_set] = {
            "wer": row["wer"],
            "errors": row["errors"],
            "words": row["words"],
            "insertions": row["insertions"],
            "deletions": row["deletions"],
            "substitutions": row["substitutions"],
            "interval": row["interval"],
            "missing": len(row["missing"]),
            "corpora": row["corpora"],
            "relative": _relative(row["wer"], baseline.rates[test_set]["wer"]),
        }
    return {**result.summary, "system": result.system, "rates": rates}


def _relative(rate: float | None, baseline: float | None) -> float | None:
    """Relative difference in per cent; None where the baseline has no rate or makes no error."""
    if rate is None or not baseline:
        return None
    return round(100 * (rate - baseline) / baseline, 2)


def _references(score: Score) -> list[tuple[str, list[str]]]:
    return [
        (item.id, [word for word, _ in item.alignment if word is not None])
        for item in score.utterances
    ]


def _wrap(alignment: Alignment) -> Iterator[Alignment]:
    """Cut an alignment into parts whose lines fit into the report's width."""
    part: Alignment = []
    for pair in alignment:
        if part and max(map(len, aligned_lines([*part, pair]))) > LINE_WIDTH - 8:
            yield part
            part = []
        part.append(pair)
    yield part


def _labelled(alignment: Alignment) -> list[str]:
    lines = zip(("ref", "hyp", "op "), aligned_lines(alignment), strict=True)
    return [f"{label}  {line}" for label, line in lines]


def _rates_table(report: Mapping[str, Any]) -> list[str]:
    header = ["system", "test set", "WER %", "95 % interval", "errors / words"]
    header += ["ins", "del", "sub", "missing", f"relative to {report['baseline']}"]
    rows = []
    for test_set in report["test_sets"]:
        for row in report["systems"]:
            rate = row["rates"][test_set]
            interval = rate["interval"]
            rows.append(
                [
                    row["system"],
                    test_set,
                    _number(rate["wer"], ".2f"),
                    f"{interval['low']:.2f} to {interval['high']:.2f}" if interval else "-",
                    f"{rate['errors']} / {rate['words']}",
                    str(rate["insertions"]),
                    str(rate["deletions"]),
                    str(rate["substitutions"]),
                    str(rate["missing"]),
                    _number(rate["relative"], "+.1f", " %"),
                ]
            )
    return table(header, rows, left=2)


def _corpora_table(report: Mapping[str, Any]) -> list[str]:
    """Rates by corpus in the test sets that are of several."""
    rows = []
    for test_set in report["test_sets"]:
        for system in report["systems"]:
            corpora = system["rates"][test_set]["corpora"]
            for corpus, rate in corpora.items() if len(corpora) > 1 else ():
                errors = f"{rate['errors']} / {rate['words']}"
                row = [system["system"], test_set, corpus, _number(rate["wer"], ".2f"), errors]
                rows.append(row)
    return (
        table(["system", "test set", "corpus", "WER %", "errors / words"], rows, 3) if rows else []
    )


def _differences_table(report: Mapping[str, Any]) -> list[str]:
    if not report["differences"]:
        return []
    header = ["system", "test set", "difference, points", "95 % interval", "better in replicas"]
    rows = [
        [
            row["system"],
            row["test_set"],
            _number(row["difference"], "+.2f"),
            f"{_number(row['low'], '+.2f')} to {_number(row['high'], '+.2f')}",
            _number(row["probability_better"], ".1%"),
        ]
        for row in report["differences"]
    ]
    sentences = [*report["verdicts"], CAVEAT]
    wrapped = [
        line
        for text in sentences
        for line in textwrap.wrap(text, LINE_WIDTH, break_on_hyphens=False)
    ]
    return [*table(header, rows, left=2), "", *wrapped]


def _training_table(systems: Sequence[Mapping[str, Any]]) -> list[str]:
    header = ["system", "workers", "subgroups", "epochs", "steps", "blocks", "density", "time"]
    header += ["frames/s", "inner MB", "inner payload MB", "outer MB"]
    rows = []
    for row in systems:
        sent = row["bytes_per_worker"]
        rows.append(
            [
                row["system"],
                _number(row["workers"]),
                _number(row["subgroups"]),
                _number(row["epochs"], "g"),
                _number(row["steps"]),
                _number(row["blocks"]),
                _number(row["density"], ".3%"),
                _duration(row["train_seconds"]),
                _number(row["frames_per_second"], ".0f"),
                *(_megabytes(sent[tier]) for tier in ("inner_wire", "inner_payload", "outer")),
            ]
        )
    return table(header, rows, left=1)


def _worst_lines(worst: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for row in worst:
        for utterance in row["utterances"]:
            lines.append(
                f"{row['system']}, {row['test_set']}, {utterance['id']}: "
                f"{utterance['errors']} errors in {utterance['words']} words"
            )
            lines += [f"  {line}" for line in utterance["lines"]] + [""]
    return lines[:-1]


def _number(value: float | None, style: str = "d", unit: str = "") -> str:
    return "-" if value is None else format(value, style) + unit


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.1f}"


def _commands(workspace: Workspace, systems: Sequence[str]) -> list[str]:
    where = f"--recipe {workspace.recipe} --dir {workspace.root}"
    return [
        *(
            f"python -m asr train {where} --system {system}"
            for system in dict.fromkeys(map(model_of, systems))
        ),
        *(f"python -m asr {verb} {where}" for verb in ("decode", "score", "compare")),
        f"settings: stage.json beside the outputs of each in {workspace.root}",
        "rescoring: python -m asr.score REF HYP, with ref.txt and hyp.txt of "
        "decode/<system>/<test set>",
    ]
