"""Options of tier 2 on several real ranks, and its relatives against their own equations."""

import os

import pytest
import torch
from ranks import run_ranks
from tiered_helpers import Vector, checksum, flat, hand_trainer, noise
from torch import nn

from tiered_dist import BMUF, GTC, Dense, FixedThreshold, TieredTrainer, Topology, diloco, slowmo

DENSE = Dense()


def follow(outer, steps, inner=DENSE, subgroups=2, momentum=0.0):
    """Checksums and reports of every step; the trainer's state at the end."""
    rank = int(os.environ["RANK"])
    model = Vector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    trainer = TieredTrainer(model, optimizer, Topology.build(subgroups), inner, outer)
    checksums, reports = [], []
    for step in range(steps):
        model.parts[0].grad = noise(rank, step)
        reports.append(trainer.step(samples=4 + rank))
        checksums.append(checksum(model))
    state = optimizer.state.get(model.parts[0], {}).get("momentum_buffer")
    return checksums, reports, flat(trainer.model_for_eval()), state


def test_a_block_of_so_many_samples_finds_its_number_of_steps(tmp_path):
    """Twenty-two samples a step: sixty are three steps, as soon as that is known."""
    results = run_ranks(4, follow, tmp_path, BMUF(block_samples=60, momentum=0.0), 8)
    for _, reports, _, _ in results:
        ends = [report.step for report in reports if report.block]
        assert ends == [1, 4, 7]
        assert [r.block.samples for r in reports if r.block] == [22, 66, 66]


def test_warmup_is_synchronous_training_of_all_ranks(tmp_path):
    outer = BMUF(3, warmup_steps=5)
    gtc = GTC(FixedThreshold(0.5))
    results = run_ranks(4, follow, tmp_path, outer, 11, gtc)
    synchronous = run_ranks(4, follow, tmp_path, None, 5, Dense(), 4)
    steps = list(zip(*(checksums for checksums, _, _, _ in results), strict=True))
    for step in range(5):
        assert set(steps[step]) == {synchronous[0][0][step]}
    for step in range(5, 11):
        met = (step + 1 - 5) % 3 == 0
        assert len(set(steps[step])) == (1 if met else 2)
    reports = results[0][1]
    assert [report.synchronous for report in reports] == [True] * 5 + [False] * 6
    assert [report.block.block for report in reports if report.block] == [1, 2]
    assert reports[0].samples == 22 and reports[5].samples in (9, 13)
    assert reports[0].inner_wire_bytes > 0 and reports[0].density is None


def test_during_warmup_the_live_model_is_the_one_to_evaluate(tmp_path):
    evaluated = run_ranks(2, follow, tmp_path, BMUF(3, warmup_steps=5), 4, Dense(), 1)
    synchronous = run_ranks(2, follow, tmp_path, None, 4, Dense(), 2)
    assert torch.equal(evaluated[0][2], synchronous[0][2])


def test_momentum_is_averaged_by_samples(tmp_path):
    def state(policy, steps):
        outer = BMUF(2, inner_state=policy)
        return [r[3] for r in run_ranks(4, follow, tmp_path, outer, steps, Dense(), 2, 0.9)]

    kept, averaged = state("keep", 2), state("average", 2)
    assert not torch.equal(kept[0], kept[2])
    expected = (9 * kept[0] + 13 * kept[2]) / 22
    for buffer in averaged:
        torch.testing.assert_close(buffer, expected, rtol=1e-6, atol=1e-7)
        assert torch.equal(buffer, averaged[0])


def one_subgroup_without_data(policy):
    model = Vector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = TieredTrainer(
        model, optimizer, Topology.build(1), Dense(), BMUF(1, 0.0, inner_state=policy)
    )
    idle = trainer.topology.rank == 1
    model.parts[0].grad = None if idle else torch.ones(50)
    trainer.step(samples=0 if idle else 3)
    return len(optimizer.state), flat(model)


def test_averaging_waits_for_state_that_a_subgroup_has_not_got(tmp_path):
    (held, model), (others, other) = run_ranks(2, one_subgroup_without_data, tmp_path, "average")
    assert (held, others) == (1, 0)
    assert torch.equal(model, other)


def normalised(how):
    rank = int(os.environ["RANK"])
    model = nn.Sequential(nn.BatchNorm1d(2))
    trainer = hand_trainer(model, 1, Dense(), BMUF(1, buffers=how))
    model(torch.arange(8.0).view(4, 2) * (rank + 1)).square().mean().backward()
    before = model[0].running_mean.clone()
    trainer.step(samples=4)
    return before, model[0].running_mean.clone(), int(model[0].num_batches_tracked)


@pytest.mark.parametrize("how", ["average", "broadcast", "keep"])
def test_buffers_become_one(tmp_path, how):
    results = run_ranks(3, normalised, tmp_path, how)
    before = [result[0] for result in results]
    for rank, (_, after, tracked) in enumerate(results):
        expected = {
            "average": sum(before) / 3,
            "broadcast": before[0],
            "keep": before[rank],
        }[how]
        torch.testing.assert_close(after, expected)
        assert tracked == 1


def test_slowmo_follows_its_own_equations():
    """u <- beta u + (x0 - x) / gamma;  x <- x0 - alpha gamma u (Wang et al. 2020)."""
    beta, alpha, gamma = 0.6, 0.9, 0.1
    model = Vector()
    trainer = hand_trainer(model, 1, Dense(), slowmo(3, beta, alpha), lr=gamma)
    x, u = torch.zeros(50), torch.zeros(50)
    for block in range(4):
        inner = x.clone()
        for step in range(3):
            inner -= gamma * noise(block, step)
            model.parts[0].grad = noise(block, step)
            trainer.step(samples=1)
        u = beta * u + (x - inner) / gamma
        x = x - alpha * gamma * u
        torch.testing.assert_close(flat(model), x, rtol=1e-5, atol=1e-6)


def test_diloco_is_adamw_inside_and_torchs_nesterov_outside():
    model, plain = Vector(), Vector()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = TieredTrainer(model, inner, Topology.build(1), Dense(), diloco(3))
    plain_inner = torch.optim.AdamW(plain.parameters(), lr=0.01)
    point = nn.Parameter(torch.zeros(50))
    outside = torch.optim.SGD([point], lr=0.7, momentum=0.9, nesterov=True)
    for block in range(5):
        for step in range(3):
            model.parts[0].grad = noise(block, step)
            trainer.step(samples=1)
            plain.parts[0].grad = noise(block, step)
            plain_inner.step()
        point.grad = point.detach() - plain.parts[0].detach()
        outside.step()
        with torch.no_grad():
            plain.parts[0].copy_(point)
        torch.testing.assert_close(flat(model), flat(plain), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"block_steps": 5, "block_samples": 100},
        {"block_samples": 0},
        {"block_steps": 5, "warmup_steps": -1},
        {"block_steps": 5, "buffers": "lose"},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match=list(settings or ["block_steps"])[-1]):
        BMUF(**settings)
