"""Hearing in parts is hearing in one piece."""

import numpy as np
import pytest
import torch
from model_helpers import write_system
from speech_helpers import RATE, speech_like

from asr.decode import greedy_search
from asr.filterbank.fbank import LogMelFbank, LogMelFbankConfig
from asr.recognition.finished_model import open_model
from asr.recognition.streaming import (
    BLOCK_FRAMES,
    CONTEXT_STACKS,
    WINDOW_STACKS,
    log_probs_of,
    stream_features,
    stream_log_probs,
    window_log_probs,
)
from asr.recognition.word_times import best_path

LENGTHS = [80, 81, 239, 240, 479, 480, 4000, 25 * 160 - 1, 25 * 160, 64160, 100005, 120000]


def samples_of(length, seed=0):
    return (speech_like(length / RATE + 0.01, seed)[:length] / 32768).astype(np.float32)


def in_parts(samples, size):
    return (samples[start : start + size] for start in range(0, len(samples), size))


@pytest.mark.parametrize("back_end", ["lhotse", "kaldi"])
@pytest.mark.parametrize("rate", [8000, 16000])
def test_features_in_parts_are_the_features(back_end, rate):
    config = LogMelFbankConfig(back_end=back_end, sampling_rate=rate)
    for length in LENGTHS:
        samples = samples_of(length)
        whole = list(stream_features([samples], config))
        assert all(len(block) == BLOCK_FRAMES for block in whole[:-1])
        whole = np.concatenate(whole)
        offline = LogMelFbank(config).extract(samples, rate)
        assert whole.shape == offline.shape
        np.testing.assert_allclose(whole, offline, rtol=0, atol=2e-5)
        for size in (1, 777, 4000, 4160) if length < 10_000 else (777, 3841, 50_000):
            parts = np.concatenate(list(stream_features(in_parts(samples, size), config)))
            assert np.array_equal(parts, whole)


@pytest.mark.parametrize("length", [0, 1, 79])
@pytest.mark.parametrize("back_end", ["lhotse", "kaldi"])
def test_audio_shorter_than_a_frame_has_no_features(back_end, length):
    config = LogMelFbankConfig(back_end=back_end)
    assert list(stream_features([samples_of(300)[:length]], config)) == []


@pytest.mark.parametrize("settings", [{}, {"projection": 8}, {"layers": 3, "hidden": 64}])
def test_log_probabilities_in_parts_are_those_in_one_piece(tmp_path, settings):
    finished = open_model(write_system(tmp_path, **settings))
    for length in (700, 4000, 33333, 64160, 100005):
        samples = samples_of(length)
        whole = torch.cat(list(log_probs_of(finished, [samples])))
        for size in (160, 1111, 4000, 50_000):
            parts = torch.cat(list(log_probs_of(finished, in_parts(samples, size))))
            assert torch.equal(parts, whole)
        features = torch.from_numpy(LogMelFbank(finished.fbank).extract(samples, RATE))[None]
        with torch.inference_mode():
            expected, lengths = finished.model(features, torch.tensor([features.shape[1]]))
        assert len(whole) == lengths.item()
        torch.testing.assert_close(whole, expected[0], rtol=0, atol=1e-4)
        tokens = [span.token for span in best_path([whole])]
        assert tokens == greedy_search(expected, lengths)[0]
        assert length < 5000 or tokens


def test_little_is_held_back(tmp_path):
    finished = open_model(write_system(tmp_path))
    heard = 0

    def audio():
        for number in range(100):
            # A block, a frame shift for the last frame's window, and the part itself.
            assert (number - 1) * 480 - heard * 480 <= (BLOCK_FRAMES + 1) * 160 + 480
            yield samples_of(48_000)[480 * number : 480 * (number + 1)]

    for part in log_probs_of(finished, audio()):
        heard += len(part)
    assert heard == 100


@pytest.mark.parametrize("settings", [{"bidirectional": True}, {"utterance_mean": True}])
def test_a_model_that_needs_the_whole_utterance_does_not_stream(tmp_path, settings):
    finished = open_model(write_system(tmp_path, **settings))
    with pytest.raises(ValueError, match="cannot go on"):
        list(stream_log_probs(finished.model, [np.zeros((24, 64), np.float32)]))


def test_up_to_a_window_is_heard_whole(tmp_path):
    finished = open_model(write_system(tmp_path, bidirectional=True, utterance_mean=True))
    samples = samples_of(50_000)
    (whole,) = window_log_probs(finished, in_parts(samples, 999))
    features = torch.from_numpy(LogMelFbank(finished.fbank).extract(samples, RATE))[None]
    with torch.inference_mode():
        expected, _ = finished.model(features, torch.tensor([features.shape[1]]))
    assert torch.equal(whole, expected[0])
    assert sum(map(len, window_log_probs(finished, [samples[:200]]))) == 0


def test_windows_join_without_a_gap(tmp_path, monkeypatch):
    """A model of little memory hears in windows what it hears in one piece."""
    monkeypatch.setattr("asr.recognition.streaming.WINDOW_STACKS", 60)
    monkeypatch.setattr("asr.recognition.streaming.CONTEXT_STACKS", 20)
    assert WINDOW_STACKS > 2 * CONTEXT_STACKS
    finished = open_model(write_system(tmp_path, bidirectional=True, layers=1))
    with torch.no_grad():
        for name, weight in finished.model.lstm.named_parameters():
            if name.startswith("bias_ih"):
                weight[24:48] -= 2  # forget gates nearly shut
    for length in (60 * 480, 60 * 480 + 1, 80 * 480, 200 * 480 + 77):
        samples = samples_of(length)
        parts = torch.cat(list(window_log_probs(finished, in_parts(samples, 1000))))
        features = torch.from_numpy(LogMelFbank(finished.fbank).extract(samples, RATE))[None]
        with torch.inference_mode():
            whole, lengths = finished.model(features, torch.tensor([features.shape[1]]))
        assert len(parts) == lengths.item()
        torch.testing.assert_close(parts, whole[0], rtol=0, atol=1e-3)
