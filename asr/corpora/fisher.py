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
from asr.corpora.trees import find_all, relative_names
from asr.errors import UserError
from asr.files import read_lines

KINDS = {
    "recording": re.compile(rf"(fe_03_\d{{5}})(?:{SUFFIXES})", re.IGNORECASE),
    "transcript": re.compile(r"(fe_03_\d{5})\.txt", re.IGNORECASE),
    "table": re.compile(r"(fe_03_p[12]_calldata)\.tbl", re.IGNORECASE),
}
LINE = re.compile(r"(\d+(?:\.\d*)?)\s+(\d+(?:\.\d*)?)\s+([AB]):(.*)", re.ASCII)
EVERY = 400  # of 11,699 calls: 29 each, 5 hours
CALL, SPEAKERS = "CALL_ID", {"A": "APIN", "B": "BPIN"}


def files(root: Path, split: str) -> list[str]:
    """Paths of the split's transcripts and recordings, and of the tables, relative to ``root``."""
    found = _find(root, split)
    return relative_names(root, [path for kind in found.values() for path in kind.values()])


def utterances(root: Path, split: str) -> Iterator[Utterance]:
    """The split's utterances, sorted bytewise by id, which is ``<call>-<side>-<line>``.

    UserError for a folder without transcripts, and for a line, named, that cannot be read.
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
        if call not in found["transcript"]:  # for validation to reject by name
            utterances.append(Utterance(call, path, None, call, str(path), channel=0))
    yield from sorted(utterances, key=lambda utterance: (utterance.id.encode(), utterance.source))


def _find(root: Path, split: str) -> dict[str, dict[str, Path]]:
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
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise UserError(f"{path}:{number}: {line[:80]!r} is not '<start> <end> A: <words>'")
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
    """Speakers' numbers by call and side."""
    found = {}
    for path in tables:
        for number, row in enumerate(csv.DictReader(read_lines(path)), start=2):
            numbers = {side: row.get(column) for side, column in SPEAKERS.items()}
            if not row.get(CALL) or not all(numbers.values()):
                raise UserError(
                    f"{path}:{number}: lacks one of {CALL}, {', '.join(SPEAKERS.values())}"
                )
            call = f"fe_03_{int(row[CALL]):05}"
            found[call] = {side: f"fisher-{speaker}" for side, speaker in numbers.items()}
    return found
