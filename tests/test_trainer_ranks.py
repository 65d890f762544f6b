"""The two-tier trainer on several real ranks, over real sockets."""

import os

import pytest
import torch
from ranks import run_ranks
from tiered_helpers import (
    GTC_TEST,
    Vector,
    backward,
    checksum,
    data,
    flat,
    hand_trainer,
    make_model,
    make_trainer,
    noise,
    only_entries,
)
from torch import nn

from tiered_dist import (
    BMUF,
    GTC,
    Dense,
    FixedThreshold,
    TargetDensity,
    TieredTrainer,
    Topology,
)

# ---- replicas, blocks ----------------------------------------------------------------------


def train(steps, subgroups, inner, outer, clip):
    trainer = make_trainer(subgroups, inner, outer, clip, seed=int(os.environ["RANK"]))
    seen = []
    for step in range(steps):
        report = trainer.step(samples=backward(trainer, step))
        seen.append((checksum(trainer.model), report.block))
    return seen


@pytest.mark.parametrize("inner", [GTC_TEST, Dense()])
def test_replicas_agree_and_subgroups_meet_at_block_ends(tmp_path, inner):
    ranks = run_ranks(4, train, tmp_path, 12, 2, inner, BMUF(5, nesterov=True), 1.0)
    for step, seen in enumerate(zip(*ranks, strict=True)):
        digests, blocks = zip(*seen, strict=True)
        assert digests[0] == digests[1] and digests[2] == digests[3]
        ended = (step + 1) % 5 == 0
        assert (digests[0] == digests[2]) == ended
        assert (blocks[0] is not None) == ended
        if ended:
            assert len({(b.block, b.samples, b.spread) for b in blocks}) == 1
            assert blocks[0].samples == 5 * (4 + 5 + 6 + 7)
            assert blocks[0].spread > 0


def move_and_average(subgroups):
    """One block of plain averaging: the model after it, and the samples that it counted."""
    trainer = make_trainer(subgroups, Dense(), BMUF(2, momentum=0.0))
    trainer.step(samples=backward(trainer, 0))
    report = trainer.step(samples=backward(trainer, 1))
    return flat(trainer.model), report.block.samples


def two_steps_of(subgroup):
    """What a subgroup's two dense steps give, computed in one process from the definition."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(2):
        optimizer.zero_grad()
        batches = [data(rank, step, 4 + rank) for rank in subgroup]
        total = sum(len(inputs) for inputs, _ in batches)
        loss = sum(
            nn.functional.mse_loss(model(inputs), targets) * len(inputs) / total
            for inputs, targets in batches
        )
        loss.backward()
        optimizer.step()
    return flat(model), 2 * total


@pytest.mark.parametrize("subgroups", [2, [[0, 3], [1, 2]], [[2], [0, 1, 3]], 1])
def test_averages_are_weighted_by_samples_in_both_tiers(tmp_path, subgroups):
    cut = [[0, 1], [2, 3]] if subgroups == 2 else subgroups
    cut = [[0], [1], [2], [3]] if subgroups == 1 else cut
    moved = [two_steps_of(subgroup) for subgroup in cut]
    total = sum(samples for _, samples in moved)
    expected = sum(model * (samples / total) for model, samples in moved)
    for after, samples in run_ranks(4, move_and_average, tmp_path, subgroups):
        assert samples == total
        torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-6)


def conserve(steps, tau):
    """Dyadic gradients: what was applied plus the residuals is what came in, exactly."""
    topology = Topology.build(2)
    model = nn.Linear(4, 4, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = TieredTrainer(model, optimizer, topology, GTC(FixedThreshold(tau), max_quanta=2))
    only_entries(trainer)
    generator = torch.Generator().manual_seed(topology.rank)
    total = torch.zeros(4, 4)
    for _ in range(steps):
        gradient = torch.randint(-64, 65, (4, 4), generator=generator) / 64
        total += gradient
        model.weight.grad = gradient.clone()
        trainer.step(samples=8)
    residual = trainer.state_dict()["rank"]["inner"]["residual"]["weight"]
    return total, residual, -model.weight.detach()


def test_gtc_loses_nothing_between_ranks(tmp_path):
    (total0, residual0, applied), (total1, residual1, other) = run_ranks(
        2, conserve, tmp_path, 20, 0.25
    )
    assert torch.equal(applied, other)
    assert torch.equal(2 * applied + residual0 + residual1, total0 + total1)
    assert applied.abs().sum() > 0


def compare_with_dense(steps):
    """Moves of Dense and of GTC with a tiny tau, under uneven, idle and non-finite ranks."""
    rank = int(os.environ["RANK"])
    models = Vector((30, 20)), Vector((30, 20))
    fine = GTC(FixedThreshold(1e-3), max_quanta=1 << 15)
    trainers = [
        hand_trainer(model, 2, inner, BMUF(1000))
        for model, inner in zip(models, (Dense(), fine), strict=True)
    ]
    only_entries(trainers[1])
    trainers[1]._inner.CAPACITY_MARGIN = 50  # or what varies too much would come a step late
    worst = 0.0
    for step in range(steps):
        samples = [2, 2, 2, 2] if step == 0 else [(3 * step + 5 * r) % 7 + 2 for r in range(4)]
        if step % 4 == 3:
            samples[step % 3] = 0
        moves, reports = [], []
        for model, trainer in zip(models, trainers, strict=True):
            before = flat(model)
            for part, size in zip(model.parts, (30, 20), strict=True):
                part.grad = noise(rank, step, size, size=size) / size
            if step % 5 == 4 and rank == step % 4:
                model.parts[1].grad[3] = float("inf")
            reports.append(trainer.step(samples=samples[rank]))
            moves.append(flat(model) - before)
        assert reports[0].samples == reports[1].samples
        assert reports[0].not_finite == reports[1].not_finite
        worst = max(worst, float((moves[0] - moves[1]).abs().max()))
    return worst


def test_gtc_with_a_tiny_tau_is_dense(tmp_path):
    for worst in run_ranks(4, compare_with_dense, tmp_path, 20):
        assert worst < 0.005  # of moves of about 0.05; a residual holds up to tau, times n_ref / n


def conserve_with_overflow(steps):
    """Two parameters of very different scale, and a message too small for what wants to go."""
    model = Vector((400, 400))
    trainer = hand_trainer(model, 2, GTC(TargetDensity(0.5, 0.5), max_quanta=4))
    only_entries(trainer)
    trainer._inner.MIN_CAPACITY = 16
    trainer._inner.CAPACITY_MARGIN = 0.5
    rank, total, overflow = int(os.environ["RANK"]), torch.zeros(800), 0
    for step in range(steps):
        for part, scale in zip(model.parts, (1.0, 1e-3), strict=True):
            part.grad = (noise(rank, step, size=400) + 0.5) * scale
        total += torch.cat([part.grad for part in model.parts])
        overflow += trainer.step(samples=3).overflow
    residual = trainer.state_dict()["rank"]["inner"]["residual"]
    return total, torch.cat(list(residual.values())), -flat(model), overflow


def test_nothing_is_lost_when_messages_overflow(tmp_path):
    (total0, residual0, applied, overflow), (total1, residual1, other, _) = run_ranks(
        2, conserve_with_overflow, tmp_path, 30
    )
    assert overflow > 0
    assert torch.equal(applied, other)
    came_in, went_out = total0 + total1, 2 * applied + residual0 + residual1
    for part in (slice(0, 400), slice(400, 800)):
        scale = came_in[part].abs().max()
        torch.testing.assert_close(came_in[part] / scale, went_out[part] / scale, atol=1e-4, rtol=0)
        assert float(applied[part].abs().sum() / came_in[part].abs().sum()) > 0.2


def clipped_norm(inner, same):
    model = Vector()
    trainer = hand_trainer(model, 4, inner, clip=1.0)
    if isinstance(inner, GTC):
        only_entries(trainer)
    rank = 0 if same else trainer.topology.rank
    model.parts[0].grad = noise(rank) * 100
    trainer.step(samples=5)
    return float(flat(model).norm())


def test_clipping_rule_of_both_tiers_one(tmp_path):
    fine = GTC(FixedThreshold(1e-3), max_quanta=1 << 15)
    assert run_ranks(4, clipped_norm, tmp_path, Dense(), False)[0] == pytest.approx(1, rel=1e-3)
    assert run_ranks(4, clipped_norm, tmp_path, Dense(), True)[0] == pytest.approx(1, rel=1e-3)
    # Four independent contributions of norm 2 / 4 each; four equal ones add up.
    assert run_ranks(4, clipped_norm, tmp_path, fine, False)[0] == pytest.approx(1, rel=0.15)
    assert run_ranks(4, clipped_norm, tmp_path, fine, True)[0] == pytest.approx(2, rel=1e-2)


UNEVEN = ((0,), (1, 2, 3))
SAMPLES = [(4, 2, 0, 6), (1, 3, 5, 2), (0, 0, 0, 0), (0, 0, 0, 0), (2, 1, 1, 1), (0, 0, 9, 0)]


def filtered():
    """K = 2, Nesterov, zeta 0.7, uneven subgroups, a block without data."""
    model = Vector()
    trainer = hand_trainer(model, UNEVEN, Dense(), BMUF(2, "auto", 0.7, nesterov=True), lr=0.1)
    points = []
    for step, samples in enumerate(SAMPLES):
        model.parts[0].grad = noise(trainer.topology.rank, step)
        report = trainer.step(samples=samples[trainer.topology.rank])
        if step % 2:
            points.append(
                (flat(model), flat(trainer.model_for_eval()), report.block and report.block.spread)
            )
    return points, trainer.blocks


def filter_oracle():
    """The same from the equations, in float64; eta = 1 - 1/2."""
    start, w, d = (torch.zeros(50, dtype=torch.float64) for _ in range(3))
    points = []
    for block in range(3):
        moves, weights = [], []
        for subgroup in UNEVEN:
            move, count = torch.zeros(50, dtype=torch.float64), 0
            for step in (2 * block, 2 * block + 1):
                total = sum(SAMPLES[step][rank] for rank in subgroup)
                count += total
                for rank in subgroup if total else ():
                    move -= 0.1 * noise(rank, step).double() * SAMPLES[step][rank] / total
            moves.append(move)
            weights.append(count)
        spread = None
        if sum(weights):
            share = [weight / sum(weights) for weight in weights]
            mean = sum(s * move for s, move in zip(share, moves, strict=True))
            variance = sum(
                s * float((move - mean).square().sum())
                for s, move in zip(share, moves, strict=True)
            )
            spread = variance**0.5 / float(mean.norm())
            d = 0.5 * d + 0.7 * mean
            w = w + d
            start = w + 0.5 * d
        points.append((start.float(), w.float(), spread))
    return points


def test_the_whole_second_tier_against_its_equations(tmp_path):
    expected = filter_oracle()
    for points, blocks in run_ranks(4, filtered, tmp_path):
        assert blocks == 2
        for (start, w, spread), (start_, w_, spread_) in zip(points, expected, strict=True):
            torch.testing.assert_close(start, start_, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(w, w_, rtol=1e-5, atol=1e-6)
            assert spread == (spread_ if spread_ is None else pytest.approx(spread_, rel=1e-4))


def idle_then_full():
    """Rank 0 has no batch in the second step: what its residual holds must wait."""
    model = Vector((4,))
    trainer = hand_trainer(model, 2, GTC(FixedThreshold(1.0)))
    only_entries(trainer)
    rank = trainer.topology.rank
    for step in range(2):
        model.parts[0].grad = torch.full((4,), 0.75 if step == 0 else 1.0)
        report = trainer.step(samples=0 if rank == 0 and step == 1 else 2)
    residual = trainer.state_dict()["rank"]["inner"]["residual"]["parts.0"]
    return residual[0].item(), report.density, -flat(model)[0].item()


def test_an_idle_workers_residual_waits(tmp_path):
    idle, busy = run_ranks(2, idle_then_full, tmp_path)
    assert idle == (0.75, 1.0, 1.0)  # density: of the workers that sent, all of their elements
    assert busy == (0.75, 1.0, 1.0)


def overflow_in_one_subgroup():
    model = Vector()
    trainer = hand_trainer(model, 1, Dense(), BMUF(1, momentum=0.0))
    model.parts[0].grad = torch.ones(50)
    if trainer.topology.rank == 1:
        with torch.no_grad():
            model.parts[0][7] = float("inf")
    report = trainer.step(samples=2)
    return report.block.not_finite, report.block.samples, flat(model)


def test_a_subgroup_whose_model_overflowed_is_left_out(tmp_path):
    for not_finite, samples, model in run_ranks(3, overflow_in_one_subgroup, tmp_path):
        assert (not_finite, samples) == (1, 4.0)
        assert torch.equal(model, torch.full((50,), -1.0))


def frozen_and_buffers():
    torch.manual_seed(int(os.environ["RANK"]))
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[0].requires_grad_(False)
    with torch.no_grad():
        model[1].running_mean.normal_()
    hand_trainer(model, 2, Dense())
    return flat(model), model[1].running_mean


def test_frozen_parameters_and_buffers_start_equal(tmp_path):
    (one, mean), (other, other_mean) = run_ranks(2, frozen_and_buffers, tmp_path)
    assert torch.equal(one, other) and torch.equal(mean, other_mean)


# ---- uneven data ---------------------------------------------------------------------------


def uneven(batches_by_rank, inner, outer, subgroups):
    trainer = make_trainer(subgroups, inner, outer)
    taken, counted = 0, 0.0
    for step in trainer.batches(range(batches_by_rank[trainer.topology.rank])):
        samples = 7
        if step is not None:
            taken += 1
            samples = backward(trainer, step)
        counted += trainer.step(samples=samples).samples
    trainer.finish()
    return taken, trainer.steps, checksum(trainer.model_for_eval()), counted


@pytest.mark.parametrize("inner", [Dense(), GTC_TEST])
@pytest.mark.parametrize(
    ("batches", "outer", "subgroups"),
    [
        ([7, 3, 5, 7], BMUF(4), 2),
        ([0, 0, 6, 5], BMUF(4), 2),  # a subgroup that never has any
        ([0, 0, 0, 0], BMUF(4), 2),
        ([3, 0, 5, 1], None, 4),
    ],
)
def test_uneven_data_hangs_nobody_and_loses_no_batch(tmp_path, inner, batches, outer, subgroups):
    results = run_ranks(4, uneven, tmp_path, batches, inner, outer, subgroups)
    assert [taken for taken, _, _, _ in results] == batches
    assert len({steps for _, steps, _, _ in results}) == 1
    assert len({digest for _, _, digest, _ in results}) == 1
    brought = [count * (4 + rank) for rank, count in enumerate(batches)]  # not a 7 without a batch
    for rank, (_, _, _, counted) in enumerate(results):
        first = rank // subgroups * subgroups
        assert counted == sum(brought[first : first + subgroups])
