"""Gradients of noise, and GTC in the state that a long run of them ends in.

A sum of noise of deviation sigma passes tau after (tau / sigma) ** 2 steps on average, so tau is
sigma / sqrt(density), and the residuals lie in a triangle between -tau and tau.
"""

import math

import torch
from torch import nn

from tiered_dist import TieredTrainer

SIGMA = 1e-3
# The noise is drawn once and moves along by so many elements a step, within so many.
STRIDE, RANGE = 1237, 10_007


class Noise:
    """The same noise again and again, a rank's own; ``sigma`` is its deviation."""

    def __init__(self, elements: int, rank: int) -> None:
        generator = torch.Generator().manual_seed(rank)
        self._noise = torch.randn(elements + RANGE, generator=generator) * SIGMA
        self._elements = elements
        self._moved = 0

    def overwrite_gradients(self, model: nn.Module) -> None:
        """Of all parameters, moved along by some elements each time."""
        self._moved = (self._moved + STRIDE) % RANGE
        parameters = list(model.parameters())
        parts = self._noise[self._moved : self._moved + self._elements].split(
            [parameter.numel() for parameter in parameters]
        )
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).clone()


def begin_settled(trainer: TieredTrainer, density: float, samples: float) -> None:
    """GTC's taus, capacity and residuals after a long run of noise, ``samples`` a batch."""
    state, tau = trainer.state_dict(), SIGMA / density**0.5
    elements = sum(math.prod(shape) for shape in trainer.shapes.values())
    state["subgroup"]["inner"] = {
        "taus": dict.fromkeys(trainer.shapes, tau),
        "reference": float(samples),
        "capacity": math.ceil(1.25 * density * elements),
    }
    triangles = {
        name: tau * (torch.rand(shape) - torch.rand(shape))
        for name, shape in trainer.shapes.items()
    }
    state["rank"]["inner"] = {"residual": triangles}
    trainer.load_state_dict(state)
