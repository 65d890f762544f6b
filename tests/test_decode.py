import logging
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from speech_helpers import RECIPE, finish_stage, small_corpus, workspace

from asr import decode, features, language_model, score, tokens
from asr.decode import batches_by_length, greedy_search, recognise
from asr.errors import UserError
from asr.files import read_id_text, read_json
from asr.language_model import LanguageModelConfig
from asr.model import AcousticModel, ModelConfig, load_model, save_model
from asr.ngrams.arpa import read_arpa
from asr.ngrams.model import fit

LETTERS = "_abcdefghijk"  # token id to letter; 0 is the blank


class Letters:
    """A tokenizer whose tokens are letters."""

    def decode(self, tokens):
        return "".join(LETTERS[token] for token in tokens)


class InMemory:
    """Utterances of random features, ``frames`` long each."""

    def __init__(self, frames, seed=0):
        generator = np.random.default_rng(seed)
        self.frames = np.array(frames)
        self.features = [
            generator.normal(size=(length, 64)).astype(np.float32) for length in frames
        ]

    def __len__(self):
        return len(self.frames)

    def id(self, index):
        return f"u{index}"

    def load(self, index):
        return self.features[index]


def random_model(**changes):
    torch.manual_seed(5)
    config = ModelConfig(layers=2, hidden=24, **changes)
    model = AcousticModel(config, len(LETTERS), torch.full((64,), 0.3), torch.full((64,), 0.5))
    with torch.no_grad():
        model.output.weight *= 20  # so that more than one token is heard
    return model.eval()


def log_probs_of(*paths):
    """Log-probabilities whose best paths spell ``paths``, one letter a frame."""
    result = torch.full((len(paths), max(map(len, paths)), len(LETTERS)), -9.0)
    for row, path in zip(result, paths, strict=True):
        for frame, letter in zip(row, path, strict=False):
            frame[LETTERS.index(letter)] = -0.1
    return result


def spell(path, length=None):
    (tokens,) = greedy_search(log_probs_of(path), torch.tensor([length or len(path)]))
    return Letters().decode(tokens)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("_aa_b_", "ab"),
        ("a_a", "aa"),  # a blank between parts repeats
        ("aab_bb_a", "abba"),
        ("____", ""),
        ("abc", "abc"),
        ("a", "a"),
    ],
)
def test_greedy_search_merges_repeats_then_drops_blanks(path, text):
    assert spell(path) == text


def test_greedy_search_ignores_frames_beyond_the_length():
    assert spell("ab_cc", length=3) == "ab"
    paths = log_probs_of("aab_", "abcd", "cccc")
    assert greedy_search(paths, torch.tensor([3, 1, 0])) == [[1, 2], [1], []]
    assert greedy_search(log_probs_of("ab_", "b"), torch.tensor([3, 1])) == [[1, 2], [2]]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_hypothesis_does_not_depend_on_its_batch(bidirectional):
    model = random_model(bidirectional=bidirectional)
    utterances = InMemory([50, 61, 7, 200, 3, 122, 95, 14])
    together = recognise(model, utterances, Letters(), batch_frames=10_000)
    alone = recognise(model, utterances, Letters(), batch_frames=1)
    assert together == alone
    assert len(set(together.values())) > 4 and len(together["u3"]) > 5


def test_hypotheses_stay_with_their_ids():
    model, utterances = random_model(), InMemory([50, 90, 70])
    texts = recognise(model, utterances, Letters(), batch_frames=120)
    for index in range(3):
        features = torch.from_numpy(utterances.load(index))[None]
        with torch.no_grad():
            log_probs, lengths = model(features, torch.tensor([features.shape[1]]))
        (tokens,) = greedy_search(log_probs, lengths)
        assert texts[f"u{index}"] == Letters().decode(tokens)


def test_a_share_of_the_utterances_gives_the_same_texts():
    model, utterances = random_model(), InMemory([50, 90, 70, 60])
    whole = recognise(model, utterances, Letters(), batch_frames=200)
    share = recognise(model, utterances, Letters(), batch_frames=200, indices=range(1, 4, 2))
    assert share == {name: whole[name] for name in ("u1", "u3")}


@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_utterance_shorter_than_a_model_frame_is_silent(bidirectional):
    model = random_model(bidirectional=bidirectional)
    texts = recognise(model, InMemory([2, 60, 0]), Letters(), batch_frames=1000)
    assert texts["u0"] == texts["u2"] == "" != texts["u1"]
    assert recognise(model, InMemory([2]), Letters(), batch_frames=1000) == {"u0": ""}


def test_dropout_is_off_and_the_mode_is_given_back():
    model, utterances = random_model(dropout=0.5), InMemory([90, 80])
    expected = recognise(model, utterances, Letters(), batch_frames=1000)
    assert not model.training
    model.train()
    assert recognise(model, utterances, Letters(), batch_frames=1000) == expected
    assert model.training


def test_batches_hold_every_utterance_once_within_the_limit():
    frames = np.append(np.random.default_rng(2).integers(3, 400, size=200), 5000)
    batches = list(batches_by_length(range(len(frames)), frames, batch_frames=1500))
    assert sorted(index for batch in batches for index in batch) == list(range(len(frames)))
    assert batches[0] == [200]  # longer than the limit: alone, and first
    for batch in batches[1:]:
        assert len(batch) * max(frames[index] for index in batch) <= 1500
    padded = sum(len(batch) * max(frames[index] for index in batch) for batch in batches)
    assert padded < 1.1 * sum(frames)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Features and tokens of a small corpus, made by their stages."""
    root = tmp_path_factory.mktemp("exp")
    small_corpus(root)
    features.run(workspace(root, "jobs=1"))
    tokens.run(workspace(root))
    return root


@pytest.fixture
def trained(prepared, tmp_path):
    """A workspace with one trained system, whose model is random."""
    (tmp_path / "exp").mkdir()
    for stage in ("corpus", "manifests", "features", "tokens", "audio"):
        (tmp_path / "exp" / stage).symlink_to(prepared / stage)
    add_system(tmp_path / "exp", "bmuf", seed=1)
    return tmp_path / "exp"


def add_system(root, system, seed, **travels_with):
    statistics = read_json(root / "features" / "statistics.json")
    inventory = read_json(root / "tokens" / "tokens.json")
    torch.manual_seed(seed)
    mean, std = torch.tensor(statistics["mean"]), torch.tensor(statistics["std"])
    model = AcousticModel(ModelConfig(layers=1, hidden=16), inventory["size"], mean, std)
    with torch.no_grad():
        model.output.weight *= 20
    finish_stage(root, f"train/{system}", {"seed": seed})
    save_model(
        root / "train" / system / "model.pt",
        model,
        {"features": statistics["features"], "tokens": inventory, **travels_with},
    )


def test_the_stage_writes_what_was_said_and_what_was_heard(trained, caplog):
    caplog.set_level(logging.INFO)
    decode.run(workspace(trained))
    folder = trained / "decode" / "bmuf" / "test-a"
    assert read_id_text(folder / "ref.txt") == {
        "test-a-0": "call anna",
        "test-a-1": "the second of may",
    }
    hypotheses = read_id_text(folder / "hyp.txt")
    model, _ = load_model(trained / "train" / "bmuf" / "model.pt")
    utterances = decode.UtteranceSet.of_split(workspace(trained), "test-a")
    tokenizer = decode.Tokenizer(trained / "tokens" / "tokens.model")
    for index, name in enumerate(("test-a-0", "test-a-1")):
        frames = torch.from_numpy(utterances.load(index))[None]
        (path,) = greedy_search(*model(frames, torch.tensor([frames.shape[1]])))
        assert hypotheses[name] == tokenizer.decode(path) != ""
    marker = read_json(trained / "decode" / "bmuf" / "stage.json")
    counts, measured = marker["counts"]["test-a"], marker["measured"]["test-a"]
    assert counts["utterances"] == 2
    assert counts["audio_seconds"] == pytest.approx(2.71, abs=0.01)
    assert measured["real_time_factor"] > 0
    assert f"real-time factor {measured['real_time_factor']}" in caplog.text


def test_a_new_system_does_not_decode_the_others_again(trained):
    decode.run(workspace(trained))
    first = trained / "decode" / "bmuf" / "stage.json"
    written = first.stat().st_mtime_ns
    add_system(trained, "two-tier", seed=2)
    decode.run(workspace(trained))
    assert first.stat().st_mtime_ns == written
    score.run(workspace(trained))
    for system in ("bmuf", "two-tier"):
        line = (trained / "score" / system / "test-a" / "wer.txt").read_text().splitlines()[0]
        assert line.startswith("%WER ") and " / 6, " in line


def test_a_system_trained_anew_is_decoded_anew(trained):
    decode.run(workspace(trained))
    before = (trained / "decode" / "bmuf" / "test-a" / "hyp.txt").read_text()
    add_system(trained, "bmuf", seed=9)
    decode.run(workspace(trained))
    assert (trained / "decode" / "bmuf" / "test-a" / "hyp.txt").read_text() != before


@pytest.mark.parametrize(
    ("part", "key"),
    [("features", "bins"), ("features", "back_end"), ("tokens", "pieces"), ("tokens", "size")],
)
def test_a_model_of_other_features_or_tokens_is_refused(trained, part, key):
    _, travels_with = load_model(trained / "train" / "bmuf" / "model.pt")
    assert key in travels_with[part]
    add_system(trained, "bmuf", seed=1, **{part: {**travels_with[part], key: "other"}})
    with pytest.raises(UserError, match=rf"model\.pt: trained with other {part} .* {key}\)"):
        decode.run(workspace(trained))
    assert not (trained / "decode" / "bmuf" / "stage.json").exists()


def test_decoding_before_training_names_the_stage(trained):
    (trained / "train" / "bmuf" / "stage.json").unlink()
    with pytest.raises(UserError, match="train stage first"):
        decode.run(workspace(trained))


SEARCH = "search={beam: {size: 8}, lm_weights: [0.5, 1.0], word_scores: [0.0, 1.0]}"


@pytest.mark.parametrize("units", ["words", "tokens"])
def test_beam_search_is_a_system_of_its_own(trained, units, caplog):
    caplog.set_level(logging.INFO)
    decode.run(workspace(trained, SEARCH, f"lm.units={units}", "lm.order=2"))
    folder = trained / "decode" / "bmuf+lm"
    greedy = trained / "decode" / "bmuf"
    assert read_id_text(folder / "test-a/ref.txt") == read_id_text(greedy / "test-a/ref.txt")
    heard = read_id_text(folder / "test-a/hyp.txt")
    assert heard.keys() == {"test-a-0", "test-a-1"}
    if units == "words":
        lexicon = [
            line.split()[0] for line in (trained / "lm/lexicon.txt").read_text().split("\n")[:-1]
        ]
        assert {word for text in heard.values() for word in text.split()} <= set(lexicon)
    rows = [line.split("\t") for line in (folder / "sweep.tsv").read_text().splitlines()[1:]]
    assert [row[:2] for row in rows] == [[w, s] for w in ("0.5", "1.0") for s in ("0.0", "1.0")]
    marker = read_json(folder / "stage.json")
    chosen = marker["counts"]["chosen"]
    best = min(rows, key=lambda row: (int(row[3]), float(row[0]), float(row[1])))
    assert [str(chosen["lm_weight"]), str(chosen["word_score"])] == best[:2]
    assert chosen["dev_wer"] == pytest.approx(float(best[2]), abs=1e-3)
    assert {"sweep.tsv", "sweep.svg", "test-a/hyp.txt"} <= marker["outputs"].keys()
    assert f"lm_weight={chosen['lm_weight']} is on the edge of its grid" in caplog.text
    score.run(workspace(trained))
    assert (trained / "score/bmuf+lm/test-a/wer.txt").read_text().startswith("%WER ")


def test_greedy_search_does_not_run_again_when_beam_search_is_turned_on(trained):
    decode.run(workspace(trained))
    marker = trained / "decode/bmuf/stage.json"
    written = marker.stat().st_mtime_ns
    decode.run(workspace(trained, SEARCH))
    assert marker.stat().st_mtime_ns == written
    searched = (trained / "decode/bmuf+lm/stage.json").stat().st_mtime_ns
    decode.run(workspace(trained, SEARCH))
    assert (trained / "decode/bmuf+lm/stage.json").stat().st_mtime_ns == searched
    decode.run(workspace(trained, SEARCH, "lm.order=1"))
    assert (trained / "decode/bmuf+lm/stage.json").stat().st_mtime_ns != searched


def test_an_utterance_shorter_than_a_model_frame_has_no_log_probabilities():
    model = random_model()
    found = decode.log_probabilities(model, InMemory([2, 30, 90, 7]), batch_frames=200)
    assert {name: len(frames) for name, frames in found.items()} == {
        "u0": 0,
        "u1": 10,
        "u2": 30,
        "u3": 2,
    }
    alone = torch.from_numpy(InMemory([2, 30, 90, 7]).load(1))[None]
    expected, _ = model(alone, torch.tensor([30]))
    assert torch.allclose(found["u1"], expected[0], atol=1e-5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("search={beam: {size: 0}}", "at least 1"),
        ("search={beam: {threshold: 0}}", "more than 0"),
        ("search={beam: {threshold: .nan}}", "more than 0"),
        ("search={lm_weights: []}", "at least one value"),
        ("search={lm_weights: [.nan]}", "finite numbers"),
        ("search={word_scores: [0, .inf]}", "finite numbers"),
        ("lm.prune=[1]", "lm: prune"),
        ("lm.order=6", "from 1 to 5"),
        ("search.bem.size=5", "did you mean 'search.beam'"),
    ],
)
def test_settings_of_beam_search_without_sense_are_refused(trained, override, message):
    with pytest.raises(UserError, match=message):
        decode.run(workspace(trained, override))


def test_the_language_model_is_made_of_the_transcripts_once(prepared):
    language_model.run(workspace(prepared), LanguageModelConfig(order=2))
    counts = read_json(prepared / "lm/stage.json")["counts"]
    assert counts["sentences"] == 7 and counts["units"] == 14
    model = read_arpa(prepared / "lm/lm.arpa")
    assert counts["ngrams"] == [len(table) for table in model.entries]
    lexicon = dict(
        line.split("\t") for line in (prepared / "lm/lexicon.txt").read_text().splitlines()
    )
    assert lexicon["anna"] == "a n n a ▁"
    assert set(lexicon) == {word for (word,) in model.entries[0]} - {"<s>", "</s>", "<unk>"}
    found = counts["texts"]["test-a"]
    assert found["words"] == 6 and found["out_of_vocabulary"] == 0
    expected = fit(model, [["call", "anna"], ["the", "second", "of", "may"]]).perplexity
    assert found["perplexity"] == pytest.approx(expected, rel=1e-4)


def test_the_language_model_of_a_text_of_ones_own(prepared, tmp_path, caplog):
    text = tmp_path / "own.txt"
    text.write_text("Call, Anna!\n\nanna: to mañana\nno one\n")
    config = LanguageModelConfig(order=2, text=str(text))
    language_model.run(workspace(prepared), config)
    counts = read_json(prepared / "lm/stage.json")["counts"]
    assert counts["sentences"] == 3 and counts["unspellable"] == 1
    assert "mañana" in caplog.text
    assert counts["texts"]["test-a"]["unknown_units"] == 4  # the second of may
    assert counts["texts"]["test-a"]["out_of_vocabulary"] == 0  # train has them
    written = (prepared / "lm/stage.json").stat().st_mtime_ns
    language_model.run(workspace(prepared), config)
    assert (prepared / "lm/stage.json").stat().st_mtime_ns == written
    text.write_text("call\n")
    language_model.run(workspace(prepared), config)
    assert read_json(prepared / "lm/stage.json")["counts"]["sentences"] == 1
    text.write_text("5 % of it\n")
    with pytest.raises(UserError, match=r"own\.txt:1: .*spoken"):
        language_model.run(workspace(prepared), config)
    text.write_text("\n")
    with pytest.raises(UserError, match=r"own\.txt: no line of it has words"):
        language_model.run(workspace(prepared), config)
    text.unlink()
    with pytest.raises(UserError, match="no such file"):
        language_model.run(workspace(prepared), config)
    # None of these has emptied what was made of the text before.
    assert read_json(prepared / "lm/stage.json")["counts"]["sentences"] == 1
    assert (prepared / "lm/lm.arpa").exists()


def test_kenlms_binary_is_made_where_its_program_is(prepared, tmp_path, monkeypatch):
    program = tmp_path / "build_binary"
    program.write_text('#!/bin/sh\n[ -e "$1" ] && cp "$1" "$2" || exit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    language_model.run(workspace(prepared, force=True), LanguageModelConfig())
    assert language_model.model_path(workspace(prepared)).name == "lm.binary"
    assert "lm.binary" in read_json(prepared / "lm/stage.json")["outputs"]
    program.write_text("#!/bin/sh\necho out of memory >&2; exit 1\n")
    with pytest.raises(UserError, match="out of memory"):
        language_model.run(workspace(prepared, force=True), LanguageModelConfig())
    monkeypatch.undo()
    language_model.run(workspace(prepared, force=True), LanguageModelConfig())
    assert language_model.model_path(workspace(prepared)).name == "lm.arpa"


def test_the_benchmark_of_beam_search_runs(trained):
    decode.run(workspace(trained, SEARCH))
    command = ["benchmarks/beam_search.py", "--recipe", "recipes/mini", "--dir", str(trained)]
    done = subprocess.run(
        [sys.executable, *command, "--system", "bmuf", "--rounds", "1"],
        cwd=RECIPE.parents[1],
        env=os.environ | {"PYTHONPATH": str(RECIPE.parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for name in ("greedy", "ours", "ctc-beam-decoder"):
        assert f"\n{name} " in done.stdout
