"""``python -m asr transcribe FILE...``: what is said in audio files, or on stdin.

On stdout a line a file: its name, a tab, and the words; with ``--json`` an object with the times
and confidences of the words. ``-`` is raw PCM on stdin, whose words are written as they are heard.
"""

import io
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
from tqdm import tqdm

from asr.audio.blocks import Channel, file_blocks, pcm_blocks
from asr.errors import UserError
from asr.filterbank.frames import STACKED_FRAMES
from asr.recognition.finished_model import FinishedModel, open_model
from asr.recognition.streaming import log_probs_of
from asr.recognition.word_times import Word, best_path, words_of
from asr.stages import Workspace

STDIN = "-"

log = logging.getLogger("asr")


def run(
    workspace: Workspace,
    model: Path,
    files: list[str],
    rate: int | None,
    channel: str | None,
    as_json: bool,
) -> None:
    """Transcribe ``files`` in their order.

    A file that cannot be read is named at once, and does not stop the others; at the end it is a
    UserError. So is a model that cannot be read, a missing rate, and a channel that is none.
    """
    if STDIN in files and rate is None:
        raise UserError("what comes on stdin has no header: give its --rate, say --rate 16000")
    chosen = _parse_channel(channel)
    finished = open_model(model)
    bad = []
    for name in files:
        try:
            _transcribe(finished, name, rate, chosen, as_json)
        except UserError as error:
            bad.append(name)
            print(f"error: {error}", file=sys.stderr)
    if bad:
        raise UserError(f"{len(bad)} of {len(files)} could not be transcribed: {', '.join(bad)}")


def hear(finished: FinishedModel, audio: Iterable[np.ndarray]) -> Iterator[Word]:
    """The words in a recording that comes in parts ``(n,)``, each as soon as it has ended."""
    spans = best_path(log_probs_of(finished, audio))
    return words_of(spans, finished.tokenizer.pieces)


def describe_word(word: Word, frame_seconds: float) -> dict[str, object]:
    """A word as it stands in JSON, times in seconds; ``frame_seconds`` of a model frame."""
    return {
        "word": word.text,
        "start": round(word.start * frame_seconds, 3),
        "end": round(word.end * frame_seconds, 3),
        "confidence": round(word.confidence, 4),
    }


def _parse_channel(channel: str | None) -> Channel:
    if channel is None:
        return None
    if channel == "mix":
        return "mix"
    if not channel.isdecimal():
        raise UserError(f"--channel {channel}: a number from 0, or mix")
    return int(channel)


def _transcribe(
    finished: FinishedModel, name: str, rate: int | None, channel: Channel, as_json: bool
) -> None:
    model_rate = finished.fbank.sampling_rate
    samples = 0

    def counted(audio: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        nonlocal samples
        with tqdm(desc=name, unit="s", leave=False, disable=None) as progress:
            for part in audio:
                samples += len(part)
                progress.update(len(part) / model_rate)
                yield part

    live = name == STDIN and not as_json
    if name == STDIN:
        assert rate is not None  # run has asked for it
        audio = pcm_blocks(cast(io.BufferedReader, sys.stdin.buffer), rate, model_rate)
    else:
        audio = file_blocks(Path(name), model_rate, channel)
    words = hear(finished, counted(audio))
    if live:
        for number, word in enumerate(words):
            print(f" {word.text}" if number else word.text, end="", flush=True)
        print(flush=True)
        return
    heard = list(words)
    text = " ".join(word.text for word in heard)
    if as_json:
        frame_seconds = STACKED_FRAMES * finished.fbank.frame_shift
        found = {
            "file": name,
            "seconds": round(samples / model_rate, 3),
            "text": text,
            "words": [describe_word(word, frame_seconds) for word in heard],
        }
        print(json.dumps(found, ensure_ascii=False), flush=True)
    else:
        print(f"{name}\t{text}", flush=True)
