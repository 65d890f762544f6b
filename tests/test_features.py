import contextlib
import json
import logging
import math
import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import torchaudio
from lhotse.features.base import FeatureExtractor
from lhotse.utils import perturb_num_samples
from speech_helpers import (
    RATE,
    block,
    make_cut,
    readers_of,
    small_corpus,
    speech_like,
    start_stage,
    workspace,
    write_manifests,
    write_utterance,
)

from asr import features
from asr.audio.utterance import Utterance, read_audio
from asr.config import load_config
from asr.errors import UserError
from asr.features import STD_FLOOR, FeaturesConfig, Moments, Task
from asr.filterbank.cuts import write_cuts
from asr.filterbank.fbank import LogMelFbank, LogMelFbankConfig
from asr.filterbank.storage import (
    Extent,
    FlatFeaturesReader,
    FlatFeaturesWriter,
    load_cuts,
    read_features,
)

LOG_EPSILON = math.log(torch.finfo(torch.float32).eps)


def audio(samples: np.ndarray) -> np.ndarray:
    return samples.astype(np.float32) / 32768


def by_lhotse(samples):
    return LogMelFbank().extract(samples, RATE)


def by_kaldi(samples):
    return LogMelFbank(LogMelFbankConfig(back_end="kaldi")).extract(samples, RATE)


def by_torchaudio(samples):
    return torchaudio.compliance.kaldi.fbank(
        torch.from_numpy(samples * np.float32(32768))[None],
        num_mel_bins=64,
        sample_frequency=RATE,
        low_freq=20.0,
        high_freq=-400.0,
        dither=0.0,
        snip_edges=False,
    ).numpy()


def spread(*results):
    stacked = np.stack(results)
    return stacked.max(axis=0) - stacked.min(axis=0)


@pytest.mark.parametrize("seconds", [0.025, 0.98, 4.0, 9.137])
def test_three_implementations_agree_on_speech(seconds):
    samples = audio(speech_like(seconds))
    reference = by_torchaudio(samples)
    difference = spread(by_lhotse(samples), by_kaldi(samples), reference)
    below_loudest = reference.max(axis=1, keepdims=True) - reference
    assert difference[below_loudest < math.log(1e7)].max() <= 2e-4  # 70 dB
    assert (difference <= 2e-4).mean() > 0.999
    # Further down, float32 spectra resolve no better than this.
    assert (difference <= 2e-4 + 4 * 2**-24 * np.exp(below_loudest / 2)).all()


@pytest.mark.parametrize("level", [0, 1, 3000, 20000])
def test_silence_and_constant_offset_give_the_floor_in_every_implementation(level):
    samples = audio(np.full(RATE, level))
    for compute in (by_lhotse, by_kaldi, by_torchaudio):
        np.testing.assert_allclose(compute(samples), LOG_EPSILON, rtol=1e-6)


@pytest.mark.parametrize("offset", [0, 3000])
def test_three_implementations_agree_near_silence(offset):
    noise = np.random.default_rng(0).integers(-1, 2, RATE)
    samples = audio(offset + noise)
    assert spread(by_lhotse(samples), by_kaldi(samples), by_torchaudio(samples)).max() <= 2e-4


@pytest.mark.parametrize("size", [80, 119, 200, 399, 401, 16079, 16080, 64160])
def test_ends_are_mirrored_as_kaldi_does_at_every_length(size):
    samples = audio(speech_like(5)[3000 : 3000 + size])
    lhotse, kaldi = by_lhotse(samples), by_kaldi(samples)
    assert lhotse.shape == kaldi.shape == (LogMelFbankConfig().frames(size), 64)
    assert np.abs(lhotse - kaldi).max() <= 2e-4


@pytest.mark.parametrize("back_end", ["lhotse", "kaldi"])
def test_unfit_audio_is_refused(back_end):
    extractor = LogMelFbank(LogMelFbankConfig(back_end=back_end))
    with pytest.raises(ValueError, match="79 samples are too short"):
        extractor.extract(np.ones(79, np.float32), RATE)
    with pytest.raises(ValueError, match="8000 Hz"):
        extractor.extract(np.ones(8000, np.float32), 8000)
    with pytest.raises(ValueError, match="one channel"):
        extractor.extract(np.ones((2, 8000), np.float32), RATE)


def test_sample_scale_is_part_of_the_configuration():
    samples = audio(speech_like(1))
    unscaled = LogMelFbank(LogMelFbankConfig(sample_scale=1.0)).extract(samples, RATE)
    loud = unscaled > LOG_EPSILON + 1
    difference = (by_lhotse(samples) - unscaled)[loud]
    np.testing.assert_allclose(difference, 2 * math.log(32768), atol=1e-3)


def test_batch_gives_the_same_bits_as_single_utterances():
    samples = [audio(speech_like(seconds, seed=3)) for seconds in (1.0, 5.3, 0.7)]
    batch = LogMelFbank().extract_batch(samples, RATE)
    for single, member in zip(samples, batch, strict=True):
        np.testing.assert_array_equal(by_lhotse(single), member)


def test_extractor_is_registered_with_lhotse():
    config = LogMelFbankConfig(bins=40, back_end="kaldi")
    again = FeatureExtractor.from_dict(LogMelFbank(config).to_dict())
    assert isinstance(again, LogMelFbank)
    assert again.config == config


def test_unusable_configuration_is_refused():
    with pytest.raises(UserError, match="Nyquist"):
        load_config(FeaturesConfig, [], ["fbank.high_freq=9000"])
    with pytest.raises(UserError, match="dither"):
        load_config(FeaturesConfig, [], ["fbank.dither=0.1"])
    for speeds in ("[0.9]", "[1.0, 1.0]", "[1.0, 9.0]"):
        with pytest.raises(UserError, match="speeds"):
            load_config(FeaturesConfig, [], [f"speeds={speeds}"])
    with pytest.raises(UserError, match="jobs"):
        load_config(FeaturesConfig, [], ["jobs=0"])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_storage_reads_back_what_was_written(tmp_path, dtype):
    path = tmp_path / f"store.f{8 * dtype().itemsize}"
    random = np.random.default_rng(0)
    values = [random.normal(size=(frames, 5)).astype(dtype) for frames in (3, 1, 7)]
    with FlatFeaturesWriter(path) as writer:
        keys = [writer.write(str(i), value) for i, value in enumerate(values)]
    reader = FlatFeaturesReader(path)
    assert path.stat().st_size == 11 * 5 * dtype().itemsize
    assert reader.read(keys[0]).dtype == np.float32
    np.testing.assert_array_equal(reader.read(keys[0]), values[0])
    np.testing.assert_array_equal(reader.read(keys[1]), values[1])
    np.testing.assert_array_equal(reader.read(keys[2], 2, 5), values[2][2:5])
    np.testing.assert_array_equal(reader.read(keys[2], 4), values[2][4:])


def test_short_or_missing_store_is_named(tmp_path):
    path = tmp_path / "store.f32"
    with pytest.raises(UserError, match=r"store\.f32.*rerun"):
        read_features(path, Extent(0, 2, 64))
    path.write_bytes(b"\0" * 500)
    with pytest.raises(UserError, match=r"store\.f32.*short"):
        read_features(path, Extent(0, 2, 64))


def files(root: Path) -> dict[str, bytes]:
    """All that the stage wrote; of its marker, which also tells the time, what stages rely on."""
    folder = root / "features"
    written = [path for path in folder.rglob("*") if path.is_file()]
    kept = {path.relative_to(folder).as_posix(): path.read_bytes() for path in written}
    marker = json.loads(kept["stage.json"])
    return {**kept, "stage.json": json.dumps([marker["counts"], marker["outputs"]]).encode()}


def test_stage_writes_features_statistics_and_manifests(tmp_path, caplog):
    small_corpus(tmp_path)
    caplog.set_level(logging.INFO)
    features.run(workspace(tmp_path, "speeds=[0.9, 1.0, 1.1]"))
    assert "times real time" in caplog.text
    folder = tmp_path / "features"
    collected = []
    for speed in ("", "-sp0.9", "-sp1.1"):
        factor = float(speed[3:] or 1.0)
        cuts = list(load_cuts(folder / f"train{speed}.jsonl.gz"))
        assert [cut.id for cut in cuts] == [f"train-{i}" for i in range(7)]
        for cut in cuts:
            computed = by_lhotse(cut.load_audio()[0])
            # The same bits unless Lhotse's way of loading perturbed audio comes into it.
            np.testing.assert_allclose(cut.load_features(), computed, atol=0 if not speed else 1e-3)
            original = soundfile.info(tmp_path / "audio" / f"{cut.id}.flac").frames
            assert cut.num_samples == pytest.approx(original / factor, abs=1)
            assert cut.supervisions[0].duration == pytest.approx(cut.duration, abs=1e-4)
            assert cut.num_frames == LogMelFbankConfig().frames(cut.num_samples)
            if not speed:
                collected.append(computed)
    assert not (folder / "dev-sp0.9.jsonl.gz").exists()
    statistics = json.loads((folder / "statistics.json").read_text())
    together = np.concatenate(collected).astype(np.float64)
    np.testing.assert_allclose(statistics["mean"], together.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(statistics["std"], together.std(axis=0), rtol=1e-9)
    assert statistics["frames"] == len(together)
    assert LogMelFbankConfig.from_dict(statistics["features"]) == LogMelFbankConfig()


def test_std_is_floored_for_bins_without_signal():
    moments = Moments.of(np.full((1000, 2), 17.123, np.float32))
    np.testing.assert_array_equal(moments.std(), [STD_FLOOR, STD_FLOOR])


def test_bytes_do_not_depend_on_jobs_or_run(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "SHARD_SECONDS", 2.0)
    small_corpus(tmp_path)
    features.run(workspace(tmp_path, "jobs=2"))
    first = files(tmp_path)
    features.run(workspace(tmp_path, "jobs=1", force=True))
    assert files(tmp_path) == first
    shards = [name for name in first if name.startswith("train/")]
    assert len(shards) == 6  # of 7 utterances of 1 s to 5.3 s
    assert not [name for name in first if ".partial" in name]


def test_manifest_bytes_do_not_depend_on_time_or_name(tmp_path, monkeypatch):
    cut = make_cut("a", RATE, "x", "a.flac")
    write_cuts(tmp_path / "one.jsonl.gz", [cut])
    monkeypatch.setattr(time, "time", lambda: 1e9)
    write_cuts(tmp_path / "two.jsonl.gz", [cut])
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()
    assert [read.to_dict() for read in load_cuts(tmp_path / "two.jsonl.gz")] == [cut.to_dict()]


def test_experiment_can_be_moved(tmp_path):
    small_corpus(tmp_path / "before")
    features.run(workspace(tmp_path / "before"))
    (tmp_path / "before").rename(tmp_path / "after")
    cut = next(iter(load_cuts(tmp_path / "after" / "features" / "dev.jsonl.gz")))
    np.testing.assert_array_equal(cut.load_features(), by_lhotse(cut.load_audio()[0]))


def test_audio_path_that_is_not_beside_the_manifest_stays(tmp_path):
    write_manifests(tmp_path, {"dev": [make_cut("a", RATE, "x", "somewhere/a.flac")]})
    (cut,) = load_cuts(tmp_path / "manifests" / "dev.jsonl.gz")
    assert cut.recording.sources[0].source == "somewhere/a.flac"


def test_workers_that_run_in_another_folder_write_where_the_stage_reads(tmp_path, monkeypatch):
    """As Dask's do; the stage was given a relative folder."""

    @contextlib.contextmanager
    def elsewhere(jobs, cluster, preload):
        def mapped(function, tasks):
            for task in tasks:
                with contextlib.chdir(tmp_path / "elsewhere"):
                    result = function(task)
                yield result

        yield mapped

    (tmp_path / "elsewhere").mkdir()
    small_corpus(tmp_path / "exp")
    monkeypatch.setattr(features, "worker_map", elsewhere)
    monkeypatch.chdir(tmp_path)
    features.run(workspace(Path("exp")))
    assert not list((tmp_path / "elsewhere").iterdir())
    (cut, *_) = load_cuts(Path("exp/features/dev.jsonl.gz"))
    assert cut.load_features().shape[1] == 64


def test_second_run_is_skipped_and_more_processes_are_no_change(tmp_path):
    small_corpus(tmp_path)
    features.run(workspace(tmp_path))
    before = (tmp_path / "features" / "stage.json").stat().st_mtime_ns
    features.run(workspace(tmp_path, "jobs=2"))
    assert (tmp_path / "features" / "stage.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_killed_run_is_taken_up_where_it_stopped(tmp_path, monkeypatch, caplog, dtype):
    """As it stands after a kill: some shards are there, their part's manifest is not."""
    monkeypatch.setattr(features, "SHARD_SECONDS", 2.0)
    caplog.set_level(logging.INFO)
    small_corpus(tmp_path)
    features.run(workspace(tmp_path, f"dtype={dtype}"))
    expected = files(tmp_path)
    folder = tmp_path / "features"
    marker = json.loads((folder / "stage.json").read_text())
    request = {key: marker[key] for key in ("stage", "format_version", "parameters", "inputs")}
    (folder / "stage.started.json").write_text(json.dumps(request))
    shards = {path.relative_to(folder).as_posix(): path for path in folder.rglob("0*.f*")}
    lost = ["stage.json", "statistics.json", *sorted(shards)[:3]]
    for name in [*lost, *(path.name for path in folder.glob("*.jsonl.gz"))]:
        (folder / name).unlink()
    (folder / "train" / ".partial-host-1-00003.f16").write_bytes(b"short")
    before = {path: path.stat().st_ino for path in folder.rglob("0*.f*")}
    features.run(workspace(tmp_path, f"dtype={dtype}"))
    assert files(tmp_path) == expected
    assert {path: path.stat().st_ino for path in before} == before
    assert "0.00 h were there before" not in caplog.records[-2].getMessage()


def test_a_run_that_is_killed_loses_what_was_being_made_alone(tmp_path):
    small_corpus(tmp_path)
    block(tmp_path / "audio" / "dev-1.flac")
    stage = start_stage(tmp_path, "features", "jobs=1")
    with readers_of(tmp_path / "audio" / "dev-1.flac"):
        wait_until((tmp_path / "features" / "train.jsonl.gz").exists)
        stage.kill()
        stage.communicate()
    shard = tmp_path / "features" / "train" / "00000.f32"
    kept = shard.stat()
    features.run(workspace(tmp_path))
    assert (shard.stat().st_ino, shard.stat().st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)
    after = files(tmp_path)
    features.run(workspace(tmp_path, force=True))
    assert files(tmp_path) == after


def vanish(path: Path) -> None:
    path.unlink()


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def grow(path: Path) -> None:
    soundfile.write(path, speech_like(9), RATE)


def shrink(path: Path) -> None:
    soundfile.write(path, speech_like(0.5), RATE)


def other_rate(path: Path) -> None:
    soundfile.write(path, speech_like(1.7137), 8000)


@pytest.mark.parametrize("change", [vanish, cut_short, grow, shrink, other_rate])
def test_audio_changed_since_stage_1_is_named(tmp_path, change):
    cut = write_utterance(tmp_path / "audio", "u1", 1.7137, "x", seed=1)
    cut.recording.sources[0].source = str(tmp_path / "audio" / "u1.flac")
    change(tmp_path / "audio" / "u1.flac")
    with pytest.raises(UserError, match=r"utterance u1: .*u1\.flac .*rerun the manifests stage"):
        read_audio(Utterance.of(cut), 16000)


def test_stage_fails_by_name_without_leaving_output(tmp_path):
    small_corpus(tmp_path)
    (tmp_path / "audio" / "dev-1.flac").unlink()
    with pytest.raises(UserError, match=r"dev-1.*dev-1\.flac"):
        features.run(workspace(tmp_path))
    left = [path.name for path in (tmp_path / "features").iterdir() if path.is_file()]
    assert sorted(left) == ["stage.started.json", "statistics.json", "train.jsonl.gz"]
    assert not list((tmp_path / "features" / "dev").iterdir())


def test_audio_of_another_rate_is_resampled(tmp_path):
    """Below the lower Nyquist frequency the features are those of the recording itself."""
    wide = audio(speech_like(2))
    soundfile.write(tmp_path / "wide.wav", wide, RATE, subtype="FLOAT")
    narrow = torchaudio.functional.resample(torch.from_numpy(wide), RATE, 8000).numpy()
    soundfile.write(tmp_path / "narrow.wav", narrow, 8000, subtype="FLOAT")
    found = []
    for name, rate in (("wide", RATE), ("narrow", 8000)):
        cut = make_cut(name, 2 * RATE, "x", str(tmp_path / f"{name}.wav"))
        cut.recording.sampling_rate, cut.recording.num_samples = rate, 2 * rate
        utterance = Utterance.of(cut)
        assert utterance.num_samples == 2 * rate
        assert utterance.samples_at(RATE, 0.9) == perturb_num_samples(2 * RATE, 0.9)
        samples = read_audio(utterance, RATE)
        assert len(samples) == utterance.samples_at(RATE, 1.0)
        found.append(LogMelFbank().extract(samples, RATE))
    low = slice(0, 40)  # up to about 3 kHz
    assert np.abs(found[0][2:-2, low] - found[1][2:-2, low]).mean() < 0.1


def test_another_rate_than_stage_1_asked_for_is_an_error(tmp_path):
    small_corpus(tmp_path)
    telephone = ("fbank.sampling_rate=8000", "fbank.high_freq=3800")
    with pytest.raises(UserError, match=r"8000 Hz, but stage 1's sample_rate 16000 Hz"):
        features.run(workspace(tmp_path, *telephone))


def test_the_mean_of_all_channels(tmp_path):
    both = np.stack([speech_like(1, seed=1), speech_like(1, seed=2)], axis=1)
    soundfile.write(tmp_path / "two.flac", both, RATE)
    cut = make_cut("u", len(both), "x", str(tmp_path / "two.flac"))
    cut.recording.sources[0].channels, cut.custom = [0, 1], {"mix": True}
    samples = read_audio(Utterance.of(cut), RATE)
    np.testing.assert_allclose(samples, (audio(both[:, 0]) + audio(both[:, 1])) / 2, atol=1e-6)


def one_task(root: Path, output: Path | None) -> Task:
    cut = write_utterance(root / "audio", "u1", 1.0, "x", seed=1)
    cut.recording.sources[0].source = str(root / "audio" / "u1.flac")
    return Task([Utterance.of(cut)], 1.0, LogMelFbankConfig(), output, counted=True)


def test_full_disk_is_a_clear_error(tmp_path):
    task = one_task(tmp_path, tmp_path / "train" / "00000.f32")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"00000\.f32: cannot write features: File too large"):
            features._run(task)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((tmp_path / "train").iterdir())


def test_killed_worker_is_a_clear_error(tmp_path):
    small_corpus(tmp_path)
    block(tmp_path / "audio" / "train-3.flac")
    stage = start_stage(tmp_path, "features", "jobs=1")
    with readers_of(tmp_path / "audio" / "train-3.flac") as (worker,):
        os.kill(worker, signal.SIGKILL)
        said = stage.communicate()[1]
    assert stage.returncode == 1
    assert "was killed (out of memory?), at utterances train-0 to train-6 or soon" in said
    assert not list((tmp_path / "features").rglob("0*.f32"))


def test_segments_and_channels_of_a_recording(tmp_path):
    both = np.stack([speech_like(2, seed=1), speech_like(2, seed=2)], axis=1)
    soundfile.write(tmp_path / "two.flac", both, RATE)
    cut = make_cut("u", len(both), "x", str(tmp_path / "two.flac"))
    cut.recording.sources[0].channels = [0, 1]
    cut.channel, cut.start, cut.duration = 1, 0.5, 1.0
    samples = read_audio(Utterance.of(cut), 16000)
    np.testing.assert_array_equal(samples, audio(both[8000:24000, 1]))


def test_empty_train_split_is_an_error(tmp_path):
    small_corpus(tmp_path)
    write_manifests(tmp_path, {"train": []})
    with pytest.raises(UserError, match=r"train split has no utterance.*rejected\.jsonl"):
        features.run(workspace(tmp_path))


def test_workers_die_with_their_parent(tmp_path):
    small_corpus(tmp_path)
    block(tmp_path / "audio" / "train-3.flac")
    stage = start_stage(tmp_path, "features")
    with readers_of(tmp_path / "audio" / "train-3.flac"):
        stage.send_signal(signal.SIGKILL)
        stage.communicate()
        wait_until(lambda: not processes_of(tmp_path))


def processes_of(folder: Path) -> list[int]:
    """Processes that carry this test's mark in their environment."""
    mark = f"STAGE_TEST={folder}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
