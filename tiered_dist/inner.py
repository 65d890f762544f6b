"""Tier 1: how the ranks of a subgroup make one gradient of theirs, every step.

``Dense``, here, and ``GTC``, in ``gtc``, are settings; ``start`` makes the running part, whose
``reduce`` turns this worker's gradient into the subgroup's mean over samples, the same bits on
every rank.
"""

import dataclasses
import math
import time
from typing import Any, Protocol

import torch
from torch import Tensor

from tiered_dist.exchange import Exchange, ExchangeError
from tiered_dist.layout import ParameterLayout


@dataclasses.dataclass(frozen=True)
class Local:
    """What one worker brings to a step. ``samples`` is 0 for a worker without a batch."""

    gradient: Tensor  # (P,) float32, the mean over this worker's samples
    samples: float
    out_of_data: bool
    step: int


@dataclasses.dataclass(frozen=True)
class Reduced:
    """What the subgroup made of it; the gradient is in ``Local.gradient``'s place.

    ``samples`` are the subgroup's. ``density``, ``residual_norm`` and ``residual_ratio`` (the
    largest ``|r| / tau``, 1 if smaller) are None for Dense; ``overflow`` counts quanta that did
    not fit. Seconds are this process' own time; a GPU may still be at work.
    """

    samples: float
    not_finite: int
    out_of_data: int
    payload_bytes: int
    density: float | None = None
    residual_norm: float | None = None
    residual_ratio: float | None = None
    overflow: int = 0
    encode_seconds: float = 0.0
    exchange_seconds: float = 0.0
    decode_seconds: float = 0.0


class Clock:
    """Tells how long each of the parts of a step took."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last call, or since the clock was made."""
        before, self._last = self._last, time.perf_counter()
        return self._last - before


class InnerState(Protocol):
    """A running tier 1."""

    def reduce(self, local: Local) -> Reduced:
        """Replace ``local.gradient`` by the subgroup's mean; a collective of the subgroup."""

    def end_block(self, resets_optimizer: bool) -> None:
        """Called after the block filter has moved the model.

        ``resets_optimizer`` says whether the optimizer's state is dropped now.
        """

    def subgroup_state(self) -> dict[str, Any]:
        """What every rank of the subgroup holds alike, in plain types."""

    def rank_state(self) -> dict[str, Any]:
        """What this rank alone holds, in plain types."""

    def load(self, subgroup: dict[str, Any], rank: dict[str, Any]) -> None:
        """Take up saved state, of another kind of tier too; ``rank`` may be empty."""


@dataclasses.dataclass(frozen=True)
class Dense:
    """Plain all-reduce of the gradient, weighted by samples.

    ``clip`` bounds the norm of the subgroup's mean gradient (None: no bound). ``dtype`` is what
    travels, and what the back-end adds up in: "fp32", or "bf16" at half the bytes.
    """

    dtype: str = "fp32"

    def __post_init__(self) -> None:
        if self.dtype not in ("fp32", "bf16"):
            raise ValueError(f"dtype={self.dtype!r}: 'fp32' or 'bf16'")

    def start(
        self, layout: ParameterLayout, exchange: Exchange, clip: float | None
    ) -> "DenseState":
        """The running part for one rank."""
        return DenseState(self, exchange, clip)


class DenseState:
    """A running ``Dense``; it holds nothing that a checkpoint would need."""

    def __init__(self, settings: Dense, exchange: Exchange, clip: float | None) -> None:
        self._settings = settings
        self._exchange = exchange
        self._clip = clip

    def reduce(self, local: Local) -> Reduced:
        """See ``InnerState``. A group of one rank leaves the gradient's bits alone."""
        gradient, samples, clock = local.gradient, local.samples, Clock()
        finite = math.isfinite(float(gradient.norm()))
        if not finite:
            samples = 0.0
        counts = [samples, float(not finite), float(local.out_of_data), float(local.step)]
        sent_before = self._exchange.bytes_sent
        if self._exchange.size > 1:
            # The small counts go as float64, for exactness, and so in a message of their own.
            totals = self._exchange.all_reduce(_float64(counts, gradient.device)).tolist()
            if totals[3] != self._exchange.size * local.step:
                raise ExchangeError(
                    f"this rank is at step {local.step}, the ranks {list(self._exchange.ranks)} "
                    f"on average at {totals[3] / self._exchange.size}"
                )
            gradient.mul_(samples / totals[0] if totals[0] else 0.0)
            if not finite:
                gradient.zero_()
            if self._settings.dtype == "bf16":
                gradient.copy_(self._exchange.all_reduce(gradient.bfloat16()))
            else:
                self._exchange.all_reduce(gradient)
        else:
            totals = counts
        exchange_seconds = clock.lap()
        if totals[0]:
            clip_norm(gradient, self._clip)
        return Reduced(
            samples=totals[0],
            not_finite=int(totals[1]),
            out_of_data=int(totals[2]),
            payload_bytes=self._exchange.bytes_sent - sent_before,
            exchange_seconds=exchange_seconds,
        )

    def end_block(self, resets_optimizer: bool) -> None:
        """Nothing is kept between steps."""

    def subgroup_state(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def rank_state(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load(self, subgroup: dict[str, Any], rank: dict[str, Any]) -> None:
        """Nothing to take up."""


def clip_norm(gradient: Tensor, bound: float | None) -> bool:
    """Scale a gradient ``(P,)`` down to norm ``bound`` if it is longer, in place.

    Returns whether it is finite; one that is not is left alone.
    """
    norm = float(gradient.norm())
    if bound is not None and bound < norm < math.inf:
        gradient.mul_(bound / norm)
    return math.isfinite(norm)


def _float64(values: list[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)
