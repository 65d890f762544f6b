"""When words are said, and which transcripts are wrong, by hand and on real speech."""

import itertools

import numpy as np
import pytest
import soundfile
import torch
from an4_helpers import an4_utterances, needs_an4
from speech_helpers import RATE, RECIPE, finish_stage, make_cut, workspace, write_manifests

from asr import features, forced_alignment, tokens
from asr.__main__ import main
from asr.errors import UserError
from asr.files import read_json, read_jsonl
from asr.forced_alignment import AlignmentConfig, align_tokens, ctm_lines, transcript_words
from asr.model import AcousticModel, ModelConfig, save_model
from asr.recognition.word_times import TokenSpan
from asr.training.data import UtteranceSet, collate


def random_log_probs(frames, vocabulary, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(frames, vocabulary, generator=generator)).log_softmax(-1)


def collapse(path):
    return [label for label, _ in itertools.groupby(path) if label]


def test_the_path_is_the_best_of_all_paths():
    for seed, target in enumerate([[1, 2], [1, 1], [2], [1, 2, 1], []]):
        log_probs = random_log_probs(6, 3, seed)
        paths = [p for p in itertools.product(range(3), repeat=6) if collapse(p) == target]
        best = max(sum(log_probs[t, k].item() for t, k in enumerate(path)) for path in paths)
        free = log_probs.max(dim=-1).values.sum().item()
        aligned = align_tokens(log_probs, target)
        assert aligned.cost == pytest.approx((free - best) / max(1, len(target)), abs=1e-5)
        assert [span.token for span in aligned.spans] == target


def test_too_few_frames_are_no_alignment():
    log_probs = random_log_probs(4, 3)
    assert align_tokens(log_probs, [1, 2, 1, 2]) is not None
    assert align_tokens(log_probs, [1, 1, 2, 1]) is None
    assert align_tokens(log_probs[:0], []) is None


def test_words_take_their_tokens_places():
    pieces = ["<blank>", "<unk>", "\u2581", "\u2581on", "e", "t"]
    spans = [TokenSpan(*span) for span in [(3, 2, 3, 1.0), (4, 5, 7, 0.5), (2, 9, 9, 0.1)]]
    spans += [TokenSpan(1, 10, 11, 0.4), TokenSpan(5, 12, 13, 0.6), TokenSpan(3, 20, 22, 0.25)]
    words = transcript_words("one ät on", spans, pieces)
    assert [tuple(word) for word in words] == [
        ("one", 2, 7, 0.75),
        ("ät", 10, 13, 0.5),
        ("on", 20, 22, 0.25),
    ]
    assert transcript_words("one at a time", spans, pieces) == []  # too few are begun
    assert list(ctm_lines("u", words, 0.03)) == [
        "u 1 0.06 0.15 one 0.750\n",
        "u 1 0.30 0.09 ät 0.500\n",
        "u 1 0.60 0.06 on 0.250\n",
    ]


def test_the_limit_follows_the_models_weakness_but_not_the_wrong_transcripts():
    config = AlignmentConfig(cost=3.0, deviations=5.0)
    assert config.limit([]) == config.limit([0.0, 0.1, 9.0]) == 3.0
    costs = np.random.default_rng(0).normal(4.0, 1.0, size=10_000).tolist()
    assert config.limit(costs) == pytest.approx(9.0, abs=0.2)
    assert config.limit([*costs, *[50.0] * 1000]) == pytest.approx(10.0, abs=0.5)


def test_settings_that_mean_nothing_are_refused():
    for name, value in (("batch_frames", 0), ("cost", -1.0), ("deviations", float("nan"))):
        with pytest.raises(ValueError, match=f"{name}="):
            AlignmentConfig(**{name: value})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Utterances of AN4, all of them in train and in test-a, and a model that knows them."""
    root = tmp_path_factory.mktemp("an4")
    prepare(root, {name: text for name, (_, text) in an4_utterances(8).items()})
    train(root)
    return root


def prepare(root, texts):
    """Stages 0 to 3; test-a has the transcripts ``texts``."""
    (root / "audio").mkdir(parents=True, exist_ok=True)
    cuts = {"train": [], "dev": [], "test-a": []}
    for name, (samples, text) in an4_utterances(8).items():
        soundfile.write(root / "audio" / f"{name}.flac", samples, RATE)
        for split, said in (("train", text), ("dev", text), ("test-a", texts[name])):
            cuts[split].append(make_cut(name, len(samples), said, f"../audio/{name}.flac"))
    write_manifests(root, cuts)
    features.run(workspace(root, "jobs=1"))
    tokens.run(workspace(root))
    return root


def train(root):
    """Learn eight utterances by heart."""
    utterances = UtteranceSet.of_split(workspace(root), "train")
    members = range(len(utterances))
    batch = collate(
        [utterances.id(i) for i in members],
        [utterances.load(i) for i in members],
        [utterances.tokens(i) for i in members],
    )
    statistics = read_json(root / "features/statistics.json")
    inventory = read_json(root / "tokens/tokens.json")
    torch.manual_seed(0)
    mean, std = torch.tensor(statistics["mean"]), torch.tensor(statistics["std"])
    config = ModelConfig(layers=1, hidden=64, bidirectional=True)
    model = AcousticModel(config, inventory["size"], mean, std)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        log_probs, lengths = model(batch.features, batch.feature_lengths)
        loss = torch.nn.functional.ctc_loss(
            log_probs.transpose(0, 1), batch.tokens, lengths, batch.token_lengths, reduction="sum"
        )
        optimizer.zero_grad()
        (loss / batch.token_lengths.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    finish_stage(root, "train/single", {})
    travels_with = {"features": statistics["features"], "tokens": inventory}
    save_model(root / "train/single/model.pt", model, travels_with)


@needs_an4
def test_right_transcripts_pass_and_their_words_have_times(trained):
    command = ["align", "--recipe", str(RECIPE), "--dir", str(trained), "--system", "single"]
    assert main(command) == 0
    folder = trained / "align/single/test-a"
    scores = read_jsonl(folder / "scores.jsonl")
    assert len(scores) == 8 and not any(score["flagged"] for score in scores)
    assert all(score["heard"] == score["text"] for score in scores)
    lines = [line.split() for line in (folder / "words.ctm").read_text().splitlines()]
    for name, (samples, text) in an4_utterances(8).items():
        mine = [line for line in lines if line[0] == name]
        assert " ".join(line[4] for line in mine) == text
        times = [(float(line[2]), float(line[2]) + float(line[3])) for line in mine]
        flat = [time for pair in times for time in pair]
        assert flat == sorted(flat) and flat[0] > 0 and flat[-1] < len(samples) / RATE
        assert all(float(line[5]) > 0.3 for line in mine)


@needs_an4
@pytest.mark.parametrize(("one", "other"), [(0, 5), (1, 2), (3, 4), (6, 7)])
def test_swapped_transcripts_are_flagged(trained, tmp_path, one, other):
    texts = {name: text for name, (_, text) in an4_utterances(8).items()}
    names = list(texts)
    swapped = {names[one], names[other]}
    texts[names[one]], texts[names[other]] = texts[names[other]], texts[names[one]]
    root = prepare(tmp_path / "swapped", texts)
    (root / "train").symlink_to(trained / "train")
    forced_alignment.run(workspace(root), "single", "test-a")
    scores = read_jsonl(root / "align/single/test-a/scores.jsonl")
    assert {score["id"] for score in scores if score["flagged"]} == swapped
    assert {score["id"] for score in scores[:2]} == swapped  # the most costly
    marker = read_json(root / "align/single/test-a/stage.json")
    assert marker["counts"]["flagged"] == 2


@needs_an4
def test_a_transcript_too_long_for_its_audio_is_flagged(trained, tmp_path):
    texts = {name: text for name, (_, text) in an4_utterances(8).items()}
    name = min(texts, key=lambda name: len(texts[name]))
    texts[name] = "mop " * 200
    root = prepare(tmp_path / "long", texts)
    (root / "train").symlink_to(trained / "train")
    forced_alignment.run(workspace(root), "single", None)
    scores = read_jsonl(root / "align/single/test-a/scores.jsonl")
    assert scores[0]["id"] == name and scores[0]["cost"] is None and scores[0]["flagged"]
    assert f"{name} " not in (root / "align/single/test-a/words.ctm").read_text()


@needs_an4
def test_a_split_that_is_none_is_said(trained):
    with pytest.raises(UserError, match="--split eval: the corpus has train, dev, test-a"):
        forced_alignment.run(workspace(trained), "single", "eval")
