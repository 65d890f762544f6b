"""The acoustic model: shapes, independence of the batch, and its file."""

import pytest
import torch

from asr.errors import UserError
from asr.model import AcousticModel, ModelConfig, check_bf16, load_model, save_model


def make_model(vocabulary=11, bins=64, **settings):
    torch.manual_seed(0)
    return AcousticModel(
        ModelConfig(**settings), vocabulary, torch.full((bins,), 2.0), torch.full((bins,), 3.0)
    ).eval()


def utterances(lengths):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(length, 64, generator=generator) * 3 + 2 for length in lengths]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bidirectional": True},
        {"projection": 16},
        {"bidirectional": True, "projection": 16},
        {"bidirectional": True, "utterance_mean": True},
    ],
)
def test_output_does_not_depend_on_the_batch(settings):
    model = make_model(layers=2, hidden=32, **settings)
    lengths = [61, 30, 47, 9, 62, 3, 50, 21]
    items = utterances(lengths)
    features = torch.nn.utils.rnn.pad_sequence(items, True, padding_value=99.0)
    log_probs, out_lengths = model(features, torch.tensor(lengths))
    assert out_lengths.tolist() == [length // 3 for length in lengths]
    for item, together, length in zip(items, log_probs, out_lengths, strict=True):
        alone, _ = model(item[None], torch.tensor([len(item)]))
        assert alone.shape == (1, length, 11)
        torch.testing.assert_close(alone[0], together[:length], rtol=0, atol=1e-5)


@pytest.mark.parametrize("projection", [0, 12])
def test_padded_and_packed_sequences_are_one_model(projection):
    model = make_model(layers=3, hidden=24, bidirectional=True, projection=projection)
    hidden, lengths = torch.randn(5, 20, 192), torch.tensor([20, 7, 1, 19, 13])
    inside = (torch.arange(20) < lengths[:, None])[:, :, None]
    outputs, gradients = [], []
    for run in (model._packed, model._forward_and_back):
        model.zero_grad()
        output = run(hidden, lengths) * inside
        (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
        outputs.append(output)
        gradients.append([weight.grad.clone() for weight in model.lstm.parameters()])
    torch.testing.assert_close(outputs[1], outputs[0])
    for padded, packed in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(padded, packed, rtol=1e-4, atol=1e-4)


def test_output_is_log_probabilities_in_float32_under_autocast():
    model = make_model(layers=1, hidden=8)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            log_probs, _ = model(torch.randn(2, 30, 64), torch.tensor([30, 30]))
    except RuntimeError:  # a CPU without AVX-512 says so before it trains
        with pytest.raises(UserError, match="set bf16=false"):
            check_bf16(torch.device("cpu"))
        return
    check_bf16(torch.device("cpu"))
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 10))


def test_features_are_normalised_and_stacked_by_three():
    model = make_model(layers=1, hidden=8)
    seen = []
    model.lstm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    features = torch.arange(7 * 64, dtype=torch.float32).view(1, 7, 64)
    model(features, torch.tensor([7]))
    assert torch.equal(seen[0][0, 1], (features[0, 3:6].flatten() - 2) / 3)
    assert seen[0].shape == (1, 2, 192)


def test_an_utterances_own_mean_makes_no_difference_when_taken_from_it():
    plain = make_model(layers=1, hidden=8)
    model = make_model(layers=1, hidden=8, utterance_mean=True)
    features, lengths = torch.randn(2, 30, 64), torch.tensor([30, 14])
    louder = features + torch.randn(2, 1, 64)
    assert not torch.allclose(plain(features, lengths)[0], plain(louder, lengths)[0], atol=1e-3)
    expected, out_lengths = model(features, lengths)
    found, _ = model(louder, lengths)
    for one, other, length in zip(expected, found, out_lengths, strict=True):
        torch.testing.assert_close(one[:length], other[:length], rtol=0, atol=1e-5)


def test_the_big_configuration_has_about_22_million_parameters():
    with torch.device("meta"):
        model = AcousticModel(
            ModelConfig(layers=5, hidden=768), 500, torch.zeros(64), torch.ones(64)
        )
        parameters = sum(p.numel() for p in model.parameters())
        log_probs, _ = model(torch.zeros(2, 30, 64), torch.tensor([30, 30]))
    assert parameters == pytest.approx(22e6, rel=0.02)
    assert log_probs.shape == (2, 10, 500)


def test_a_file_gives_the_model_back_with_what_travels_with_it(tmp_path):
    model = make_model(layers=2, hidden=16, projection=8)
    save_model(tmp_path / "model.pt", model, {"features": {"bins": 64}})
    loaded, travels_with = load_model(tmp_path / "model.pt")
    assert travels_with == {"features": {"bins": 64}}
    assert not loaded.training
    features, lengths = torch.randn(1, 30, 64), torch.tensor([30])
    assert torch.equal(model(features, lengths)[0], loaded(features, lengths)[0])


@pytest.mark.parametrize("damage", ["missing", "empty", "text", "half", "other"])
def test_a_file_that_is_no_model_is_named(tmp_path, damage):
    path = tmp_path / "model.pt"
    if damage == "half":
        save_model(path, make_model(layers=1, hidden=8), {})
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "other":
        torch.save({"state": 1}, path)
    elif damage != "missing":
        path.write_text({"empty": "", "text": "hello"}[damage])
    with pytest.raises(UserError, match="model.pt"):
        load_model(path)


@pytest.mark.parametrize(
    "settings", [{"layers": 0}, {"hidden": 8, "projection": 8}, {"dropout": 1.0}]
)
def test_impossible_sizes_are_refused(settings):
    with pytest.raises(ValueError, match="model"):
        ModelConfig(**settings)
