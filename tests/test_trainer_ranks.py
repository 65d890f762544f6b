"""The two-tier trainer on several real ranks, over real sockets."""

import os
import signal

import pytest
import torch
from ranks import run_ranks
from tiered_helpers import Vector, checksum, flat, hand_trainer, noise, only_entries
from torch import nn

from tiered_dist import (
    BMUF,
    GTC,
    Dense,
    FixedThreshold,
    TargetDensity,
    TieredTrainer,
    Topology,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)

GTC_TEST = GTC(TargetDensity(end=0.05, start=0.25, ramp_steps=10), max_quanta=4)


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def make_trainer(subgroups, inner, outer=None, clip=None, seed=0, lr=0.1, momentum=0.9):
    topology = Topology.build(subgroups)
    model = make_model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return TieredTrainer(model, optimizer, topology, inner, outer, clip)


def data(rank, step, size):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(size, 8, generator=generator)
    return inputs, inputs[:, :4].sin()


def backward(trainer, step, size=None):
    rank = trainer.topology.rank
    inputs, targets = data(rank, step, size or 4 + rank)
    nn.functional.mse_loss(trainer.model(inputs), targets).backward()
    return len(inputs)


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


def out_of_step(inner):
    trainer = hand_trainer(Vector(), 2, inner)
    trainer.steps = trainer.topology.rank
    trainer.step(samples=1)


@pytest.mark.parametrize("inner", [Dense(), GTC_TEST])
def test_ranks_at_different_steps_are_told(tmp_path, inner):
    for result in run_ranks(2, out_of_step, tmp_path, inner):
        assert "ExchangeError: step" in str(result)


# ---- uneven data ---------------------------------------------------------------------------


def uneven(batches_by_rank, inner, outer, subgroups):
    trainer = make_trainer(subgroups, inner, outer)
    taken = 0
    for step in trainer.batches(range(batches_by_rank[trainer.topology.rank])):
        samples = 7
        if step is not None:
            taken += 1
            samples = backward(trainer, step)
        trainer.step(samples=samples)
    trainer.finish()
    return taken, trainer.steps, checksum(trainer.model_for_eval())


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
    assert [taken for taken, _, _ in results] == batches
    assert len({steps for _, steps, _ in results}) == 1
    assert len({digest for _, _, digest in results}) == 1


# ---- bad gradients -------------------------------------------------------------------------


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


# ---- failures ------------------------------------------------------------------------------


def die_at(step_of_death):
    trainer = make_trainer(2, GTC_TEST, BMUF(3))
    for step in range(8):
        if step == step_of_death and trainer.topology.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(samples=backward(trainer, step))


def test_a_killed_rank_ends_every_rank_with_an_error_that_names_it(tmp_path):
    results = run_ranks(4, die_at, tmp_path, 4)
    assert results[2] is None
    assert "step 4: rank 3: all-gather with ranks [2] failed" in str(results[3])
    for rank in (0, 1):
        assert "ExchangeError: step 5" in str(results[rank])


def disagree(what):
    odd = int(os.environ["RANK"]) == 1
    model = nn.Linear(4, 5 if odd else 4) if what == "model" else nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = BMUF(20 if odd and what == "settings" else 10)
    TieredTrainer(model, optimizer, Topology.build(2), Dense(), outer)


@pytest.mark.parametrize(
    ("what", "values"), [("model", ["(4, 4)", "(5, 4)"]), ("settings", ["steps=10", "steps=20"])]
)
def test_ranks_that_disagree_are_told_with_both_values(tmp_path, what, values):
    for result in run_ranks(2, disagree, tmp_path, what):
        assert "must be the same on every rank" in str(result)
        assert all(value in str(result) for value in values)


# ---- resuming ------------------------------------------------------------------------------


TIERS = (GTC_TEST, BMUF(4, nesterov=True), 0.9)
OTHER_TIERS = (
    GTC(TargetDensity(0.05, 0.25, 10), 4, "keep", 8.0, dense_below=17, momentum=0.8),
    BMUF(block_samples=90, warmup_steps=3, inner_state="keep"),
    0.0,
)


def run_with_checkpoints(root, steps, save_at, subgroups=2, tiers=TIERS, residuals="drop"):
    inner, outer, momentum = tiers
    trainer = make_trainer(subgroups, inner, outer, clip=1.0, momentum=momentum)
    saved = list_checkpoints(root)
    if saved:
        shared, rank = load_checkpoint(saved[-1], trainer, residuals)
        assert shared == {"note": "shared"}
        assert rank is None or rank == {"place": trainer.topology.rank}
    for step in range(trainer.steps, steps):
        # The subgroups' shares of the samples change from step to step.
        size = 4 + step * (trainer.topology.rank + 2) % 5
        trainer.step(samples=backward(trainer, step, size))
        if trainer.steps in save_at:
            save_checkpoint(root, trainer, {"note": "shared"}, {"place": trainer.topology.rank})
    trainer.finish()
    residual = trainer.state_dict()["rank"]["inner"]["residual"]
    return (
        flat(trainer.model),
        flat(trainer.model_for_eval()),
        torch.cat([torch.zeros(0), *(value.flatten() for value in residual.values())]),
    )


@pytest.mark.parametrize(
    ("tiers", "stop_at"),  # within a block, at its end, and in warm-up
    [(TIERS, 6), (TIERS, 8), (OTHER_TIERS, 2)],
)
def test_stop_and_resume_is_bitwise(tmp_path, tiers, stop_at):
    straight = run_ranks(4, run_with_checkpoints, tmp_path, tmp_path / "none", 15, (), 2, tiers)
    root = tmp_path / "checkpoints"
    run_ranks(4, run_with_checkpoints, tmp_path, root, stop_at, (stop_at,), 2, tiers)
    resumed = run_ranks(4, run_with_checkpoints, tmp_path, root, 15, (), 2, tiers)
    for one, other in zip(straight, resumed, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            assert torch.equal(ours, theirs)


def test_two_checkpoints_are_kept_and_a_torn_one_is_not_taken(tmp_path):
    root = tmp_path / "checkpoints"
    run_ranks(2, run_with_checkpoints, tmp_path, root, 9, (2, 4, 6, 8), 1)
    (root / ".partial-step-00000009").mkdir()
    assert [path.name for path in list_checkpoints(root)] == ["step-00000006", "step-00000008"]


def test_another_world_size_resumes_without_residuals(tmp_path):
    root = tmp_path / "checkpoints"
    run_ranks(4, run_with_checkpoints, tmp_path, root, 6, (6,))
    results = run_ranks(2, run_with_checkpoints, tmp_path, root, 10, (), 1)
    assert torch.equal(results[0][1], results[1][1])
    resumed = run_ranks(2, run_with_checkpoints, tmp_path, root, 6, (), 1)
    assert all(len(residual) == 0 for _, _, residual in resumed)


@pytest.mark.parametrize("world_size", [2, 6])
def test_another_world_size_may_keep_or_redistribute_residuals(tmp_path, world_size):
    root = tmp_path / "checkpoints"
    saved = [r for _, _, r in run_ranks(4, run_with_checkpoints, tmp_path, root, 6, (6,))]
    mean = sum(saved) / 4
    for policy in ("keep", "redistribute"):
        arguments = (tmp_path, root, 6, (), 1, TIERS, policy)
        for rank, (_, _, residual) in enumerate(
            run_ranks(world_size, run_with_checkpoints, *arguments)
        ):
            if policy == "redistribute":
                torch.testing.assert_close(residual, mean)
            else:
                assert torch.equal(residual, saved[rank] if rank < 4 else torch.zeros(0))


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


def load_with(root, inner, outer):
    trainer = make_trainer(2 if outer else 4, inner, outer)
    load_checkpoint(list_checkpoints(root)[-1], trainer)
    model = flat(trainer.model)
    trainer.step(samples=backward(trainer, 0))
    return model, len(trainer.optimizer.state)


def test_tiers_may_come_and_go_between_checkpoints(tmp_path):
    root = tmp_path / "checkpoints"
    run_ranks(4, run_with_checkpoints, tmp_path, root, 6, (6,))
    saved = torch.load(root / "step-00000006/shared.pt", weights_only=True)["filter_model"]
    w = torch.cat([value.flatten() for value in saved.values()])
    for inner in (Dense(), GTC_TEST):
        for model, _ in run_ranks(4, load_with, tmp_path, root, inner, None):
            assert torch.equal(model, w)
    root = tmp_path / "dense"
    run_ranks(4, save_dense, tmp_path, root)
    for model, _ in run_ranks(4, load_with, tmp_path, root, GTC_TEST, BMUF(2)):
        assert bool(model.isfinite().all())


def save_dense(root):
    trainer = make_trainer(4, Dense())
    trainer.step(samples=backward(trainer, 0))
    save_checkpoint(root, trainer, {}, {})


def save_an_earlier_step(root):
    trainer = make_trainer(1, Dense())
    for number in (800, 1000):
        trainer.steps = number
        save_checkpoint(root, trainer, {}, {})
    trainer.steps = 100
    return save_checkpoint(root, trainer, {}, {}).exists()


def test_a_new_checkpoint_survives_older_ones_with_larger_numbers(tmp_path):
    assert run_ranks(1, save_an_earlier_step, tmp_path, tmp_path / "checkpoints") == [True]


def load_from(root):
    trainer = make_trainer(1, GTC_TEST, BMUF(4))
    state = trainer.state_dict()
    state["rank"] = {**state["rank"], "rank": 1 - trainer.topology.rank}
    trainer.load_state_dict(state)


def test_another_ranks_state_is_refused(tmp_path):
    for result in run_ranks(2, load_from, tmp_path, tmp_path):
        assert "given to subgroup" in str(result)
