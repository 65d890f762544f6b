"""Reading what the stages list, row by row, for ``python -m asr inspect``.

Rows are plain JSON: making Lhotse's objects of 700,000 lines takes minutes.
"""

import bisect
import collections
import dataclasses
import difflib
import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
from lhotse.cut import MonoCut

from asr.errors import UserError
from asr.files import read_jsonl
from asr.filterbank.storage import opening_from

# An unknown id is compared with so many neighbours in the order of ids.
NEIGHBOURS = 200
MEND = "mend the line, or rerun its stage with --force"

Row = dict[str, Any]


def read_rows(manifest: Path) -> Iterator[Row]:
    """The cuts of a manifest; what is read of them here has the types it has in Lhotse's.

    UserError names a file that is missing or damaged, and the line that is not a cut.
    """
    number = 0
    try:
        with gzip.open(manifest, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                row = json.loads(line)
                if fault := _fault(row):
                    raise UserError(f"{manifest}:{number}: not a cut: {fault}; {MEND}")
                yield row
    except FileNotFoundError:
        raise UserError(f"{manifest}: no such file; run the stage that writes it") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise UserError(
            f"{manifest}: damaged after line {number} ({error}); rerun its stage with --force"
        ) from None
    except json.JSONDecodeError as error:
        raise UserError(f"{manifest}:{number}: not a cut: {error}; {MEND}") from None


def _fault(row: Any) -> str | None:
    """What is wrong in a manifest's row; None if nothing is."""
    if not isinstance(row, dict):
        return "no JSON object"
    if not {"id", "duration"} <= row.keys():
        return "it lacks id or duration"
    seconds = row["duration"]
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        return f"duration={seconds!r} is no number of seconds"
    custom, features = row.get("custom") or {}, row.get("features") or {}
    supervisions = row.get("supervisions") or []
    if not isinstance(supervisions, list):
        return "supervisions is no list"
    if not all(isinstance(part, dict) for part in (custom, features, *supervisions)):
        return "custom, features or a supervision is no JSON object"
    texts = [
        ("id", row["id"]),
        ("corpus", custom.get("corpus")),
        ("storage_path", features.get("storage_path")),
        *((key, part.get(key)) for part in supervisions for key in ("text", "speaker")),
    ]
    return next(
        (
            f"{key}={value!r} is no text"
            for key, value in texts
            if type(value) not in (str, NoneType)
        ),
        None,
    )


def read_list(path: Path, *keys: str) -> Iterator[Row]:
    """Rows of a stage's list, such as rejected.jsonl; UserError for one that lacks a key."""
    for number, row in enumerate(read_jsonl(path), start=1):
        missing = [key for key in keys if key not in row] if isinstance(row, dict) else list(keys)
        if missing:
            raise UserError(f"{path}: row {number} lacks {missing[0]}; {MEND}")
        yield row


def cut_of(row: Row, manifest: Path) -> MonoCut:
    """A row of ``read_rows`` as the cut that ``load_cuts`` makes of it; UserError if it is none."""
    try:
        cut = opening_from(MonoCut.from_dict(row), manifest.parent)
        if not cut.recording.sources or not cut.supervisions:
            raise ValueError("no audio, or no supervision")
        return cut
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{manifest}: utterance {row['id']}: not a cut of speech "
            f"({type(error).__name__}: {error}); {MEND}"
        ) from None


@dataclasses.dataclass
class Summary:
    """What a list of utterances has: ``seconds`` and ``tokens`` one each, hours by corpus."""

    seconds: np.ndarray
    words: int
    speakers: int
    hours_by_corpus: dict[str, float]
    tokens: np.ndarray | None = None

    def to_dict(self) -> dict[str, Any]:
        """Figures in plain types."""
        return {
            "utterances": len(self.seconds),
            "hours": round(float(self.seconds.sum()) / 3600, 4),
            "words": self.words,
            "speakers": self.speakers,
            "hours_by_corpus": {
                name: round(hours, 4) for name, hours in sorted(self.hours_by_corpus.items())
            },
            "seconds": quantiles(self.seconds),
            "tokens": None if self.tokens is None else quantiles(self.tokens),
        }


def summarise(rows: Iterable[Row]) -> Summary:
    """Count a manifest's rows."""
    seconds, words, speakers = [], 0, set()
    hours: collections.Counter[str] = collections.Counter()
    for row in rows:
        seconds.append(row["duration"])
        hours[(row.get("custom") or {}).get("corpus") or "-"] += row["duration"] / 3600
        for supervision in row.get("supervisions") or []:
            words += len((supervision.get("text") or "").split())
            speakers.add(supervision.get("speaker"))
    return Summary(np.array(seconds), words, len(speakers), dict(hours))


def quantiles(values: np.ndarray) -> dict[str, float] | None:
    """Least, median, mean, 95th percentile and greatest of ``(n,)``; None of nothing."""
    if not len(values):
        return None
    least, median, most, greatest = np.quantile(values, [0, 0.5, 0.95, 1])
    named = {
        "least": least,
        "median": median,
        "mean": values.mean(),
        "95 %": most,
        "greatest": greatest,
    }
    return {name: round(float(value), 3) for name, value in named.items()}


def rejected_by_reason(files: Sequence[Path]) -> dict[str, dict[str, float]]:
    """Utterances and hours by reason, of those ``rejected.jsonl`` that there are."""
    totals: dict[str, dict[str, float]] = {}
    for file in files:
        for row in read_list(file, "reason", "seconds") if file.exists() else []:
            total = totals.setdefault(row["reason"], {"utterances": 0, "hours": 0.0})
            total["utterances"] += 1
            total["hours"] += (row["seconds"] or 0.0) / 3600
    for total in totals.values():
        total["hours"] = round(total["hours"], 4)
    return dict(sorted(totals.items(), key=lambda item: -item[1]["utterances"]))


def nearest(identity: str, ids: Iterable[str], number: int = 3) -> list[str]:
    """The ids most like ``identity`` among its neighbours in their order."""
    ordered = sorted(ids)
    place = bisect.bisect_left(ordered, identity)
    around = ordered[max(0, place - NEIGHBOURS) : place + NEIGHBOURS]
    return difflib.get_close_matches(identity, around, n=number, cutoff=0.0)
