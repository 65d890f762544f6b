"""What goes into ``transcribe``, and what comes out."""

import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
import torchaudio
from an4_helpers import an4_utterances, needs_an4
from model_helpers import write_system
from speech_helpers import RATE, speech_like

from asr.__main__ import main
from asr.audio.blocks import file_blocks, pcm_blocks, resampled
from asr.decode import greedy_search
from asr.errors import UserError
from asr.filterbank.fbank import LogMelFbank
from asr.recognition.finished_model import open_model
from asr.recognition.streaming import log_probs_of
from asr.training.data import pad


@pytest.fixture
def system(tmp_path):
    write_system(tmp_path / "exp")
    return ["--dir", str(tmp_path / "exp"), "--system", "single"]


def write_audio(path, seconds=2.0, seed=0, rate=RATE, channels=1, **settings):
    samples = np.stack([speech_like(seconds, seed + c) for c in range(channels)], axis=1)
    soundfile.write(path, samples, rate, **settings)
    return str(path)


def whole(blocks):
    return np.concatenate(list(blocks))


def offline_text(finished, samples):
    """As the decode stage hears a whole utterance."""
    features, lengths = pad([LogMelFbank(finished.fbank).extract(samples, RATE)])
    with torch.inference_mode():
        (path,) = greedy_search(*finished.model(features, lengths))
    return finished.tokenizer.decode(path)


@pytest.mark.parametrize("settings", [{}, {"bidirectional": True, "utterance_mean": True}])
def test_the_words_are_those_of_the_decode_stage(tmp_path, capsys, settings):
    path = write_system(tmp_path, **settings)
    files = [write_audio(tmp_path / f"{i}.flac", 1 + 2.7 * i, i) for i in range(4)]
    assert main(["transcribe", "--model", str(path), *files]) == 0
    finished = open_model(path)
    expected = [
        f"{file}\t{offline_text(finished, soundfile.read(file, dtype='float32')[0])}"
        for file in files
    ]
    assert capsys.readouterr().out.splitlines() == expected
    assert len(expected[3]) > 100


@needs_an4
def test_real_speech_in_one_piece_and_in_parts(tmp_path, capsys):
    path = write_system(tmp_path)
    finished = open_model(path)
    for name, (samples, _) in an4_utterances(3).items():
        file = tmp_path / f"{name}.flac"
        soundfile.write(file, samples, RATE)
        assert main(["transcribe", "--model", str(path), str(file)]) == 0
        text = offline_text(finished, samples)
        assert capsys.readouterr().out == f"{file}\t{text}\n" and text
        parts = list(log_probs_of(finished, np.array_split(samples, 50)))
        one = torch.cat(list(log_probs_of(finished, [samples])))
        assert len(parts) > 2 and torch.equal(torch.cat(parts), one)


def test_json_has_times_and_confidences(tmp_path, system, capsys):
    file = write_audio(tmp_path / "a.wav", 3.0)
    assert main(["transcribe", *system, "--json", file]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == file and found["seconds"] == 3.0
    words = found["words"]
    assert " ".join(word["word"] for word in words) == found["text"] != ""
    times = [time for word in words for time in (word["start"], word["end"])]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= 3.0
    assert all(0 < word["confidence"] <= 1 for word in words)


@pytest.mark.parametrize("as_json", [False, True])
def test_pcm_on_stdin_is_heard_as_the_file_is(tmp_path, system, capsys, monkeypatch, as_json):
    file = write_audio(tmp_path / "a.wav", 3.0)
    options = [*system, *(["--json"] if as_json else [])]
    main(["transcribe", *options, file])
    from_file = capsys.readouterr().out
    samples = soundfile.read(file, dtype="int16")[0]
    stdin = io.BufferedReader(io.BytesIO(samples.astype("<i2").tobytes()))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
    assert main(["transcribe", *options, "--rate", str(RATE), "-"]) == 0
    from_stdin = capsys.readouterr().out
    if as_json:
        assert json.loads(from_stdin) == {**json.loads(from_file), "file": "-"}
    else:
        assert from_stdin == from_file.partition("\t")[2] != "\n"


def test_a_bad_file_does_not_lose_the_others(tmp_path, system, capsys):
    good = [write_audio(tmp_path / f"{i}.wav", seed=i) for i in range(2)]
    cut = write_audio(tmp_path / "cut.wav")
    data = (tmp_path / "cut.wav").read_bytes()
    (tmp_path / "cut.wav").write_bytes(data[: len(data) // 2])
    (tmp_path / "text.wav").write_text("hello")
    text, missing = str(tmp_path / "text.wav"), str(tmp_path / "missing.wav")
    assert main(["transcribe", *system, good[0], cut, text, missing, good[1]]) == 1
    out, err = capsys.readouterr()
    assert [line.partition("\t")[0] for line in out.splitlines()] == good
    assert f"error: {cut}: truncated: " in err and f"error: {text}: cannot be read" in err
    assert f"error: {missing}: no such file" in err
    assert f"error: 3 of 5 could not be transcribed: {cut}, {text}, {missing}" in err


def test_what_is_asked_for_wrongly_is_said(tmp_path, system, capsys, monkeypatch):
    file = write_audio(tmp_path / "a.wav", channels=2)
    for options, message in [
        (["-"], "give its --rate"),
        (["--rate", "1", "-"], "--rate 1: from 4000"),
        ([file], "2 channels; choose --channel 0"),
        (["--channel", "2", file], "--channel 2, but it has 2 channels"),
        (["--channel", "left", file], "--channel left: a number from 0, or mix"),
    ]:
        assert main(["transcribe", *system, *options]) == 1
        assert message in capsys.readouterr().err
    assert main(["transcribe", "--model", str(tmp_path / "none.pt"), file]) == 1
    assert "no such model" in capsys.readouterr().err


def test_half_a_sample_at_the_end_does_not_lose_what_came_before(caplog):
    samples = whole(pcm_blocks(io.BufferedReader(io.BytesIO(b"\x00\x40a")), RATE, RATE))
    assert samples.tolist() == [0.5]
    assert "half a sample" in caplog.text


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused_as_in_stage_1(tmp_path, value):
    samples = np.zeros(RATE, dtype=np.float32)
    samples[-1] = value
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    with pytest.raises(UserError, match=r"a\.wav: not-finite: .*convert the file anew"):
        whole(file_blocks(tmp_path / "a.wav", RATE))


def test_pcm_may_come_in_odd_pieces():
    class Pipe:
        """Hands over a byte, then three, and so on."""

        def __init__(self, data):
            self.data = io.BytesIO(data)
            self.sizes = iter([1, 3, 1, 2, 2, 5, 100, 100, 1])

        def read1(self, size):
            return self.data.read(next(self.sizes))

    values = np.arange(-50, 50, dtype="<i2")
    heard = whole(pcm_blocks(Pipe(values.tobytes()), RATE, RATE))
    assert np.array_equal(heard * 32768, values)


def test_channels_are_chosen_or_mixed(tmp_path):
    file = write_audio(tmp_path / "a.wav", 12.0, channels=2)
    samples = soundfile.read(file, dtype="float32")[0]
    for channel, expected in ((0, samples[:, 0]), (1, samples[:, 1]), ("mix", samples.mean(1))):
        assert np.array_equal(whole(file_blocks(tmp_path / "a.wav", RATE, channel)), expected)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3", "a.aiff", "a.au"])
def test_a_file_in_parts_is_the_file(tmp_path, name):
    write_audio(tmp_path / name, 21.3)
    blocks = list(file_blocks(tmp_path / name, RATE))
    expected = soundfile.read(tmp_path / name, dtype="float32")[0]
    # The MP3 decoder's last bits depend on how it was opened.
    np.testing.assert_allclose(np.concatenate(blocks), expected, rtol=0, atol=1e-7)
    if name in ("a.wav", "a.flac"):
        assert max(map(len, blocks)) <= 10 * RATE


@pytest.mark.parametrize("old", [8000, 11025, 22050, 44100, 48000])
@pytest.mark.parametrize("size", [100, 100_000])
def test_resampling_in_parts_is_resampling(old, size):
    assert list(resampled([], old, RATE)) == []
    for length in (1, 3000, 77_777):
        samples = (speech_like(length / RATE + 1)[:length] / 32768).astype(np.float32)
        expected = torchaudio.functional.resample(torch.from_numpy(samples), old, RATE)
        parts = (samples[start : start + size] for start in range(0, length, size))
        found = whole(resampled(parts, old, RATE))
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
