"""Finding a corpus' files in its folders."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from asr.corpora import AUDIO_SUFFIXES
from asr.errors import UserError


def audio_by_stem(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The audio files among a folder's ``names``, by name without suffix.

    UserError for two of one stem.
    """
    audio: dict[str, str] = {}
    for name in sorted(names):
        stem, suffix = os.path.splitext(name)
        if suffix.lower() not in AUDIO_SUFFIXES:
            continue
        if stem in audio:
            raise UserError(
                f"{stem!r} has two audio files, {folder / audio[stem]} and {folder / name}; "
                "delete one of them"
            )
        audio[stem] = name
    return audio


def find_all(root: Path, kinds: dict[str, re.Pattern[str]]) -> dict[str, dict[str, Path]]:
    """All files below ``root`` whose whole name matches the pattern of a kind.

    Returns them by kind and by what the pattern's first group matched, in lower case. UserError for
    two files of one kind and name, and for a folder that is missing.
    """
    if not root.is_dir():
        raise UserError(f"{root}: no such corpus folder; set corpus_dir to where the corpus lies")
    found: dict[str, dict[str, Path]] = {kind: {} for kind in kinds}
    for folder, folders, names in os.walk(root, followlinks=True):
        folders.sort()
        for name in sorted(names):
            for kind, pattern in kinds.items():
                match = pattern.fullmatch(name)
                if match is None:
                    continue
                key = match[1].lower()
                path = Path(folder, name)
                if key in found[kind]:
                    raise UserError(
                        f"{key!r} has two files of the kind '{kind}', {found[kind][key]} and "
                        f"{path}; delete one of them, or move it out of {root}"
                    )
                found[kind][key] = path
    return found


def relative_names(root: Path, paths: Sequence[Path]) -> list[str]:
    """Their names from ``root`` on, in which they lie."""
    return [path.relative_to(root).as_posix() for path in paths]
