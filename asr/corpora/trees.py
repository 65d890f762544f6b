"""Finding a corpus' files in its folders, and reading its transcripts' lines."""

import gzip
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from asr.corpora import AUDIO_SUFFIXES, Utterance
from asr.errors import UserError

SPLITS = ("train", "dev", "test")  # of a corpus whose layout has no names of its own for them
SECONDS = r"\d{1,7}(?:\.\d*)?"  # pattern of a time that a transcript may give


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


def without_transcript(name: str, path: Path) -> Utterance:
    """A recording that no transcript speaks of, for validation to reject by name."""
    return Utterance(name, path, None, name, str(path), channel=0)


def relative_names(root: Path, paths: Sequence[Path]) -> list[str]:
    """Their names from ``root`` on, in which they lie."""
    return [path.relative_to(root).as_posix() for path in paths]


def check_split(corpus: str, split: str) -> None:
    """UserError if ``split`` is none of ``SPLITS``, which is all that ``corpus`` has."""
    if split not in SPLITS:
        raise UserError(f"{corpus} has no split {split!r}; it has {', '.join(SPLITS)} (see splits)")


def transcript_lines(path: Path) -> list[str]:
    """Lines of a transcript, which may be gzipped (``.gz``), split at \\n alone.

    Bytes that are not UTF-8 stay in them as surrogates, so that validation rejects their lines and
    no others. UserError for a file that cannot be read.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}); copy or download it again") from None
    # Not splitlines(): it also splits at control characters that stand inside a text.
    return content.decode("utf-8-sig", errors="surrogateescape").split("\n")


def odd_line(name: str, place: str, fault: str) -> Utterance:
    """What stands for a line that cannot be read, for validation to reject by name.

    ``place`` is the line's ``file:line``, ``name`` makes its number an id, and ``fault`` says what
    is wrong with it.
    """
    identifier = f"{'_'.join(name.split())}-line-{place.rpartition(':')[2]}"
    return Utterance(identifier, Path(f"{place} ({fault})"), None, "nobody", place)
