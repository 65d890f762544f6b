"""Writing manifests of cuts."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from asr.files import atomic_write

if TYPE_CHECKING:
    from lhotse import MonoCut


def write_cuts(path: Path, cuts: Iterable["MonoCut"]) -> None:
    """Write what ``lhotse.CutSet.from_file`` reads, atomically; the same cuts, the same bytes.

    Lhotse's own writer leaves the time of day and the file's name in the gzip header.
    """
    with (
        atomic_write(path) as partial,
        open(partial, "wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed,
    ):
        for cut in cuts:
            packed.write(json.dumps(cut.to_dict(), ensure_ascii=False).encode() + b"\n")
