"""LibriSpeech's layout: ``<split>/<speaker>/<chapter>/<id>.flac`` and ``*.trans.txt`` beside it.

A line of ``<speaker>-<chapter>.trans.txt`` reads ``<id> TEXT``. Nothing is left out here: a line
without audio and audio without a line both become utterances, for validation to reject by name.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from asr.corpora import Utterance, split_folder
from asr.corpora.trees import audio_by_stem, transcript_lines
from asr.errors import UserError


def files(root: Path, split: str) -> list[str]:
    """Paths of all files in the split's folder, relative to ``root``.

    Hidden files are passed over: editors, file managers and killed writers leave them.
    """
    found = []
    for folder, _, names in os.walk(split_folder(root, split), followlinks=True):
        inside = Path(folder).relative_to(root).as_posix()
        found += [f"{inside}/{name}" for name in names if not name.startswith(".")]
    return found


def utterances(root: Path, split: str) -> Iterator[Utterance]:
    """The split's utterances, sorted bytewise by id.

    UserError for a missing split folder, audio outside speaker folders, a transcript whose ids
    are not UTF-8, or two audio files of one id in one folder.
    """
    top = split_folder(root, split)
    found: list[Utterance] = []
    for folder, _, names in os.walk(top, followlinks=True):
        visible = [name for name in names if not name.startswith(".")]
        found += _read_folder(Path(folder), visible, top)
    # The id alone need not be unique here (duplicates are reported later, by both places).
    yield from sorted(found, key=lambda utterance: (utterance.id.encode(), utterance.source))


def _read_folder(folder: Path, names: list[str], top: Path) -> list[Utterance]:
    audio = audio_by_stem(folder, names)
    transcripts = sorted(name for name in names if name.endswith(".trans.txt"))
    if not audio and not transcripts:
        return []
    if folder == top:
        raise UserError(
            f"{folder}: {min([*audio.values(), *transcripts])!r} stands directly in the split; "
            "LibriSpeech's layout is <split>/<speaker>/<chapter>/<id>.flac"
        )
    speaker = folder.relative_to(top).parts[0]
    found = []
    for name in transcripts:
        for number, identifier, text in _read_transcript(folder / name):
            found.append(
                Utterance(
                    id=identifier,
                    audio=folder / audio.get(identifier, identifier + ".flac"),
                    text=text,
                    speaker=speaker,
                    source=f"{folder / name}:{number}",
                )
            )
    transcribed = {utterance.id for utterance in found}
    for identifier, name in audio.items():
        if identifier not in transcribed:
            path = folder / name
            found.append(Utterance(identifier, path, None, speaker, source=str(path)))
    return found


def _read_transcript(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, id, text); bytes that are not UTF-8 stay in the text as surrogates."""
    for number, line in enumerate(transcript_lines(path), start=1):
        words = line.split(maxsplit=1)  # at any white space: NBSP, U+3000, CR too
        if not words:
            continue
        if not words[0].isprintable():
            raise UserError(
                f"{path}:{number}: the utterance id {words[0]!r} is not printable UTF-8; "
                "convert the transcript to UTF-8"
            )
        yield number, words[0], words[1].rstrip() if len(words) > 1 else ""
