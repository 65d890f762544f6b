"""Fisher English, parts 1 and 2: LDC2004S13, LDC2004T19, LDC2005S13 and LDC2005T19.

They lie anywhere in the corpus' folder: recordings ``fe_03_<call>.sph`` of two channels,
transcripts ``fe_03_<call>.txt`` with lines ``<start> <end> A: <words>`` (seconds; ``#`` begins a
comment), and tables ``fe_03_p1_calldata.tbl`` and ``fe_03_p2_calldata.tbl``, by which speakers are
known (without them, each side of a call is a speaker). See ``conversations`` for what becomes of
the words.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from asr.corpora import Utterance
from asr.corpora.conversations import CHANNELS, SUFFIXES, split_of, spoken
from asr.corpora.trees import (
    SECONDS,
    check_split,
    find_all,
    odd_line,
    relative_names,
    transcript_lines,
    without_transcript,
)
from asr.errors import UserError

KINDS = {
    "recording": re.compile(rf"(fe_03_\d{{5}})(?:{SUFFIXES})", re.IGNORECASE),
    "transcript": re.compile(r"(fe_03_\d{5})\.txt", re.IGNORECASE),
    "table": re.compile(r"(fe_03_p[12]_calldata)\.tbl", re.IGNORECASE),
}
LINE = re.compile(rf"({SECONDS})\s+({SECONDS})\s+([AB]):(.*)", re.ASCII)
EVERY = 400  # of 11,699 calls: 29 each, 5 hours
CALL, SPEAKERS = "CALL_ID", {"A": "APIN", "B": "BPIN"}
CALL_NUMBER = re.compile(r"\s*(\d{1,5})\s*", re.ASCII)


def files(root: Path, split: str) -> list[str]:
    """Paths of the split's transcripts and recordings, and of the tables, relative to ``root``."""
    found = _find(root, split)
    return relative_names(root, [path for kind in found.values() for path in kind.values()])


def utterances(root: Path, split: str) -> Iterator[Utterance]:
    """The split's utterances, sorted bytewise by id, which is ``<call>-<side>-<line>``.

    A line that cannot be read becomes one that validation rejects by name. UserError for a folder
    without transcripts, a table that cannot be read, and a split that Fisher does not have.
    """
    found = _find(root, split)
    recordings, speakers = found["recording"], _speakers(found["table"].values())
    utterances = [
        utterance
        for call, path in found["transcript"].items()
        for utterance in _of_call(
            call, path, recordings.get(call, path.with_suffix(".sph")), speakers.get(call, {})
        )
    ]
    for call, path in recordings.items():
        if call not in found["transcript"]:
            utterances.append(without_transcript(call, path))
    yield from sorted(utterances, key=lambda utterance: (utterance.id.encode(), utterance.source))


def _find(root: Path, split: str) -> dict[str, dict[str, Path]]:
    check_split("Fisher", split)
    found = find_all(root, KINDS)
    if not found["transcript"]:
        raise UserError(f"{root}: has no transcripts fe_03_*.txt (LDC2004T19 and LDC2005T19)")
    for kind in ("recording", "transcript"):
        found[kind] = {
            call: path
            for call, path in found[kind].items()
            if split_of(int(call[-5:]), EVERY) == split
        }
    return found


def _of_call(
    call: str, path: Path, recording: Path, speakers: dict[str, str]
) -> Iterator[Utterance]:
    for number, line in enumerate(transcript_lines(path), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line.strip())
        if match is None:
            yield odd_line(call, f"{path}:{number}", "not '<start> <end> A: <words>'")
            continue
        start, end, side, text = match.groups()
        words, excluded = spoken(text)
        yield Utterance(
            id=f"{call}-{side}-{number:04}",
            audio=recording,
            text=words,
            speaker=speakers.get(side, f"{call}-{side}"),
            source=f"{path}:{number}",
            start=float(start),
            end=float(end),
            channel=CHANNELS[side],
            excluded=excluded,
        )


def _speakers(tables: Iterable[Path]) -> dict[str, dict[str, str]]:
    """Speakers' numbers by call and side; without those that the tables leave empty."""
    found = {}
    for path in tables:
        for place, row in _rows(path):
            number = CALL_NUMBER.fullmatch(row[CALL] or "")
            if number is None:
                raise UserError(
                    f"{place}: {CALL} {(row[CALL] or '')[:80]!r} is not a call's number"
                )
            pins = {side: (row[column] or "").strip() for side, column in SPEAKERS.items()}
            found[f"fe_03_{int(number[1]):05}"] = {
                side: f"fisher-{pin}" for side, pin in pins.items() if pin and pin.isprintable()
            }
    return found


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Place and fields of each row of a table; UserError for what is not CSV or lacks a column."""
    reader = csv.DictReader(transcript_lines(path), strict=True)
    columns = [CALL, *SPEAKERS.values()]
    try:
        if not set(columns) <= set(reader.fieldnames or []):
            raise UserError(f"{path}:1: lacks one of the columns {', '.join(columns)}")
        for row in reader:
            yield f"{path}:{reader.reader.line_num}", row
    except csv.Error as error:
        raise UserError(f"{path}:{reader.reader.line_num}: not a row of CSV: {error}") from None
