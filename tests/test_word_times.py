"""Words, their times and confidences, by hand."""

import pytest
import torch

from asr.decode import greedy_search
from asr.recognition.word_times import TokenSpan, Word, best_path, token_spans, words_of
from asr.tokens import UNKNOWN, Tokenizer, TokensConfig, train_token_model

TEXTS = ["one two three", "four five six", "seven eight nine", "one two four"]


def test_runs_of_a_label_are_its_span():
    path = [(0, 0.9), (3, 0.5), (3, 0.7), (0, 1.0), (3, 0.4), (5, 0.2)]
    expected = [(3, 1, 3, 0.6), (3, 4, 5, 0.4), (5, 5, 6, 0.2)]
    found = list(token_spans(path))
    assert [span[:3] for span in found] == [span[:3] for span in expected]
    assert [span[3] for span in found] == pytest.approx([span[3] for span in expected])
    assert list(token_spans([])) == list(token_spans([(0, 1.0)])) == []


def test_a_token_across_two_parts_is_one():
    generator = torch.Generator().manual_seed(0)
    log_probs = (3 * torch.randn(200, 4, generator=generator)).log_softmax(-1)
    whole = list(best_path([log_probs]))
    for size in (1, 7, 64):
        assert list(best_path(log_probs.split(size))) == whole
    (tokens,) = greedy_search(log_probs[None], torch.tensor([200]))
    assert [span.token for span in whole] == tokens
    for span in whole:
        mean = log_probs[span.start : span.end, span.token].exp().mean().item()
        assert span.probability == pytest.approx(mean)


def test_words_of_characters():
    pieces = ["<blank>", "<unk>", "\u2581", "a", "b"]
    spans = [(3, 2, 4, 0.5), (4, 5, 6, 1.0), (2, 8, 9, 0.1), (2, 9, 9, 0.1), (4, 10, 11, 0.25)]
    assert list(words_of([TokenSpan(*span) for span in spans], pieces)) == [
        Word("ab", 2, 6, 0.75),
        Word("b", 10, 11, 0.25),
    ]


@pytest.mark.parametrize("config", [TokensConfig(), TokensConfig("bpe", 24)])
def test_words_are_those_of_the_token_model(tmp_path, config):
    (tmp_path / "tokens.model").write_bytes(train_token_model(TEXTS, config))
    tokenizer = Tokenizer(tmp_path / "tokens.model")
    space = tokenizer.encode("one two")[3]
    sequences = [tokenizer.encode(text) for text in TEXTS]
    sequences += [
        [],
        [space],
        [space, *sequences[0], space],
        [*sequences[0], UNKNOWN, *sequences[1]],
    ]
    sequences += [[UNKNOWN], sequences[0][:2] + [UNKNOWN] + sequences[0][2:], sequences[0][2:]]
    for ids in sequences:
        spans = [TokenSpan(token, at, at + 1, 1.0) for at, token in enumerate(ids)]
        words = list(words_of(spans, tokenizer.pieces))
        assert " ".join(word.text for word in words) == tokenizer.decode(ids)


def test_a_word_comes_when_the_next_begins():
    pieces = ["<blank>", "<unk>", "\u2581a", "b"]
    seen = 0

    def spans():
        nonlocal seen
        for seen, token in enumerate([2, 3, 2, 2]):
            yield TokenSpan(token, seen, seen + 1, 1.0)

    words = words_of(spans(), pieces)
    assert next(words).text == "ab" and seen == 2
