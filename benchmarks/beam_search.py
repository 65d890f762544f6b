"""Beam search with a language model: speed and errors of ours, of another decoder, and of greedy.

    PYTHONPATH=. OMP_NUM_THREADS=1 python benchmarks/beam_search.py --recipe recipes/an4 --dir DIR \
        --system single [--rounds 3]

DIR holds stages 0 to 7 of the recipe with beam search on. The other
decoder is ctc-beam-decoder (pip install ctc-beam-decoder==0.2.0), which searches as pyctcdecode
does. All read the same log-probabilities and the same n-gram model; the weights of each are tuned
on dev by the recipe's grid (the other's alpha is lm_weight / ln 10), then ``--rounds`` times in
turn the first test set is decoded. Printed are the median seconds of one core by second of audio,
the search alone, and the word errors.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from ctc_beam_decoder import build_ctcdecoder
from torch import Tensor

from asr.decode import DecodeConfig, SearchConfig, greedy_search, log_probabilities
from asr.files import read_jsonl
from asr.language_model import ARPA, LEXICON, STAGE, ends_words, model_path
from asr.model import load_model
from asr.ngrams.model import UNKNOWN_WORD
from asr.recognition.beam_search import BeamSearch, Weights
from asr.recognition.tuning import best_of, grid_of, sweep
from asr.scoring.align import ErrorCounts, align
from asr.stages import Workspace
from asr.tokens import BLANK_PIECE, WORD_MARK, Tokenizer
from asr.training.data import UtteranceSet

Search = Callable[[Tensor], str]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--system", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    workspace = Workspace(arguments.recipe, arguments.dir)
    config = workspace.config(DecodeConfig, "decode")
    settings = config.search or SearchConfig()
    tokenizer = Tokenizer(workspace.directory("tokens") / "tokens.model")
    model, _ = load_model(workspace.directory(f"train/{arguments.system}") / "model.pt")
    splits = workspace.require("corpus")["counts"]["splits"]
    rows = {
        split: read_jsonl(workspace.directory("tokens") / f"{split}.jsonl")
        for split in (splits["dev"], splits["tests"][0])
    }
    texts = {split: {row["id"]: row["text"] for row in own} for split, own in rows.items()}
    log_probs = {
        split: log_probabilities(
            model, UtteranceSet.of_split(workspace, split), config.batch_frames
        )
        for split in rows
    }
    lexicon = workspace.directory(STAGE) / LEXICON
    ours = BeamSearch(tokenizer, model_path(workspace), lexicon, settings.beam)
    theirs = functools.partial(other_decoder, tokenizer, workspace, lexicon, settings)
    grid = grid_of(settings.lm_weights, settings.word_scores)
    searches: dict[str, Search] = {"greedy": functools.partial(greedy, tokenizer)}
    for name, weigh in (("ours", ours.weigh), ("ctc-beam-decoder", theirs)):
        points = sweep(weigh, grid, log_probs[splits["dev"]], texts[splits["dev"]])
        best = best_of(points).weights
        print(f"{name}: lm_weight {best.lm_weight:g}, word_score {best.word_score:g} on dev")
        searches[name] = weigh(best)
    test = splits["tests"][0]
    audio = sum(row["duration"] for row in rows[test])
    print(f"{test}: {len(texts[test])} utterances, {audio:.0f} s, beam {settings.beam.size}")
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    counts = {}
    for _ in range(arguments.rounds):
        for name, search in searches.items():
            begin = time.process_time()
            heard = {each: search(frames) for each, frames in log_probs[test].items()}
            seconds[name].append(time.process_time() - begin)
            counts[name] = errors(texts[test], heard)
    for name, taken in seconds.items():
        real_time = statistics.median(taken) / audio
        print(f"{name:<17} real-time factor {real_time:.5f}   {wer_line(counts[name])}")


def greedy(tokenizer: Tokenizer, log_probs: Tensor) -> str:
    """The best path's text."""
    (path,) = greedy_search(log_probs[None], torch.tensor([len(log_probs)]))
    return tokenizer.decode(path)


def other_decoder(
    tokenizer: Tokenizer,
    workspace: Workspace,
    lexicon: Path,
    settings: SearchConfig,
    weights: Weights,
) -> Search:
    """ctc-beam-decoder with the same model, words and beam; what else it prunes is as it comes."""
    names = {BLANK_PIECE: "", UNKNOWN_WORD: "⁇"}
    if ends_words(tokenizer):
        names[WORD_MARK] = " "
    decoder = build_ctcdecoder(
        [names.get(piece, piece) for piece in tokenizer.pieces],
        kenlm_model_path=workspace.directory(STAGE) / ARPA,
        unigrams=[line.split("\t")[0] for line in lexicon.read_text("utf-8").splitlines()],
        alpha=weights.lm_weight / np.log(10),
        beta=weights.word_score,
    )
    return lambda log_probs: decoder.decode(log_probs.numpy(), beam_width=settings.beam.size)


def errors(references: Mapping[str, str], heard: Mapping[str, str]) -> ErrorCounts:
    """Word errors over all utterances."""
    return sum(
        (
            ErrorCounts.of(align(text.split(), heard[name].split()))
            for name, text in references.items()
        ),
        ErrorCounts(),
    )


def wer_line(counts: ErrorCounts) -> str:
    """Kaldi's line."""
    return (
        f"%WER {100 * counts.errors / counts.words:.2f} [ {counts.errors} / {counts.words}, "
        f"{counts.insertions} ins, {counts.deletions} del, {counts.substitutions} sub ]"
    )


if __name__ == "__main__":
    main()
