import random
import time
import tracemalloc
from functools import cache

import jiwer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.scoring import align as align_module
from asr.scoring.align import ErrorCounts, align, aligned_lines, count_errors, operations

texts = st.lists(st.sampled_from(["a", "b", "c", "ü", "日本"]), max_size=9)


def distance(reference, hypothesis):
    """Word edit distance by its recursive definition, for comparison."""

    @cache
    def of(i, j):
        if i == 0 or j == 0:
            return i + j
        both = of(i - 1, j - 1) + (reference[i - 1] != hypothesis[j - 1])
        return min(both, of(i - 1, j) + 1, of(i, j - 1) + 1)

    return of(len(reference), len(hypothesis))


@settings(max_examples=300, deadline=None)
@given(texts, texts)
def test_totals_equal_jiwer_and_the_definition(reference, hypothesis):
    alignment = align(reference, hypothesis)
    assert [word for word, _ in alignment if word is not None] == reference
    assert [word for _, word in alignment if word is not None] == hypothesis
    assert (None, None) not in alignment
    counts = ErrorCounts.of(alignment)
    assert counts.words == len(reference) == counts.hits + counts.substitutions + counts.deletions
    other = jiwer.process_words(" ".join(reference), " ".join(hypothesis))
    errors = other.insertions + other.deletions + other.substitutions
    assert counts.errors == errors == distance(tuple(reference), tuple(hypothesis))


def first_steps(reference, hypothesis):
    """The alignment by the module's definition: at each place the first step to the least total."""
    pairs = []
    while reference or hypothesis:
        rest = distance(reference, hypothesis)
        one, other = reference[:1], hypothesis[:1]
        if one and other and distance(reference[1:], hypothesis[1:]) + (one != other) == rest:
            pairs.append((*one, *other))
            reference, hypothesis = reference[1:], hypothesis[1:]
        elif one and distance(reference[1:], hypothesis) + 1 == rest:
            pairs.append((*one, None))
            reference = reference[1:]
        else:
            pairs.append((None, *other))
            hypothesis = hypothesis[1:]
    return pairs


@pytest.mark.parametrize("few", [0, 64])  # by rows, and cell by cell
@settings(max_examples=150, deadline=None)
@given(texts, texts)
def test_ties_are_settled_by_the_definition(few, reference, hypothesis):
    expected = first_steps(tuple(reference), tuple(hypothesis))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(align_module, "_FEW", few)
        assert align(reference, hypothesis) == expected


def test_long_and_short_texts_are_aligned_alike():
    generator = random.Random(2)
    reference = generator.choices("abcdef", k=90)
    hypothesis = [word for word in reference if generator.random() < 0.8] + ["a"] * 20
    by_rows = align(reference, hypothesis)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(align_module, "_FEW", len(hypothesis))
        assert align(reference, hypothesis) == by_rows


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("a", "a a", "CI"),  # both before insertion
        ("a a", "a", "CD"),  # both before deletion
        ("a b", "c", "SD"),  # a substitution first, the deletion when nothing else is left
        ("a", "b c", "SI"),
        ("a b", "b c", "SS"),  # not D C I, which costs the same
        ("a b c", "b c d", "DCCI"),  # less than three substitutions
        ("a b c x", "y a b c", "ICCCD"),
        ("p q r", "q r p q", "DCCII"),  # not IICCD, which costs the same
        ("", "", ""),
        ("", "a b", "II"),
        ("a b", "", "DD"),
    ],
)
def test_ties_are_settled_as_documented(reference, hypothesis, expected):
    alignment = align(reference.split(), hypothesis.split())
    assert "".join(operations(alignment)) == expected


def test_a_rate_of_no_reference_words_is_none_and_its_insertions_still_add_up():
    silence = count_errors([], ["a", "b"])
    assert silence == ErrorCounts(words=0, insertions=2)
    assert silence.rate is None
    assert ErrorCounts().rate is None
    assert (silence + ErrorCounts(words=4, hits=4)).rate == 0.5


def test_counts_add_field_by_field():
    assert ErrorCounts(1, 2, 3, 4, 5) + ErrorCounts(10, 20, 30, 40, 50) == ErrorCounts(
        11, 22, 33, 44, 55
    )


def test_lines_put_the_pairs_below_one_another():
    lines = aligned_lines(align(["the", "cat", "sat"], ["the", "big", "bat", "sat"]))
    assert lines == (
        "the cat *** sat",
        "the big bat sat",
        "C   S   I   C",
    )


def test_a_text_of_5000_words_takes_little_memory_and_time():
    reference = [str(i % 97) for i in range(5000)]
    hypothesis = [str(i % 89) for i in range(5000)]
    tracemalloc.start()
    begin = time.perf_counter()
    alignment = align(reference, hypothesis)
    seconds = time.perf_counter() - begin
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ErrorCounts.of(alignment).words == 5000
    assert peak < 40e6
    assert seconds < 10
