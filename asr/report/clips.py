"""The utterances' audio as a browser can play it, beside the report."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import soundfile

from asr.errors import UserError
from asr.files import atomic_write

if TYPE_CHECKING:
    from asr.audio.utterance import Utterance

FOLDER = "audio"
PLAYABLE = frozenset({".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a"})


def find_audio(manifest: Path) -> dict[str, "Utterance"]:
    """Where each utterance of a manifest lies, by id; empty where there is no manifest."""
    if not manifest.exists():
        return {}
    # Imported when needed: Lhotse takes seconds, other toolkits' results have no manifest, and who
    # compares those alone has neither Lhotse nor torchaudio.
    from asr.audio.utterance import Utterance
    from asr.filterbank.storage import load_cuts

    return {cut.id: Utterance.of(cut) for cut in load_cuts(manifest)}


def link_audio(
    utterances: Iterable["Utterance"], folder: Path, converted: int
) -> tuple[dict[str, str], list[Path]]:
    """Links, relative to ``folder``, by utterance id; and the files that were made there.

    A recording that browsers play is linked where it lies. Of others, and of utterances that are
    a stretch of a recording, the first ``converted`` become 16-bit WAV files in ``audio/``. Audio
    that cannot be read is left without a link.
    """
    links: dict[str, str] = {}
    made: list[Path] = []
    for utterance in utterances:
        whole = utterance.num_samples == utterance.recording_samples
        if whole and utterance.path.suffix.lower() in PLAYABLE and utterance.path.exists():
            links[utterance.id] = quote(os.path.relpath(utterance.path, folder))
        elif len(made) < converted:
            from asr.audio.utterance import read_audio

            path = folder / FOLDER / f"{len(made):04d}.wav"
            try:
                samples = read_audio(utterance, utterance.sampling_rate)
            except UserError:
                continue
            _write_wav(path, samples, utterance.sampling_rate)
            made.append(path)
            links[utterance.id] = f"{FOLDER}/{path.name}"
    return links, made


def _write_wav(path: Path, samples: np.ndarray, rate: int) -> None:
    with atomic_write(path) as partial:
        soundfile.write(partial, samples, rate, subtype="PCM_16")
