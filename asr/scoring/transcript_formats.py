"""Transcripts as the usual toolkits write them: one text for each utterance id.

| format | a line |
|---|---|
| Kaldi ``text`` | ``<id> <words>``, the words may be missing |
| TRN of sclite; ESPnet's ``hyp.trn`` | ``<words> (<id>)``; after ``;;`` a comment |
| icefall's ``recogs-*.txt`` | ``<id>:<tab>ref=['a', 'b']`` and ``<id>:<tab>hyp=[...]`` |
| CSV, separated by comma, semicolon or tab | columns named in the first line |
| JSON Lines; NeMo's manifests | an object |

Which one a file has, its first line tells; TRN, all lines. Names of columns and keys are in
``ID_NAMES`` and ``TEXT_NAMES``, in upper or lower case.
"""

import ast
import csv
import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from asr.errors import UserError
from asr.files import json_row, parse_id_text, read_lines

Side = Literal["ref", "hyp"]

ID_NAMES = ("id", "utt_id", "utterance_id", "utt", "key", "audio_filepath")
# In a file that holds both sides the first of these is taken; a plain "text" may be either.
TEXT_NAMES: dict[Side, tuple[str, ...]] = {
    "ref": ("ref", "reference", "text", "transcript", "wrd"),
    "hyp": ("hyp", "hypothesis", "pred_text", "text", "transcript", "wrd"),
}
TRN_LINE = re.compile(r"(?P<text>.*?)\s*\((?P<id>[^()\s]+)\)\s*")
RECOGS_LINE = re.compile(r"(?P<id>\S+):\s+(?P<side>ref|hyp)=(?P<words>\[.*\])\s*")
FILE_STEMS: dict[Side, tuple[str, ...]] = {
    "ref": ("ref", "reference", "references", "text"),
    "hyp": ("hyp", "hypothesis", "hypotheses"),
}
# Of what recipes and studies keep.
KEPT_SUFFIXES = (".txt", ".txt.gz")
# In order of preference, where a folder holds the same transcripts in several formats.
SUFFIXES = ("wrd.trn", "txt", "trn", "csv", "tsv", "jsonl", "json", "")


@dataclasses.dataclass(frozen=True)
class ResultFiles:
    """Where one test set's references and hypotheses are; one file may hold both."""

    references: Path
    hypotheses: Path


def read_transcripts(path: Path, side: Side = "hyp") -> dict[str, str]:
    """Utterance id -> text as it is written, whatever of the formats above the file has.

    ``side`` chooses in files that hold references and hypotheses (icefall's; CSV and JSON Lines
    with both). UserError, with file and line, for a file that is missing, not UTF-8 or broken, and
    for ids that occur twice.
    """
    lines = read_lines(path)
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("{"):
        return _unique(path, _jsonl_rows(path, lines, side))
    if RECOGS_LINE.fullmatch(first):
        return _unique(path, _recogs_rows(path, lines, side))
    delimiter = _delimiter(first)
    if delimiter:
        return _unique(path, _csv_rows(path, lines, delimiter, side))
    if first and path.suffix == ".csv":  # as Kaldi's text its ids would be "u1,first"
        raise UserError(
            f"{path}:1: names no columns; put a first line there, such as id,text (ids: "
            f"{', '.join(ID_NAMES)}; texts: {', '.join(TEXT_NAMES[side])})"
        )
    if _is_trn(lines):
        return _unique(path, _trn_rows(path, lines))
    return parse_id_text(path, lines)


def find_results(folder: Path) -> dict[str, ResultFiles]:
    """Test set -> its files, in a folder of results of this recipe or of another toolkit.

    The folder, or each of its sub-folders (a test set, then named so), holds two files ``ref`` and
    ``hyp`` (names and suffixes: ``FILE_STEMS``, ``SUFFIXES``), also in ESPnet's ``score_wer``, or
    icefall's ``recogs-*.txt``; or ``<test set>.hyp.txt``, as ``recipes/*/results`` keeps them, with
    ``<test set>.ref.txt`` there or in a folder above, both also packed (``.gz``). The set that lies
    in the folder itself is named "". UserError when there is none.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such folder; give folders that hold references and hypotheses"
        )
    found = _results_in(folder)
    if not found:
        for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
            for name, files in _results_in(inner).items():
                found["/".join(filter(None, (inner.name, name)))] = files
    if not found:
        raise UserError(
            f"{folder}: no results; expected ref.txt and hyp.txt (or .trn, .csv, .jsonl), or "
            "recogs-*.txt, there or in a sub-folder for each test set"
        )
    return found


def _results_in(folder: Path) -> dict[str, ResultFiles]:
    references, hypotheses = _side_in(folder, "ref"), _side_in(folder, "hyp")
    if references and hypotheses:
        return {"": ResultFiles(references, hypotheses)}
    of_espnet = folder / "score_wer"  # beside score_cer, where each character is a word
    if of_espnet.is_dir():
        return _results_in(of_espnet)
    if kept := _kept_in(folder):
        return kept
    recogs = sorted(folder.glob("recogs-*.txt"))
    if len(recogs) == 1:
        return {"": ResultFiles(recogs[0], recogs[0])}
    return {path.stem.removeprefix("recogs-"): ResultFiles(path, path) for path in recogs}


def _kept_in(folder: Path) -> dict[str, ResultFiles]:
    """Results whose references, one file a test set, lie up to three folders above."""
    found = {}
    places = [folder, *folder.absolute().parents[:3]]
    for suffix in KEPT_SUFFIXES:
        for hypotheses in sorted(folder.glob(f"*.hyp{suffix}")):
            name = hypotheses.name.removesuffix(f".hyp{suffix}")
            references = (place / f"{name}.ref{suffix}" for place in places)
            if path := next(filter(Path.is_file, references), None):
                found[name] = ResultFiles(path, hypotheses)
    return found


def _side_in(folder: Path, side: Side) -> Path | None:
    names = [f"{stem}.{suffix}".rstrip(".") for suffix in SUFFIXES for stem in FILE_STEMS[side]]
    return next((folder / name for name in names if (folder / name).is_file()), None)


Row = tuple[int, str, str]  # line, utterance id, text


def _unique(path: Path, rows: Iterator[Row]) -> dict[str, str]:
    texts: dict[str, str] = {}
    first_line: dict[str, int] = {}
    for number, name, text in rows:
        if name in texts:
            raise UserError(
                f"{path}:{number}: utterance id {name!r} already stands in line "
                f"{first_line[name]}; ids must be unique"
            )
        texts[name], first_line[name] = text, number
    return texts


def _jsonl_rows(path: Path, lines: Sequence[str], side: Side) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = json_row(path, number, line)
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: expected an object with an id and a text")
        values = {key.lower(): value for key, value in row.items()}
        name, text = (
            _chosen(path, number, values, names) for names in (ID_NAMES, TEXT_NAMES[side])
        )
        yield number, _written(path, number, name, values), _written(path, number, text, values)


def _written(path: Path, number: int, key: str, values: dict[str, Any]) -> str:
    """A value that is text; a null, say, is not the word "none"."""
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UserError(f'{path}:{number}: {key} is no text; write "" where nothing was said')
    return str(value)


def _csv_rows(path: Path, lines: Sequence[str], delimiter: str, side: Side) -> Iterator[Row]:
    rows = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter)
    header = [name.strip().lower() for name in next(rows)]
    name, text = (
        header.index(_chosen(path, 1, header, names)) for names in (ID_NAMES, TEXT_NAMES[side])
    )
    for row in rows:
        if not any(row):
            continue
        if len(row) != len(header):
            raise UserError(
                f"{path}:{rows.line_num}: {len(row)} fields, but the first line names "
                f"{len(header)}; put texts that hold {delimiter!r} in double quotes"
            )
        yield rows.line_num, row[name].strip(), row[text].strip()


def _chosen(path: Path, number: int, present: Any, names: Sequence[str]) -> str:
    for name in names:
        if name in present:
            return name
    raise UserError(f"{path}:{number}: none of {', '.join(names)} among {', '.join(present)}")


def _recogs_rows(path: Path, lines: Sequence[str], side: Side) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        match = RECOGS_LINE.fullmatch(line)
        if not match:
            raise UserError(f"{path}:{number}: expected \"<id>:<tab>{side}=['word', ...]\"")
        if match["side"] == side:
            try:
                words = ast.literal_eval(match["words"])
            except (ValueError, SyntaxError):
                raise UserError(f"{path}:{number}: not a list of words") from None
            yield number, match["id"], " ".join(map(str, words))


def _trn_rows(path: Path, lines: Sequence[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        match = TRN_LINE.fullmatch(line)
        if line.startswith(";;") or not match:
            continue
        if "{" in match["text"]:
            raise UserError(
                f"{path}:{number}: alternatives ('{{ a / b }}') cannot be scored here; "
                "write the one that was said"
            )
        yield number, match["id"], match["text"].strip()


def _is_trn(lines: Sequence[str]) -> bool:
    written = [line for line in lines if line.strip() and not line.startswith(";;")]
    return bool(written) and all(map(TRN_LINE.fullmatch, written))


def _delimiter(first: str) -> str | None:
    """The delimiter of a first line that names an id among its columns; None for other lines.

    Names are single words: a sentence with a comma is no header.
    """
    for delimiter in ",;\t":
        names = [name.strip().lower() for name in first.split(delimiter)]
        if len(names) > 1 and any(name in ID_NAMES for name in names) and " " not in "".join(names):
            return delimiter
    return None
