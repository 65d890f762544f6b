"""Words with times and confidence, from a path of tokens through model frames of 30 ms.

A token's probability is the mean of its probability over the frames in which the path has it. A
word's confidence is the mean over its tokens, the white space between words left out.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from asr.tokens import BLANK, UNKNOWN, WORD_MARK

UNKNOWN_TEXT = "\u2047"  # as sentencepiece decodes the unknown piece


class TokenSpan(NamedTuple):
    """A token of a path: the model frames ``start`` to ``end`` (exclusive) that have it."""

    token: int
    start: int
    end: int
    probability: float


class Word(NamedTuple):
    """A word: model frames ``start`` to ``end`` (exclusive), and a confidence from 0 to 1."""

    text: str
    start: int
    end: int
    confidence: float


def best_path(log_probs: Iterable[Tensor]) -> Iterator[TokenSpan]:
    """Greedy CTC search: the tokens of the best path; ``log_probs`` come in parts ``(n, V)``.

    They are those of ``asr.decode.greedy_search``; each comes as soon as it has ended.
    """

    def frames() -> Iterator[tuple[int, float]]:
        for part in log_probs:
            best = part.max(dim=-1)
            yield from zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)

    return token_spans(frames())


def token_spans(frames: Iterable[tuple[int, float]]) -> Iterator[TokenSpan]:
    """The tokens of a path; ``frames`` are its labels with their probabilities."""
    label, start, total, position = BLANK, 0, 0.0, 0
    for position, (new, probability) in enumerate(frames):
        if new != label:
            if label != BLANK:
                yield TokenSpan(label, start, position, total / (position - start))
            label, start, total = new, position, 0.0
        total += probability
    if label != BLANK:
        yield TokenSpan(label, start, position + 1, total / (position + 1 - start))


def words_of(spans: Iterable[TokenSpan], pieces: Sequence[str]) -> Iterator[Word]:
    """The words that tokens make, joined by a space the text that the token model gives them.

    ``pieces``: what each token stands for, see ``asr.tokens.Tokenizer``. A word comes as soon as
    the next one has begun.
    """
    text, members = "", list[TokenSpan]()
    for span in spans:
        piece = pieces[span.token]
        if piece.startswith(WORD_MARK) or span.token == UNKNOWN:
            if text:
                yield word_of(text, members)
            text, members = "", []
        if span.token == UNKNOWN:  # a word of its own
            yield word_of(UNKNOWN_TEXT, [span])
        elif letters := piece.removeprefix(WORD_MARK):
            text += letters
            members.append(span)
    if text:
        yield word_of(text, members)


def word_of(text: str, members: Sequence[TokenSpan]) -> Word:
    """The word ``text`` from the spans of its tokens, at least one."""
    confidence = sum(span.probability for span in members) / len(members)
    return Word(text, members[0].start, members[-1].end, confidence)
