"""How many wrong transcripts ``python -m asr align`` flags, and how many right ones.

    PYTHONPATH=. OMP_NUM_THREADS=1 python benchmarks/wrong_transcripts.py \\
        --recipe recipes/an4 --dir exp/an4 --system single [--split test] [--seed 0]

A split whose transcripts are right, as far as is known, is aligned by a trained system. Then a
share of its utterances, drawn at random, exchange their transcripts (those that drew their own text
are not counted as wrong), and last, in a tenth of them one word is replaced by another of the
split's.
"""

import argparse
from pathlib import Path

import numpy as np

from asr.decode import log_probabilities
from asr.files import read_jsonl
from asr.forced_alignment import AlignmentConfig, align_tokens, open_system
from asr.recognition.finished_model import FinishedModel
from asr.stages import Workspace
from asr.training.data import UtteranceSet

SHARES = (0.0, 0.05, 0.2, 0.33)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--system", required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    workspace = Workspace(arguments.recipe, arguments.dir)
    finished = open_system(workspace, arguments.system)
    rows = read_jsonl(workspace.directory("tokens") / f"{arguments.split}.jsonl")
    right = {row["id"]: row["text"] for row in rows}
    utterances = UtteranceSet.of_split(workspace, arguments.split)
    log_probs = log_probabilities(finished.model, utterances, AlignmentConfig().batch_frames)
    random = np.random.default_rng(arguments.seed)
    print(f"{'transcripts':<24}{'limit':>8}{'wrong':>8}{'flagged':>9}{'right':>8}{'flagged':>9}")
    for share in SHARES:
        given = exchanged(right, share, random)
        show(f"{share:.0%} exchanged", finished, log_probs, given, right)
    given = with_another_word(right, 0.1, random)
    show("10% with a wrong word", finished, log_probs, given, right)


def exchanged(right: dict[str, str], share: float, random: np.random.Generator) -> dict[str, str]:
    """Transcripts of which a share was passed round among its utterances."""
    names = random.permutation(list(right))[: round(share * len(right))].tolist()
    return right | {
        name: right[other] for name, other in zip(names, names[1:] + names[:1], strict=True)
    }


def with_another_word(
    right: dict[str, str], share: float, random: np.random.Generator
) -> dict[str, str]:
    """Transcripts of which a share has one word replaced by another one."""
    words = sorted({word for text in right.values() for word in text.split()})
    given = dict(right)
    for name in random.permutation(list(right))[: round(share * len(right))].tolist():
        said = right[name].split()
        place = random.integers(len(said))
        said[place] = random.choice([word for word in words if word != said[place]])
        given[name] = " ".join(said)
    return given


def show(title: str, finished: FinishedModel, log_probs: dict, given: dict, right: dict) -> None:
    """A line: how many of the wrong and of the right transcripts are flagged."""
    costs = {}
    for name, text in given.items():
        aligned = align_tokens(log_probs[name], finished.tokenizer.encode(text))
        costs[name] = np.inf if aligned is None else aligned.cost
    limit = AlignmentConfig().limit([cost for cost in costs.values() if np.isfinite(cost)])
    wrong = {name for name in given if given[name] != right[name]}
    flagged = {name for name, cost in costs.items() if cost > limit}
    figures = (len(wrong), len(wrong & flagged), len(given) - len(wrong), len(flagged - wrong))
    print(
        f"{title:<24}{limit:>8.2f}"
        + "".join(f"{n:>{w}}" for n, w in zip(figures, (8, 9, 8, 9), strict=True))
    )


if __name__ == "__main__":
    main()
