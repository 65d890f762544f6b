"""VoxPopuli's transcribed English: stretches of the European Parliament's original recordings.

``asr_en.tsv.gz`` (or unpacked) has a header and a line an utterance, with ``|`` between the fields;
``original/<year>/<session>_original.ogg`` are the recordings, in whichever of the languages was
spoken. Both lie in the corpus' folder, or where VoxPopuli's own scripts leave them, in
``transcribed_data/en`` and ``raw_audios``. Nothing is cut: an utterance is a start and an end.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from asr.corpora import Utterance
from asr.corpora.trees import (
    SECONDS,
    SPLITS,
    audio_by_stem,
    check_split,
    odd_line,
    relative_names,
    transcript_lines,
)
from asr.errors import UserError

TABLES = ("asr_en.tsv.gz", "asr_en.tsv")
COLUMNS = ("session_id", "id_", "speaker_id", "split", "start_time", "end_time", "normed_text")
SESSION = re.compile(r"[0-9]{4}[\w-]*", re.ASCII)
TIME = re.compile(SECONDS, re.ASCII)
NOTHING = frozenset({"", "None", "nan"})


def files(root: Path, split: str) -> list[str]:
    """Paths of the table and the split's recordings, relative to ``root``."""
    audio = {utterance.audio for utterance in utterances(root, split)}
    return relative_names(root, [_table(root), *sorted(path for path in audio if path.is_file())])


def utterances(root: Path, split: str) -> Iterator[Utterance]:
    """The split's utterances, sorted bytewise by id, ``<session>-<id>`` as in VoxPopuli's scripts.

    A line that cannot be read, or is of no split, is one of train's, for validation to reject by
    name. UserError for a missing table, or one without the columns that are needed.
    """
    check_split("VoxPopuli", split)
    table = _table(root)
    recordings = _Recordings(root)
    found = [_utterance(row, place, recordings) for place, row in _rows(table, split)]
    yield from sorted(found, key=lambda utterance: (utterance.id.encode(), utterance.source))


class _Recordings:
    """Where a session's recording is; each year's folder is listed once."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "raw_audios" / "original"
        if not self.folder.is_dir():
            self.folder = root / "original"
        self.years: dict[str, dict[str, str]] = {}

    def find(self, session: str) -> Path:
        """The recording, or where it ought to be."""
        year = self.folder / session[:4]
        if year.name not in self.years:
            names = [path.name for path in year.iterdir()] if year.is_dir() else []
            visible = [name for name in names if not name.startswith(".")]
            self.years[year.name] = audio_by_stem(year, visible)
        stem = f"{session}_original"
        return year / self.years[year.name].get(stem, f"{stem}.ogg")


def _table(root: Path) -> Path:
    if not root.is_dir():
        raise UserError(f"{root}: no such corpus folder; set corpus_dir to where the corpus lies")
    for folder in (root, root / "transcribed_data" / "en"):
        for name in TABLES:
            if (folder / name).is_file():
                return folder / name
    raise UserError(f"{root}: has no {TABLES[0]}, nor has its transcribed_data/en; copy it there")


def _rows(table: Path, split: str) -> Iterator[tuple[str, dict[str, str] | None]]:
    """Place and fields of each of the split's lines; None for a line of another form.

    What is of no split is train's.
    """
    lines = iter(transcript_lines(table))
    columns = next(lines).rstrip("\r").split("|")
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise UserError(f"{table}:1: the column {missing[0]!r} is missing; download it again")
    # Quotes mean nothing here: one that is never closed would swallow the lines after it.
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        fields = line.rstrip("\r").split("|")
        row = dict(zip(columns, fields, strict=False)) if len(fields) == len(columns) else None
        own = row["split"] if row else "train"
        if (own if own in SPLITS else "train") == split:
            yield f"{table}:{number}", row


def _utterance(row: dict[str, str] | None, place: str, recordings: _Recordings) -> Utterance:
    fault = _fault(row)
    if row is None or fault:
        odd = odd_line("voxpopuli", place, fault)
        # VoxPopuli's own scripts pass over what is of no split, so that it is no fault of a copy.
        unused = row is not None and row["split"] in NOTHING
        return replace(odd, excluded=fault) if unused else odd
    identifier = f"{row['session_id']}-{row['id_']}"
    return Utterance(
        id=identifier,
        audio=recordings.find(row["session_id"]),
        # Not every line has been normalised; ours makes one of both.
        text=row["normed_text"] or row.get("original_text", ""),
        # LibriSpeech's speakers are numbers, too.
        speaker=identifier if row["speaker_id"] in NOTHING else f"voxpopuli-{row['speaker_id']}",
        source=place,
        start=float(row["start_time"]),
        end=float(row["end_time"]),
    )


def _fault(row: dict[str, str] | None) -> str:
    """What is wrong with a line, or nothing."""
    if row is None or not SESSION.fullmatch(row["session_id"]):
        return "not a line of this table"
    if row["split"] not in SPLITS:
        return f"of none of the splits {', '.join(SPLITS)}"
    if not all(TIME.fullmatch(row[name]) for name in ("start_time", "end_time")):
        return "start and end are not seconds"
    if not row["id_"] or " " in row["id_"] or not (row["id_"] + row["speaker_id"]).isprintable():
        return "id or speaker cannot be printed"
    return ""
