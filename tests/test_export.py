"""A finished model as a folder, and its ONNX graph against PyTorch."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from model_helpers import write_system

from asr.__main__ import main
from asr.errors import UserError
from asr.export import export
from asr.files import read_json, sha256
from asr.filterbank.fbank import LogMelFbankConfig
from asr.recognition.finished_model import open_model
from asr.recognition.onnx_graph import difference, to_onnx
from asr.tokens import TokensConfig, train_token_model


def session_of(graph):
    return onnxruntime.InferenceSession(graph.SerializeToString())


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("utterance_mean", [False, True])
def test_the_graph_gives_what_the_model_gives(tmp_path, bidirectional, utterance_mean):
    path = write_system(tmp_path, bidirectional=bidirectional, utterance_mean=utterance_mean)
    model = open_model(path).model
    graph = to_onnx(model)
    assert sum(node.op_type == "LSTM" for node in graph.graph.node) == 2
    assert difference(graph, model) < 1e-4
    session = session_of(graph)
    for lengths in ([3], [200], [60, 61, 62, 4]):
        features = torch.randn(len(lengths), max(lengths), 64) * 3 + 10
        feed = {"features": features.numpy(), "lengths": np.array(lengths)}
        if not bidirectional:
            feed |= {name: np.zeros((2, len(lengths), 24), np.float32) for name in "hc"}
        log_probs, out_lengths = session.run(["log_probs", "out_lengths"], feed)
        expected, expected_lengths = model(features, torch.tensor(lengths))
        assert out_lengths.tolist() == expected_lengths.tolist()
        assert log_probs.shape == tuple(expected.shape)
        for one, other, length in zip(log_probs, expected, out_lengths, strict=True):
            other = other[:length].detach().numpy()
            np.testing.assert_allclose(one[:length], other, rtol=0, atol=1e-4)


def test_the_graph_goes_on_from_a_state(tmp_path):
    model = open_model(write_system(tmp_path)).model
    session = session_of(to_onnx(model))
    features = np.random.default_rng(0).normal(10, 3, size=(1, 90, 64)).astype(np.float32)
    state = [np.zeros((2, 1, 24), np.float32)] * 2
    parts = []
    for first, last in ((0, 30), (30, 33), (33, 90)):
        feed = {"features": features[:, first:last], "lengths": np.array([last - first])}
        part, _, *state = session.run(None, feed | dict(zip("hc", state, strict=True)))
        parts.append(part)
    expected, _ = model(torch.from_numpy(features), torch.tensor([90]))
    found = np.concatenate(parts, axis=1)
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=0, atol=1e-4)


def test_a_graph_of_another_model_is_noticed(tmp_path):
    model = open_model(write_system(tmp_path, bidirectional=True)).model
    graph = to_onnx(model)
    with torch.no_grad():
        model.lstm.weight_hh_l0_reverse[3] += 0.1
    assert difference(graph, model) > 1e-4


def test_the_folder_holds_everything(tmp_path):
    path = write_system(tmp_path / "exp")
    out = tmp_path / "model"
    assert (
        main(["export", "--dir", str(tmp_path / "exp"), "--system", "single", "--out", str(out)])
        == 0
    )
    assert sorted(file.name for file in out.iterdir()) == [
        *("config.json", "model.onnx", "model.pt", "tokens.model")
    ]
    config = read_json(out / "config.json")
    assert config["streams"] and config["architecture"]["hidden"] == 24
    assert config["features"] == LogMelFbankConfig().to_dict()
    assert config["pieces"][0] == "<blank>" and config["blank"] == 0
    for name, digest in config["sha256"].items():
        assert sha256(out / name) == digest
    again, before = open_model(out), open_model(path)
    assert config["normalisation"]["mean"] == before.model.mean.tolist()
    for name, value in before.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)
    assert again.tokenizer.pieces == before.tokenizer.pieces
    export(again, out)  # over itself
    export(again, tmp_path / "copy")
    assert read_json(tmp_path / "copy/config.json") == config


def test_what_cannot_be_exported_is_said(tmp_path, monkeypatch):
    path = write_system(tmp_path, projection=8)
    with pytest.raises(UserError, match="projection=8: ONNX's LSTM has no projection"):
        export(open_model(path), tmp_path / "out")
    finished = open_model(write_system(tmp_path))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").write_text("x")
    with pytest.raises(UserError, match="no exported model; choose another --out"):
        export(finished, tmp_path / "full")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/config.json").write_text('{"hidden_size": 768}')
    with pytest.raises(UserError, match="no exported model; choose another --out"):
        export(finished, tmp_path / "theirs")
    assert (tmp_path / "theirs/config.json").read_text() == '{"hidden_size": 768}'
    monkeypatch.setattr("asr.export.TOLERANCE", -1.0)
    with pytest.raises(UserError, match="onnxruntime differ from PyTorch's"):
        export(finished, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_is_named_in_one_way(tmp_path, capsys):
    for words in ([], ["--model", "x", "--dir", "y"], ["--dir", "y"], ["--system", "y"]):
        assert main(["export", "--out", str(tmp_path / "out"), *words]) == 1
        assert "--model FOLDER, or by both --dir and --system" in capsys.readouterr().err


def test_a_decoded_system_has_no_model_of_its_own(tmp_path, capsys):
    of_stage = ["--recipe", str(tmp_path), "--dir", str(tmp_path), "--system", "single+lm"]
    for verb, *words in (
        ("export", *of_stage[2:], "--out", str(tmp_path / "out")),
        ("transcribe", *of_stage[2:], "a.wav"),
        ("align", *of_stage),
        ("average", *of_stage, "--last", "2"),
    ):
        assert main([verb, *words]) == 1
        assert "with the model of single; give that" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_folder_of_another_format_or_other_tokens_is_refused(tmp_path):
    path = write_system(tmp_path)
    export(open_model(path), tmp_path / "out")
    (tmp_path / "out/config.json").write_text(json.dumps({"format_version": 9}))
    with pytest.raises(UserError, match="config.json: format 9, not 1"):
        open_model(tmp_path / "out")
    other = train_token_model(["other letters"], TokensConfig())
    (tmp_path / "tokens/tokens.model").write_bytes(other)
    with pytest.raises(UserError, match="trained with other tokens than those of"):
        open_model(path)
