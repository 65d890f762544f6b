"""VoxPopuli's transcribed English: stretches of the European Parliament's original recordings.

``asr_en.tsv.gz`` (or unpacked) has a header and a line an utterance, with ``|`` between the fields;
``original/<year>/<session>_original.ogg`` are the recordings, in whichever of the languages was
spoken. Both lie in the corpus' folder, or where VoxPopuli's own scripts leave them, in
``transcribed_data/en`` and ``raw_audios``. Nothing is cut: an utterance is a start and an end.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from asr.corpora import Utterance
from asr.corpora.trees import audio_by_stem, relative_names
from asr.errors import UserError
from asr.files import read_lines

SPLITS = ("train", "dev", "test")
TABLES = ("asr_en.tsv.gz", "asr_en.tsv")
COLUMNS = ("session_id", "id_", "speaker_id", "split", "start_time", "end_time", "normed_text")
SESSION = re.compile(r"[0-9]{4}[\w-]*", re.ASCII)
SECONDS = re.compile(r"\d+(\.\d*)?", re.ASCII)
NOBODY = frozenset({"", "None", "nan"})


def files(root: Path, split: str) -> list[str]:
    """Paths of the table and the split's recordings, relative to ``root``."""
    audio = {utterance.audio for utterance in utterances(root, split)}
    return relative_names(root, [_table(root), *sorted(path for path in audio if path.is_file())])


def utterances(root: Path, split: str) -> Iterator[Utterance]:
    """The split's utterances, sorted bytewise by id, ``<session>-<id>`` as in VoxPopuli's scripts.

    A line that has too few or too many fields is one of train's, for validation to reject by name.
    UserError for a missing table, or one without the columns that are needed.
    """
    if split not in SPLITS:
        raise UserError(f"VoxPopuli has no split {split!r}; it has {', '.join(SPLITS)}")
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
    """Place and fields of each of the split's lines; None for a line of another form."""
    lines = iter(_lines(table))
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
        if (row["split"] if row else "train") == split:
            yield f"{table}:{number}", row


def _lines(table: Path) -> list[str]:
    if table.suffix != ".gz":
        return read_lines(table)
    try:
        with gzip.open(table, "rt", encoding="utf-8-sig", newline="\n") as file:
            return file.read().split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{table}: cannot be read ({error}); download it again") from None


def _utterance(row: dict[str, str] | None, place: str, recordings: _Recordings) -> Utterance:
    number = place.rpartition(":")[2]
    if row is None or not SESSION.fullmatch(row["session_id"]):
        odd = Path(f"{place} (not a line of this table)")
        return Utterance(f"voxpopuli-line-{number}", odd, None, "nobody", place)
    times = row["start_time"], row["end_time"]
    if not all(map(SECONDS.fullmatch, times)):
        raise UserError(f"{place}: start {times[0]!r} and end {times[1]!r} are not seconds")
    identifier = f"{row['session_id']}-{row['id_']}"
    return Utterance(
        id=identifier,
        audio=recordings.find(row["session_id"]),
        # Not every line has been normalised; ours makes one of both.
        text=row["normed_text"] or row.get("original_text", ""),
        speaker=identifier if row["speaker_id"] in NOBODY else row["speaker_id"],
        source=place,
        start=float(times[0]),
        end=float(times[1]),
    )
