"""A few utterances of CMU AN4, where its archive lies beside the checkout."""

import functools
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.text import normalise

ARCHIVE = Path(__file__).resolve().parents[2] / "shared" / "data" / "an4_sphere.tar.gz"
needs_an4 = pytest.mark.skipif(not ARCHIVE.exists(), reason=f"real speech: {ARCHIVE} is missing")


@functools.cache
def an4_utterances(number: int) -> dict[str, tuple[np.ndarray, str]]:
    """The archive's first utterances: id -> (samples at 16 kHz, text as the recipe has it)."""
    texts: dict[str, str] = {}
    found: dict[str, tuple[np.ndarray, str]] = {}
    with tarfile.open(ARCHIVE, "r|gz") as archive:
        for member in archive:
            name = Path(member.name)
            if name.name == "an4_train.transcription":
                for line in archive.extractfile(member).read().decode().splitlines():
                    text, _, last = line.rpartition("(")
                    words = text.replace("<s>", "").replace("</s>", "")
                    texts[last.rstrip(")\n ")] = normalise(words.replace("<sil>", ""))
            elif name.suffix == ".sph":
                samples, _ = soundfile.read(
                    io.BytesIO(archive.extractfile(member).read()), dtype="float32"
                )
                found[name.stem] = (samples, texts[name.stem])
                if len(found) == number:
                    break
    return found
