"""The user's own corpus: a folder a split, with a Kaldi data directory in it, or one table.

Kaldi: ``wav.scp`` (``<recording> <file>``), ``text`` (``<utterance> <words>``), and if there are
``utt2spk`` and ``segments`` (``<utterance> <recording> <start> <end>``, in seconds). A table is
``utterances.csv`` (with a header line) or ``utterances.jsonl``: ``path``, ``text``, and if there
are ``speaker``, ``id``, ``start``, ``end``, ``channel``. Files that are not absolute are looked for
from the split's folder on.
"""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.corpora import Utterance, split_folder
from asr.errors import UserError
from asr.files import read_lines

TABLES = ("utterances.csv", "utterances.jsonl")
KALDI = ("wav.scp", "text", "utt2spk", "segments")
LONGEST_SECONDS = 1e7
COLUMNS = ("path", "text", "speaker", "id", "start", "end", "channel")


def files(root: Path, split: str) -> list[str]:
    """Paths of the split's lists and audio, relative to ``root`` where they lie in it."""
    folder = split_folder(root, split)
    lists = [folder / name for name in (*TABLES, *KALDI) if (folder / name).exists()]
    audio = sorted({utterance.audio for utterance in utterances(root, split)})
    return [_name(path, root) for path in [*lists, *filter(_is_there, audio)]]


def utterances(root: Path, split: str) -> Iterator[Utterance]:
    """The split's utterances, sorted bytewise by id; UserError, with the line, for a bad list."""
    folder = split_folder(root, split)
    tables = [folder / name for name in TABLES if (folder / name).exists()]
    kaldi = (folder / "wav.scp").exists()
    if len(tables) + kaldi != 1:
        found = [path.name for path in tables] + ["wav.scp"] * kaldi
        raise UserError(
            f"{folder}: needs one of wav.scp (a Kaldi data directory), {', '.join(TABLES)}; "
            f"it has {', '.join(found) or 'none'}"
        )
    listed = list(_of_kaldi(folder) if kaldi else _of_table(tables[0]))
    yield from sorted(listed, key=lambda utterance: (utterance.id.encode(), utterance.source))


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or with a NUL: for validation to reject
        return False


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _of_kaldi(folder: Path) -> Iterator[Utterance]:
    audio = {
        recording: (_audio(folder, place, name), place)
        for recording, (name, place) in read_pairs(folder / "wav.scp").items()
    }
    texts = read_pairs(folder / "text")
    speakers = read_pairs(folder / "utt2spk") if (folder / "utt2spk").exists() else {}
    for identifier, (recording, start, end, place) in _segments(folder, audio).items():
        if recording not in audio:
            raise UserError(f"{place}: recording {recording!r} does not stand in wav.scp")
        text, source = texts.pop(identifier, (None, place))
        speaker = speakers.get(identifier, (identifier, ""))[0]
        path = audio[recording][0]
        yield Utterance(identifier, path, text, speaker, source, start, end)
    for identifier, (text, source) in texts.items():  # a line without audio is rejected by name
        speaker = speakers.get(identifier, (identifier, ""))[0]
        yield Utterance(
            identifier, folder / f"{identifier} (not in wav.scp)", text, speaker, source
        )


Segments = dict[str, tuple[str, float, float | None, str]]


def _segments(folder: Path, audio: dict[str, tuple[Path, str]]) -> Segments:
    """Recording, start, end and place of each utterance; without ``segments`` all are whole."""
    path = folder / "segments"
    if not path.exists():
        return {recording: (recording, 0.0, None, place) for recording, (_, place) in audio.items()}
    found: Segments = {}
    for identifier, (rest, place) in read_pairs(path).items():
        fields = rest.split()
        if len(fields) != 3:
            raise UserError(f"{place}: {rest!r} is not '<recording> <start> <end>' in seconds")
        found[identifier] = (fields[0], *_stretch(fields[1], fields[2], place), place)
    return found


def _stretch(start: Any, end: Any, place: str) -> tuple[float, float | None]:
    """Start and end in seconds, of which the latter may be None; UserError if they are none."""
    try:
        first, last = float(start), None if end is None else float(end)
        fine = 0 <= first < (LONGEST_SECONDS if last is None else last) <= LONGEST_SECONDS
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{place}: start {start!r} and end {end!r} are not seconds") from None
    if not fine or isinstance(start, bool) or isinstance(end, bool):
        raise UserError(f"{place}: from {start} s to {end} s is no stretch of time")
    return first, last


def _audio(folder: Path, place: str, name: str) -> Path:
    if name.endswith("|"):
        raise UserError(
            f"{place}: a command in place of a file ({name!r}) is not run here; make a folder of "
            "files once: python -m asr.corpora.commands FOLDER NEW_FOLDER"
        )
    return folder / name


def read_pairs(path: Path) -> dict[str, tuple[str, str]]:
    """The rest of each line and its place, by its first word."""
    found: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split(maxsplit=1)
        if not words:
            continue
        place = f"{path}:{number}"
        if words[0] in found:
            raise UserError(f"{place}: {words[0]!r} stands in {found[words[0]][1]}, too")
        found[words[0]] = (words[1].rstrip() if len(words) > 1 else "", place)
    return found


def _of_table(path: Path) -> Iterator[Utterance]:
    for number, row in _rows(path):
        place = f"{path}:{number}"
        unknown = [column for column in row if column not in COLUMNS]
        if unknown or not row.get("path"):
            raise UserError(
                f"{place}: columns are {', '.join(COLUMNS)}, and path must be given; "
                + (f"not {unknown[0]!r}" if unknown else "it is empty")
            )
        yield _utterance(path.parent, row, place)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and columns of each row; what is empty is left out."""
    lines = read_lines(path)
    if path.suffix == ".jsonl":
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _parse_json(line, f"{path}:{number}")
        return
    # A line a row: a quote that is never closed would swallow the rows after it.
    header: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            (fields,) = csv.reader([line.rstrip("\r")], strict=True)
        except (csv.Error, ValueError) as error:
            raise UserError(f"{path}:{number}: not a row of CSV: {error}") from None
        if not header:
            header = fields
            if len(set(header)) != len(header):
                raise UserError(f"{path}:{number}: a column is named twice")
        elif len(fields) > len(header):
            raise UserError(f"{path}:{number}: {len(fields)} fields, but {len(header)} columns")
        else:
            pairs = zip(header, fields, strict=False)
            yield number, {name: field for name, field in pairs if field != ""}


def _parse_json(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise UserError(f"{place}: not a JSON object")
    return {name: value for name, value in row.items() if value is not None}


def _utterance(folder: Path, row: dict[str, Any], place: str) -> Utterance:
    for name in ("path", "text", "speaker", "id"):
        if not isinstance(row.get(name, ""), str) or not _can_be_written(row.get(name, "")):
            raise UserError(f"{place}: {name} {row[name]!r} is not a string of Unicode text")
    channel = row.get("channel")
    if channel is not None and not re.fullmatch(r"[0-9]{1,4}", str(channel)):
        raise UserError(f"{place}: channel {channel!r} is not a number from 0")
    start, end = _stretch(row.get("start", 0.0), row.get("end"), place)
    derived = re.sub(r"\s+", "_", Path(row["path"]).with_suffix("").as_posix().replace("/", "-"))
    identifier = row.get("id", derived)
    return Utterance(
        id=identifier,
        audio=folder / row["path"],
        text=row.get("text"),
        speaker=row.get("speaker", identifier),
        source=place,
        start=start,
        end=end,
        channel=None if channel is None else int(channel),
    )


def _can_be_written(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
