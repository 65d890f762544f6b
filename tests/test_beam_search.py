import itertools
import math

import numpy as np
import pytest
import torch

from asr.language_model import spell
from asr.ngrams.arpa import write_arpa
from asr.ngrams.kneser_ney import estimate
from asr.ngrams.model import BEGIN
from asr.recognition.beam_search import Beam, BeamSearch, Weights, end_the_last_word, merge_runs
from asr.recognition.tuning import Point, best_of, grid_of, on_edge, sweep, write_sweep
from asr.scoring.align import ErrorCounts
from asr.tokens import BLANK, Tokenizer, TokensConfig, train_token_model

WIDE = Beam(size=10_000, tokens=None, threshold=1e5)
TEXT = ["a b", "ab a", "a b b", "b", "ab", "a b", "call anna", "anna call bob", "call"]


def make_tokenizer(folder, kind):
    size = None if kind == "char" else 18
    path = folder / f"{kind}.model"
    path.write_bytes(train_token_model(TEXT * 3, TokensConfig(kind=kind, size=size)))
    return Tokenizer(path)


def make_search(folder, tokenizer, text, order=2, units="words", beam=WIDE):
    """A search with a model of ``text``, and the model."""
    sentences = [sentence.split() for sentence in text]
    lexicon = None
    if units == "words":
        lexicon = folder / "lexicon.txt"
        words = sorted({word for sentence in sentences for word in sentence})
        lexicon.write_text("".join(f"{w}\t{' '.join(spell(tokenizer, w))}\n" for w in words))
    else:
        pieces = tokenizer.pieces
        sentences = [[pieces[token] for token in tokenizer.encode(line)] for line in text]
    model = estimate(sentences, order)
    write_arpa(folder / "lm.arpa", model)
    return BeamSearch(tokenizer, folder / "lm.arpa", lexicon, beam), model


def log_probs_of(tokenizer, path, sure=0.9):
    """``(T, V)``: ``path`` names each frame's best piece, which has the probability ``sure``."""
    pieces = tokenizer.pieces
    rest = math.log((1 - sure) / (len(pieces) - 1))
    result = torch.full((len(path), len(pieces)), rest)
    for frame, piece in zip(result, path, strict=True):
        frame[pieces.index(piece)] = math.log(sure)
    return result


def frames(text):
    """``_`` is the blank and ``-`` the space."""
    return [{"_": "<blank>", "-": "▁"}.get(letter, letter) for letter in text]


def best_by_enumeration(log_probs, tokenizer, words, model, weights):
    """The best text of all sentences of ``words``: every path of tokens is looked at."""
    scores = {}
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        tokens = [token for token, _ in itertools.groupby(path) if token != BLANK]
        text = tokenizer.decode(tokens)
        if all(word in words for word in text.split()):
            score = sum(float(frame[token]) for frame, token in zip(log_probs, path, strict=True))
            scores[text] = np.logaddexp(scores.get(text, -np.inf), score)
    for text in scores:
        heard = text.split()
        scores[text] += weights.lm_weight * sum(model.sentence_scores(heard))
        scores[text] += weights.word_score * len(heard)
    return max(scores, key=scores.get)


@pytest.mark.parametrize("weights", [Weights(0.0, 0.0), Weights(0.7, 1.5), Weights(2.0, -1.0)])
def test_the_best_sentence_is_that_of_looking_at_every_path(tmp_path, weights):
    path = tmp_path / "tokens.model"
    text = ["a b", "ab a", "a b b", "b", "ab", "a b"]
    path.write_bytes(train_token_model(text, TokensConfig()))
    tokenizer = Tokenizer(path)  # blank, unknown, space, a, b
    search, model = make_search(tmp_path, tokenizer, text)
    search.weigh(weights)
    generator = torch.Generator().manual_seed(3)
    heard = set()
    for _ in range(15):
        log_probs = (2.0 * torch.randn(5, 5, generator=generator)).log_softmax(dim=1)
        expected = best_by_enumeration(log_probs, tokenizer, {"a", "b", "ab"}, model, weights)
        assert search(log_probs) == expected
        heard.add(expected)
    assert len(heard) > 3


@pytest.mark.parametrize("units", ["words", "tokens"])
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("cc_al_ll_-_aan_nna", "call anna"),  # doubled letters; the last letter stays
        ("c_all-ab", "cal ab"),  # without a blank ll is one l
        ("--b_o_b--", "bob"),  # spaces at both ends
        ("____", ""),
    ],
)
def test_characters_are_read_as_ctc_has_them(tmp_path, path, text, units):
    tokenizer = make_tokenizer(tmp_path, "char")
    search, _ = make_search(tmp_path, tokenizer, [*TEXT, "cal"], units=units)
    search.weigh(Weights(0.0, 0.0))
    assert search(log_probs_of(tokenizer, frames(path))) == text


def test_word_pieces_may_last_for_several_frames(tmp_path):
    tokenizer = make_tokenizer(tmp_path, "bpe")
    words = {word: spell(tokenizer, word) for word in ("call", "anna", "bob")}
    assert any(len(spelling) == 1 for spelling in words.values())
    assert all(spelling[0].startswith("▁") for spelling in words.values())
    search, _ = make_search(tmp_path, tokenizer, TEXT)
    search.weigh(Weights(0.3, 0.0))
    for sentence in ("call anna", "anna call bob", "call", "anna anna"):
        pieces = [piece for word in sentence.split() for piece in words[word]]
        path = [piece for each in pieces for piece in (each, each, each, "<blank>")]
        assert search(log_probs_of(tokenizer, path, sure=0.999)) == sentence


def test_runs_of_a_token_become_one_frame_and_blanks_stay():
    log_probs = torch.tensor([[0.1, 0.7, 0.2], [0.2, 0.6, 0.2], [0.8, 0.1, 0.1], [0.9, 0.05, 0.05]])
    log_probs = torch.cat([log_probs, log_probs[:1]]).log()
    merged = merge_runs(log_probs)
    assert len(merged) == 4
    assert torch.allclose(merged[0], log_probs[0] + log_probs[1])
    assert torch.equal(merged[1:], log_probs[2:])


def test_after_the_end_only_the_space_is_possible():
    ended = end_the_last_word(torch.zeros(2, 4), mark=2)
    assert ended.shape == (3, 4)
    assert ended[2].argmax() == 2 and ended[2, 2] == 0 and ended[2].sum() < -1e4


def test_the_model_decides_between_what_sounds_alike(tmp_path):
    tokenizer = make_tokenizer(tmp_path, "char")
    text = ["call bob"] * 5 + ["ball anna"] * 5
    search, _ = make_search(tmp_path, tokenizer, [*text, "call", "ball"])
    log_probs = log_probs_of(tokenizer, frames("_al_l-_anna".replace("nn", "n_n")))
    c, b = tokenizer.pieces.index("c"), tokenizer.pieces.index("b")
    log_probs[0, [c, b]] = torch.tensor([0.52, 0.48]).log()
    assert search.weigh(Weights(0.0, 0.0))(log_probs) == "call anna"
    assert search.weigh(Weights(1.0, 0.0))(log_probs) == "ball anna"


@pytest.mark.parametrize("units", ["words", "tokens"])
def test_an_utterance_without_frames_has_no_words(tmp_path, units):
    tokenizer = make_tokenizer(tmp_path, "char")
    search, _ = make_search(tmp_path, tokenizer, TEXT, units=units)
    assert search.weigh(Weights(1.0, 0.0))(torch.empty(0, 0)) == ""


def test_a_model_of_tokens_can_spell_a_word_that_it_has_not_seen(tmp_path):
    tokenizer = make_tokenizer(tmp_path, "char")
    search, _ = make_search(tmp_path, tokenizer, TEXT, order=3, units="tokens")
    search.weigh(Weights(0.3, 0.5))
    assert search(log_probs_of(tokenizer, frames("_ca_b-an_na"), sure=0.99)) == "cab anna"


def test_the_sweep_counts_errors_and_the_best_point_has_fewest(tmp_path):
    hears = {0.5: "a", 1.0: "a b", 1.5: "a b", 2.0: ""}
    grid = grid_of([1.0, 0.5, 2.0, 1.5], [0.0])
    points = sweep(
        lambda weights: lambda frames: hears[weights.lm_weight],
        grid,
        {"u": torch.zeros(1, 1)},
        {"u": "a b"},
    )
    assert [(point.weights.lm_weight, point.counts.errors) for point in points] == [
        (0.5, 1),
        (1.0, 0),
        (1.5, 0),
        (2.0, 2),
    ]
    assert best_of(points).weights == Weights(1.0, 0.0)  # of equals, the smallest
    table, picture = write_sweep(tmp_path, points, "title")
    rows = [line.split("\t") for line in table.read_text().splitlines()]
    assert rows[0][:3] == ["lm_weight", "word_score", "wer"]
    assert rows[1] == ["0.5", "0.0", "50.0000", "1", "2", "0", "1", "0"]
    first = picture.read_text()
    assert "<svg" in first
    write_sweep(tmp_path, points, "title")
    assert picture.read_text() == first


@pytest.mark.parametrize(
    ("best", "edges"),
    [
        (Weights(1.0, 0.0), []),
        (Weights(0.5, 0.0), ["lm_weight"]),
        (Weights(2.0, 1.0), ["lm_weight", "word_score"]),
    ],
)
def test_the_edge_of_the_grid(best, edges):
    assert on_edge(best, grid_of([0.5, 1.0, 2.0], [-1.0, 0.0, 1.0])) == edges


def test_a_weight_with_one_value_is_on_no_edge():
    assert on_edge(Weights(1.0, 0.0), grid_of([0.5, 1.0, 2.0], [0.0])) == []
    assert best_of([Point(Weights(1.0, 0.0), ErrorCounts())]).weights == Weights(1.0, 0.0)


def test_a_narrow_beam_gives_what_a_wide_one_gives_for_clear_speech(tmp_path):
    tokenizer = make_tokenizer(tmp_path, "char")
    log_probs = log_probs_of(tokenizer, frames("ca_l_l-_an_na-bob"))
    for beam in (Beam(size=5, tokens=3, threshold=10.0), WIDE):
        search, model = make_search(tmp_path, tokenizer, TEXT, beam=beam)
        assert (BEGIN, "call") in model.entries[1]
        assert search.weigh(Weights(0.5, 0.0))(log_probs) == "call anna bob"
