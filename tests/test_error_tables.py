from asr.scoring.align import ErrorCounts, align
from asr.scoring.error_tables import (
    DURATION_BINS,
    GroupCounts,
    WordCounts,
    confusions,
    counts_by,
    duration_bin,
    most_frequent,
    pair_counts,
    word_counts,
)
from asr.scoring.files import ops_text, per_spk_text, stm_text, trn_text, words_text

TEXTS = [("the cat sat", "the bat sat"), ("the cat", "the the cat"), ("a cat", "bat"), ("", "uh")]
ALIGNMENTS = [align(reference.split(), hypothesis.split()) for reference, hypothesis in TEXTS]
PAIRS = pair_counts(ALIGNMENTS)


def test_pairs_are_counted_over_all_utterances():
    assert PAIRS == {
        ("the", "the"): 2,
        ("cat", "bat"): 1,
        ("sat", "sat"): 1,
        (None, "the"): 1,
        ("cat", "cat"): 1,
        ("a", "bat"): 1,  # a substitution first, as the aligner settles ties
        ("cat", None): 1,
        (None, "uh"): 1,
    }


def test_words_count_with_what_was_said_and_insertions_with_what_was_heard():
    words = word_counts(PAIRS)
    assert list(words) == ["a", "cat", "sat", "the", "uh"]
    assert words["cat"] == WordCounts(right=1, substituted=1, deleted=1, inserted=0)
    assert words["the"] == WordCounts(right=2, inserted=1)
    assert words["cat"].errors == 2 and words["the"].errors == 1 and words["sat"].errors == 0
    total = sum(map(ErrorCounts.of, ALIGNMENTS), ErrorCounts())
    sums = [
        sum(getattr(row, name) for row in words.values())
        for name in ("right", "substituted", "deleted", "inserted")
    ]
    assert sums == [total.hits, total.substitutions, total.deletions, total.insertions]


def test_the_most_frequent_come_first_and_equals_by_word():
    pairs = {
        ("a", "x"): 2,
        ("b", "y"): 5,
        ("a", "w"): 2,
        ("a", "a"): 9,
        (None, "x"): 7,
        ("c", None): 1,
    }
    assert confusions(pairs, 10) == [("b", "y", 5), ("a", "w", 2), ("a", "x", 2)]
    assert confusions(pairs, 1) == [("b", "y", 5)]
    words = word_counts(pairs)
    assert most_frequent(words, "inserted", 10) == [("x", 7)]
    assert most_frequent(words, "substituted", 10) == [("b", 5), ("a", 4)]


def test_groups_add_up():
    right, wrong = ErrorCounts.of(align(["a"], ["a"])), ErrorCounts.of(align(["a", "b"], ["a"]))
    groups = counts_by([("s2", right), ("s1", wrong), ("s2", wrong)])
    assert list(groups) == ["s1", "s2"]
    assert groups["s2"] == GroupCounts(2, 1, ErrorCounts(words=3, deletions=1, hits=2))


def test_a_duration_belongs_to_the_bin_that_it_starts():
    assert [duration_bin(start) for start in DURATION_BINS] == list(range(len(DURATION_BINS)))
    assert duration_bin(0.99) == 0 and duration_bin(3.5) == 2 and duration_bin(4000) == 6


def test_ops_are_kaldis():
    assert ops_text(PAIRS) == (
        "insertion     ***    the    1\n"
        "insertion     ***     uh    1\n"
        "substitution    a    bat    1\n"
        "deletion      cat    ***    1\n"
        "substitution  cat    bat    1\n"
        "correct       cat    cat    1\n"
        "correct       sat    sat    1\n"
        "correct       the    the    2\n"
    )
    assert ops_text({}) == ""


def test_the_table_of_speakers_is_kaldis():
    speakers = {
        "A": GroupCounts(1, 1, ErrorCounts(5, 1, 1, 1, 3)),
        "silent": GroupCounts(2, 1, ErrorCounts(0, insertions=2)),
    }
    assert per_spk_text(speakers).splitlines() == [
        "SPEAKER         id       #SENT      #WORD       Corr        Sub        Ins        Del"
        "        Err      S.Err",
        "A               raw          1          5          3          1          1          1"
        "          3          1",
        "A               sys          1          5      60.00      20.00      20.00      20.00"
        "      60.00     100.00",
        "silent          raw          2          0          0          0          2          0"
        "          2          1",
        "SUM             raw          3          5          3          1          3          1"
        "          5          2",
        "SUM             sys          3          5      60.00      20.00      60.00      20.00"
        "     100.00      66.67",
    ]


def test_words_with_most_errors_stand_first():
    assert words_text(word_counts(PAIRS)).splitlines()[:3] == [
        "word\tright\tsubstituted\tdeleted\tinserted",
        "cat\t1\t1\t1\t0",
        "a\t0\t1\t0\t0",
    ]


def test_trn_and_stm_lines():
    texts = {"u1": "grüße john's", "u2": ""}
    assert trn_text(texts) == "grüße john's (u1)\n(u2)\n"
    rows = {name: {"speaker": "s1", "duration": 2.345} for name in texts}
    assert stm_text(texts, rows) == "u1 1 s1 0.00 2.35 grüße john's\nu2 1 s1 0.00 2.35\n"
