"""report.html: the tables, the plots and every utterance, in one file that needs nothing else.

Without JavaScript all can be read; with it tables sort, utterances are found, and audio plays in
its place. The page's security policy lets nothing be fetched, and no script run but its own.
"""

import base64
import hashlib
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from asr.report.figures import ABSENT
from asr.report.plots import draw_all
from asr.report.tables import Table, make_tables

STYLE = Path(__file__).with_name("page.css")
SCRIPT = Path(__file__).with_name("page.js")
# Columns of an utterance's alignment before it goes on below.
CHARACTERS = 100
REFERENCE_LABEL = "ref"
GAP = "\N{MINUS SIGN}"  # in the place of a word that was not heard
LONG_TABLE = 30  # rows, more are folded up
# Tables before and after the plots.
FIRST = ("rates", "differences", "differences-by-speaker")
SECOND = (
    "systems", "training", "corpora", "agreement", "words", "confusions", "speakers", "left-out",
)  # fmt: skip


def make_page(report: Mapping[str, Any]) -> str:
    """The whole page."""
    script = SCRIPT.read_text(encoding="utf-8")
    title = _title(report)
    sections = [
        _Section("verdict", "Verdict", _verdicts(report)),
        *_table_sections(report, FIRST),
        _Section("plots", "Plots", _plots(report)),
        *_table_sections(report, SECOND),
        _Section("settings", "Settings", _settings(report)),
        _Section("made-with", "Made with", _commands(report)),
        _Section("utterances", "Utterances", _utterances(report)),
    ]
    sections = [section for section in sections if section.content]
    links = "".join(f'<a href="#{one.name}">{escape(one.title)}</a>\n' for one in sections)
    return (
        "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        '<meta name=color-scheme content="light dark">\n'
        f"<title>{title}</title>\n"
        f"<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        f"<header><h1>{title}</h1>\n<p class=where>{_facts(report)}</p>\n"
        f"<nav>{links}</nav></header>\n<main>\n"
        + "\n".join(section.html() for section in sections)
        + f"\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


class _Section(NamedTuple):
    """A part of the page: its anchor, its title, its content."""

    name: str
    title: str
    content: str

    def html(self) -> str:
        title = f"<h2>{escape(self.title)}</h2>"
        return f"<section id={self.name}>{title}\n{self.content}\n</section>"


def _policy(script: str) -> str:
    """Nothing from elsewhere: this script, styles of the page, and audio beside it."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; media-src 'self' file:; base-uri 'none'; form-action 'none'"
    )


def _title(report: Mapping[str, Any]) -> str:
    names = [row["system"] for row in report["systems"]]
    others = [name for name in names if name != report["baseline"]]
    if not others:
        return escape(report["baseline"])
    return escape(f"{', '.join(others)} against {report['baseline']}")


def _facts(report: Mapping[str, Any]) -> str:
    sets = ", ".join(
        f"{name} ({report['systems'][0]['rates'][name]['utterances']} utterances, "
        f"{report['systems'][0]['rates'][name]['words']} words)"
        for name in report["test_sets"]
    )
    return escape(
        f"{sets}. {report['replicas']} bootstrap replicas, seed {report['seed']}, "
        f"margin {report['margin']:g} %."
    )


def _verdicts(report: Mapping[str, Any]) -> str:
    sentences = "".join(f"<p class=verdict>{escape(text)}</p>\n" for text in report["verdicts"])
    return f"{sentences}<p class=note>{escape(report['caveat'])}</p>"


def _table_sections(report: Mapping[str, Any], names: Sequence[str]) -> Iterator[_Section]:
    tables = {table.name: table for table in make_tables(report)}
    for name in names:
        if name in tables:
            yield _Section(name, tables[name].title, _folded(report, tables[name]))


def _folded(report: Mapping[str, Any], table: Table) -> str:
    content = _table(report, table)
    if len(table.rows) <= LONG_TABLE:
        return content
    return f"<details><summary>{len(table.rows)} rows</summary>\n{content}</details>"


def _table(report: Mapping[str, Any], table: Table) -> str:
    head = "".join(f"<th scope=col>{escape(name)}" for name in table.header)
    anchors = _anchors(report) if table.name == "systems" else {}
    rows = []
    for row in table.rows:
        first = escape(row[0])
        if row[0] in anchors:
            first = f'<a href="#{anchors[row[0]]}">{first}</a>'
        others = "".join(
            f"<td{'' if column < table.left else ' class=n'}>{escape(cell)}"
            for column, cell in enumerate(row[1:], start=1)
        )
        rows.append(f"<tr><th scope=row>{first}{others}")
    note = f"<p class=note>{escape(table.note)}</p>" if table.note else ""
    return (
        f'<div class=wide tabindex=0 role=region aria-label="{escape(table.title)}">'
        f"<table class=sortable data-left={table.left}><thead><tr>{head}<tbody>\n"
        + "\n".join(rows)
        + f"</table></div>{note}"
    )


def _plots(report: Mapping[str, Any]) -> str:
    figures = [
        plot["svg"].replace(
            "<svg",
            f'<svg role=img aria-label="{escape(plot["title"] + ": " + plot["described"])}"',
            1,
        )
        + f"<figcaption>{escape(plot['caption'])}</figcaption>"
        for plot in draw_all(report)
    ]
    drawn = "".join(f"<figure>{figure}</figure>\n" for figure in figures)
    return f"<div class=plots>{drawn}</div>" if drawn else ""


def _utterances(report: Mapping[str, Any]) -> str:
    names = [row["system"] for row in report["systems"]]
    listed = report["utterances"][: report["listed"]]
    rows = "\n".join(_utterance(row, names) for row in listed)
    which = "The one with most errors first."
    if len(listed) < len(report["utterances"]):
        number = len(report["utterances"])
        which = f"The {len(listed)} with most errors, of {number}; report.json has all."
    systems = json.dumps(names)
    sets = json.dumps(report["test_sets"])
    return (
        f"<form id=find data-systems='{escape(systems)}' data-sets='{escape(sets)}' hidden>"
        "</form>\n"
        f"<p class=note>{which} In an alignment, a word in place of another "
        "is <b class=s>marked so</b>, one that was not said <b class=i>so</b>, and "
        "<b class=d>&minus;</b> stands for one that was not heard.</p>\n"
        f"<ol id=list>\n{rows}\n</ol>"
    )


def _utterance(row: Mapping[str, Any], names: Sequence[str]) -> str:
    errors = [row["errors"][name] for name in names]
    counts = " ".join(
        f"<span{' class=ok' if not count else ''}>{escape(name)} {count}</span>"
        for name, count in zip(names, errors, strict=True)
    )
    text = " ".join(word for word in row["reference"] if word is not None)
    speaker = f" <i>{escape(row['speaker'])}</i>" if row["speaker"] else ""
    audio = f'<a class=audio href="{escape(row["audio"])}">audio</a>' if row.get("audio") else ""
    inside = _aligned(row, names) if any(errors) else "<p>All have every word right.</p>"
    shown = escape(text) or "<i>(nothing said)</i>"
    return (
        f'<li data-e="{",".join(map(str, errors))}" data-w={row["words"]} '
        f'data-set="{escape(row["test_set"])}"><details><summary>'
        f"<code>{escape(row['id'])}</code>{speaker} <small>{counts} of {row['words']}</small> "
        f"<span class=t>{shown}</span></summary>{audio}{inside}</details>"
    )


def _aligned(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """The reference and all hypotheses as lines, word below word, cut where they grow too wide."""
    lines = [row["reference"], *(row["hypotheses"][name] for name in names)]
    labels = _padded([REFERENCE_LABEL, *names])
    starts = [f"<i>{escape(label)}</i>" for label in labels]
    blocks: list[list[str]] = []
    width = CHARACTERS
    for column in zip(*lines, strict=True):
        cells = _padded([word or (GAP if column[0] else "") for word in column])
        if width + len(cells[0]) > CHARACTERS:
            blocks.append(list(starts))
            width = 0
        width += len(cells[0]) + 1
        for number, (word, cell) in enumerate(zip(column, cells, strict=True)):
            blocks[-1][number] += " " + _marked(column[0], word, cell)
    text = "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks)
    return f"<pre tabindex=0>{text}</pre>"


def _marked(reference: str | None, heard: str | None, cell: str) -> str:
    """A word in its column, marked if it is wrong; the reference's own words are not."""
    if heard == reference:
        return escape(cell)
    word = cell.rstrip()
    kind = "d" if heard is None else "i" if reference is None else "s"
    return f"<b class={kind}>{escape(word)}</b>{cell[len(word) :]}"


def _padded(words: Sequence[str]) -> list[str]:
    """Words filled up with spaces to one width on the screen."""
    widths = [sum(map(_columns, word)) for word in words]
    return [word + " " * (max(widths) - width) for word, width in zip(words, widths, strict=True)]


def _columns(character: str) -> int:
    """How many columns of a fixed-width font a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _settings(report: Mapping[str, Any]) -> str:
    """Each system's resolved configuration and commit."""
    anchors = _anchors(report)
    parts = []
    for row in report["systems"]:
        if row["system"] in anchors:
            text = escape(yaml.safe_dump(row["config"], sort_keys=False))
            commit = f"<code>{escape(row['commit'] or ABSENT)}</code>"
            parts.append(
                f"<details><summary>{escape(row['system'])}, commit {commit}</summary>"
                f"<pre id={anchors[row['system']]}>{text}</pre></details>"
            )
    return "\n".join(parts)


def _anchors(report: Mapping[str, Any]) -> dict[str, str]:
    """Where the settings of each system stand, for those whose settings are known."""
    return {
        row["system"]: f"settings-{number}"
        for number, row in enumerate(report["systems"])
        if row["config"]
    }


def _commands(report: Mapping[str, Any]) -> str:
    return "<pre>" + escape("\n".join(report["commands"])) + "</pre>"
