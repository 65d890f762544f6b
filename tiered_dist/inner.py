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
from tiered_dist.topology import Topology


@dataclasses.dataclass(frozen=True)
class Local:
    """What one worker brings to a step. ``samples`` is 0 for a worker without a batch.

    A worker is a rank, or the ranks of a host that reduce their gradients first: ``out_of_data``
    counts its ranks that will bring no more batches, ``not_finite`` those that were left out.
    """

    gradient: Tensor  # (P,) float32, the mean over this worker's samples
    samples: float
    out_of_data: int
    step: int
    not_finite: int = 0


@dataclasses.dataclass(frozen=True)
class Reduced:
    """What the subgroup made of it; the gradient is in ``Local.gradient``'s place.

    ``samples`` are the subgroup's. ``density``, ``residual_norm`` and ``residual_ratio`` (the
    largest ``|r| / tau``, 1 if smaller) are None for Dense; ``overflow`` counts quanta that did
    not fit. ``host_wire_bytes`` were sent inside the host by ``DenseInHost``. Seconds are this
    process' own time; a GPU may still be at work. ``waiting_seconds`` are a part of
    ``exchange_seconds``; GTC's are those of the step before.
    """

    samples: float
    not_finite: int
    out_of_data: int
    payload_bytes: int
    density: float | None = None
    residual_norm: float | None = None
    residual_ratio: float | None = None
    overflow: int = 0
    host_wire_bytes: int = 0
    encode_seconds: float = 0.0
    exchange_seconds: float = 0.0
    waiting_seconds: float = 0.0
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
        self, layout: ParameterLayout, topology: Topology, clip: float | None
    ) -> "DenseState":
        """The running part for one rank."""
        return DenseState(self, topology.inner, clip)

    def residual_holders(self, topology: Topology) -> list[list[int]]:
        """None: nothing waits."""
        return []


class DenseState:
    """A running ``Dense``; it holds nothing that a checkpoint would need."""

    def __init__(self, settings: Dense, exchange: Exchange, clip: float | None) -> None:
        self._settings = settings
        self._exchange = exchange
        self._clip = clip

    def reduce(self, local: Local) -> Reduced:
        """See ``InnerState``. A group of one rank leaves the gradient's bits alone."""
        gradient, exchange, clock = local.gradient, self._exchange, Clock()
        sent_before = exchange.bytes_sent
        totals = weigh(local, exchange)
        clock.lap()
        if exchange.size > 1:
            if self._settings.dtype == "bf16":
                gradient.copy_(exchange.all_reduce(gradient.bfloat16()))
            else:
                exchange.all_reduce(gradient)
        exchange_seconds = totals.waiting_seconds + clock.lap()
        if totals.samples:
            clip_norm(gradient, self._clip)
        return Reduced(
            samples=totals.samples,
            not_finite=totals.not_finite,
            out_of_data=totals.out_of_data,
            payload_bytes=exchange.bytes_sent - sent_before,
            exchange_seconds=exchange_seconds,
            waiting_seconds=totals.waiting_seconds,
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


@dataclasses.dataclass(frozen=True)
class Totals:
    """What the ranks of a group have together: samples, and ranks left out or out of data.

    ``waiting_seconds`` passed until all of them had come.
    """

    samples: float
    not_finite: int
    out_of_data: int
    waiting_seconds: float


def weigh(local: Local, exchange: Exchange) -> Totals:
    """Multiply ``local.gradient`` by this rank's share of the group's samples, in place.

    The sum over the group is then the mean over samples. A gradient with a NaN or an infinity
    becomes zeros and counts no samples. A group of one rank leaves a finite one's bits alone.
    ExchangeError if the ranks are not at one step.
    """
    finite = math.isfinite(float(local.gradient.norm()))
    samples = local.samples if finite else 0.0
    counts = [samples, local.not_finite + (not finite), local.out_of_data, local.step]
    clock, waiting_seconds = Clock(), 0.0
    if exchange.size > 1:
        # The small counts go as float64, for exactness, and so in a message of their own.
        numbers = torch.tensor(counts, dtype=torch.float64, device=local.gradient.device)
        counts = exchange.all_reduce(numbers).tolist()
        waiting_seconds = clock.lap()
        if counts[3] != exchange.size * local.step:
            raise ExchangeError(
                f"this rank is at step {local.step}, the ranks {list(exchange.ranks)} "
                f"on average at {counts[3] / exchange.size}"
            )
        local.gradient.mul_(samples / counts[0] if counts[0] else 0.0)
    if not finite:
        local.gradient.zero_()
    return Totals(counts[0], int(counts[1]), int(counts[2]), waiting_seconds)


def clip_norm(gradient: Tensor, bound: float | None) -> bool:
    """Scale a gradient ``(P,)`` down to norm ``bound`` if it is longer, in place.

    Returns whether it is finite; one that is not is left alone.
    """
    norm = float(gradient.norm())
    if bound is not None and bound < norm < math.inf:
        gradient.mul_(bound / norm)
    return math.isfinite(norm)
