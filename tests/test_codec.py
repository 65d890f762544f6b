"""The codec against its definition, on tensors alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiered_dist import codec


def reference_step(residual, gradient, tau, max_quanta):
    """Strom's rule an element at a time, in float32; written from the equations alone."""
    quanta = []
    for i, value in enumerate(gradient):
        residual[i] = np.float32(residual[i] + value)
        size = min(int(np.floor(np.float32(abs(residual[i])) / np.float32(tau))), max_quanta)
        q = size if residual[i] > 0 else -size
        residual[i] = np.float32(residual[i] - np.float32(tau) * np.float32(q))
        quanta.append(q)
    return quanta


def count(sent, total):
    """Signed counts of every element, (total,), from positions and quanta that came apart."""
    positions, quanta = (part.repeat_interleave(sent[1].abs()) for part in sent)
    scratch, dense = torch.zeros(total, dtype=torch.int32), torch.zeros(total, dtype=torch.int32)
    dense[positions] = codec.count(positions, quanta.sign(), scratch)
    assert not scratch.any()
    return dense


def encode(residual, gradient, tau, max_quanta, capacity=1 << 30, start=0):
    """Positions and quanta that are sent."""
    positions, quanta = codec.accumulate(residual, gradient, 1.0, tau, max_quanta)
    quanta = codec.limit(quanta, capacity, int(torch.searchsorted(positions, start)))
    codec.subtract(residual, positions, quanta, torch.full((len(positions),), tau))
    return positions, quanta


def size(sent):
    return int(sent[1].abs().sum())


@pytest.mark.parametrize("density", [1e-4, 1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("max_quanta", [1, 5])
def test_equals_a_second_implementation(density, max_quanta):
    generator = torch.Generator().manual_seed(7)
    total = 20_000
    residual, other = torch.zeros(total), np.zeros(total, dtype=np.float32)
    tau = 0.02 * float(
        torch.randn(100_000, generator=generator)
        .abs()
        .kthvalue(100_000 - int(density * 100_000))
        .values
    )
    for _ in range(4):
        gradient = torch.randn(total, generator=generator) * 0.02
        counts = count(encode(residual, gradient, tau, max_quanta), total)
        assert counts.tolist() == reference_step(other, gradient.numpy(), tau, max_quanta)
        assert np.array_equal(residual.numpy(), other)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-4096, 4096), min_size=1, max_size=60),
    st.integers(-3, 3),
    st.integers(1, 9),
    st.integers(0, 40),
    st.integers(0, 100),
)
def test_nothing_is_lost(values, exponent, max_quanta, capacity, start):
    """What was decoded plus what is left equals what came in, exactly (dyadic gradients)."""
    tau = 2.0**exponent
    total = len(values)
    residual, decoded, given_in = torch.zeros(total), torch.zeros(total), torch.zeros(total)
    for step in range(5):
        gradient = torch.tensor(values, dtype=torch.float32).roll(step) / 64
        given_in += gradient
        sent = encode(residual, gradient, tau, max_quanta, capacity, (start + step) % total)
        assert size(sent) <= capacity
        decoded += count(sent, total) * tau
    assert torch.equal(decoded + residual, given_in)


def test_order_of_arrival_does_not_matter():
    generator = torch.Generator().manual_seed(1)
    sent = encode(torch.zeros(1000), torch.randn(1000, generator=generator), 0.3, 4)
    order = torch.randperm(len(sent[0]), generator=generator)
    assert torch.equal(count(sent, 1000), count([part[order] for part in sent], 1000))


def test_all_negative_and_all_zero():
    assert size(encode(torch.zeros(9), torch.zeros(9), 0.5, 1)) == 0
    sent = encode(torch.zeros(9), torch.full((9,), -0.75), 0.5, 1)
    assert count(sent, 9).tolist() == [-1] * 9


def test_small_tau_with_unbounded_quanta_tends_to_the_dense_gradient():
    gradient = torch.randn(500, generator=torch.Generator().manual_seed(3))
    errors = []
    for tau in (0.1, 0.01, 0.001):
        decoded = count(encode(torch.zeros(500), gradient, tau, 1 << 20), 500) * tau
        errors.append(float((decoded - gradient).abs().max()))
        assert errors[-1] <= tau * 1.001
    assert errors[2] < errors[1] < errors[0]


def test_overflow_is_kept_and_every_element_gets_its_turn():
    residual = torch.zeros(10)
    served = torch.zeros(10)
    for step in range(10):
        sent = encode(residual, torch.ones(10), 1.0, 1, capacity=5, start=(3 * step) % 10)
        assert size(sent) == 5
        served += count(sent, 10)
    assert served.min() > 0
    assert torch.equal(served + residual, torch.full((10,), 10.0))


@pytest.mark.parametrize(
    ("capacity", "first", "sent"),
    [(4, 1, [0, -3, 1]), (2, 1, [0, -2, 0]), (3, 2, [2, 0, 1]), (2, 3, [2, 0, 0]), (6, 1, None)],
)
def test_limit_starts_anywhere_and_can_cut_an_entry_of_several_quanta(capacity, first, sent):
    quanta = torch.tensor([2, -3, 1], dtype=torch.int32)
    limited = codec.limit(quanta, capacity, first)
    assert limited.tolist() == (sent or quanta.tolist()) and limited.dtype == torch.int32


def test_a_constant_above_tau_explodes_with_one_quantum_and_not_with_more():
    def left_over(max_quanta):
        residual = torch.zeros(1)
        for _ in range(100):
            encode(residual, torch.tensor([2.5]), 1.0, max_quanta)
        return float(residual)

    assert left_over(1) == pytest.approx(150)
    assert left_over(3) < 1
