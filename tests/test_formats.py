"""Audio in every format that real corpora bring: read right, or rejected with the reason."""

import struct

import numpy as np
import pytest
import soundfile

from asr.corpora import Utterance
from asr.features import _utterance, read_audio
from asr.manifests import _to_cut
from asr.validation import Rules, examine

RATE = 16000
LENIENT = Rules(RATE, 0.1, 30.0, resample=True, channel="mix", overhang_seconds=0.05)
STRICT = Rules(RATE, 0.1, 30.0)


def wave(seconds=0.7, rate=RATE, channels=1, seed=0):
    """Tones that survive lossy codecs, another in each channel; (n, channels) in [-1, 1]."""
    times = np.arange(round(seconds * rate)) / rate
    tones = [0.4 * np.sin(2 * np.pi * (300 + 200 * c + seed) * times) for c in range(channels)]
    return np.stack(tones, axis=1).astype(np.float32)


def judge(path, rules=LENIENT, **where):
    utterance = Utterance("u", path, "some words", "s", "text:1", **where)
    (verdict,) = examine([(utterance, False)], rules)
    return utterance, verdict


def heard(path, rules=LENIENT, **where):
    """What the features are computed from."""
    utterance, verdict = judge(path, rules, **where)
    assert verdict.reason is None, verdict
    return read_audio(_utterance(_to_cut(utterance, verdict, "corpus")), RATE)


def riff(*chunks, size=None):
    body = b"".join(
        name + struct.pack("<I", claim) + data + b"\0" * (len(data) % 2)
        for name, claim, data in chunks
    )
    return b"RIFF" + struct.pack("<I", size or 4 + len(body)) + b"WAVE" + body


def pcm(samples, claim=None, before=(), after=(), size=None):
    """A WAV file of 16-bit mono samples with whatever stands around them."""
    data = (samples[:, 0] * 32767).astype("<i2").tobytes()
    fmt = struct.pack("<HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16)
    chunks = [(b"fmt ", len(fmt), fmt), *before]
    chunks += [(b"data", len(data) if claim is None else claim, data), *after]
    return riff(*chunks, size=size)


def sphere(samples, rate=RATE, coding="pcm", claim=None, extra=""):
    """A NIST sphere file of 16-bit samples."""
    data = (samples * 32767).astype("<i2").tobytes()
    count = len(samples) if claim is None else claim
    header = (
        "NIST_1A\n   1024\n"
        f"sample_count -i {count}\nsample_rate -i {rate}\nsample_n_bytes -i 2\n"
        f"sample_byte_format -s2 01\nchannel_count -i {samples.shape[1]}\n"
        f"sample_coding -s{len(coding)} {coding}\n{extra}end_head\n"
    )
    return header.encode().ljust(1024) + data


def write(path, data):
    path.write_bytes(data)
    return path


EXACT = [
    ("a.wav", {"subtype": "PCM_U8"}, 1 / 128),
    ("a.wav", {"subtype": "PCM_16"}, 1e-4),
    ("a.wav", {"subtype": "PCM_24"}, 1e-6),
    ("a.wav", {"subtype": "PCM_32"}, 1e-6),
    ("a.wav", {"subtype": "FLOAT"}, 0),
    ("a.wav", {"subtype": "DOUBLE"}, 0),
    ("a.wav", {"subtype": "ULAW"}, 0.03),
    ("a.wav", {"subtype": "ALAW"}, 0.03),
    ("a.wav", {"format": "WAVEX", "subtype": "PCM_16"}, 1e-4),
    ("a.wav", {"format": "RF64", "subtype": "PCM_16"}, 1e-4),
    ("a.flac", {"subtype": "PCM_16"}, 1e-4),
    ("a.flac", {"subtype": "PCM_24"}, 1e-6),
    ("a.aiff", {"subtype": "PCM_16"}, 1e-4),
    ("a.au", {"subtype": "PCM_16"}, 1e-4),
    ("a.au", {"subtype": "ULAW"}, 0.03),
    ("a.sph", {"format": "NIST", "subtype": "PCM_16"}, 1e-4),
    ("a.sph", {"format": "NIST", "subtype": "ULAW"}, 0.03),
]


@pytest.mark.parametrize(("name", "options", "tolerance"), EXACT)
@pytest.mark.parametrize("channels", [1, 2])
def test_lossless_formats_are_read_sample_by_sample(tmp_path, name, options, tolerance, channels):
    samples = wave(channels=channels)
    soundfile.write(tmp_path / name, samples, RATE, **options)
    found = heard(tmp_path / name)
    assert found.dtype == np.float32 and found.shape == (len(samples),)
    assert np.abs(found - samples.mean(axis=1)).max() <= tolerance + 1e-7


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mp3", {"format": "MP3"}),
        ("a.ogg", {"format": "OGG", "subtype": "VORBIS"}),
        ("a.opus", {"format": "OGG", "subtype": "OPUS"}),
    ],
)
@pytest.mark.parametrize("channels", [1, 2])
def test_lossy_formats_keep_what_they_hold(tmp_path, name, options, channels):
    samples = wave(seconds=1.3, channels=channels)
    soundfile.write(tmp_path / name, samples, RATE, **options)
    whole, _ = soundfile.read(tmp_path / name, always_2d=True, dtype="float32")
    found = heard(tmp_path / name)
    # MP3: the last bits depend on how much is read at once.
    np.testing.assert_allclose(found, whole.mean(axis=1), atol=1e-5)
    assert len(found) == pytest.approx(len(samples), abs=2500)  # what an encoder pads


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_other_rates_are_resampled_or_rejected(tmp_path, rate):
    soundfile.write(tmp_path / "a.flac", wave(rate=rate), rate)
    found, expected = heard(tmp_path / "a.flac"), wave()[:, 0]
    assert len(found) == pytest.approx(len(expected), abs=1)
    middle = slice(1000, 10_000)
    assert np.abs(found[middle] - expected[middle]).max() < 0.01
    assert judge(tmp_path / "a.flac", STRICT)[1].reason == "wrong-rate"


@pytest.mark.parametrize("content", ["flac", "wav", "sphere"])
def test_a_channel_is_chosen_by_the_recipe_or_the_corpus(tmp_path, content):
    samples = wave(channels=2)
    path = write(tmp_path / "a.sph", sphere(samples))
    if content != "sphere":
        path = tmp_path / f"a.{content}"
        soundfile.write(path, samples, RATE)
    assert judge(path, STRICT)[1].reason == "channels"
    second = Rules(RATE, 0.1, 30.0, channel=1)
    assert np.abs(heard(path, second) - samples[:, 1]).max() < 1e-4
    assert np.abs(heard(path, second, channel=0) - samples[:, 0]).max() < 1e-4
    assert judge(path, STRICT, channel=2)[1].reason == "no-channel"
    assert judge(path, STRICT, channel=-1)[1].reason == "no-channel"


def test_segments_of_a_recording_are_cut_to_the_sample(tmp_path):
    samples = wave(seconds=2)
    soundfile.write(tmp_path / "a.flac", samples, RATE)
    found = heard(tmp_path / "a.flac", STRICT, start=0.1, end=0.4)
    assert np.abs(found - samples[1600:6400, 0]).max() < 1e-4
    for start, end in ((1.9, 2.02), (1.9, 2.0), (1.9, None)):
        assert len(heard(tmp_path / "a.flac", LENIENT, start=start, end=end)) == 1600
    for start, end, reason in (
        (1.9, 2.2, "past-end"),
        (2.0, None, "past-end"),
        (5.0, 6.0, "past-end"),
        (0.5, 0.5, "too-short"),
        (0.5, 0.4, "too-short"),
    ):
        assert judge(tmp_path / "a.flac", LENIENT, start=start, end=end)[1].reason == reason


def test_a_recording_is_decoded_once_for_all_its_utterances(tmp_path, monkeypatch):
    samples = wave(seconds=2)
    samples[16000:24000] = 0
    soundfile.write(tmp_path / "a.flac", samples, RATE)
    opened, opens = [], soundfile.SoundFile
    monkeypatch.setattr(soundfile, "SoundFile", lambda *a: opened.append(a) or opens(*a))
    task = [
        (
            Utterance(str(i), tmp_path / "a.flac", "x", "s", "t:1", start=i / 2, end=i / 2 + 0.5),
            False,
        )
        for i in range(4)
    ]
    assert [verdict.reason for verdict in examine(task, STRICT)] == [None, None, "silent", None]
    assert len(opened) == 1


WAVES = {
    "extra chunks before and after": lambda w: pcm(
        w, before=[(b"LIST", 5, b"INFOx")], after=[(b"id3 ", 3, b"abc")]
    ),
    "a wrong size of the whole": lambda w: pcm(w, size=77),
    "a streamed length": lambda w: pcm(w, claim=0xFFFFFFFF, size=0xFFFFFFFF),
    "a streamed length of 2^31 - 1 samples": lambda w: pcm(w, claim=0x7FFFFFFF),
}


@pytest.mark.parametrize("kind", WAVES)
def test_odd_wav_files_are_read_whole(tmp_path, kind):
    samples = wave()
    found = heard(write(tmp_path / "a.wav", WAVES[kind](samples)))
    assert np.abs(found - samples[:, 0]).max() < 1e-4


def absurd_rate(samples):
    data = bytearray(pcm(samples))
    data[24:28] = struct.pack("<I", 1_092_676)
    return bytes(data)


def nan_inside(path):
    samples = wave()
    samples[100] = np.nan
    soundfile.write(path, samples, RATE, subtype="FLOAT")


def flac_without_its_end(path):
    soundfile.write(path, wave(seconds=3), RATE, format="FLAC")
    path.write_bytes(path.read_bytes()[:-4000])


FAULTS = {
    "empty-file": lambda path: write(path, b""),
    "not-audio": lambda path: write(path, b"this is a text and no sound\n" * 50),
    "absurd-rate": lambda path: write(path, absurd_rate(wave())),
    "no-samples": lambda path: write(path, pcm(wave(seconds=0))),
    "silent": lambda path: write(path, pcm(0 * wave())),
    "not-finite": nan_inside,
    "truncated": flac_without_its_end,
    "shortened": lambda path: write(path, sphere(wave(), coding="pcm,embedded-shorten-v2.00")),
    "missing-audio": lambda path: None,
    "unreadable": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_what_cannot_be_used_is_rejected_with_the_reason(tmp_path, reason):
    FAULTS[reason](tmp_path / "a.wav")
    verdict = judge(tmp_path / "a.wav")[1]
    assert (verdict.reason, bool(verdict.detail)) == (reason, True)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.wav", lambda w: pcm(w, claim=2 * len(w) + 1000)),
        ("a.sph", lambda w: sphere(w, claim=len(w) + 1000)),
    ],
)
def test_a_header_that_claims_more_than_there_is_is_no_header_to_trust(tmp_path, name, data):
    verdict = judge(write(tmp_path / name, data(wave())))[1]
    assert verdict.reason == "truncated" and "claims" in verdict.detail


def test_clipped_audio_is_only_loud(tmp_path):
    assert np.abs(heard(write(tmp_path / "a.wav", pcm(np.sign(wave()))))).max() > 0.99


def test_a_header_of_another_length_and_unknown_fields_of_sphere(tmp_path):
    samples = wave()
    data = sphere(samples, extra="speaker_id -s4 fash\ndatabase_id -s3 an4\n")
    assert np.abs(heard(write(tmp_path / "a.sph", data)) - samples[:, 0]).max() < 1e-4
