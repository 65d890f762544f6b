"""An n-gram language model in backoff form: the probability of a word after the words before it."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

BEGIN = "<s>"
END = "</s>"
UNKNOWN_WORD = "<unk>"
RESERVED = frozenset({BEGIN, END, UNKNOWN_WORD})

Ngram = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class BackoffModel:
    """``entries[k - 1]`` holds the n-grams of order k: log10 probability and log10 backoff weight.

    An n-gram ``(a, b, w)`` holds ``p(w | a, b)``; as a context of longer ones it holds the factor
    by which the probability of a word not seen after it is that of the shorter context (Katz 1987).
    """

    entries: Sequence[dict[Ngram, tuple[float, float]]]

    @property
    def order(self) -> int:
        """The longest n-grams' number of words."""
        return len(self.entries)

    @property
    def vocabulary(self) -> set[str]:
        """What the model can predict: the words of its text, ``</s>`` and ``<unk>``."""
        return {word for (word,) in self.entries[0] if word != BEGIN}

    def knows(self, word: str) -> bool:
        """Whether the word is in the model; ``<unk>`` stands for all others."""
        return word not in RESERVED and (word,) in self.entries[0]

    def log_probability(self, word: str, context: Sequence[str]) -> float:
        """log10 p(word | context); words that the model does not know are ``<unk>`` in both."""
        ngram = tuple(self._known(each) for each in (*context, word))[-self.order :]
        penalty = 0.0
        while ngram not in self.entries[len(ngram) - 1]:
            context_entry = self.entries[len(ngram) - 2].get(ngram[:-1])
            penalty += context_entry[1] if context_entry else 0.0
            ngram = ngram[1:]
        return penalty + self.entries[len(ngram) - 1][ngram][0]

    def sentence_scores(self, words: Sequence[str]) -> list[float]:
        """log10 probabilities of each word and of the sentence's end, ``len(words) + 1``."""
        padded = [BEGIN, *words, END]
        return [
            self.log_probability(padded[i], padded[max(0, i - self.order + 1) : i])
            for i in range(1, len(padded))
        ]

    def _known(self, word: str) -> str:
        return word if (word,) in self.entries[0] else UNKNOWN_WORD


@dataclasses.dataclass(frozen=True)
class Fit:
    """How well a model predicts a text.

    ``perplexity`` is over the known words and the sentences' ends; None for a text without either.
    ``unknown`` of the ``words`` are not in the model: they count in no perplexity.
    """

    sentences: int
    words: int
    unknown: int
    perplexity: float | None


def fit(model: BackoffModel, sentences: Iterable[Sequence[str]]) -> Fit:
    """Perplexity and unknown words of ``sentences``, each a sequence of words."""
    number = words = unknown = 0
    total = 0.0
    for sentence in sentences:
        known = [*map(model.knows, sentence), True]  # and the end
        scores = model.sentence_scores(sentence)
        total += sum(score for score, counted in zip(scores, known, strict=True) if counted)
        number += 1
        words += len(sentence)
        unknown += known.count(False)
    predicted = words - unknown + number
    perplexity = math.pow(10, -total / predicted) if predicted else None
    return Fit(number, words, unknown, perplexity)
