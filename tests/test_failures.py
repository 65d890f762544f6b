"""A rank that brings NaN, dies, hangs, is late, or is at odds with the others."""

import os
import signal
import time

import pytest
import torch
from ranks import run_ranks
from tiered_helpers import GTC_TEST, Vector, backward, checksum, flat, hand_trainer, make_trainer
from torch import nn

from tiered_dist import (
    BMUF,
    Dense,
    TieredTrainer,
    Topology,
    entries,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from tiered_dist.exchange import Exchange


def with_nan(inner):
    trainer = make_trainer(2, inner)
    reports = []
    for step in range(6):
        backward(trainer, step)
        if step == 2 and trainer.topology.rank == 1:
            trainer.model[0].weight.grad[0, 0] = float("nan")
        reports.append(trainer.step(samples=5))
    return [(r.stepped, r.not_finite, r.samples) for r in reports], flat(trainer.model)


@pytest.mark.parametrize("inner", [Dense(), GTC_TEST])
def test_nan_on_one_rank_is_left_out_and_counted(tmp_path, inner):
    (reports, model), (others, other) = run_ranks(2, with_nan, tmp_path, inner)
    assert reports == others
    assert reports[2] == (True, 1, 5.0)
    assert reports[3] == (True, 0, 10.0)
    assert torch.equal(model, other) and bool(model.isfinite().all())


def fail_at(step_of_failure, how):
    """Rank 2 raises, or gets a signal, before that step."""
    trainer = make_trainer(2, GTC_TEST, BMUF(3), timeout_seconds=6)
    for step in range(8):
        samples = backward(trainer, step)
        if step == step_of_failure and trainer.topology.rank == 2:
            if how == "raise":
                raise ValueError("no such utterance")
            os.kill(os.getpid(), how)
        trainer.step(samples=samples)


@pytest.mark.parametrize(
    ("how", "state"),
    [(signal.SIGKILL, "has ended"), ("raise", "has ended"), (signal.SIGSTOP, "is stopped")],
)
def test_a_rank_that_fails_is_named_on_every_other_rank_with_the_step(tmp_path, how, state):
    """Also where it was no partner of the collective that failed: its partner tells."""
    hanging = (2,) if how == signal.SIGSTOP else ()
    results = run_ranks(4, fail_at, tmp_path, 4, how, hanging=hanging)
    assert f"step 4: rank 3: all-gather with ranks [2] failed: rank 2 {state}" in str(results[3])
    for rank in (0, 1):
        assert "ExchangeError: step 5" in str(results[rank])  # the block's end
        assert f"rank 2 {state}" in str(results[rank])


def test_the_last_checkpoint_resumes_after_a_failure(tmp_path):
    whole = run_ranks(4, train_and_save, tmp_path, tmp_path / "none", None)
    failed = run_ranks(4, train_and_save, tmp_path, tmp_path / "saved", 7)
    assert all(isinstance(result, RuntimeError) for i, result in enumerate(failed) if i != 2)
    assert run_ranks(4, train_and_save, tmp_path, tmp_path / "saved", None) == whole


def train_and_save(root, step_of_failure):
    trainer = make_trainer(2, GTC_TEST, BMUF(3), timeout_seconds=6)
    saved = list_checkpoints(root)
    if saved:
        load_checkpoint(saved[-1], trainer)
    while trainer.steps < 10:
        if trainer.steps == step_of_failure and trainer.topology.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(samples=backward(trainer, trainer.steps))
        if trainer.steps % 2 == 0:
            save_checkpoint(root, trainer, {}, {})
    return checksum(trainer.model)


def be_late(inner):
    trainer = make_trainer(2, inner, BMUF(3), timeout_seconds=20)
    reports = []
    for step in range(6):
        samples = backward(trainer, step)
        if step == 2 and trainer.topology.rank == 1:
            time.sleep(1.5)
        reports.append(trainer.step(samples=samples))
    return [r.waiting_seconds for r in reports], [r.block.waiting_seconds for r in reports[2::3]]


@pytest.mark.parametrize(("inner", "told_at"), [(Dense(), 2), (GTC_TEST, 3)])
def test_a_late_rank_is_waited_for_and_the_waiting_is_told(tmp_path, inner, told_at):
    """In subgroup 0 by its other rank; at the block's end by subgroup 1, which goes its own way."""
    (partner, _), (late, _), (others, block), _ = run_ranks(4, be_late, tmp_path, inner)
    assert partner[told_at] > 1 > late[told_at]
    assert others[told_at] < 1 < block[0]
    assert block[1] < 1


def be_too_late():
    trainer = make_trainer(4, GTC_TEST, timeout_seconds=3)
    for step in range(3):
        samples = backward(trainer, step)
        if step == 1 and trainer.topology.rank == 2:
            time.sleep(5)
        trainer.step(samples=samples)


def test_a_rank_that_comes_after_the_timeout_is_named(tmp_path):
    for result in run_ranks(4, be_too_late, tmp_path):
        assert "step 1" in str(result) and "rank 2 came too late" in str(result)


def send_nonsense():
    """Rank 1's entries lie outside the model."""
    trainer = make_trainer(2, GTC_TEST)
    if trainer.topology.rank == 1:
        to_words = entries.to_words
        entries.to_words = lambda *arguments: to_words(*arguments) | 0x7FFF
    for step in range(3):
        trainer.step(samples=backward(trainer, step))


def test_a_message_that_is_none_of_this_model_is_an_exchange_error(tmp_path):
    for result in run_ranks(2, send_nonsense, tmp_path):
        assert "ExchangeError: step" in str(result) and "do not fit the model" in str(result)


def test_a_rank_without_memory_blames_nobody(monkeypatch):
    def no_memory(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("torch.distributed.all_reduce", no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        Exchange([0, 1], 0, None).all_reduce(torch.ones(1))


def disagree(what):
    odd = int(os.environ["RANK"]) == 1
    model = nn.Linear(4, 5 if odd else 4) if what == "model" else nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = BMUF(20 if odd and what == "settings" else 10)
    TieredTrainer(model, optimizer, Topology.build(2), Dense(), outer)


@pytest.mark.parametrize(
    ("what", "values"),
    [
        ("model", ["shapes: ", "(4, 4)", "(5, 4)"]),
        ("settings", ["outer: BMUF", "steps=10", "steps=20"]),
    ],
)
def test_ranks_that_disagree_are_told_with_both_values(tmp_path, what, values):
    for result in run_ranks(2, disagree, tmp_path, what):
        assert "must be the same on every rank" in str(result)
        assert all(value in str(result) for value in values)


def out_of_step(inner):
    trainer = hand_trainer(Vector(), 2, inner)
    trainer.steps = trainer.topology.rank
    trainer.step(samples=1)


@pytest.mark.parametrize("inner", [Dense(), GTC_TEST])
def test_ranks_at_different_steps_are_told(tmp_path, inner):
    for result in run_ranks(2, out_of_step, tmp_path, inner):
        assert "ExchangeError: step" in str(result)


def changed_behind_the_trainers_back():
    trainer = make_trainer(2, GTC_TEST, BMUF(1000))
    for step in range(101):
        if step == 50 and trainer.topology.rank == 3:
            with torch.no_grad():
                trainer.model[0].bias[0] += 1e-6
        trainer.step(samples=backward(trainer, step))


def test_replicas_that_have_come_apart_are_named(tmp_path):
    results = run_ranks(4, changed_behind_the_trainers_back, tmp_path)
    for rank in (2, 3):
        assert "step 99: the model of rank 3 is not that of rank 2" in str(results[rank])
