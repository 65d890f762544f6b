"""Switchboard-1 release 2 (LDC97S62) with Mississippi State's transcripts.

They lie anywhere in the corpus' folder: recordings ``sw0<conversation>.sph`` of two channels, and
``sw<conversation>A-ms98-a-trans.text`` and ``...B-...`` with lines ``<id> <start> <end> <words>``
(seconds). A speaker is one side of a conversation. See ``conversations`` for what becomes of the
words.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from asr.corpora import Utterance
from asr.corpora.conversations import CHANNELS, SUFFIXES, split_of, spoken
from asr.corpora.trees import (
    SECONDS,
    check_split,
    find_all,
    odd_line,
    relative_names,
    transcript_lines,
    without_transcript,
)
from asr.errors import UserError

KINDS = {
    "recording": re.compile(rf"sw0?(\d{{4}})(?:{SUFFIXES})", re.IGNORECASE),
    "transcript": re.compile(r"sw(\d{4}[AB])-ms98-a-trans\.text", re.IGNORECASE),
}
LINE = re.compile(rf"(\S+)\s+({SECONDS})\s+({SECONDS})(?:\s+(.*))?", re.ASCII)
EVERY = 100  # of 2,438 conversations: 24 each, 3 hours


def files(root: Path, split: str) -> list[str]:
    """Paths of the split's transcripts and recordings, relative to ``root``."""
    found = _find(root, split)
    return relative_names(root, [path for kind in found.values() for path in kind.values()])


def utterances(root: Path, split: str) -> Iterator[Utterance]:
    """The split's utterances, sorted bytewise by id, as the transcripts give it.

    A line that cannot be read becomes one that validation rejects by name. UserError for a folder
    without transcripts, and a split that Switchboard does not have.
    """
    found = _find(root, split)
    recordings, utterances, transcribed = found["recording"], [], set()
    for side, path in found["transcript"].items():
        conversation = side[:4]
        transcribed.add(conversation)
        recording = recordings.get(conversation, path.parent / f"sw0{conversation}.sph")
        utterances += _of_side(path, recording, conversation, side[4].upper())
    for conversation, path in recordings.items():
        if conversation not in transcribed:
            name = f"sw{conversation}"
            utterances.append(without_transcript(name, path))
    yield from sorted(utterances, key=lambda utterance: (utterance.id.encode(), utterance.source))


def _find(root: Path, split: str) -> dict[str, dict[str, Path]]:
    check_split("Switchboard", split)
    found = find_all(root, KINDS)
    if not found["transcript"]:
        raise UserError(
            f"{root}: has no transcripts sw*-ms98-a-trans.text (swb_ms98_transcriptions)"
        )
    return {
        kind: {
            name: path for name, path in paths.items() if split_of(int(name[:4]), EVERY) == split
        }
        for kind, paths in found.items()
    }


def _of_side(path: Path, recording: Path, conversation: str, side: str) -> list[Utterance]:
    found = []
    for number, line in enumerate(transcript_lines(path), start=1):
        if not line.strip():
            continue
        place, match = f"{path}:{number}", LINE.fullmatch(line.strip())
        if match is None or not match[1].isprintable():
            name = f"sw{conversation}{side}"
            found.append(odd_line(name, place, "not '<id> <start> <end> <words>'"))
            continue
        words, excluded = spoken(match[4] or "")
        found.append(
            Utterance(
                id=match[1],
                audio=recording,
                text=words,
                speaker=f"sw{conversation}-{side}",
                source=place,
                start=float(match[2]),
                end=float(match[3]),
                channel=CHANNELS[side],
                excluded=excluded,
            )
        )
    return found
