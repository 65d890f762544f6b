"""TED-LIUM 3: in a split's folder ``stm/<talk>.stm`` and ``sph/<talk>.sph``, a recording a talk.

The folders are ``legacy/train``, ``legacy/dev`` and ``legacy/test`` of the release. A line of STM
reads ``<talk> <channel> <speaker> <start> <end> <label> <words>``, times in seconds; ``;;`` begins
a comment. What the release has of its own is undone here: ``{NOISE}`` is ``[NOISE]``, and what
stands in parentheses, a variant of pronunciation or a name as in ``word(2)``, is no word. Words are
detached there from what an apostrophe joins (``it 's``, ``don 't``), which the normaliser mends as
it does everywhere.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from asr.corpora import Utterance, split_folder
from asr.corpora.trees import (
    SECONDS,
    audio_by_stem,
    odd_line,
    relative_names,
    transcript_lines,
    without_transcript,
)
from asr.errors import UserError

LINE = re.compile(
    rf"(?P<talk>[\w.-]+)\s+\S+\s+(?P<speaker>\S+)\s+(?P<start>{SECONDS})\s+(?P<end>{SECONDS})"
    r"\s+<[^<>]*>(\s+(?P<text>.*))?",
    re.ASCII,
)
NOT_SCORED = "ignore_time_segment_in_scoring"
IN_PARENTHESES = re.compile(r"\([^\s()]*\)")
BRACES = str.maketrans("{}", "[]")


def files(root: Path, split: str) -> list[str]:
    """Paths of the split's transcripts and recordings, relative to ``root``."""
    folder = split_folder(root, split)
    found = [*_transcripts(folder), *_recordings(folder).values()]
    return relative_names(root, found)


def utterances(root: Path, split: str) -> Iterator[Utterance]:
    """The split's utterances, sorted bytewise by id, which is ``<talk>-<line>``.

    A line that is not STM becomes one that validation rejects by name. Stretches that are not to be
    scored are excluded.
    """
    folder = split_folder(root, split)
    recordings = _recordings(folder)
    found = []
    for path in _transcripts(folder):
        for number, line in enumerate(transcript_lines(path), start=1):
            if line.strip() and not line.startswith(";;"):
                found.append(_utterance(line.strip(), path, number, recordings))
    talks = {utterance.audio for utterance in found}
    for talk, path in recordings.items():
        if path not in talks:
            found.append(without_transcript(talk, path))
    yield from sorted(found, key=lambda utterance: (utterance.id.encode(), utterance.source))


def _utterance(line: str, path: Path, number: int, recordings: dict[str, Path]) -> Utterance:
    place, match = f"{path}:{number}", LINE.fullmatch(line)
    if match is None or not match["speaker"].isprintable():
        form = "<talk> <channel> <speaker> <start> <end> <label> <words>"
        return odd_line(path.stem, place, f"not '{form}'")
    talk, text = match["talk"], match["text"] or ""
    ignored = text.strip().lower() == NOT_SCORED
    return Utterance(
        id=f"{talk}-{number:05}",
        audio=recordings.get(talk, path.parent.parent / "sph" / f"{talk}.sph"),
        text=IN_PARENTHESES.sub("", text).translate(BRACES),
        speaker=match["speaker"],
        source=place,
        start=float(match["start"]),
        end=float(match["end"]),
        channel=0,
        excluded=NOT_SCORED if ignored else None,
    )


def _transcripts(folder: Path) -> list[Path]:
    found = sorted((folder / "stm").glob("*.stm"))
    if not found:
        raise UserError(f"{folder / 'stm'}: has no *.stm; TED-LIUM's layout is <split>/stm, /sph")
    return [path for path in found if not path.name.startswith(".")]


def _recordings(folder: Path) -> dict[str, Path]:
    inside = folder / "sph"
    names = [path.name for path in inside.iterdir()] if inside.is_dir() else []
    visible = [name for name in names if not name.startswith(".")]
    return {talk: inside / name for talk, name in audio_by_stem(inside, visible).items()}
