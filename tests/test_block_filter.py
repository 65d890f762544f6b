"""BMUF against torch's own SGD on the pseudo-gradient, and its identities."""

import pytest
import torch

from tiered_dist import BMUF


def moves(blocks, size=50):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(blocks)]


def start(size=50):
    return torch.randn(size, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("momentum", "rate"), [(0.9, 1.0), (0.5, 0.7), (0.9375, 1.2)])
def test_start_point_equals_sgd_on_the_negative_move(nesterov, momentum, rate):
    block_filter = BMUF(1, momentum, rate, nesterov).start_filter(start(), subgroups=4)
    parameter = torch.nn.Parameter(start())
    sgd = torch.optim.SGD([parameter], lr=rate, momentum=momentum, nesterov=nesterov)
    for move in moves(50):
        block_filter.apply(move)
        parameter.grad = -move
        sgd.step()
        difference = (block_filter.start_point() - parameter).norm() / parameter.norm()
        assert difference < 1e-12


def test_without_momentum_it_is_plain_averaging():
    block_filter = BMUF(1, momentum=0.0).start_filter(start(), subgroups=4)
    expected = start()
    for move in moves(5):
        block_filter.apply(move)
        expected = expected + move
        assert torch.equal(block_filter.model, expected)
        assert torch.equal(block_filter.start_point(), expected)


def test_nesterov_evaluates_w_and_starts_from_the_look_ahead():
    block_filter = BMUF(1, 0.5, 1.0, nesterov=True).start_filter(torch.zeros(1), subgroups=2)
    block_filter.apply(torch.ones(1))  # D = 1, W = 1
    assert block_filter.model.item() == 1.0
    assert block_filter.start_point().item() == 1.5
    block_filter.apply(torch.ones(1))  # D = 1.5, W = 2.5
    assert block_filter.model.item() == 2.5
    assert block_filter.start_point().item() == 3.25


@pytest.mark.parametrize(("groups", "momentum"), [(1, 0.0), (2, 0.5), (16, 0.9375)])
def test_auto_momentum_counts_averaged_models(groups, momentum):
    assert BMUF(10).block_momentum(groups) == momentum


@pytest.mark.parametrize(
    "settings",
    [{"block_steps": 0}, {"block_steps": 5, "momentum": 1.0}, {"block_steps": 5, "momentum": "x"},
     {"block_steps": 5, "learning_rate": 0.0}, {"block_steps": 5, "inner_state": "drop"}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError):
        BMUF(**settings)
