"""Three levels: dense inside a host, GTC between the hosts of a subgroup, a filter across."""

import os

import pytest
import torch
from ranks import run_ranks
from tiered_helpers import Vector, checksum, flat, hand_trainer, noise, only_entries

from tiered_dist import (
    BMUF,
    GTC,
    Dense,
    DenseInHost,
    FixedThreshold,
    TargetDensity,
    Topology,
    load_checkpoint,
    save_checkpoint,
    topology,
)

FINE = GTC(FixedThreshold(0.25), max_quanta=3)


def dyadic(*seed, size):
    """Sums of these are exact in any order."""
    return (noise(*seed, size=size) * 16).round() / 64


def moves(inner, subgroups, ranks_per_host, gradients, samples, steps):
    """Moves and reports of steps with these gradients ``[rank][step]`` and samples."""
    model = Vector((37, 20))
    trainer = hand_trainer(model, subgroups, inner, ranks_per_host=ranks_per_host)
    if inner != Dense() and trainer.topology.between_hosts.size > 1:
        only_entries(trainer)
        state = trainer._inner
        getattr(state, "_gtc", state).CAPACITY_MARGIN = 50  # nothing comes a step late
    rank, seen, reports = trainer.topology.rank, [], []
    for step in range(steps):
        before = flat(model)
        for part, gradient in zip(
            model.parts, gradients[rank][step].clone().split([37, 20]), strict=True
        ):
            part.grad = gradient
        reports.append(trainer.step(samples=samples[rank]))
        seen.append(flat(model) - before)
    return seen, reports, trainer.state_dict()["rank"]["inner"]


def test_hosts_are_the_workers_of_gtc(tmp_path):
    """Two hosts of two ranks do what two workers with the hosts' mean gradients do, bit for bit."""
    gradients = [[dyadic(rank, step, size=57) for step in range(12)] for rank in range(4)]
    four = run_ranks(4, moves, tmp_path, DenseInHost(FINE), 4, 2, gradients, [3, 3, 3, 3], 12)
    means = [
        [(a + b) / 2 for a, b in zip(gradients[2 * i], gradients[2 * i + 1], strict=True)]
        for i in range(2)
    ]
    two = run_ranks(2, moves, tmp_path, FINE, 2, 1, means, [6, 6], 12)
    for seen, reports, _ in four:
        for ours, theirs in zip(seen, two[0][0], strict=True):
            assert torch.equal(ours, theirs)
        assert [report.samples for report in reports] == [12.0] * 12
    assert any(move.any() for move in two[0][0])
    for host in range(2):
        first, second = (four[2 * host + place][2]["residual"] for place in range(2))
        assert list(first) == ["parts.0..0:29"]
        assert list(second) == ["parts.0..29:37", "parts.1..0:20"]
        whole = torch.cat([*first.values(), *second.values()])
        assert torch.equal(
            whole, torch.cat([r.flatten() for r in two[host][2]["residual"].values()])
        )


def test_ranks_and_hosts_are_weighted_by_samples(tmp_path):
    samples = [1, 5, 0, 2]
    gradients = [[noise(rank, step, size=57) for step in range(6)] for rank in range(4)]
    tiny = GTC(FixedThreshold(2e-3), max_quanta=1 << 15)
    ours = run_ranks(4, moves, tmp_path, DenseInHost(tiny), 4, 2, gradients, samples, 6)
    dense = run_ranks(4, moves, tmp_path, Dense(), 4, 2, gradients, samples, 6)
    for (seen, _, _), (expected, _, _) in zip(ours, dense, strict=True):
        for step in range(1, 6):
            torch.testing.assert_close(sum(seen[:step]), sum(expected[:step]), rtol=0, atol=4e-3)


def replicas(inner, steps):
    """Checksums of eight ranks in two subgroups of two hosts, with idle and broken ranks."""
    rank = int(os.environ["RANK"])
    model = Vector((300, 11))
    trainer = hand_trainer(model, 4, inner, BMUF(4), clip=5.0, ranks_per_host=2, lr=0.1)
    seen = []
    for step in range(steps):
        for i, part in enumerate(model.parts):
            part.grad = noise(rank, step, i, size=part.numel())
        if step == 5 and rank == 1:
            model.parts[0].grad[3] = float("nan")
        report = trainer.step(samples=0 if step == rank else 3 + rank)
        seen.append((checksum(model), report.not_finite, report.samples))
    return seen, report


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_replicas_of_a_subgroup_stay_equal_over_its_hosts(tmp_path, dtype):
    gtc = GTC(TargetDensity(0.1, 0.3, 10), max_quanta=8, momentum=0.5)
    results = [seen for seen, _ in run_ranks(8, replicas, tmp_path, DenseInHost(gtc, dtype), 16)]
    for step, seen in enumerate(zip(*results, strict=True)):
        assert len({digest for digest, _, _ in seen[:4]}) == 1
        assert len({digest for digest, _, _ in seen[4:]}) == 1
        assert (seen[0][0] == seen[4][0]) == (step % 4 == 3)
        assert [count for _, count, _ in seen] == [int(step == 5)] * 4 + [0] * 4
        idle = step if step < 4 else 1 if step == 5 else None
        expected = 3 + 4 + 5 + 6 - (0 if idle is None else 3 + idle)
        assert seen[0][2] == expected


def test_the_sum_of_finite_gradients_may_overflow(tmp_path):
    huge = torch.full((57,), 3e38)
    gradients = [[huge if rank < 2 else torch.ones(57)] * 2 for rank in range(4)]
    bf16 = DenseInHost(GTC(FixedThreshold(0.25), max_quanta=8), "bf16")
    for seen, reports, _ in run_ranks(4, moves, tmp_path, bf16, 4, 2, gradients, [1] * 4, 2):
        assert [report.not_finite for report in reports] == [2, 2]  # as its norm overflows
        assert [report.samples for report in reports] == [2.0, 2.0]
        assert torch.equal(seen[0], torch.full((57,), -1.0))


def test_with_one_host_it_is_dense_and_with_a_rank_a_host_gtc(tmp_path):
    gradients = [[noise(rank, step, size=57) for step in range(5)] for rank in range(4)]
    arguments = (gradients, [3, 1, 2, 2], 5)
    for ours, theirs, hosts in (
        (DenseInHost(FINE, "bf16"), Dense("bf16"), 4),
        (DenseInHost(FINE, "bf16"), FINE, 1),
    ):
        results = run_ranks(4, moves, tmp_path, ours, 4, hosts, *arguments)
        expected = run_ranks(4, moves, tmp_path, theirs, 4, 1, *arguments)
        for (seen, _, _), (others, _, _) in zip(results, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(seen, others, strict=True))


def bytes_by_level(dtype):
    """Bytes of a step: inside the host, and between hosts, of 4,000 parameters at density 0."""
    model = Vector((4000,))
    never = DenseInHost(GTC(FixedThreshold(1e3)), dtype)
    trainer = hand_trainer(model, 4, never, ranks_per_host=2)
    for _ in range(2):
        model.parts[0].grad = torch.ones(4000)
        report = trainer.step(samples=1)
    assert report.inner_received_bytes == report.inner_wire_bytes
    return report.host_wire_bytes, report.inner_wire_bytes - report.host_wire_bytes


def test_bytes_by_level(tmp_path):
    """Half of the model there and back inside the host, and 32 + 8 bytes of counts and norm."""
    message = 4 * (9 + 1 + (1 + 256 + 1) // 2)
    assert set(run_ranks(4, bytes_by_level, tmp_path, "fp32")) == {(2 * 8000 + 40, message)}
    assert set(run_ranks(4, bytes_by_level, tmp_path, "bf16")) == {(2 * 4000 + 40, message)}


def clipped(same):
    """Norm of a first step's move by gradients of norm 100, under a bound of 1."""
    tiny = GTC(FixedThreshold(1e-3), max_quanta=1 << 15)
    model = Vector((57,))
    trainer = hand_trainer(model, 4, DenseInHost(tiny), clip=1.0, ranks_per_host=2)
    only_entries(trainer)
    rank = trainer.topology.rank
    gradient = noise(0 if same else rank // 2, size=57)
    model.parts[0].grad = 100 * gradient / gradient.norm()
    trainer.step(samples=1)
    return float(flat(model).norm())


def test_clip_bounds_a_hosts_whole_gradient(tmp_path):
    """Two hosts that agree: sqrt(2) times the bound; as two workers of GTC."""
    assert run_ranks(4, clipped, tmp_path, True)[0] == pytest.approx(2**0.5, rel=1e-2)
    assert run_ranks(4, clipped, tmp_path, False)[0] == pytest.approx(1, rel=0.2)


def refused(subgroups, ranks_per_host, size, gtc=FINE):
    with pytest.raises(ValueError) as caught:
        hand_trainer(
            Vector((size,)), subgroups, DenseInHost(gtc), BMUF(2), ranks_per_host=ranks_per_host
        )
    return str(caught.value)


def test_hosts_of_unequal_size_and_tiny_models_are_refused(tmp_path):
    for error in run_ranks(4, refused, tmp_path, [[0, 1, 2], [3]], 2, 50):
        assert "each must have as many" in error
    for error in run_ranks(4, refused, tmp_path, 4, 2, 1):
        assert "1 parameters cannot be cut into 2 parts" in error
    for error in run_ranks(4, refused, tmp_path, 4, 3, 50):
        assert "ranks_per_host=3" in error
    momentum = GTC(FixedThreshold(0.25), momentum=0.9)
    for error in run_ranks(4, refused, tmp_path, [[0], [1, 2, 3]], 1, 50, momentum):
        assert "the ranks (0,) of a subgroup are on one host" in error


def run_with_checkpoints(root, steps, save_at, inner, subgroups=4, residuals="drop"):
    """Train from the newest state under ``root``, if there is one."""
    model = Vector((37, 20))
    outer = BMUF(3) if subgroups == 4 else None
    trainer = hand_trainer(model, subgroups, inner, outer, ranks_per_host=2, lr=0.1)
    if subgroups == 4:
        only_entries(trainer)
    saved = sorted(root.glob("step-*"))
    if saved:
        load_checkpoint(saved[-1], trainer, residuals)
    loaded = trainer.state_dict()["rank"]["inner"].get("residual")
    while trainer.steps < steps:
        for i, part in enumerate(model.parts):
            part.grad = noise(trainer.topology.rank, trainer.steps, i, size=part.numel())
        trainer.step(samples=3)
        if trainer.steps == save_at:
            save_checkpoint(root, trainer, {}, {})
    return checksum(model), loaded, trainer.state_dict()["rank"]["inner"].get("residual")


LEVELS = DenseInHost(GTC(TargetDensity(0.2, 0.5, 10), max_quanta=4, momentum=0.3))


def test_stop_and_resume_is_bitwise(tmp_path):
    whole = run_ranks(8, run_with_checkpoints, tmp_path, tmp_path / "none", 13, 0, LEVELS)
    run_ranks(8, run_with_checkpoints, tmp_path, tmp_path / "saved", 7, 7, LEVELS)
    resumed = run_ranks(8, run_with_checkpoints, tmp_path, tmp_path / "saved", 13, 0, LEVELS)
    assert [digest for digest, _, _ in whole] == [digest for digest, _, _ in resumed]


def joined(results):
    """Whole residuals of the hosts, from those of their ranks."""
    vectors = [torch.cat([r.flatten() for r in held.values()]) for _, _, held in results]
    return [torch.cat(vectors[i : i + 2]) for i in range(0, len(vectors), 2)]


@pytest.mark.parametrize("policy", ["redistribute", "keep", "drop"])
def test_another_world_takes_its_residuals_from_the_hosts_parts(tmp_path, policy):
    saved = run_ranks(8, run_with_checkpoints, tmp_path, tmp_path / "saved", 7, 7, LEVELS)
    hosts = joined(saved)
    loaded = run_ranks(
        2, run_with_checkpoints, tmp_path, tmp_path / "saved", 7, 0, LEVELS.gtc, 2, policy
    )
    for rank, (_, residual, _) in enumerate(loaded):
        if policy == "drop":
            assert not residual
            continue
        values = torch.cat([residual["parts.0"], residual["parts.1"]])
        expected = torch.stack(hosts).mean(dim=0)
        if policy == "keep":  # the old rank's part of the model: 29 elements, or 28
            own = slice(0, 29) if rank == 0 else slice(29, 57)
            expected = torch.zeros(57)
            expected[own] = hosts[0][own]
        torch.testing.assert_close(values, expected)


@pytest.mark.parametrize(("before", "after"), [(LEVELS.gtc, LEVELS), (LEVELS, LEVELS.gtc)])
def test_levels_may_come_and_go_within_a_block(tmp_path, before, after):
    """The running block goes on; nothing of a subgroup's residuals is lost."""
    saved = run_ranks(8, run_with_checkpoints, tmp_path, tmp_path / "saved", 7, 7, before)
    arguments = (tmp_path / "saved", 7, 0, after, 4, "redistribute")
    loaded = run_ranks(8, run_with_checkpoints, tmp_path, *arguments)
    assert [digest for digest, _, _ in loaded] == [digest for digest, _, _ in saved]
    waiting = [mean_of_workers(results) for results in (saved, loaded)]
    torch.testing.assert_close(*waiting)
    arguments = (tmp_path / "saved", 9, 0, after, 4, "redistribute")
    results = run_ranks(8, run_with_checkpoints, tmp_path, *arguments)
    assert len({digest for digest, _, _ in results[4:]}) == 1  # and all in step 9, a block's end


def mean_of_workers(results):
    """Mean residual over the subgroups' workers, ranks or hosts."""
    sizes = {len(torch.cat([r.flatten() for r in held.values()])) for _, _, held in results}
    workers = (
        joined(results)
        if sizes == {28, 29}
        else [torch.cat([r.flatten() for r in held.values()]) for _, _, held in results]
    )
    return torch.stack(workers).mean(dim=0)


def pending(root, save, ranks_per_host, first):
    """What has been delivered and what waits, in the units of the mean gradient."""
    model = Vector((8,))
    never = DenseInHost(GTC(FixedThreshold(1e3)))
    trainer = hand_trainer(
        model, 6 if ranks_per_host == 3 else 4, never, ranks_per_host=ranks_per_host
    )
    only_entries(trainer)
    if not save:
        load_checkpoint(sorted(root.glob("step-*"))[-1], trainer, "redistribute")
    model.parts[0].grad = torch.ones(8)
    trainer.step(samples=10 if save else first)
    if save:
        save_checkpoint(root, trainer, {}, {})
    held = trainer.state_dict()["rank"]["inner"]
    return float(torch.cat(list(held["residual"].values()))[0]), held["agreed"]["reference"]


@pytest.mark.parametrize("first", [10, 1])
def test_an_unusual_first_batch_on_another_world_does_not_devalue_what_waits(tmp_path, first):
    run_ranks(4, pending, tmp_path, tmp_path / "saved", True, 2, 10)
    for residual, reference in run_ranks(6, pending, tmp_path, tmp_path / "saved", False, 3, first):
        assert reference == 30.0
        assert residual == pytest.approx(1 + first / 10)


def test_ranks_that_are_placed_in_turns_make_whole_hosts():
    assert topology._numbered(("a", "b") * 4, 2) == (
        "a/0",
        "b/0",
        "a/0",
        "b/0",
        "a/1",
        "b/1",
        "a/1",
        "b/1",
    )


def described():
    return Topology.build(4, ranks_per_host=2).describe_costs(1_000_000, 0.01, 10)


def test_costs_are_described_by_level(tmp_path):
    costs = run_ranks(4, described, tmp_path)[0]
    assert "dense inside a host 4,000,000, GTC between 2 hosts 10,032" in costs
