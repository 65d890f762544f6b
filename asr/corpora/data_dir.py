"""The user's own corpus: a folder a split, with a Kaldi data directory in it, or one table.

Kaldi: ``wav.scp`` (``<recording> <file>``), ``text`` (``<utterance> <words>``), and if there are
``utt2spk`` and ``segments`` (``<utterance> <recording> <start> <end>``, in seconds). A table is
``utterances.csv`` (with a header line) or ``utterances.jsonl``: ``path``, ``text``, and if there
are ``speaker``, ``id``, ``start``, ``end``, ``channel``. Files that are not absolute are looked for
from the split's folder on.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.corpora import Utterance, split_folder
from asr.errors import UserError
from asr.files import read_lines

TABLES = ("utterances.csv", "utterances.jsonl")
KALDI = ("wav.scp", "text", "utt2spk", "segments")
COLUMNS = ("path", "text", "speaker", "id", "start", "end", "channel")


def files(root: Path, split: str) -> list[str]:
    """Paths of the split's lists and audio, relative to ``root`` where they lie in it."""
    folder = split_folder(root, split)
    lists = [folder / name for name in (*TABLES, *KALDI) if (folder / name).exists()]
    audio = sorted({utterance.audio for utterance in utterances(root, split)})
    return [_name(path, root) for path in [*lists, *filter(Path.exists, audio)]]


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


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _of_kaldi(folder: Path) -> Iterator[Utterance]:
    audio = {
        recording: (_audio(folder, place, name), place)
        for recording, (name, place) in _pairs(folder / "wav.scp").items()
    }
    texts = _pairs(folder / "text")
    speakers = _pairs(folder / "utt2spk") if (folder / "utt2spk").exists() else {}
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
    for identifier, (rest, place) in _pairs(path).items():
        fields = rest.split()
        try:
            recording, start, end = fields[0], float(fields[1]), float(fields[2])
        except (IndexError, ValueError):
            raise UserError(
                f"{place}: {rest!r} is not '<recording> <start> <end>' in seconds"
            ) from None
        if len(fields) != 3 or not 0 <= start < end:
            raise UserError(f"{place}: from {start:g} s to {end:g} s is no stretch of time")
        found[identifier] = (recording, start, end, place)
    return found


def _audio(folder: Path, place: str, name: str) -> Path:
    if name.endswith("|"):
        raise UserError(
            f"{place}: a command in place of a file ({name!r}) is not run; write its output to a "
            "file and name that"
        )
    return folder / name


def _pairs(path: Path) -> dict[str, tuple[str, str]]:
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
        try:
            yield _utterance(path.parent, row, place)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{place}: start and end are seconds, channel a number: {error}"
            ) from None


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.suffix == ".jsonl":
        for number, line in enumerate(read_lines(path), start=1):
            if line.strip():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise UserError(f"{path}:{number}: not JSON: {error}") from None
                if not isinstance(row, dict):
                    raise UserError(f"{path}:{number}: not a JSON object")
                yield number, row
        return
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, restkey="(more fields than columns)")
        for row in reader:
            yield (
                reader.line_num,
                {key: value for key, value in row.items() if value not in ("", None)},
            )


def _utterance(folder: Path, row: dict[str, Any], place: str) -> Utterance:
    name = str(row["path"])
    identifier = str(row.get("id") or Path(name).with_suffix("").as_posix().replace("/", "-"))
    return Utterance(
        id=identifier,
        audio=folder / name,
        text=None if row.get("text") is None else str(row["text"]),
        speaker=str(row.get("speaker") or identifier),
        source=place,
        start=float(row.get("start") or 0.0),
        end=None if row.get("end") is None else float(row["end"]),
        channel=None if row.get("channel") is None else int(row["channel"]),
    )
