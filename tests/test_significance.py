import itertools
import math
import random
from statistics import NormalDist

import kaldialign
import numpy as np
import pytest

from asr.scoring.align import align
from asr.scoring.significance import (
    Interval,
    bootstrap_interval,
    mapsswe,
    not_worse,
    paired_bootstrap,
    resampled_sums,
    segment_pairs,
)


def corrupted(words, share, generator):
    """Words of which some are wrong, some deleted, and some have a word inserted before them."""
    said = []
    for word in words:
        draw = generator.random()
        if draw < share / 2:
            said.append("wrong")
        elif draw < share:
            continue
        elif draw < 1.3 * share:
            said += ["uh", word]
        else:
            said.append(word)
    return said


@pytest.fixture(scope="module")
def two_systems():
    """References, and what two systems with about 13 % of errors make of them."""
    generator = random.Random(4)
    references = [
        [generator.choice("abcdefghij") for _ in range(generator.randint(1, 25))]
        for _ in range(400)
    ]
    return (
        references,
        [corrupted(words, 0.10, generator) for words in references],
        [corrupted(words, 0.104, generator) for words in references],
    )


def errors_and_words(references, hypotheses):
    return np.array(
        [
            (kaldialign.edit_distance(reference, hypothesis)["total"], len(reference))
            for reference, hypothesis in zip(references, hypotheses, strict=True)
        ]
    )


def test_intervals_and_probability_agree_with_kaldialigns(two_systems):
    references, first, second = two_systems
    theirs = kaldialign.bootstrap_wer_ci(references, first, second, replications=20_000)
    for system, hypotheses in (("system1", first), ("system2", second)):
        counts = errors_and_words(references, hypotheses)
        low, high = bootstrap_interval(counts, 20_000, seed=0)
        # kaldialign: mean and 1.96 deviations of the replicas; here: their percentiles.
        assert 100 * theirs[system]["ci95min"] == pytest.approx(low, abs=0.06)
        assert 100 * theirs[system]["ci95max"] == pytest.approx(high, abs=0.06)
        assert high - low > 1.5
    pair = [errors_and_words(references, hypotheses) for hypotheses in (second, first)]
    better = paired_bootstrap(*pair, 20_000, seed=0).probability_better
    assert better == pytest.approx(theirs["p_s2_improv_over_s1"], abs=0.01)
    assert 0.01 < better < 0.4


def every_draw(counts):
    """Sums of all U**U draws of U rows, each as likely as the other."""
    return np.array([sum(rows) for rows in itertools.product(counts, repeat=len(counts))])


def percentiles(values):
    return np.percentile(values, [2.5, 97.5], method="inverted_cdf")


def test_a_tiny_bootstrap_agrees_with_all_draws_there_are():
    mine = np.array([[0, 3], [2, 5], [1, 2], [4, 9]])
    theirs = np.array([[1, 3], [2, 5], [0, 2], [6, 9]])
    drawn = every_draw(np.column_stack([mine[:, 0], theirs]))
    my_errors, their_errors, words = drawn.T
    interval = bootstrap_interval(mine, 200_000, seed=1)
    np.testing.assert_allclose(interval, percentiles(100 * my_errors / words))
    found = paired_bootstrap(mine, theirs, 200_000, seed=1)
    more = my_errors - their_errors
    assert found.difference == pytest.approx(100 * -2 / 19)
    np.testing.assert_allclose(found.interval, percentiles(100 * more / words))
    assert found.relative == pytest.approx(100 * -2 / 9)
    # Of the draw of the third utterance alone, the baseline's rate is 0 and mine is not.
    relative = np.where(their_errors > 0, 100 * more / np.maximum(their_errors, 1), np.inf)
    np.testing.assert_allclose(found.relative_interval, percentiles(relative))
    exact = np.mean(more < 0) + np.mean(more == 0) / 2
    assert found.probability_better == pytest.approx(exact, abs=0.003)


@pytest.mark.parametrize("copies", [1, 40])  # drawn one by one, and together
def test_resampling_draws_whole_rows_as_often_as_there_are_rows(copies):
    counts = np.repeat([[1, 4], [0, 6], [2, 4], [5, 4]], copies, axis=0)
    sums = resampled_sums(counts, 20_000, seed=3)
    assert sums.shape == (20_000, 2)
    # Mean and variance of a sum of draws with replacement are as many times those of one row.
    np.testing.assert_allclose(sums.mean(axis=0), len(counts) * counts.mean(axis=0), rtol=0.01)
    np.testing.assert_allclose(sums.var(axis=0), len(counts) * counts.var(axis=0), rtol=0.05)
    assert {tuple(row) for row in resampled_sums(counts[:1], 9, seed=0)} == {(1, 4)}


@pytest.mark.parametrize("copies", [1, 40])
def test_results_depend_on_the_seed_and_not_on_the_order(copies):
    generator = np.random.default_rng(0)
    counts = np.repeat(generator.integers(1, 9, size=(50, 3)), copies, axis=0)
    mine, theirs = counts[:, [0, 2]], counts[:, [1, 2]]
    groups = generator.integers(0, 7, len(counts))
    order = generator.permutation(len(counts))
    for by, moved in ((None, None), (groups, 100 - groups[order])):
        found = paired_bootstrap(mine, theirs, 500, 5, by)
        assert found == paired_bootstrap(mine[order], theirs[order], 500, 5, moved)
        assert found != paired_bootstrap(mine, theirs, 500, 6, by)
        interval = bootstrap_interval(mine, 500, 5, by)
        assert interval == bootstrap_interval(mine[order], 500, 5, moved)


def test_groups_are_drawn_whole():
    counts = np.array([[3, 5], [2, 4], [0, 7], [1, 6], [0, 5]])
    summed = np.array([[5, 9], [1, 18]])
    by_group = bootstrap_interval(counts, 3000, 0, groups=np.array([4, 4, 2, 2, 2]))
    assert by_group == bootstrap_interval(summed, 3000, 0)
    assert by_group == pytest.approx((100 * 1 / 18, 100 * 5 / 9))
    alone = bootstrap_interval(counts, 3000, 0, groups=np.arange(5))
    assert alone == bootstrap_interval(counts, 3000, 0)


def test_speakers_that_differ_widen_the_interval():
    generator = np.random.default_rng(1)
    speakers = np.repeat(np.arange(20), 30)
    errors = generator.binomial(10, generator.uniform(0, 0.5, 20)[speakers])
    counts = np.column_stack([errors, np.full(600, 10)])
    low, high = bootstrap_interval(counts, 2000, 0)
    blocked_low, blocked_high = bootstrap_interval(counts, 2000, 0, speakers)
    assert blocked_high - blocked_low > 2 * (high - low)


def test_nothing_is_claimed_without_words_or_of_one_unit():
    silent = np.array([[1, 0], [0, 0]])
    spoken = np.array([[1, 2], [0, 3]])
    one_group = np.array([0, 0])
    assert bootstrap_interval(silent, 100, 0) is None
    assert bootstrap_interval(spoken[:1], 100, 0) is None
    assert bootstrap_interval(spoken, 100, 0, one_group) is None
    assert bootstrap_interval(np.empty((0, 2), int), 100, 0) is None
    assert paired_bootstrap(silent, silent, 100, 0) is None
    assert paired_bootstrap(spoken[:1], spoken[:1], 100, 0) is None
    assert paired_bootstrap(spoken, spoken, 100, 0, one_group) is None
    assert bootstrap_interval(spoken, 100, 0) is not None


def test_draws_without_words_are_left_out():
    counts = np.array([[1, 0], [1, 2]])
    assert bootstrap_interval(counts, 1000, 0) == (50, 100)
    found = paired_bootstrap(counts, counts * [0, 1], 1000, 0)
    assert found.interval == (50, 100) and found.probability_better == 0


def test_a_system_against_itself_is_neither_better_nor_worse():
    counts = np.array([[1, 4], [0, 6], [3, 4]])
    found = paired_bootstrap(counts, counts, 1000, 0)
    assert found.difference == found.relative == 0
    assert found.interval == found.relative_interval == (0, 0)
    assert found.probability_better == 0.5
    assert not_worse(found.relative_interval, 2.0)


def test_a_baseline_without_errors_has_no_relative_difference():
    perfect = np.array([[0, 4], [0, 6], [0, 4]])
    found = paired_bootstrap(perfect + [[1, 0], [0, 0], [0, 0]], perfect, 1000, 0)
    assert found.relative is None and found.relative_interval is None
    assert found.difference == pytest.approx(100 / 14)
    assert not not_worse(found.relative_interval, 2.0)
    equal = paired_bootstrap(perfect, perfect, 1000, 0)
    assert equal.relative == 0 and equal.relative_interval == (0, 0)


def test_a_baseline_with_one_error_has_no_upper_end_of_the_relative_difference():
    theirs = np.array([[1, 4], [0, 6], [0, 4]])  # 8 of 27 draws are without errors
    mine = np.array([[0, 4], [1, 6], [0, 4]])
    found = paired_bootstrap(mine, theirs, 1000, 0)
    assert found.relative == 0 and found.relative_interval is None
    assert not not_worse(found.relative_interval, 50.0)


def test_systems_of_other_references_are_refused():
    with pytest.raises(ValueError, match="different references"):
        paired_bootstrap(np.array([[0, 4]]), np.array([[0, 5]]), 100, 0)
    with pytest.raises(ValueError, match="different references"):
        segment_pairs([align(["a"], ["a"])], [align(["b"], ["b"])])


def test_not_worse_asks_the_upper_end():
    assert not_worse(Interval(-3.0, 1.99), 2.0)
    assert not not_worse(Interval(-3.0, 2.0), 2.0)
    assert not not_worse(Interval(2.5, 9.0), 2.0)  # worse, and shown to be
    assert not_worse(Interval(-9.0, -1.0), 0.0)


REFERENCE = "a b c d e f g h i j"


@pytest.mark.parametrize(
    ("mine", "theirs", "segments"),
    [
        (REFERENCE, REFERENCE, []),
        ("x b c d e f g h i j", REFERENCE, [(1, 0)]),  # at the start
        ("a b c d e f g h i x", REFERENCE, [(1, 0)]),  # at the end
        ("a x c d e f x h i j", REFERENCE, [(1, 0), (1, 0)]),
        ("a x c x e f g h i j", REFERENCE, [(2, 0)]),  # one right word joins
        ("a x c d x f g h i j", REFERENCE, [(1, 0), (1, 0)]),  # two part
        ("a x c d x f g h i j", "a b x d e f g h i j", [(2, 1)]),  # right in both, or not right
        ("a x c d e f g h i j", "a b c d e f x h i j", [(1, 0), (0, 1)]),
        ("a x y c d e f g i j", REFERENCE, [(2, 0), (1, 0)]),
        ("a x c uh d x f g h i j", REFERENCE, [(3, 0)]),  # an insertion between the two joins
        ("a b c d e f g h i j uh", REFERENCE, [(1, 0)]),
        (REFERENCE, "a b c d e f g h i j uh", [(0, 1)]),
        ("uh a b c d e f g h i j", "a b c d e f g h i j", [(1, 0)]),
        ("", REFERENCE, [(10, 0)]),
    ],
)
def test_segments_end_at_two_words_that_both_have_right(mine, theirs, segments):
    reference = REFERENCE.split()
    pairs = segment_pairs([align(reference, mine.split())], [align(reference, theirs.split())])
    assert [tuple(row) for row in pairs] == segments


def test_segments_do_not_reach_over_utterances():
    silent, noisy = align([], []), align([], ["uh", "uh"])
    right, wrong, missing = (align(["a", "b"], words) for words in (["a", "b"], ["a", "x"], []))
    found = segment_pairs([noisy, wrong, wrong, right], [silent, missing, right, right])
    assert found.tolist() == [[2, 0], [1, 2], [1, 0]]


def test_all_errors_are_in_segments(two_systems):
    references, first, second = two_systems
    alignments = [
        [align(*texts) for texts in zip(references, hypotheses, strict=True)]
        for hypotheses in (first, second)
    ]
    segments = segment_pairs(*alignments)
    for column, hypotheses in enumerate((first, second)):
        assert segments[:, column].sum() == errors_and_words(references, hypotheses)[:, 0].sum()
    assert segments.sum(axis=1).min() > 0


def test_matched_pairs_by_hand():
    segments = np.array([[2, 1], [1, 0], [0, 1], [1, 1], [3, 1]])  # differences 1 1 -1 0 2
    found = mapsswe(segments)
    deviation = math.sqrt((2 * 0.4**2 + 1.6**2 + 0.6**2 + 1.4**2) / 4)
    assert found.segments == 5 and found.mean == pytest.approx(0.6)
    assert found.deviation == pytest.approx(deviation)
    assert found.z == pytest.approx(0.6 / (deviation / math.sqrt(5)))
    assert found.p == pytest.approx(2 * (1 - NormalDist().cdf(found.z)))
    other_way = mapsswe(segments[:, ::-1])
    assert (other_way.mean, other_way.z, other_way.p) == (-found.mean, -found.z, found.p)


def test_a_small_p_keeps_its_digits():
    segments = np.array([[1, 0]] * 450 + [[0, 1]] * 50)  # mean 0.8, deviation near 0.6
    found = mapsswe(segments)
    assert found.z == pytest.approx(29.78, abs=0.01)
    # Upper tail by its asymptotic series: phi(z) / z (1 - 1/z^2 + 3/z^4).
    z = found.z
    tail = math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / z * (1 - z**-2 + 3 * z**-4)
    assert 0 < found.p == pytest.approx(2 * tail, rel=1e-6, abs=0)


@pytest.mark.parametrize(
    ("segments", "z", "p"),
    [
        ([], 0.0, 1.0),
        ([[1, 1]], 0.0, 1.0),
        ([[2, 2], [1, 1]], 0.0, 1.0),
        ([[1, 0], [0, 1]], 0.0, 1.0),
        ([[1, 0]], None, None),  # one segment has no deviation
        ([[1, 0], [2, 1]], None, None),
    ],
)
def test_matched_pairs_without_a_deviation(segments, z, p):
    found = mapsswe(np.array(segments, int).reshape(-1, 2))
    assert (found.segments, found.z, found.p) == (len(segments), z, p)
