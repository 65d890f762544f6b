"""Files that appear whole or not at all."""

import contextlib
import gzip
import hashlib
import json
import os
import socket
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from asr.errors import UserError


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; move it to ``path`` when the block succeeds.

    The content is on disk before the name appears, so that a killed process or a power cut
    never leaves a short file under the final name. The file's suffix is kept, for writers that
    choose their format by it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two machines may give one process id, and write the same file where one was taken for dead.
    partial = path.with_name(f".partial-{socket.gethostname()}-{os.getpid()}-{path.name}")
    try:
        yield partial
        with open(partial, "rb") as written:
            os.fsync(written.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line, atomically."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_json(path: Path) -> Any:
    """Read a JSON file; UserError names the file when it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid JSON ({error}); rerun its stage with --force") from None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read one JSON object a line; UserError names the file, and the line that is not JSON."""
    return list(iterate_jsonl(path))


def iterate_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """``read_jsonl``, a line at a time."""
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                if line != "\n":
                    yield json_row(path, number, line)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run the stage that writes it") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error})") from None


def json_row(path: Path, number: int, line: str) -> dict[str, Any]:
    """One line of a JSON Lines file; UserError names file and line when it is not JSON."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{number}: not valid JSON ({error})") from None


def read_lines(path: Path) -> list[str]:
    """Lines split at \\n alone, as they were written; the last is empty if the file ends in one.

    A byte-order mark is no part of the first. A file named ``.gz`` is unpacked. UserError for a
    file that is missing, not UTF-8, or broken.
    """
    try:
        content = path.read_bytes()
        return (
            (gzip.decompress(content) if path.suffix == ".gz" else content)
            .decode("utf-8-sig")
            .split("\n")
        )
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a whole gzip file ({error})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error})") from None


def sha256(path: Path) -> str:
    """The file's SHA-256 as hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_id_text(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write Kaldi's ``text`` format, ``<utterance-id> <words>`` a line, sorted bytewise by id."""
    write_text(path, format_id_text(rows))


def format_id_text(rows: Iterable[tuple[str, str]]) -> str:
    """What ``write_id_text`` writes."""
    ordered = sorted(rows, key=lambda row: row[0].encode())
    return "".join(f"{utterance} {text}".rstrip() + "\n" for utterance, text in ordered)


def read_id_text(path: Path) -> dict[str, str]:
    """Read Kaldi's ``text`` format into a dict; the text may be empty. A tab is a space, too.

    Raises UserError for a missing file, an empty line or an id that occurs twice.
    """
    return parse_id_text(path, read_lines(path))


def parse_id_text(path: Path, lines: list[str]) -> dict[str, str]:
    """``read_id_text`` of lines that were read from ``path``: a pipe can be read only once."""
    if lines[-1] == "":
        lines = lines[:-1]
    texts: dict[str, str] = {}
    first_line: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        utterance, _, text = line.strip().replace("\t", " ").partition(" ")
        if not utterance:
            raise UserError(f"{path}:{number}: empty line; expected '<utterance-id> <words>'")
        if utterance in texts:
            raise UserError(
                f"{path}:{number}: utterance id {utterance!r} already stands in line "
                f"{first_line[utterance]}; ids must be unique"
            )
        texts[utterance] = text.strip()
        first_line[utterance] = number
    return texts
