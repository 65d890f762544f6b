"""Features stored or computed when asked for: the same numbers."""

import json
from pathlib import Path

import numpy as np
import pytest
from speech_helpers import SPLITS, small_corpus, workspace

from asr import features, tokens
from asr.audio.utterance import Utterance
from asr.errors import UserError
from asr.filterbank.sources import AudioPlace, _audio_arrays, source_of
from asr.filterbank.storage import load_cuts
from asr.training.data import UtteranceSet

SPEEDS = "speeds=[0.9, 1.0, 1.1]"
ALL_SPLITS = [SPLITS["train"], SPLITS["dev"], *SPLITS["tests"]]


def make_features(root, *overrides):
    small_corpus(root)
    features.run(workspace(root, SPEEDS, *overrides))
    tokens.run(workspace(root))
    return {split: UtteranceSet.of_split(workspace(root), split) for split in ALL_SPLITS}


def test_computed_features_are_bit_for_bit_the_stored_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "SHARD_SECONDS", 2.0)
    stored = make_features(tmp_path / "stored")
    computed = make_features(tmp_path / "computed", "store=false")
    for split in ALL_SPLITS:
        np.testing.assert_array_equal(stored[split].speed_frames, computed[split].speed_frames)
        for index in range(len(stored[split])):
            assert stored[split].id(index) == computed[split].id(index)
            for speed in range(stored[split].speed_frames.shape[1]):
                one, other = stored[split].load(index, speed), computed[split].load(index, speed)
                assert one.dtype == other.dtype == np.float32
                np.testing.assert_array_equal(one, other)
    assert stored["train"].speed_frames.shape == (7, 3)
    assert list((tmp_path / "stored" / "features").rglob("*.f32"))
    assert not list((tmp_path / "computed" / "features").rglob("*.f32"))


def test_statistics_and_counts_do_not_depend_on_storing(tmp_path):
    for name, store in (("stored", "true"), ("computed", "false")):
        make_features(tmp_path / name, f"store={store}")
    one, other = (tmp_path / name / "features" for name in ("stored", "computed"))
    assert (one / "statistics.json").read_bytes() == (other / "statistics.json").read_bytes()
    markers = [json.loads((folder / "stage.json").read_text()) for folder in (one, other)]
    assert markers[0]["counts"] == markers[1]["counts"]


def test_lhotse_loads_computed_features_also_of_a_moved_experiment(tmp_path):
    stored = make_features(tmp_path / "stored")
    make_features(tmp_path / "before", "store=false")
    (tmp_path / "before").rename(tmp_path / "after")
    cuts = list(load_cuts(tmp_path / "after" / "features" / "train-sp0.9.jsonl.gz"))
    for index, cut in enumerate(cuts):
        whole = stored["train"].load(index, 1)
        np.testing.assert_array_equal(cut.load_features(), whole)
        np.testing.assert_array_equal(cut.truncate(duration=0.5).load_features(), whole[:50])


def test_audio_that_vanished_is_named_when_it_is_wanted(tmp_path):
    utterances = make_features(tmp_path, "store=false")["train"]
    (tmp_path / "audio" / "train-2.flac").unlink()
    utterances.load(1)
    with pytest.raises(UserError, match=r"utterance train-2: .*train-2\.flac cannot be read"):
        utterances.load(2)


def test_half_of_the_bytes_are_off_by_less_than_a_hundredth(tmp_path):
    whole = make_features(tmp_path / "whole")["train"]
    half = make_features(tmp_path / "half", "dtype=float16")["train"]
    for index in range(len(whole)):
        for speed in range(3):
            one, other = whole.load(index, speed), half.load(index, speed)
            assert other.dtype == np.float32
            assert 0 < np.abs(one - other).max() <= 2**-7
    sizes = [
        sum(path.stat().st_size for path in (tmp_path / name).rglob("0*.f*"))
        for name in ("whole", "half")
    ]
    assert sizes[0] == 2 * sizes[1] > 0
    with pytest.raises(UserError, match="dtype=float16 is for stored features"):
        features.run(workspace(tmp_path / "half", "dtype=float16", "store=false"))


def test_what_audio_features_are_computed_from_is_kept_as_arrays(tmp_path, monkeypatch):
    small_corpus(tmp_path)
    features.run(workspace(tmp_path, "store=false"))
    wanted = [
        AudioPlace(12, 0.9, Utterance("é/1", Path("a b.ogg"), None, 5, 1920, 9000, 16000)),
        AudioPlace(7, 0.9, Utterance("u2", Path("a b.ogg"), 1, 2000, 1120, 9000, 16000)),
        AudioPlace(3, 0.9, Utterance("u3", Path("日本.flac"), 0, 0, 480, 480, 8000)),
    ]
    source = source_of(_audio_arrays(wanted), tmp_path / "features")
    assert source.frames.tolist() == [12, 7, 3]
    monkeypatch.setattr("asr.filterbank.sources._computed", lambda place, *rest: place)
    assert [source.load(index) for index in range(3)] == wanted
    assert len(source.arrays["path_ends"]) == 3  # two recordings
