"""Interpolated modified Kneser-Ney estimation of n-gram models (Chen and Goodman 1998).

An n-gram's *count* is how often it occurs where it is of the highest order or begins with ``<s>``,
and otherwise its continuation count: how many different words come before it. With c such a
count, D the discounts of the order, and ``.`` any word,

    p(w | h) = (c(hw) - D(c(hw))) / c(h.) + g(h) p(w | h'),    g(h) = sum_w D(c(hw)) / c(h.)

where h' is h without its first word. The shortest context backs off to the same probability for
every word, ``</s>`` and ``<unk>``, which is all that ``<unk>`` gets. Since a model in backoff form
asks for p(w | h) where hw is stored and for g(h) p(w | h') where it is not, storing these p and g
loses nothing.
"""

import collections
import math
from collections.abc import Iterable, Mapping, Sequence

from asr.ngrams.model import BEGIN, END, RESERVED, UNKNOWN_WORD, BackoffModel, Ngram

MAX_ORDER = 5
# What a discount of a count of 1, 2, 3 or more is where the counts of counts give none: the choice
# of KenLM's trainer, lmplz --discount_fallback.
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
NEVER = -99.0  # log10 probability of <s>, which is never predicted

Discounts = tuple[float, float, float]


def estimate(
    sentences: Iterable[Sequence[str]], order: int, prune: Sequence[int] = ()
) -> BackoffModel:
    """A model of n-grams up to ``order`` from ``sentences``, each a sequence of words.

    ``prune[k - 1]`` drops the n-grams of order k that occur at most so many times; the
    probability that they had goes to what their context backs off to. Thresholds left out are 0.
    ValueError for an order outside 1 to 5, for words that are ``<s>``, ``</s>`` or ``<unk>``, for
    a text without sentences, and for thresholds that ``check_pruning`` refuses.
    """
    check_pruning(order, prune)
    occurrences = _count(sentences, order)
    if not occurrences[0]:
        raise ValueError("no sentences to estimate a language model from")
    thresholds = [*prune, *[0] * (order - len(prune))]
    uniform = 1 / len(occurrences[0])  # <s> is among them, <unk> is not
    shorter: dict[Ngram, float] = {(): uniform}
    probabilities: list[dict[Ngram, float]] = []
    backoffs: dict[Ngram, float] = {}
    for length in range(1, order + 1):
        counts = _adjusted(occurrences, length)
        kept = {n for n in counts if occurrences[length - 1][n] > thresholds[length - 1]}
        shorter, leftover = _interpolate(counts, discounts(counts), kept, shorter)
        if length == 1:
            shorter[(UNKNOWN_WORD,)] = leftover[()] * uniform
        probabilities.append(shorter)
        backoffs |= leftover
    return _backoff_model(probabilities, backoffs)


def check_pruning(order: int, prune: Sequence[int]) -> None:
    """ValueError unless ``prune`` are thresholds for orders 1 to ``order`` at most.

    The first must be 0, since a word is not dropped, and none smaller than the one before it:
    then what is stored has its context and its shorter forms stored, too.
    """
    if not 1 <= order <= MAX_ORDER:
        raise ValueError(f"order={order}: from 1 to {MAX_ORDER}")
    if len(prune) > order:
        raise ValueError(f"prune={list(prune)}: more thresholds than orders, {order}")
    if any(threshold < 0 for threshold in prune) or (prune and prune[0]):
        raise ValueError(f"prune={list(prune)}: the first is 0 and none is below")
    thresholds = [*prune, *[0] * (order - len(prune))]
    if sorted(thresholds) != thresholds:
        raise ValueError(
            f"prune={list(prune)} for order {order}: no threshold may be smaller than the one "
            "before it, and those left out are 0"
        )


def discounts(counts: Mapping[Ngram, int]) -> Discounts:
    """The discounts of counts 1, 2, and 3 or more, from how many n-grams have counts 1 to 4.

    Chen and Goodman's estimates; ``FALLBACK_DISCOUNTS`` where no n-gram has one of the four counts
    or a discount comes out as 0 or less, as happens in short texts.
    """
    having = collections.Counter(counts.values())
    if not all(having[count] for count in (1, 2, 3, 4)):
        return FALLBACK_DISCOUNTS
    y = having[1] / (having[1] + 2 * having[2])
    found = [count - (count + 1) * y * having[count + 1] / having[count] for count in (1, 2, 3)]
    return (found[0], found[1], found[2]) if min(found) > 0 else FALLBACK_DISCOUNTS


def _count(sentences: Iterable[Sequence[str]], order: int) -> list[collections.Counter[Ngram]]:
    """How often the n-grams of each order occur; ``<s>`` and ``</s>`` are around each sentence."""
    counts: list[collections.Counter[Ngram]] = [collections.Counter() for _ in range(order)]
    for sentence in sentences:
        if reserved := RESERVED.intersection(sentence):
            raise ValueError(f"{min(reserved)} is no word: the model has it for itself")
        padded = (BEGIN, *sentence, END)
        for length, counter in enumerate(counts, start=1):
            counter.update(padded[i : i + length] for i in range(len(padded) - length + 1))
    return counts


def _adjusted(occurrences: Sequence[Mapping[Ngram, int]], length: int) -> dict[Ngram, int]:
    """What the module's docstring calls counts; ``<s>`` itself, never predicted, has none."""
    own = occurrences[length - 1]
    if length == len(occurrences):
        return {ngram: count for ngram, count in own.items() if ngram != (BEGIN,)}
    before = collections.Counter(longer[1:] for longer in occurrences[length])
    return {
        ngram: count if ngram[0] == BEGIN else before[ngram]
        for ngram, count in own.items()
        if ngram != (BEGIN,)
    }


def _interpolate(
    counts: Mapping[Ngram, int],
    discounted: Discounts,
    kept: set[Ngram],
    shorter: Mapping[Ngram, float],
) -> tuple[dict[Ngram, float], dict[Ngram, float]]:
    """p(w | h) of the kept n-grams, and g(h) of every context h, from p(w | h') in ``shorter``."""
    totals: collections.Counter[Ngram] = collections.Counter()
    left: collections.defaultdict[Ngram, float] = collections.defaultdict(float)
    for ngram, count in counts.items():
        totals[ngram[:-1]] += count
        left[ngram[:-1]] += discounted[min(count, 3) - 1] if ngram in kept else count
    backoff = {context: mass / totals[context] for context, mass in left.items()}
    # A unigram's shorter form is the empty one, whose probability is the uniform one.
    probabilities = {
        ngram: (counts[ngram] - discounted[min(counts[ngram], 3) - 1]) / totals[ngram[:-1]]
        + backoff[ngram[:-1]] * shorter[ngram[1:]]
        for ngram in kept
    }
    return probabilities, backoff


def _backoff_model(
    probabilities: Sequence[Mapping[Ngram, float]], backoffs: Mapping[Ngram, float]
) -> BackoffModel:
    """Logarithms, sorted; ``<s>`` is an entry for its backoff weight alone."""
    entries = []
    for length, table in enumerate(probabilities, start=1):
        logs = {ngram: math.log10(probability) for ngram, probability in table.items()}
        if length == 1:
            logs[(BEGIN,)] = NEVER
        entries.append(
            {ngram: (logs[ngram], math.log10(backoffs.get(ngram, 1.0))) for ngram in sorted(logs)}
        )
    return BackoffModel(entries)
