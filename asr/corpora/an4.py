"""CMU AN4: ``etc/an4_{train,test}.{fileids,transcription}`` and NIST sphere files under ``wav/``.

The corpus has no dev set; every twelfth speaker of train, by name, is ours, and left out of train.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from asr.corpora import Utterance
from asr.corpora.trees import check_split
from asr.errors import UserError
from asr.files import read_lines

DEV_SPEAKER = 12, 5  # one in twelve, beginning with the sixth
TRANSCRIPT = re.compile(r"(?:<s>)?\s*(.*?)\s*(?:</s>)?\s*\(([A-Za-z0-9_-]+)\)\s*")


def files(root: Path, split: str) -> list[str]:
    """Paths of the split's files, relative to ``root``."""
    listing = "test" if split == "test" else "train"
    lists = [f"etc/an4_{listing}.{kind}" for kind in ("fileids", "transcription")]
    audio = {str(utterance.audio.relative_to(root)) for utterance in utterances(root, split)}
    return [*lists, *sorted(name for name in audio if (root / name).exists())]


def utterances(root: Path, split: str) -> Iterator[Utterance]:
    """The split's utterances, sorted bytewise by id; UserError for lists that cannot be read."""
    check_split("AN4", split)
    found = _listed(root, "test" if split == "test" else "train")
    if split != "test":
        speakers = sorted({utterance.speaker for utterance in found})
        every, first = DEV_SPEAKER
        dev = set(speakers[first::every])
        found = [u for u in found if (u.speaker in dev) == (split == "dev")]
    yield from sorted(found, key=lambda utterance: utterance.id.encode())


def _listed(root: Path, listing: str) -> list[Utterance]:
    """What the two lists name; what only one of them does, too."""
    texts = _transcripts(root / "etc" / f"an4_{listing}.transcription")
    found = []
    path = root / "etc" / f"an4_{listing}.fileids"
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        name = PurePosixPath(line.strip())
        if name.is_absolute() or ".." in name.parts or len(name.parts) < 2:
            raise UserError(f"{path}:{number}: {line!r} is not <folder>/<speaker>/<utterance>")
        text, source = texts.pop(name.name, (None, f"{path}:{number}"))
        audio = root / "wav" / f"{name}.sph"
        found.append(Utterance(name.name, audio, text, name.parts[-2], source))
    for identifier, (text, source) in texts.items():
        parts = identifier.split("-")
        speaker = parts[1] if len(parts) == 3 else identifier
        audio = root / "wav" / f"{identifier}.sph"
        found.append(Utterance(identifier, audio, text, speaker, source))
    return found


def _transcripts(path: Path) -> dict[str, tuple[str, str]]:
    """Text and place by utterance id."""
    texts: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        match = TRANSCRIPT.fullmatch(line)
        if match is None:
            raise UserError(f"{path}:{number}: {line!r} is not '<words> (<utterance-id>)'")
        if match[2] in texts:
            raise UserError(f"{path}:{number}: {match[2]!r} stands in {texts[match[2]][1]}, too")
        texts[match[2]] = (match[1], f"{path}:{number}")
    return texts
