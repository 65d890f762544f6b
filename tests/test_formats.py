"""Audio in every format that real corpora bring: read right, or rejected with the reason."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.audio import utterance as audio
from asr.audio.utterance import read_audio
from asr.audio.validation import Rules, examine
from asr.corpora import Utterance
from asr.manifests import _to_cut

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
    return read_audio(audio.Utterance.of(_to_cut(utterance, verdict, str(utterance.audio))), RATE)


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


def test_what_the_corpus_excludes_is_no_fault_wherever_it_ends(tmp_path):
    soundfile.write(tmp_path / "a.flac", wave(seconds=2), RATE)
    for start, end, seconds in ((1.5, 2.0, 0.5), (1.5, 9.0, None), (5.0, None, None)):
        where = {"start": start, "end": end, "excluded": "a gap"}
        verdict = judge(tmp_path / "a.flac", STRICT, **where)[1]
        assert (verdict.reason, verdict.detail, verdict.file) == ("excluded", "a gap", "text:1")
        assert verdict.seconds == seconds


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


def cut_to(share, path):
    data = path.read_bytes()
    return write(path, data[: round(share * len(data))])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.aiff", {"subtype": "PCM_16"}),
        ("a.aiff", {"subtype": "ULAW"}),
        ("a.au", {"subtype": "PCM_16"}),
        ("a.au", {"subtype": "PCM_16", "endian": "LITTLE"}),
        ("a.wav", {"format": "RF64", "subtype": "PCM_16"}),
        ("a.wav", {"format": "WAV", "subtype": "PCM_16", "endian": "BIG"}),
        ("a.wav", {"format": "WAV", "subtype": "FLOAT"}),
        ("a.flac", {}),
        ("a.mp3", {"format": "MP3"}),
        ("a.ogg", {"format": "OGG", "subtype": "VORBIS"}),
        ("a.opus", {"format": "OGG", "subtype": "OPUS"}),
        ("a.sph", {"format": "NIST", "subtype": "PCM_16"}),
    ],
)
def test_what_is_cut_short_is_noticed_in_every_container(tmp_path, name, options):
    soundfile.write(tmp_path / name, wave(seconds=4), RATE, **options)
    assert judge(tmp_path / name)[1].reason is None
    assert judge(cut_to(0.6, tmp_path / name))[1].reason in ("truncated", "not-audio")


def test_ogg_that_decodes_to_less_than_it_says_or_has_two_streams(tmp_path):
    noise = np.random.default_rng(0).standard_normal((6 * RATE, 1)).astype(np.float32) * 0.1
    for kind in ("VORBIS", "OPUS"):
        path = tmp_path / f"{kind}.ogg"
        soundfile.write(path, noise, RATE, format="OGG", subtype=kind)
        whole = path.read_bytes()
        assert judge(write(path, whole + whole))[1].reason == "chained"
        pages = [i for i in range(len(whole)) if whole.startswith(b"OggS", i)]
        middle = pages[len(pages) // 2]
        lost = whole[:middle] + whole[pages[len(pages) // 2 + 1] :]
        assert judge(write(path, lost))[1].reason == "truncated"
    soundfile.write(tmp_path / "v.ogg", noise, RATE, format="OGG", subtype="VORBIS")
    flipped = bytearray((tmp_path / "v.ogg").read_bytes())
    flipped[len(flipped) // 2] ^= 0xFF
    assert judge(write(tmp_path / "v.ogg", flipped))[1].reason in ("truncated", "not-audio")


@pytest.mark.parametrize("name", ["a.vox", "a.vox8", "a.raw", "a.snd", "a.gsm"])
def test_no_name_makes_audio_of_any_bytes(tmp_path, name):
    rules = Rules(8000, 0.1, 30.0, resample=True)
    assert judge(write(tmp_path / name, b"text " * 9000), rules)[1].reason == "not-audio"


@pytest.mark.parametrize("kind", ["MP3", "OGG"])
def test_segments_of_lossy_files_are_what_decoding_from_the_start_gives(tmp_path, kind):
    sweep = np.sin(np.cumsum(np.linspace(0.05, 0.8, 4 * RATE)))[:, None].astype(np.float32) * 0.4
    path = tmp_path / f"a.{kind.lower()}"
    soundfile.write(path, sweep, RATE, format=kind)
    whole, _ = soundfile.read(path, dtype="float32")
    for start in (0.1, 0.5, 1.003, 2.5):
        found = heard(path, STRICT, start=start, end=start + 0.4)
        first = round(start * RATE)
        np.testing.assert_allclose(found, whole[first : first + len(found)], atol=1e-4)


def test_a_lossy_recording_is_decoded_once_for_its_utterances_and_anew_when_it_changes(
    tmp_path, monkeypatch
):
    path, decoded = tmp_path / "a.ogg", []
    read = soundfile.read
    monkeypatch.setattr(soundfile, "read", lambda *a, **k: decoded.append(1) or read(*a, **k))
    soundfile.write(path, wave(seconds=2), RATE, format="OGG")
    utterance, verdict = judge(path, start=0.2, end=0.9)
    second = audio.Utterance.of(_to_cut(utterance, verdict, str(utterance.audio)))
    first = second._replace(start=0)
    decoded.clear()
    before = [read_audio(each, RATE) for each in (first, second)]
    before[1][:] = 0  # the caller's own
    assert np.abs(read_audio(second, RATE)).max() > 0.01
    assert len(decoded) == 1
    soundfile.write(path, 0.5 * wave(seconds=2), RATE, format="OGG")
    assert not np.array_equal(read_audio(first, RATE), before[0])
    assert len(decoded) == 2
    assert len(audio._last_decoded) == 1


def test_segments_of_what_cannot_seek(tmp_path):
    soundfile.write(tmp_path / "a.wav", wave(seconds=2, rate=8000), 8000, subtype="GSM610")
    whole, _ = soundfile.read(tmp_path / "a.wav", dtype="float32")
    found = heard(tmp_path / "a.wav", Rules(8000, 0.1, 30.0), start=0.5, end=1.0)
    assert len(found) == 8000  # at 16 kHz
    utterance, verdict = judge(tmp_path / "a.wav", Rules(8000, 0.1, 30.0), start=0.5, end=1.0)
    own = read_audio(audio.Utterance.of(_to_cut(utterance, verdict, str(utterance.audio))), 8000)
    np.testing.assert_allclose(own, whole[4000:8000], atol=1e-6)


def test_one_bad_channel_rejects_no_other_utterance(tmp_path):
    soundfile.write(tmp_path / "a.wav", wave(channels=2), RATE)
    task = [
        (Utterance(str(channel), tmp_path / "a.wav", "x", "s", "t:1", channel=channel), False)
        for channel in (0, 5, None)
    ]
    assert [v.reason for v in examine(task, STRICT)] == [None, "no-channel", "channels"]


def test_a_float_file_in_another_scale_is_rejected(tmp_path):
    soundfile.write(tmp_path / "a.wav", wave() * 32768, RATE, subtype="FLOAT")
    assert judge(tmp_path / "a.wav")[1].reason == "scale"


@pytest.mark.parametrize("path", ["/dev/zero", "pipe", "/proc/self/status"])
def test_what_is_no_regular_file_is_not_read(tmp_path, path):
    if path == "pipe":
        os.mkfifo(tmp_path / "pipe")
        path = tmp_path / "pipe"
    assert judge(Path(path))[1].reason in ("unreadable", "empty-file")


@pytest.mark.parametrize("count", ["-5", "²5", "9" * 5000, "20000"])
def test_a_sphere_header_that_makes_no_sense_is_rejected(tmp_path, count):
    data = (
        sphere(wave(seconds=3), claim=count)[:4000]
        if len(count) > 9
        else sphere(wave(3), claim=count)
    )
    assert judge(write(tmp_path / "a.sph", data))[1].reason in ("truncated", "not-audio")


@pytest.mark.parametrize(
    "start", [b"RIFF", b"RF64", b"FORM", b".snd", b"dns.", b"OggS", b"NIST_1A"]
)
@pytest.mark.parametrize("length", [0, 3, 8, 40])
def test_a_file_that_ends_in_its_header_is_rejected(tmp_path, start, length):
    more = (b"\0\0\0\0WAVEds64" if start in (b"RIFF", b"RF64") else b"\1\2") + bytes(40)
    verdict = judge(write(tmp_path / "a.wav", start + more[:length]))[1]
    assert verdict.reason in ("not-audio", "truncated", "no-samples", "absurd-rate")


def test_clipped_audio_is_only_loud(tmp_path):
    assert np.abs(heard(write(tmp_path / "a.wav", pcm(np.sign(wave()))))).max() > 0.99


def test_a_header_of_another_length_and_unknown_fields_of_sphere(tmp_path):
    samples = wave()
    data = sphere(samples, extra="speaker_id -s4 fash\ndatabase_id -s3 an4\n")
    assert np.abs(heard(write(tmp_path / "a.sph", data)) - samples[:, 0]).max() < 1e-4
