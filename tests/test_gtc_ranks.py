"""What GTC sends besides its entries, on several real ranks: dense steps, exact parameters."""

import os

import pytest
import torch
from ranks import run_ranks
from tiered_helpers import Vector, checksum, flat, hand_trainer, noise

from tiered_dist import GTC, Dense, FixedThreshold, TargetDensity


def follow(inner, steps, subgroups, sizes, every_rank_has_data=True):
    """Moves, reports and checksums of ``steps`` steps on noise."""
    rank = int(os.environ["RANK"])
    model = Vector(sizes)
    trainer = hand_trainer(model, subgroups, inner)
    moves, reports, checksums = [], [], []
    for step in range(steps):
        before = flat(model)
        for i, part in enumerate(model.parts):
            part.grad = noise(rank, step, i, size=part.numel())
        idle = not every_rank_has_data and rank == step % 3 + 1
        reports.append(trainer.step(samples=0 if idle else 4 + rank))
        moves.append(flat(model) - before)
        checksums.append(checksum(model))
    return moves, reports, checksums


def is_dense(report):
    return report.density == 1.0


def test_above_break_even_a_step_is_dense_and_below_it_is_not(tmp_path):
    """Four ranks, 16 bits an entry, a quarter more room: break-even is at a density of 0.8."""
    ramp = GTC(TargetDensity(end=0.02, start=1.0, ramp_steps=12), max_quanta=4)
    results = run_ranks(4, follow, tmp_path, ramp, 24, 4, (3000, 1000))
    plain = run_ranks(4, follow, tmp_path, Dense(), 24, 4, (3000, 1000))
    moves, reports, checksums = results[0]
    dense = [is_dense(report) for report in reports]
    assert dense[0] and not any(dense[8:])
    for step in range(dense.index(False)):
        torch.testing.assert_close(moves[step], plain[0][0][step], rtol=1e-5, atol=1e-6)
    all_reduce = 2 * 3 * 4 * 4000 // 4
    for report in reports:
        assert report.inner_payload_bytes <= report.inner_wire_bytes
        assert report.inner_wire_bytes < 1.1 * all_reduce + 1000
    assert reports[-1].inner_wire_bytes < 0.2 * all_reduce
    for _, _, others in results[1:]:
        assert others == checksums


def test_a_dense_step_leaves_idle_residuals_waiting_and_loses_nothing(tmp_path):
    everything = GTC(FixedThreshold(1e-3), max_quanta=1 << 12)  # messages far above break-even
    results = run_ranks(4, follow, tmp_path, everything, 9, 4, (400,), False)
    plain = run_ranks(4, follow, tmp_path, Dense(), 9, 4, (400,), False)
    dense = [is_dense(report) for report in results[0][1]]
    assert dense[0] and all(dense)
    for ours, theirs in zip(results[0][0], plain[0][0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def idle_in_a_dense_step():
    """Nothing passes in the first step; the second is dense, and rank 1 has no batch in it."""
    model = Vector((10,))
    trainer = hand_trainer(model, 2, GTC(FixedThreshold(1e3)))
    for step, dense in enumerate((False, True)):
        trainer._inner._dense_is_smaller = lambda capacity, dense=dense: dense
        model.parts[0].grad = torch.ones(10)
        trainer.step(samples=0 if step == 1 and trainer.topology.rank == 1 else 2)
    residual = trainer.state_dict()["rank"]["inner"]["residual"]["parts.0"]
    return float(residual[0]), -float(flat(model)[0])


def test_an_idle_workers_residual_waits_through_a_dense_step(tmp_path):
    assert run_ranks(2, idle_in_a_dense_step, tmp_path) == [(0.0, 2.0), (1.0, 2.0)]


@pytest.mark.parametrize("every_rank_has_data", [True, False])
def test_small_parameters_are_sent_as_they_are(tmp_path, every_rank_has_data):
    exact = GTC(FixedThreshold(1e3), dense_below=100)  # nothing else ever passes
    arguments = (8, 4, (400, 99, 100, 7), every_rank_has_data)
    results = run_ranks(4, follow, tmp_path, exact, *arguments)
    plain = run_ranks(4, follow, tmp_path, Dense(), *arguments)
    small = torch.zeros(606, dtype=torch.bool)
    small[400:499] = small[599:] = True
    for ours, theirs in zip(results[0][0], plain[0][0], strict=True):
        torch.testing.assert_close(ours[small], theirs[small], rtol=1e-5, atol=1e-6)
        assert not ours[~small].any()
    assert len({tuple(checksums) for _, _, checksums in results}) == 1
    assert results[0][1][-1].residual_norm > 0


def test_bf16_halves_the_bytes_of_dense(tmp_path):
    half = run_ranks(4, follow, tmp_path, Dense("bf16"), 3, 4, (500,))
    full = run_ranks(4, follow, tmp_path, Dense(), 3, 4, (500,))
    for ours, theirs in zip(half[0][0], full[0][0], strict=True):
        assert not torch.equal(ours, theirs)
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02)
    assert len({tuple(checksums) for _, _, checksums in half}) == 1
    sent = [results[0][1][0].inner_wire_bytes for results in (half, full)]
    assert sent[1] - sent[0] == 2 * 3 * 2 * 500 // 4
