"""report.txt: the tables in columns."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from asr.report.breakdown import LINE_WIDTH
from asr.report.tables import Table, make_tables


def format_report(report: Mapping[str, Any]) -> str:
    """The report for people."""
    sections = [("Verdict", _wrapped([*report["verdicts"], report["caveat"]]))]
    sections += [(made.title, _lines(made)) for made in make_tables(report)]
    sections += [
        ("Worst utterances", _worst(report["worst"])),
        ("Made with", list(report["commands"])),
    ]
    texts = [f"{title}\n\n" + "\n".join(lines) + "\n" for title, lines in sections if lines]
    return "\n".join(texts)


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
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


def _lines(table: Table) -> list[str]:
    note = ["", *_wrapped([table.note])] if table.note else []
    return columns(table.header, table.rows, table.left) + note


def _wrapped(texts: Sequence[str]) -> list[str]:
    return [
        line for text in texts for line in textwrap.wrap(text, LINE_WIDTH, break_on_hyphens=False)
    ]


def _worst(worst: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for row in worst:
        lines.append(
            f"{row['system']}, {row['test_set']}, {row['id']}: "
            f"{row['errors']} errors in {row['words']} words"
        )
        lines += [f"  {line}" for line in row["lines"]] + [""]
    return lines[:-1]
