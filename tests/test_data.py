import gc
import itertools
import json
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from speech_helpers import made_up_features, workspace, write_features

from asr import tokens
from asr.config import load_config
from asr.errors import UserError
from asr.training.augment import SpecAugmentConfig, spec_augment, stable_seed, stretch_mel_axis
from asr.training.data import NO_BATCH, BatchStream, UtteranceSet, collate, epoch_plan


def durations(n, seed=0):
    random = np.random.default_rng(seed)
    return np.clip(random.lognormal(6.5, 0.5, n), 80, 3000).astype(np.int64)


def all_batches(plan, workers):
    return [[plan.batch(step, worker) for step in range(len(plan))] for worker in range(workers)]


@settings(max_examples=50, deadline=None)
@given(
    frames=st.lists(st.integers(1, 500), max_size=60),
    workers=st.integers(1, 9),
    epoch=st.integers(0, 5),
)
def test_plan_deals_every_utterance_once_within_the_limit(frames, workers, epoch):
    frames = np.array(frames, dtype=np.int64)
    plan = epoch_plan(frames, epoch, seed=7, batch_frames=900, workers=workers)
    by_worker = all_batches(plan, workers)
    batches = [batch for batches in by_worker for batch in batches if batch is not None]
    assert sorted(index for batch in batches for index in batch) == list(range(len(frames)))
    assert all(frames[batch].max() * len(batch) <= 900 for batch in batches)
    numbers = [sum(batch is not None for batch in batches) for batches in by_worker]
    assert max(numbers) - min(numbers) <= 1
    assert (plan.steps[:-1] != NO_BATCH).all()


def test_plan_follows_from_seed_and_epoch():
    frames = durations(500)

    def orders(epoch, seed):
        plan = epoch_plan(frames, epoch, seed, 20000, 4)
        return plan.order.tolist(), plan.steps.tolist()

    assert orders(1, 2) == orders(1, 2)
    for other in (orders(2, 2), orders(1, 3)):
        assert other[0] != orders(1, 2)[0]
        assert other[1] != orders(1, 2)[1]


def test_number_of_batches_is_the_same_in_every_epoch():
    frames = durations(500)
    assert len({len(epoch_plan(frames, epoch, 0, 9000, 4).starts) for epoch in range(5)}) == 1


def test_work_does_not_grow_with_the_number_of_workers():
    frames = durations(3000)
    one, many = (epoch_plan(frames, 3, 0, 20000, workers) for workers in (1, 128))
    np.testing.assert_array_equal(one.order, many.order)
    np.testing.assert_array_equal(one.starts, many.starts)
    assert many.steps.size < one.steps.size + 128


def test_batches_and_steps_hold_similar_durations():
    frames = durations(20000)
    workers = 8
    plan = epoch_plan(frames, 0, 0, 20000, workers)
    longest = np.maximum.reduceat(frames[plan.order], plan.starts[:-1])
    padded = longest * np.diff(plan.starts)
    assert frames.sum() / padded.sum() > 0.95  # 5 % padding at most
    steps = plan.steps[:-1]
    assert np.mean(longest[steps].max(axis=1) / longest[steps].min(axis=1)) < 1.05
    # In random order: the longest steps are not all at one end.
    means = longest[steps].mean(axis=1)
    assert abs(np.corrcoef(means, np.arange(len(steps)))[0, 1]) < 0.2


def test_left_over_batches_are_not_always_the_longest():
    frames = durations(2000)
    shares = []
    for epoch in range(12):
        plan = epoch_plan(frames, epoch, 0, 20000, 12)
        last = plan.steps[-1]
        assert (last == NO_BATCH).any()
        shares.append(last[last != NO_BATCH].mean() / plan.steps.max())
    assert min(shares) < 0.4
    assert max(shares) > 0.6


def test_plan_refuses_what_fits_no_batch():
    with pytest.raises(ValueError, match="901"):
        epoch_plan(np.array([5, 901]), 0, 0, 900, 2)
    with pytest.raises(ValueError, match="0 to 5"):
        epoch_plan(np.array([5, 0]), 0, 0, 900, 2)


TEXTS = ["call anna", "turn left", "yes", "no", "stop now"]
SPEEDS = (0.9, 1.0, 1.1)


def utterance_lengths(n):
    return {f"u{i}": (60 + 13 * i, TEXTS[i % len(TEXTS)]) for i in range(n)}


def make_set(root, n=23, speeds=(1.0,)):
    others = {"dev": {"d": (300, "yes")}, "test-a": {"t": (200, "no")}}
    write_features(root, {"train": utterance_lengths(n), **others}, speeds)
    tokens.run(workspace(root))
    return UtteranceSet.of_split(workspace(root), "train")


def test_utterance_set_reads_tokens_and_features(tmp_path):
    utterances = make_set(tmp_path, speeds=SPEEDS)
    model = tokens.Tokenizer(tmp_path / "tokens" / "tokens.model")
    assert len(utterances) == 23
    assert utterances.frames.dtype == np.int64
    for index, (name, (frames, text)) in enumerate(utterance_lengths(23).items()):
        assert utterances.id(index) == name
        assert utterances.frames[index] == frames
        assert model.decode(utterances.tokens(index).tolist()) == text
        for speed_index, speed in enumerate((1.0, 0.9, 1.1)):
            loaded = utterances.load(index, speed_index)
            assert loaded.dtype == np.float32
            assert len(loaded) == utterances.speed_frames[index, speed_index]
            np.testing.assert_array_equal(loaded, made_up_features(len(loaded), "train", speed))
    assert UtteranceSet.of_split(workspace(tmp_path), "dev").speed_frames.shape == (1, 1)


def test_tokens_without_features_are_named(tmp_path):
    make_set(tmp_path)
    path, features = tmp_path / "tokens" / "train.jsonl", tmp_path / "features" / "train.jsonl.gz"
    row = json.dumps({"id": "stray", "corpus": "test", "tokens": [2]})
    path.write_text(path.read_text() + row + "\n")
    with pytest.raises(UserError, match="no features of utterance stray"):
        UtteranceSet.of_files(path, [features])
    path.unlink()
    with pytest.raises(UserError, match=r"train\.jsonl: no such file"):
        UtteranceSet.of_files(path, [features])


@pytest.mark.parametrize("speeds", [(1.0,), SPEEDS])
def test_the_index_is_what_the_files_say(tmp_path, speeds):
    indexed = make_set(tmp_path, speeds=speeds)
    folder = tmp_path / "features"
    others = [folder / f"train-sp{speed:g}.jsonl.gz" for speed in speeds if speed != 1]
    files = UtteranceSet.of_files(
        tmp_path / "tokens" / "train.jsonl", [folder / "train.jsonl.gz", *others]
    )
    assert len(indexed) == len(files) == 23
    assert indexed.corpora == files.corpora == ["test"]
    np.testing.assert_array_equal(indexed.corpus, files.corpus)
    np.testing.assert_array_equal(indexed.speed_frames, files.speed_frames)
    for index in range(23):
        assert indexed.id(index) == files.id(index)
        np.testing.assert_array_equal(indexed.tokens(index), files.tokens(index))
        for speed in range(len(speeds)):
            np.testing.assert_array_equal(indexed.load(index, speed), files.load(index, speed))


@pytest.mark.parametrize("damage", ["missing", "empty", "half", "text"])
def test_a_damaged_index_is_named(tmp_path, damage):
    make_set(tmp_path)
    path = tmp_path / "tokens" / "train.npz"
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"empty": b"", "half": whole[: len(whole) // 2], "text": b"x" * 99}[damage]
        )
    with pytest.raises(UserError, match=r"train\.npz.* tokens stage"):
        UtteranceSet.of_split(workspace(tmp_path), "train")


def test_collate_pads_with_zeros():
    random = np.random.default_rng(0)
    features = [random.normal(size=(n, 64)).astype(np.float32) for n in (3, 5)]
    ids = [np.array([4, 2], np.int32), np.array([7], np.int32)]
    batch = collate(["a", "b"], features, ids)
    assert batch.ids == ["a", "b"]
    assert batch.features.shape == (2, 5, 64)
    assert batch.features.dtype == torch.float32
    np.testing.assert_array_equal(batch.features[0, :3], features[0])
    np.testing.assert_array_equal(batch.features[1], features[1])
    assert not batch.features[0, 3:].any()
    assert batch.feature_lengths.tolist() == [3, 5]
    assert batch.tokens.tolist() == [4, 2, 7]
    assert batch.token_lengths.tolist() == [2, 1]
    lengths = (batch.feature_lengths, batch.tokens, batch.token_lengths)
    assert all(tensor.dtype == torch.int64 for tensor in lengths)


AUGMENT = SpecAugmentConfig(time_width=20, freq_width=8)


def stream(utterances, worker, workers, epochs=2, augment=AUGMENT):
    return BatchStream(
        utterances,
        worker=worker,
        workers=workers,
        epochs=epochs,
        seed=3,
        batch_frames=900,
        augment=augment,
        mean=np.zeros(64, np.float32),
    )


def unpack(batches):
    """(id, features, tokens) of every utterance, in order."""
    found = []
    for batch in batches:
        if batch is not None:
            ends = batch.token_lengths.cumsum(0).tolist()
            for i, name in enumerate(batch.ids):
                first = ends[i] - int(batch.token_lengths[i])
                length = int(batch.feature_lengths[i])
                found.append(
                    (
                        name,
                        batch.features[i, :length].numpy(),
                        batch.tokens[first : ends[i]].tolist(),
                    )
                )
    return found


def test_stream_gives_every_utterance_once_an_epoch(tmp_path):
    utterances = make_set(tmp_path)
    streams = [stream(utterances, worker, 4, augment=None) for worker in range(4)]
    steps = [list(one) for one in streams]
    assert {len(batches) for batches in steps} == {len(streams[0])}
    assert sum(batch is None for batches in steps for batch in batches) > 0
    found = [item for batches in steps for item in unpack(batches)]
    assert sorted(name for name, _, _ in found) == sorted(2 * list(utterance_lengths(23)))
    for name, features, ids in found:
        index = int(name[1:])
        np.testing.assert_array_equal(features, utterances.load(index))
        assert ids == utterances.tokens(index).tolist()


def test_the_first_epochs_take_short_utterances_first(tmp_path):
    utterances = make_set(tmp_path)
    plain, ordered = (stream(utterances, 0, 2) for _ in range(2))
    ordered.sorted_epochs = 1
    # Batches are numbered by duration; the last step is not for all workers.
    longest = [source.plan(0).steps.max(axis=1)[:-1].tolist() for source in (plain, ordered)]
    assert longest[0] != sorted(longest[0])
    assert longest[1] == sorted(longest[1])
    assert NO_BATCH in ordered.plan(0).steps[-1]
    same = [np.sort(source.plan(0).steps.ravel()) for source in (plain, ordered)]
    np.testing.assert_array_equal(*same)
    np.testing.assert_array_equal(plain.plan(1).steps, ordered.plan(1).steps)


def test_a_sorted_epoch_goes_on_where_it_was_also_with_other_workers(tmp_path):
    utterances = make_set(tmp_path)

    def sorted_stream(worker, workers):
        source = stream(utterances, worker, workers, augment=None)
        source.sorted_epochs = 2
        return source

    def names(source, steps=None):
        return [name for name, _, _ in unpack(itertools.islice(source, steps))]

    sources = [sorted_stream(worker, 2) for worker in range(2)]
    begun = [name for source in sources for name in names(source, 2)]
    state = sources[0].state_dict()
    rest = []
    for worker in range(3):
        source = sorted_stream(worker, 3)
        source.load_state_dict(state)
        rest += names(source)
    assert sorted(begun + rest) == sorted(2 * list(utterance_lengths(23)))


def test_utterances_look_the_same_whichever_worker_has_them(tmp_path):
    utterances = make_set(tmp_path, speeds=SPEEDS)

    def seen(workers):
        by_epoch = [{}, {}]
        for worker in range(workers):
            source = stream(utterances, worker, workers)
            for batch in source:
                epoch = source.state_dict()["epoch"]
                by_epoch[epoch].update({name: features for name, features, _ in unpack([batch])})
        return by_epoch

    one, three = seen(1), seen(3)
    changed = 0
    for epoch in range(2):
        assert set(one[epoch]) == set(three[epoch]) == set(utterance_lengths(23))
        for name in one[epoch]:
            np.testing.assert_array_equal(one[epoch][name], three[epoch][name])
    for name in one[0]:
        first, second = one[0][name], one[1][name]
        changed += first.shape != second.shape or not np.array_equal(first, second)
    assert changed > 18  # speed and masks are drawn anew in each epoch


def test_every_speed_is_used(tmp_path):
    utterances = make_set(tmp_path, speeds=SPEEDS)
    used = {0: 0, 1: 0, 2: 0}
    for name, features, _ in unpack(stream(utterances, 0, 1, epochs=4, augment=None)):
        index = int(name[1:])
        (speed,) = np.flatnonzero(utterances.speed_frames[index] == len(features))[:1]
        np.testing.assert_array_equal(features, utterances.load(index, speed))
        used[speed] += 1
    assert min(used.values()) > 15


@pytest.mark.parametrize("speeds", [(1.0,), SPEEDS])
def test_stream_resumes_at_every_step(tmp_path, speeds):
    utterances = make_set(tmp_path, speeds=speeds)
    whole = list(stream(utterances, 1, 2))
    assert len(whole) == len(stream(utterances, 1, 2))
    source = stream(utterances, 1, 2)
    running = iter(source)
    for done in range(len(whole) + 1):
        resumed = stream(utterances, 1, 2)
        resumed.load_state_dict(json.loads(json.dumps(source.state_dict())))
        rest = list(resumed)
        assert len(rest) == len(whole) - done
        for expected, batch in zip(unpack(whole[done:]), unpack(rest), strict=True):
            assert expected[0] == batch[0]
            np.testing.assert_array_equal(expected[1], batch[1])
        next(running, None)


def test_memory_does_not_grow_over_an_epoch(tmp_path):
    members = {f"u{i:04}": (20 + i % 50, TEXTS[i % len(TEXTS)]) for i in range(3000)}
    others = {"dev": {"d": (300, "yes")}, "test-a": {"t": (200, "no")}}
    write_features(tmp_path, {"train": members, **others})
    tokens.run(workspace(tmp_path))
    source = stream(UtteranceSet.of_split(workspace(tmp_path), "train"), 0, 1, epochs=1)
    steps, found = len(source), []
    tracemalloc.start()
    try:
        for step, _ in enumerate(source):
            if step in (steps // 4, steps - 1):
                gc.collect()
                found.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # All of the epoch's features are 34 MB.
    assert found[1] - found[0] < 100_000


def test_resuming_reads_no_earlier_batches(tmp_path, monkeypatch):
    utterances = make_set(tmp_path)
    resumed = stream(utterances, 0, 1, epochs=50)
    position = {"epoch": 49, "step": len(resumed) // 50 - 1}
    resumed.load_state_dict(resumed.state_dict() | position)
    reads = []
    load = UtteranceSet.load
    monkeypatch.setattr(UtteranceSet, "load", lambda *args: reads.append(1) or load(*args))
    (batch,) = resumed
    assert len(reads) == len(batch.ids)


def test_other_numbers_of_workers_share_what_is_left_of_the_epoch(tmp_path, caplog):
    utterances = make_set(tmp_path, n=55, speeds=SPEEDS)
    everything = unpack(stream(utterances, 0, 1, epochs=1))

    def go_on(state, workers, steps):
        """What all workers see in ``steps`` steps from ``state`` on, and where they are then."""
        found, states, done = [], [], []
        for worker in range(workers):
            source = stream(utterances, worker, workers, epochs=1)
            if state is not None:
                source.load_state_dict(json.loads(json.dumps(state)))
            left = source.remaining
            found += [batch for _, batch in zip(range(steps), source, strict=False)]
            states.append(source.state_dict())
            done.append(source.done)
            assert source.remaining == max(0, left - steps)
        assert all(other == states[0] for other in states)
        assert len(set(done)) == 1
        return unpack(found), states[0], done[0]

    first, state, share_first = go_on(None, 3, 2)
    second, state, share_second = go_on(state, 2, 2)
    assert "2 workers instead of 3" in caplog.text
    third, _, share = go_on(state, 4, 99)
    assert 0 < share_first < share_second < share == 1
    assert min(len(first), len(second), len(third)) > 0
    by_name = sorted([*first, *second, *third], key=lambda item: item[0])
    assert len(by_name) == len(everything)
    for seen, (name, features, ids) in zip(by_name, sorted(everything), strict=True):
        assert seen[0] == name
        np.testing.assert_array_equal(seen[1], features)
        assert seen[2] == ids


def test_another_number_of_workers_may_take_over_at_an_epochs_end(tmp_path):
    utterances = make_set(tmp_path)
    before, after = stream(utterances, 0, 1), stream(utterances, 0, 2)
    for _ in range(len(before) // 2):
        next(iter(before))
    after.load_state_dict(before.state_dict())
    assert after.done == before.done == 0.5
    assert after.remaining == len(list(after)) == len(after) // 2
    assert after.done == 1


@pytest.mark.parametrize("changed", ["batch_frames", "seed", "corpus_weights", "utterances"])
def test_with_other_batches_the_epoch_begins_anew(tmp_path, changed, caplog):
    settings = {"worker": 0, "workers": 1, "epochs": 3, "seed": 3, "batch_frames": 900}
    source = BatchStream(make_set(tmp_path / "then"), **settings)
    running = iter(source)
    for _ in range(len(source) // 3 + 2):
        next(running)
    number = 31 if changed == "utterances" else 23
    others = {"batch_frames": {"batch_frames": 2000}, "seed": {"seed": 4}}
    others["corpus_weights"] = {"weights": {"test": 2.0}}
    resumed = BatchStream(
        make_set(tmp_path / "now", n=number), **settings | others.get(changed, {})
    )
    resumed.load_state_dict(json.loads(json.dumps(source.state_dict())))
    assert f"({changed}" in caplog.text and "epoch 2 begins anew" in caplog.text
    left = resumed.remaining
    batches = list(resumed)
    assert left == len(batches) > 0 and resumed.done == 1
    names = [name for name, _, _ in unpack(batches)]
    times = 4 if changed == "corpus_weights" else 2
    assert sorted(names) == sorted(times * list(utterance_lengths(number)))


def two_corpora(root):
    """23 utterances, of which every third is of corpus b."""
    utterances = make_set(root)
    utterances.corpora = ["a", "b"]
    utterances.corpus = (np.arange(23) % 3 == 0).astype(np.int64)
    return utterances


def test_a_corpus_is_seen_as_often_as_its_weight_says(tmp_path):
    utterances = two_corpora(tmp_path)
    weights = {"b": 2.5, "a": 0.4}
    seen: list[dict] = [{}, {}, {}]
    for worker in range(2):
        source = BatchStream(
            utterances,
            worker=worker,
            workers=2,
            epochs=3,
            seed=3,
            batch_frames=900,
            augment=AUGMENT,
            mean=np.zeros(64, np.float32),
            weights=weights,
        )
        steps = 0
        for batch in source:
            steps += 1
            for name, features, _ in unpack([batch]):
                seen[source.state_dict()["epoch"]].setdefault(name, []).append(features)
        assert steps == len(source)
    for epoch in seen:
        numbers = {name: len(copies) for name, copies in epoch.items()}
        of_b = [numbers.pop(f"u{i}") for i in range(0, 23, 3)]
        assert sorted(of_b) == [2] * 4 + [3] * 4
        assert list(numbers.values()) == [1] * 6  # 0.4 of 15
        copies = epoch["u21"]
        assert not np.array_equal(copies[0], copies[1])  # masked anew
    assert len({frozenset(epoch) for epoch in seen}) > 1  # other ones of a in other epochs


def test_weights_of_one_change_nothing_and_strangers_are_named(tmp_path):
    utterances = two_corpora(tmp_path)
    settings = {"worker": 0, "workers": 1, "epochs": 1, "seed": 3, "batch_frames": 900}
    plain = unpack(BatchStream(utterances, **settings))
    weighted = unpack(BatchStream(utterances, **settings, weights={"a": 1, "b": 1.0}))
    assert [item[0] for item in plain] == [item[0] for item in weighted]
    with pytest.raises(UserError, match="no corpus 'c' in train; it has a, b"):
        BatchStream(utterances, **settings, weights={"c": 2})
    with pytest.raises(UserError, match="leave no utterance to train on"):
        BatchStream(utterances, **settings, weights={"a": 0, "b": 0.01})


def test_the_largest_batch_is_that_of_the_most_padded_frames(tmp_path):
    source = stream(make_set(tmp_path, speeds=SPEEDS), 1, 2, epochs=1)
    largest = source.largest_batch()
    assert source.state_dict()["step"] == 0
    sizes = []
    for worker in range(2):
        batches = stream(source.utterances, worker, 2, epochs=1)
        sizes += [batch.features.shape[:2].numel() for batch in batches if batch is not None]
    assert largest.features.shape[:2].numel() == max(sizes) > min(sizes)


def test_utterance_too_long_for_a_batch_is_named(tmp_path):
    utterances = make_set(tmp_path, speeds=SPEEDS)
    longest = utterances.speed_frames.max()
    with pytest.raises(UserError, match=rf"utterance u22 has {longest} .*batch_frames={longest}"):
        BatchStream(
            utterances, worker=0, workers=1, epochs=1, seed=0, batch_frames=int(longest) - 1
        )


def generator(seed=0):
    return np.random.default_rng(seed)


def test_spec_augment_masks_within_its_limits_and_spares_its_input():
    features = generator().normal(size=(300, 64)).astype(np.float32)
    before = features.copy()
    mean = np.arange(64, dtype=np.float32) + 100
    config = SpecAugmentConfig(
        time_masks=3, time_width=50, time_fraction=0.3, freq_masks=2, freq_width=9
    )
    most_frames = most_bins = 0
    for seed in range(200):
        masked = spec_augment(features, config, mean, generator(seed))
        np.testing.assert_array_equal(masked, spec_augment(features, config, mean, generator(seed)))
        hidden = masked == mean
        np.testing.assert_array_equal(masked[~hidden], features[~hidden])
        frames, bins = hidden.all(axis=1), hidden.all(axis=0)
        np.testing.assert_array_equal(hidden, frames[:, None] | bins[None])
        most_frames, most_bins = max(most_frames, frames.sum()), max(most_bins, bins.sum())
    np.testing.assert_array_equal(features, before)
    assert 60 < most_frames <= 90
    assert 15 <= most_bins <= 18


@pytest.mark.parametrize("frames", [1, 4, 9])
def test_spec_augment_caps_time_masks_of_short_utterances(frames):
    features = generator().normal(size=(frames, 64)).astype(np.float32)
    config = SpecAugmentConfig(time_masks=2, time_width=40, time_fraction=0.25, freq_masks=0)
    hidden = [
        (spec_augment(features, config, np.zeros(64), generator(seed)) != features)
        .any(axis=1)
        .sum()
        for seed in range(50)
    ]
    assert max(hidden) == 2 * (frames // 8)


def test_no_masks_leave_features_as_they_are():
    features = generator().normal(size=(30, 64)).astype(np.float32)
    config = SpecAugmentConfig(time_masks=0, freq_masks=0)
    np.testing.assert_array_equal(
        spec_augment(features, config, np.zeros(64), generator()), features
    )


@pytest.mark.parametrize("stretch", [0.8, 0.93, 1.0, 1.07, 1.25])
def test_a_stretched_mel_axis_moves_bins_as_it_says_and_keeps_its_ends(stretch):
    bins = np.arange(64, dtype=np.float32)
    moved = stretch_mel_axis(np.stack([bins, 2 * bins]), stretch)  # each bin says whence it comes
    bend = int(0.8 * 63 * min(1, stretch))
    np.testing.assert_allclose(moved[0, : bend + 1], bins[: bend + 1] / stretch, rtol=1e-5)
    assert moved[0, 0] == 0 and moved[0, -1] == 63
    assert (np.diff(moved[0]) > 0).all()
    np.testing.assert_allclose(moved[1], 2 * moved[0], rtol=1e-6)
    assert moved.dtype == np.float32


def test_vocal_tracts_differ_between_draws_within_their_limit():
    bins = np.tile(np.arange(64, dtype=np.float32), (5, 1))
    config = SpecAugmentConfig(time_masks=0, freq_masks=0, vocal_tract=0.1)
    whence = [spec_augment(bins, config, np.zeros(64), generator(seed)) for seed in range(50)]
    stretches = np.array([20 / moved[0, 20] for moved in whence])
    assert 0.9 <= stretches.min() < 0.93 and 1.07 < stretches.max() <= 1.1
    for moved in whence:  # one vocal tract an utterance
        np.testing.assert_array_equal(moved, np.tile(moved[0], (5, 1)))


def test_unusable_masks_are_refused():
    with pytest.raises(UserError, match="negative"):
        load_config(SpecAugmentConfig, [], ["time_masks=-1"])
    with pytest.raises(UserError, match="time_fraction=1.5"):
        load_config(SpecAugmentConfig, [], ["time_fraction=1.5"])
    with pytest.raises(UserError, match="vocal_tract=0.5"):
        load_config(SpecAugmentConfig, [], ["vocal_tract=0.5"])


def test_seeds_are_the_same_in_every_process_and_differ_by_part():
    assert stable_seed(1, 2, "a") == 6790347191068001977
    assert len({stable_seed(1, 2, "a"), stable_seed(1, 12, "a"), stable_seed(11, 2, "a")}) == 3
