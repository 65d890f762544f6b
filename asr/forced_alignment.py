"""``python -m asr align``: when each word is said, and which transcripts are wrong.

The path of the transcript's tokens that the model finds most probable (CTC forced alignment) gives
the times. What it costs against the best path of any tokens tells whether the transcript is what
is heard: the difference of their log-probabilities, divided by the transcript's tokens. A word that
was not said must be forced into frames that sound otherwise, and one that is missing from the
transcript leaves frames that must pass for silence. So a right transcript costs little, whatever
the loudness or length.

An utterance is flagged when that cost is above ``AlignmentConfig.limit``, or when CTC cannot align
it at all. A single wrong word in a long transcript stays below.
"""

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torchaudio
from torch import Tensor

from asr.decode import check_same, for_each
from asr.errors import UserError
from asr.features import STATISTICS
from asr.files import read_json, read_jsonl, write_jsonl, write_text
from asr.filterbank.frames import STACKED_FRAMES
from asr.recognition.finished_model import FinishedModel, open_model
from asr.recognition.word_times import TokenSpan, Word, best_path, token_spans, word_of
from asr.stages import StageResult, Workspace, run_stage
from asr.tokens import BLANK, WORD_MARK, ctc_frames_needed
from asr.training.data import UtteranceSet

CTM, SCORES = "words.ctm", "scores.jsonl"

log = logging.getLogger("asr")


@dataclasses.dataclass
class AlignmentConfig:
    """``batch_frames``: as for decoding. ``cost``: nats a token, above which a transcript may be
    flagged; ``deviations``: and so many robust standard deviations above the split's median."""

    batch_frames: int = 20_000
    cost: float = 3.0
    deviations: float = 5.0

    def __post_init__(self) -> None:
        if self.batch_frames < 1:
            raise ValueError(f"batch_frames={self.batch_frames}: at least 1")
        for name in ("cost", "deviations"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: 0 or more")

    def limit(self, costs: Sequence[float]) -> float:
        """The cost above which an utterance among ``costs`` is flagged.

        A weak model raises it; up to a third of wrong transcripts hardly do: they shift neither
        the median nor the median deviation from it by much (which, times 1.4826, is the standard
        deviation of a normal distribution).
        """
        if not len(costs):
            return self.cost
        median = float(np.median(costs))
        deviation = 1.4826 * float(np.median(np.abs(np.array(costs) - median)))
        return max(self.cost, median + self.deviations * deviation)


class Aligned(NamedTuple):
    """The transcript's tokens in the audio, and what they cost in nats a token."""

    spans: list[TokenSpan]
    cost: float


def run(workspace: Workspace, system: str, split: str | None) -> None:
    """Align a split, or every test set, in stages ``align/<system>/<split>``.

    Writes ``words.ctm`` (``<utterance> 1 <start> <duration> <word> <confidence>``, seconds), and
    ``scores.jsonl``, the most costly first. UserError when the model was trained on other features
    or tokens than there are now, and for a split that the corpus does not have.
    """
    config = workspace.config(AlignmentConfig)
    splits = workspace.require("corpus")["counts"]["splits"]
    known = [splits["train"], splits["dev"], *splits["tests"]]
    if split is not None and split not in known:
        raise UserError(f"--split {split}: the corpus has {', '.join(known)}")
    for name in splits["tests"] if split is None else [split]:

        def build(directory: Path, name: str = name) -> StageResult:
            return _align_split(workspace, system, name, config, directory)

        inputs = [f"train/{system}", "features", "tokens"]
        run_stage(workspace, f"align/{system}/{name}", config, inputs, build)


def open_system(workspace: Workspace, system: str) -> FinishedModel:
    """The system's model; UserError unless the stages have its features and tokens."""
    finished = open_model(workspace.directory(f"train/{system}") / "model.pt")
    statistics = read_json(workspace.directory("features") / STATISTICS)
    travels_with = {"features": finished.fbank.to_dict()}
    check_same(finished.path, "features", travels_with, statistics["features"])
    return finished


def align_tokens(log_probs: Tensor, tokens: Sequence[int]) -> Aligned | None:
    """The most probable path of ``tokens`` through ``log_probs`` ``(T, V)``.

    None where T frames are too few for the tokens (``ctc_frames_needed``).
    """
    if len(log_probs) < max(1, ctc_frames_needed(tokens)):
        return None
    if tokens:
        path, scores = (
            found[0]
            for found in torchaudio.functional.forced_align(
                log_probs[None], torch.tensor([tokens]), blank=BLANK
            )
        )
    else:  # which torchaudio does not take
        scores = log_probs[:, BLANK]
        path = torch.full((len(scores),), BLANK)
    spans = list(token_spans(zip(path.tolist(), scores.exp().tolist(), strict=True)))
    best = log_probs.max(dim=-1).values
    return Aligned(spans, (best - scores).sum().item() / max(1, len(tokens)))


def transcript_words(text: str, spans: Sequence[TokenSpan], pieces: Sequence[str]) -> list[Word]:
    """The words of ``text`` at the places of its tokens.

    None of them where the token model does not know the white space between them (trained on
    single words, say): an unknown token may then be the end of one and the beginning of another.
    """
    groups: list[list[TokenSpan]] = []
    begins = True
    for span in spans:
        piece = pieces[span.token]
        begins |= piece.startswith(WORD_MARK)
        if piece == WORD_MARK:
            continue  # the white space before the word
        if begins:
            groups.append([])
        groups[-1].append(span)
        begins = False
    words = text.split()
    if len(words) != len(groups):
        return []
    return [word_of(word, group) for word, group in zip(words, groups, strict=True)]


def ctm_lines(utterance: str, words: Iterable[Word], frame_seconds: float) -> Iterator[str]:
    """NIST's CTM, a line a word: utterance, channel, start and duration in seconds, confidence."""
    for word in words:
        start, duration = word.start * frame_seconds, (word.end - word.start) * frame_seconds
        yield f"{utterance} 1 {start:.2f} {duration:.2f} {word.text} {word.confidence:.3f}\n"


def _align_split(
    workspace: Workspace, system: str, split: str, config: AlignmentConfig, directory: Path
) -> StageResult:
    finished = open_system(workspace, system)
    frame_seconds = STACKED_FRAMES * finished.fbank.frame_shift
    rows = {row["id"]: row for row in read_jsonl(workspace.directory("tokens") / f"{split}.jsonl")}
    lines: dict[str, list[str]] = {}

    def look(name: str, log_probs: Tensor) -> dict[str, Any]:
        row = rows[name]
        aligned = align_tokens(log_probs, row["tokens"])
        spans = best_path([log_probs]) if len(log_probs) else []
        heard = finished.tokenizer.decode([span.token for span in spans])
        if aligned is not None:
            words = transcript_words(row["text"], aligned.spans, finished.tokenizer.pieces)
            lines[name] = list(ctm_lines(name, words, frame_seconds))
        cost = None if aligned is None else round(aligned.cost, 4)
        return {"id": name, "cost": cost, "text": row["text"], "heard": heard}

    utterances = UtteranceSet.of_split(workspace, split)
    scores = list(for_each(finished.model, utterances, config.batch_frames, look).values())
    limit = config.limit([score["cost"] for score in scores if score["cost"] is not None])
    for score in scores:
        score["flagged"] = score["cost"] is None or score["cost"] > limit
    scores.sort(key=lambda score: (score["cost"] is not None, -(score["cost"] or 0), score["id"]))
    ordered = sorted(lines, key=str.encode)
    write_text(directory / CTM, "".join(line for name in ordered for line in lines[name]))
    write_jsonl(directory / SCORES, scores)
    flagged = [score["id"] for score in scores if score["flagged"]]
    log.info(
        "%s on %s: %d of %d transcripts do not fit what is heard (over %.2f nats a token)%s",
        *(system, split, len(flagged), len(scores), limit),
        f", {flagged[0]} least; see {directory / SCORES}" if flagged else "",
    )
    counts = {"utterances": len(scores), "flagged": len(flagged), "limit": round(limit, 4)}
    return StageResult(counts, [directory / CTM, directory / SCORES])
