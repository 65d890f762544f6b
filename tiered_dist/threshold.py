"""Choosing tau: what part of a gradient passes the threshold.

The controllers see counts that every rank of the subgroup has gathered, so all of them arrive at
the same tau without another message.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Threshold(Protocol):
    """What picks tau, one a parameter."""

    def target_density(self, step: int) -> float | None:
        """Quanta an element to aim at in ``step``; None if the threshold does not aim."""

    def initial(self, gradients: Sequence[Tensor], step: int) -> Tensor:
        """This worker's proposal from its first gradients: ``(parameters,)`` float32."""

    def update(self, taus: Tensor, density: Tensor, step: int) -> Tensor:
        """The next step's taus, from the density each parameter wanted to send at."""


@dataclasses.dataclass(frozen=True)
class FixedThreshold:
    """Strom's: one tau for all parameters, for ever. Needs to know the gradients' scale."""

    tau: float

    def __post_init__(self) -> None:
        if not self.tau > 0:
            raise ValueError(f"tau={self.tau}: must be positive")

    def target_density(self, step: int) -> float | None:
        """None: a fixed threshold sends what passes it."""
        return None

    def initial(self, gradients: Sequence[Tensor], step: int) -> Tensor:
        """``tau`` for every parameter."""
        return torch.full((len(gradients),), self.tau)

    def update(self, taus: Tensor, density: Tensor, step: int) -> Tensor:
        """``taus`` as they are."""
        return taus


@dataclasses.dataclass(frozen=True)
class TargetDensity:
    """A tau a parameter that follows a target density (sent quanta an element).

    The target falls from ``start`` to ``end`` geometrically over ``ramp_steps``, as Deep Gradient
    Compression's warm-up does, since a model that has just begun cannot wait 1/density steps for
    a coordinate. Tau answers in two ways: each step multiplies it by ``(seen / target) ** gain``,
    and while the target falls it rises ahead of what will be seen.
    """

    end: float = 0.01
    start: float = 0.25
    ramp_steps: int = 0

    # A residual answers a new tau only after some 1/density steps: a gain that is not small
    # against the density swings for ever (measured: at density 0.01, a gain of 0.1 gives a mean
    # of 0.012 with peaks of 0.03 where gradients drift; 0.02 settles).
    GAIN_OVER_DENSITY = 2.0
    MAX_GAIN = 0.1
    # Density falls with tau ** -2 where gradients are noise, with tau ** -1 where they drift.
    TAU_OVER_DENSITY_EXPONENT = 0.6

    def __post_init__(self) -> None:
        if not 0 < self.end <= self.start <= 1:
            raise ValueError(
                f"density from start={self.start} to end={self.end}: 0 < end <= start <= 1"
            )
        if self.ramp_steps < 0:
            raise ValueError(f"ramp_steps={self.ramp_steps}: cannot be negative")

    def target_density(self, step: int) -> float:
        """The density aimed at in ``step``."""
        done = min(1.0, step / self.ramp_steps) if self.ramp_steps else 1.0
        return self.start * (self.end / self.start) ** done

    def initial(self, gradients: Sequence[Tensor], step: int) -> Tensor:
        """The magnitude that the target's share of each gradient exceeds.

        A parameter without any gradient yet borrows the largest tau.
        """
        share = self.target_density(step)
        taus = torch.stack([_exceeded_by(gradient, share) for gradient in gradients]).cpu()
        largest = taus.max() if taus.max() > 0 else torch.ones(())
        return taus.where(taus > 0, largest)

    def update(self, taus: Tensor, density: Tensor, step: int) -> Tensor:
        """Taus moved toward the target, never by more than the controller's gain allows."""
        target, following = self.target_density(step), self.target_density(step + 1)
        excess = (density.double() / target).clamp(0.25, 4.0)
        gain = min(self.MAX_GAIN, self.GAIN_OVER_DENSITY * target)
        ahead = (target / following) ** self.TAU_OVER_DENSITY_EXPONENT
        moved = (taus.double() * excess**gain * ahead).float()
        return moved.clamp(min=torch.finfo(torch.float32).tiny)


def _exceeded_by(gradient: Tensor, share: float) -> Tensor:
    """The magnitude that ``share`` of the elements reach."""
    if gradient.numel() == 0:
        return gradient.new_zeros(())
    magnitude = gradient.abs().flatten()
    kept = max(1, math.ceil(share * magnitude.numel()))
    return magnitude.kthvalue(magnitude.numel() - kept + 1).values
