import random

import kenlm
import pytest

from asr.errors import UserError
from asr.ngrams.arpa import read_arpa, write_arpa
from asr.ngrams.kneser_ney import FALLBACK_DISCOUNTS, discounts, estimate
from asr.ngrams.model import BEGIN, END, BackoffModel, fit


def made_text(sentences=400, words=30, seed=1):
    """Sentences of a chain in which each word prefers a few others, some of them rare."""
    generator = random.Random(seed)
    text = []
    for _ in range(sentences):
        word, sentence = generator.randrange(words), []
        for _ in range(generator.randrange(9)):
            sentence.append(f"w{word}")
            word = (3 * word + int(generator.expovariate(0.7))) % words
        text.append(sentence)
    return text


def contexts_of(model):
    """Every stored context, and one that no n-gram has."""
    stored = {ngram[:-1] for table in model.entries for ngram in table}
    return [*stored, ("w1",) * (model.order - 1), ("never", "heard")]


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("prune", [(), (0, 1), (0, 0, 2)])
def test_the_probabilities_after_every_context_sum_to_1(order, prune):
    prune = [*prune, *prune[-1:] * (order - len(prune))][:order]
    model = estimate(made_text(sentences=120, words=12), order, prune)
    for context in contexts_of(model):
        total = sum(10 ** model.log_probability(word, context) for word in model.vocabulary)
        assert total == pytest.approx(1, abs=1e-9), context


def test_a_bigram_model_worked_out_by_hand():
    # a b, a c, a b: six words or ends, five different bigrams of six... the counts of the bigrams:
    # <s> a 3, a b 2, a c 1, b </s> 2, c </s> 1. Before a: <s>; b: a; c: a; </s>: b and c.
    model = estimate([["a", "b"], ["a", "c"], ["a", "b"]], order=2)
    d1, d2, d3 = FALLBACK_DISCOUNTS  # no bigram occurs 4 times
    # Unigrams have continuation counts 1, 1, 1 and 2 of 5; five words share what is discounted.
    shared = (3 * d1 + d2) / 5 / 5
    p = {"a": (1 - d1) / 5 + shared, "b": (1 - d1) / 5 + shared, "c": (1 - d1) / 5 + shared}
    p |= {END: (2 - d2) / 5 + shared, "<unk>": shared}
    expected = {
        ("a",): {"b": (2 - d2) / 3, "c": (1 - d1) / 3},
        ("b",): {END: (2 - d2) / 2},
        ("c",): {END: 1 - d1},
        (BEGIN,): {"a": (3 - d3) / 3},
    }
    backoff = {("a",): (d1 + d2) / 3, ("b",): d2 / 2, ("c",): d1, (BEGIN,): d3 / 3}
    for word, probability in p.items():
        assert 10 ** model.log_probability(word, ()) == pytest.approx(probability)
    for context, seen in expected.items():
        for word in model.vocabulary:
            probability = seen.get(word, 0) + backoff[context] * p[word]
            assert 10 ** model.log_probability(word, context) == pytest.approx(probability)


def test_discounts_are_those_of_chen_and_goodman():
    having = {1: 40, 2: 12, 3: 6, 4: 3, 7: 5}  # how many n-grams have a count
    counts = {(count, i): count for count, number in having.items() for i in range(number)}
    y = 40 / (40 + 2 * 12)
    expected = (1 - 2 * y * 12 / 40, 2 - 3 * y * 6 / 12, 3 - 4 * y * 3 / 6)
    assert discounts(counts) == pytest.approx(expected)


@pytest.mark.parametrize("having", [{1: 40, 2: 12, 3: 6}, {1: 3, 2: 3, 3: 9, 4: 1}, {5: 2}])
def test_counts_of_counts_that_give_no_discount_fall_back(having):
    counts = {(count, i): count for count, number in having.items() for i in range(number)}
    assert discounts(counts) == FALLBACK_DISCOUNTS


def test_what_is_stored_backs_off_to_the_shorter_context_by_its_weight():
    model = estimate(made_text(), order=3)
    for context in [("w1", "w2"), ("w0", "w0"), (BEGIN, "w3")]:
        weight = model.entries[1].get(context, (0, 0.0))[1]
        for word in model.vocabulary:
            if (*context, word) not in model.entries[2]:
                shorter = model.log_probability(word, context[1:])
                assert model.log_probability(word, context) == pytest.approx(weight + shorter)


def test_pruning_drops_what_occurs_no_more_often_than_its_threshold():
    text = [["a", "b", "c"]] * 3 + [["a", "b", "d"]] * 2 + [["d", "b", "c"]]
    model = estimate(text, order=3, prune=[0, 0, 2])
    trigrams = set(model.entries[2])
    assert trigrams == {(BEGIN, "a", "b"), ("a", "b", "c"), ("b", "c", END)}
    assert set(model.entries[1]) == set(estimate(text, order=3).entries[1])


@pytest.mark.parametrize(
    ("order", "prune", "message"),
    [
        (0, (), "order=0"),
        (6, (), "from 1 to 5"),
        (2, (1, 1), "the first is 0"),
        (2, (0, 1, 1), "more thresholds than orders"),
        (3, (0, 1), "left out are 0"),
        (3, (0, 2, 1), "smaller"),
    ],
)
def test_orders_and_thresholds_without_sense_are_refused(order, prune, message):
    with pytest.raises(ValueError, match=message):
        estimate([["a"]], order, prune)


@pytest.mark.parametrize(("text", "message"), [([], "no sentences"), ([["<s>"]], "<s> is no word")])
def test_texts_that_give_no_model_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        estimate(text, 2)


@pytest.mark.parametrize("order", [2, 3, 5])
@pytest.mark.parametrize("threshold", [0, 1])
def test_kenlm_scores_every_sentence_as_we_do(tmp_path, order, threshold):
    text = made_text()
    model = estimate(text, order, [0] + [threshold] * (order - 1))
    write_arpa(tmp_path / "lm.arpa", model)
    theirs = kenlm.Model(str(tmp_path / "lm.arpa"))
    assert theirs.order == order
    for sentence in [*text[:100], ["w1", "new", "w2", "w3"], ["new"], []]:
        mine = model.sentence_scores(sentence)
        scored = list(theirs.full_scores(" ".join(sentence)))
        assert mine == pytest.approx([score for score, _, _ in scored], abs=1e-5)
        known = [model.knows(word) for word in sentence] + [True]
        assert known == [not unknown for _, _, unknown in scored]


def test_an_arpa_file_reads_back(tmp_path):
    model = estimate(made_text(), order=3, prune=[0, 1, 1])
    write_arpa(tmp_path / "lm.arpa", model)
    again = read_arpa(tmp_path / "lm.arpa")
    for mine, theirs in zip(model.entries, again.entries, strict=True):
        assert list(mine) == list(theirs)
        for ngram, entry in mine.items():
            assert entry == pytest.approx(theirs[ngram], abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2].rpartition("\n")[0], "cut short"),
        (lambda text: text.replace("ngram 1=", "ngram 1=1"), "do not count"),
        (lambda text: text.replace("ngram 1=", "ngram 1=x"), r"lm\.arpa:2: .* counts no n-grams"),
        (lambda text: text.replace("\n-99", "\nx"), r"lm\.arpa:\d+: expected a log10"),
        (lambda text: "call anna\n", "no ARPA file"),
    ],
)
def test_a_broken_arpa_file_is_refused(tmp_path, change, message):
    path = tmp_path / "lm.arpa"
    write_arpa(path, estimate([["a", "b"]], order=2))
    path.write_text(change(path.read_text()))
    with pytest.raises(UserError, match=message):
        read_arpa(path)


def test_perplexity_and_unknown_words_of_a_text():
    model = BackoffModel([{(BEGIN,): (-99, 0.0), (END,): (-0.5, 0.0), ("a",): (-1.0, 0.0)}])
    model.entries[0][("<unk>",)] = (-3.0, 0.0)
    found = fit(model, [["a", "new", "a"], ["a"]])
    assert (found.sentences, found.words, found.unknown) == (2, 4, 1)
    assert found.perplexity == pytest.approx(10 ** ((3 * 1 + 2 * 0.5) / 5))
    assert fit(model, []).perplexity is None


def test_a_model_predicts_its_own_kind_of_text_better_with_more_context():
    train, other = made_text(seed=1), made_text(seed=2)
    perplexities = [fit(estimate(train, order), other).perplexity for order in (1, 2)]
    assert perplexities[1] < perplexities[0] / 2
