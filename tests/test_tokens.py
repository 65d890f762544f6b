import json

import pytest
import torch
from speech_helpers import RATE, SPLITS, finish_stage, workspace, write_features

from asr import tokens
from asr.config import load_config
from asr.errors import UserError
from asr.tokens import (
    BLANK,
    UNKNOWN,
    Tokenizer,
    TokensConfig,
    ctc_frames_needed,
    train_token_model,
)

TEXTS = ["call anna at nine", "the second of may", "turn the light off", "see bob's room", "yes"]


def tokenizer(tmp_path, texts, **config):
    path = tmp_path / "tokens.model"
    path.write_bytes(train_token_model(texts, TokensConfig(**config)))
    return Tokenizer(path)


@pytest.mark.parametrize("config", [{"kind": "char"}, {"kind": "bpe", "size": 32}])
def test_text_survives_the_round_trip(tmp_path, config):
    model = tokenizer(tmp_path, TEXTS, **config)
    for text in [*TEXTS, "", "a", "nine bob's"]:
        ids = model.encode(text)
        assert model.decode(ids) == text
        assert all(UNKNOWN < token < model.size for token in ids)
    assert model.pieces[BLANK] == "<blank>"
    assert model.pieces[UNKNOWN] == "<unk>"
    assert len(model.pieces) == model.size


def test_characters_are_one_token_each(tmp_path):
    model = tokenizer(tmp_path, TEXTS)
    assert [model.pieces[token] for token in model.encode("see off")] == list("see\u2581off")
    assert model.size == len(set("".join(TEXTS))) + 2  # blank and unknown


def test_decoded_words_are_separated_by_one_space(tmp_path):
    model = tokenizer(tmp_path, TEXTS)
    space = model.pieces.index("\u2581")
    assert model.decode([space, *model.encode("see"), space, space, *model.encode("off")]) == (
        "see off"
    )


@pytest.mark.parametrize("config", [{"kind": "char"}, {"kind": "bpe", "size": 32}])
def test_model_bytes_repeat(config):
    first = train_token_model(TEXTS, TokensConfig(**config))
    assert train_token_model(TEXTS, TokensConfig(**config)) == first


def test_long_text_is_not_left_out(tmp_path):
    model = tokenizer(tmp_path, ["ab " * 3000 + "z"])  # sentencepiece skips 4 kB lines by default
    assert UNKNOWN not in model.encode("z")


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_size_too_large_for_the_text_states_the_bound(kind):
    with pytest.raises(UserError, match=r"size=1000 is too large") as caught:
        train_token_model(TEXTS, TokensConfig(kind, 1000))
    bound = int(str(caught.value).split("set size=")[1].split()[0])
    train_token_model(TEXTS, TokensConfig(kind, bound))
    with pytest.raises(UserError, match=f"set size={bound} or less"):
        train_token_model(TEXTS, TokensConfig(kind, bound + 1))


def test_bpe_size_below_the_characters_states_the_bound():
    with pytest.raises(UserError, match=r"size=4 is too small") as caught:
        train_token_model(TEXTS, TokensConfig("bpe", 4))
    bound = int(str(caught.value).split("set size=")[1].split()[0])
    train_token_model(TEXTS, TokensConfig("bpe", bound))


def test_no_text_is_an_error():
    with pytest.raises(UserError, match="no text"):
        train_token_model(["", ""], TokensConfig())


def test_configuration_and_model_file_are_checked(tmp_path):
    with pytest.raises(UserError, match="needs a size"):
        load_config(TokensConfig, [], ["kind=bpe"])
    with pytest.raises(UserError, match="size=1"):
        load_config(TokensConfig, [], ["size=1"])
    with pytest.raises(UserError, match="no such file"):
        Tokenizer(tmp_path / "missing.model")
    (tmp_path / "bad.model").write_text("not a model")
    with pytest.raises(UserError, match=r"bad\.model: not a token model"):
        Tokenizer(tmp_path / "bad.model")


def test_unknown_characters_are_found(tmp_path):
    model = tokenizer(tmp_path, TEXTS)
    assert model.unknown_characters("the zzé room") == "zzé"
    assert UNKNOWN in model.encode("the zoo")


@pytest.mark.parametrize(
    "ids", [[3], [3, 4, 5], [3, 3], [3, 3, 3, 4], [5, 4, 4, 5, 5], [2, 3, 2, 3, 2]]
)
def test_frames_needed_is_the_exact_bound_of_ctc(ids):
    def loss(frames):
        log_probs = torch.zeros(frames, 1, 6).log_softmax(-1)
        lengths = torch.tensor([frames]), torch.tensor([len(ids)])
        return torch.nn.functional.ctc_loss(log_probs, torch.tensor([ids]), *lengths)

    needed = ctc_frames_needed(ids)
    assert torch.isfinite(loss(needed))
    if needed > 1:
        assert torch.isinf(loss(needed - 1))


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_stage_writes_tokens_and_rejects_what_ctc_cannot_align(tmp_path, caplog):
    # "see" needs 3 + 1 model frames: 12 frames of 10 ms are enough, 11 are not.
    train = {"enough": (12, "see"), "short": (11, "see"), "long": (300, "call anna")}
    dev = {"d-short": (11, "see"), "d": (400, "anna")}
    test = {"t-short": (1, "see"), "t": (400, "see zoé"), "t-empty": (50, "")}
    write_features(tmp_path, {"train": train, "dev": dev, "test-a": test})
    tokens.run(workspace(tmp_path))
    folder = tmp_path / "tokens"
    model = Tokenizer(folder / "tokens.model")
    assert json.loads((folder / "tokens.json").read_text()) == {
        "kind": "char",
        "size": model.size,
        "pieces": model.pieces,
    }
    assert [row["id"] for row in rows(folder / "train.jsonl")] == ["enough", "long"]
    assert rows(folder / "train.jsonl")[0] == {
        "id": "enough",
        "speaker": "s",
        "corpus": "test",
        "text": "see",
        "duration": 12 * 160 / RATE,
        "frames": 12,
        "tokens": model.encode("see"),
    }
    assert [row["id"] for row in rows(folder / "test-a.jsonl")] == ["t-short", "t", "t-empty"]
    rejected = rows(folder / "rejected.jsonl")
    assert [(row["split"], row["id"]) for row in rejected] == [
        ("train", "short"),
        ("dev", "d-short"),
    ]
    assert rejected[0]["reason"] == "too-many-tokens"
    assert rejected[0]["detail"] == "3 tokens need 4 model frames, the audio has 3"
    assert "too-many-tokens: 1 utterances" in caplog.text
    assert "test-a: 3 characters are unknown to the token model" in caplog.text
    counts = json.loads((folder / "stage.json").read_text())["counts"]
    assert counts["test-a"]["unknown_characters"] == 3
    assert counts["train"]["rejected"] == 1


def test_fastest_speed_decides_what_is_rejected(tmp_path):
    # At speed 1.25, 15 frames become 12 and 14 become 11.
    train = {"enough": (15, "see"), "short": (14, "see")}
    others = {"dev": {"d": (14, "see")}, "test-a": {"t": (14, "see")}}
    write_features(tmp_path, {"train": train, **others}, speeds=(0.9, 1.0, 1.25))
    tokens.run(workspace(tmp_path))
    assert [row["id"] for row in rows(tmp_path / "tokens" / "train.jsonl")] == ["enough"]
    assert [row["id"] for row in rows(tmp_path / "tokens" / "dev.jsonl")] == ["d"]


def test_split_that_cannot_be_aligned_at_all_is_an_error(tmp_path):
    split = {"u": (9, "see the room")}
    write_features(tmp_path, {"train": split, "dev": split, "test-a": split})
    with pytest.raises(UserError, match=r"split 'train': no utterance .*u: 12 tokens need 14"):
        tokens.run(workspace(tmp_path))


def test_stage_needs_features(tmp_path):
    finish_stage(tmp_path, "corpus", {"splits": SPLITS})
    with pytest.raises(UserError, match="stage 'features' has not run"):
        tokens.run(workspace(tmp_path))
