"""Seconds of the statistics and of scoring, on made-up texts of about 15 words and 13 % of errors.

    PYTHONPATH=. python benchmarks/scoring.py [--utterances 5000] [--replicas 10000] [--many 100000]

The statistics are of ``--utterances`` and two systems. ``--many`` utterances are scored from two
files, as ``python -m asr.score`` does, then step by step. Both wall time and the processor's are
given, as other processes delay the first only. One thread.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy

import jiwer
import numpy as np

from asr.files import write_id_text
from asr.score import score_files
from asr.scoring.align import Alignment, ErrorCounts, align
from asr.scoring.significance import bootstrap_interval, mapsswe, paired_bootstrap, segment_pairs
from asr.text import normalise

WORDS = [f"{first}{second}" for first in "bcdfghjklm" for second in ("an", "in", "on", "un")]
WORDS[0] = "it's"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--utterances", type=int, default=5_000)
    parser.add_argument("--replicas", type=int, default=10_000)
    parser.add_argument("--many", type=int, default=100_000)
    arguments = parser.parse_args()
    print(f"{'what':<64} {'wall s':>8} {'CPU s':>8}")
    measure_statistics(arguments.utterances, arguments.replicas)
    measure_scoring(arguments.many)


def measure_statistics(utterances: int, replicas: int) -> None:
    """Bootstrap by utterance and by speaker, paired bootstrap, matched pairs."""
    generator = random.Random(0)
    references = made_up_texts(utterances, generator)
    first, second = (
        [align(text, misheard(text, share, generator)) for text in references]
        for share in (0.13, 0.12)
    )
    mine, theirs = counts_of(first), counts_of(second)
    speakers = np.arange(utterances) % 80
    size = f"{utterances} utterances, {replicas} replicas"
    timed(f"bootstrap, {size}", lambda: bootstrap_interval(mine, replicas, 0))
    timed(
        f"bootstrap by 80 speakers, {size}",
        lambda: bootstrap_interval(mine, replicas, 0, speakers),
    )
    timed(f"paired bootstrap, {size}", lambda: paired_bootstrap(mine, theirs, replicas, 0))
    timed(
        f"matched pairs, segments included, {utterances} utterances",
        lambda: mapsswe(segment_pairs(first, second)),
    )


def measure_scoring(utterances: int) -> None:
    """``score_files``, and its parts alone."""
    generator = random.Random(0)
    texts = made_up_texts(utterances, generator)
    heard = [misheard(text, 0.13, generator) for text in texts]
    names = [f"utterance-{number:07d}" for number in range(utterances)]
    said_lines, heard_lines = ([" ".join(words) for words in side] for side in (texts, heard))
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("ref.txt", "hyp.txt")]
        for file, lines in zip(files, (said_lines, heard_lines), strict=True):
            write_id_text(file, zip(names, lines, strict=True))
        timed(f"score {utterances} utterances, files to totals", lambda: score_files(*files))
    timed("  of this: normalise", lambda: [normalise(line) for line in said_lines + heard_lines])
    pairs = list(zip(texts, heard, strict=True))
    timed("  of this: align", lambda: [align(one, other) for one, other in pairs])
    timed("  of this: jiwer's check", lambda: jiwer.process_words(said_lines, heard_lines))


def made_up_texts(number: int, generator: random.Random) -> list[list[str]]:
    """Texts of 2 to 28 words."""
    return [generator.choices(WORDS, k=generator.randint(2, 28)) for _ in range(number)]


def misheard(words: list[str], share: float, generator: random.Random) -> list[str]:
    """The words with ``share`` of errors: 60 % substitutions, the rest deletions and insertions."""
    heard: list[str] = []
    for word in words:
        draw = generator.random() / share
        if draw < 0.6:
            heard.append(generator.choice(WORDS))
        elif draw < 0.8:
            continue
        else:
            heard += [word, generator.choice(WORDS)] if draw < 1 else [word]
    return heard


def counts_of(alignments: list[Alignment]) -> np.ndarray:
    """Errors and words by utterance, ``(U, 2)``."""
    counts = map(ErrorCounts.of, alignments)
    return np.array([(item.errors, item.words) for item in counts])


def timed(what: str, action: Callable[[], object]) -> None:
    """Run once and print the seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    action()
    print(
        f"{what:<64} {time.perf_counter() - wall:>8.2f} {time.process_time() - processor:>8.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
