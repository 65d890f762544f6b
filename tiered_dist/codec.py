"""Gradient Threshold Compression on tensors alone (Strom, Interspeech 2015).

A worker adds its gradient to a residual, sends the sign and index of what has passed a threshold
tau, and keeps the rest for later:

    r <- r + g * n / n_ref
    q  = sign(r) * min(floor(|r| / tau), max_quanta)
    r <- r - tau * q

``max_quanta`` = 1 is Strom's form; larger values repeat an entry. How entries travel is told in
``entries``. Decoding sums the workers' entries as integers, so the result does not depend on the
order in which they arrive, and every replica of a subgroup gets the same bits.
"""

import numpy as np
import torch
from torch import Tensor

from tiered_dist import native


def accumulate(
    residual: Tensor, gradient: Tensor, weight: float, tau: float, max_quanta: int
) -> tuple[Tensor, Tensor]:
    """Add ``weight * gradient`` to the residual, both ``(P,)``, in place; then ``quantise`` it.

    One pass over memory where native code can be had, with the same bits.
    """
    found = native.accumulate(residual, gradient, weight, tau)
    if found is None:
        return quantise(residual.add_(gradient, alpha=weight), tau, max_quanta)
    positions, values = found
    return positions, _quanta(values, tau, max_quanta)


def quantise(residual: Tensor, tau: float, max_quanta: int) -> tuple[Tensor, Tensor]:
    """Positions (int64) and signed quanta (int32) of what a residual ``(P,)`` would send.

    Positions ascend. The residual is left as it is: what is really sent may be less (see
    ``limit``). ``tau`` must be positive.
    """
    if residual.device.type == "cpu":  # torch's nonzero takes five times as long (measured)
        reaching = np.flatnonzero(np.abs(residual.numpy()) >= np.float32(tau))
        positions = torch.from_numpy(reaching)
    else:
        positions = (residual.abs() >= tau).nonzero().squeeze(1)
    return positions, _quanta(residual[positions], tau, max_quanta)


def _quanta(values: Tensor, tau: float, max_quanta: int) -> Tensor:
    quanta = (values.abs() / tau).floor().clamp(max=max_quanta) * values.sign()
    return quanta.to(torch.int32)


def limit(quanta: Tensor, capacity: int, first: int) -> Tensor:
    """How many of the ``quanta`` ``(E,)`` fit into ``capacity``, from element ``first`` on.

    Counting goes around the end. The caller moves ``first`` from step to step, so that overflow
    does not always starve the last tensors. The last one to fit may be cut, the others become 0.
    """
    magnitude = quanta.abs()
    if int(magnitude.sum()) <= capacity:
        return quanta
    ahead = magnitude.roll(-first).cumsum(0).roll(first) - magnitude
    room = (capacity - ahead).clamp(min=0)
    return (magnitude.minimum(room) * quanta.sign()).to(torch.int32)


def subtract(residual: Tensor, positions: Tensor, quanta: Tensor, taus: Tensor) -> None:
    """Take what was sent out of the residual ``(P,)``, in place; ``taus`` is one an entry."""
    residual[positions] -= taus * quanta


def count(positions: Tensor, signs: Tensor, scratch: Tensor) -> Tensor:
    """Sum all workers' entries as integers: at each of ``positions`` ``(E,)``, the whole count.

    ``signs`` ``(E,)`` int32 are 1 or -1. A position that several entries name comes as often, each
    time with its whole count. ``scratch``, ``(P,)`` int32 zeros, is left as zeros; to keep it from
    step to step spares a pass over the model.
    """
    scratch.index_add_(0, positions, signs)
    counts = scratch[positions]
    scratch[positions] = 0
    return counts
