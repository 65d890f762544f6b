"""Tier 1: how the ranks of a subgroup make one gradient of theirs, every step.

``Dense`` and ``GTC`` are settings; ``start`` makes the running part, whose ``reduce`` turns this
worker's gradient into the subgroup's mean over samples, the same bits on every rank.
"""

import dataclasses
import math
from typing import Any, Protocol

import torch
from torch import Tensor

from tiered_dist import codec, message
from tiered_dist.exchange import Exchange, ExchangeError
from tiered_dist.layout import ParameterLayout
from tiered_dist.threshold import TargetDensity, Threshold


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
    not fit.
    """

    samples: float
    not_finite: int
    out_of_data: int
    payload_bytes: int
    density: float | None = None
    residual_norm: float | None = None
    residual_ratio: float | None = None
    overflow: int = 0


class InnerState(Protocol):
    """A running tier 1."""

    def reduce(self, local: Local) -> Reduced:
        """Replace ``local.gradient`` by the subgroup's mean; a collective of the subgroup."""

    def end_block(self) -> None:
        """Called after the block filter has moved the model."""

    def subgroup_state(self) -> dict[str, Any]:
        """What every rank of the subgroup holds alike, in plain types."""

    def rank_state(self) -> dict[str, Any]:
        """What this rank alone holds, in plain types."""

    def load(self, subgroup: dict[str, Any], rank: dict[str, Any] | None) -> None:
        """Take up saved state, of another kind of tier too; ``rank`` is None in a new world."""


@dataclasses.dataclass(frozen=True)
class Dense:
    """Plain all-reduce of the gradient, weighted by samples.

    ``clip`` bounds the norm of the subgroup's mean gradient (None: no bound).
    """

    def start(
        self, layout: ParameterLayout, exchange: Exchange, clip: float | None
    ) -> "DenseState":
        """The running part for one rank."""
        return DenseState(exchange, clip)


class DenseState:
    """A running ``Dense``; it holds nothing that a checkpoint would need."""

    def __init__(self, exchange: Exchange, clip: float | None) -> None:
        self._exchange = exchange
        self._clip = clip

    def reduce(self, local: Local) -> Reduced:
        """See ``InnerState``. A group of one rank leaves the gradient's bits alone."""
        gradient, samples = local.gradient, local.samples
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
            self._exchange.all_reduce(gradient)
        else:
            totals = counts
        if totals[0]:
            clip_norm(gradient, self._clip)
        return Reduced(
            samples=totals[0],
            not_finite=int(totals[1]),
            out_of_data=int(totals[2]),
            payload_bytes=self._exchange.bytes_sent - sent_before,
        )

    def end_block(self) -> None:
        """Nothing is kept between steps."""

    def subgroup_state(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def rank_state(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load(self, subgroup: dict[str, Any], rank: dict[str, Any] | None) -> None:
        """Nothing to take up."""


# More would overflow the counts of a message's header.
MAX_QUANTA = 1 << 15


@dataclasses.dataclass(frozen=True)
class GTC:
    """Gradient Threshold Compression inside a subgroup (Strom 2015; see ``codec``).

    ``threshold`` picks tau; ``max_quanta`` is the largest multiple of tau that an element sends
    in one step; ``residual`` says what a block's end does with the unsent rest (keeping it is
    the default: a reset throws away nearly all of a slow drift).

    The decoded gradient is the mean over samples, as Dense's, except in a step of fewer samples
    than one worker's usual batch: there it is weighted as if it had them, since the residuals hold
    more than that step's gradients. A worker without a batch sends an empty message, and its
    residual waits: nothing of it fires.

    ``clip`` bounds each worker's contribution to the mean, ``g / S``, at ``clip / sqrt(S)``, as
    Deep Gradient Compression does: S equal and independent contributions of that norm make a mean
    of norm ``clip``, the bound that Dense puts on the mean itself. Contributions that agree may
    make one of ``clip * sqrt(S)``.
    """

    threshold: Threshold = TargetDensity()
    max_quanta: int = 1
    residual: str = "keep"

    def __post_init__(self) -> None:
        if not 1 <= self.max_quanta <= MAX_QUANTA:
            raise ValueError(f"max_quanta={self.max_quanta}: from 1 to {MAX_QUANTA}")
        if self.residual not in ("keep", "reset"):
            raise ValueError(f"residual={self.residual!r}: 'keep' or 'reset'")

    def start(self, layout: ParameterLayout, exchange: Exchange, clip: float | None) -> "GTCState":
        """The running part for one rank. ValueError for a model too large for 32-bit entries."""
        return GTCState(self, layout, exchange, clip)


# A step with less than this share of the usual samples says nothing of the next one's density.
LEAST_EVIDENCE = 0.5
# The share of the model by which the first element to be sent moves from step to step: multiples
# of the golden ratio fall everywhere alike.
ROTATION = 0.6180339887498949


class GTCState:
    """A running ``GTC``: the residual, the taus, and the capacity of the next message."""

    MIN_CAPACITY = 256
    # Counts vary from step to step; what does not fit is not lost, only later.
    CAPACITY_MARGIN = 1.25
    # A batch with a far larger gradient than usual wants to send as much as dozens of others
    # (measured: 0.5 of the elements at a target of 0.008); it is spread over the next steps.
    BURST = 2.0

    def __init__(
        self, settings: GTC, layout: ParameterLayout, exchange: Exchange, clip: float | None
    ) -> None:
        if layout.total > codec.MAX_ELEMENTS:
            raise ValueError(
                f"{layout.total} parameters: GTC's 32-bit entries reach {codec.MAX_ELEMENTS}"
            )
        self._settings = settings
        self._layout = layout
        self._exchange = exchange
        self._clip = None if clip is None else clip * math.sqrt(exchange.size)
        # Both (P,), made on the gradient's device at the first step; scratch is int32 zeros.
        self._residual, self._scratch = torch.empty(0), torch.empty(0)
        self._taus: Tensor | None = None  # (parameters,) float32 on the CPU
        self._reference = 0.0  # n_ref: samples a worker's batch held when training began
        self._capacity = 0

    def reduce(self, local: Local) -> Reduced:
        """See ``InnerState``."""
        gradient, layout = local.gradient, self._layout
        finite = clip_norm(gradient, self._clip)
        samples = local.samples if finite else 0.0
        if self._taus is None:
            self._agree_on_start(gradient, samples, local.step)
        taus = torch.ones(len(layout.names)) if self._taus is None else self._taus
        self._hold_tensors(gradient)

        entries, wanted, ratio = self._encode(gradient, samples, taus, local.step)
        packed = message.pack(
            local.step,
            layout.fingerprint,
            taus,
            (0 if finite else message.NOT_FINITE)
            | (message.OUT_OF_DATA if local.out_of_data else 0),
            samples,
            wanted,
            entries.cpu(),
            self._capacity,
        )
        gathered = self._exchange.all_gather(packed.to(gradient.device))
        received = message.unpack(
            gathered, len(layout.names), self._exchange.ranks, self._exchange.index
        )
        self._decode(received, taus, gradient)
        report = Reduced(
            samples=received.samples,
            not_finite=received.not_finite,
            out_of_data=received.out_of_data,
            payload_bytes=(self._exchange.size - 1)
            * packed.element_size()
            * (packed.numel() - self._capacity + entries.numel()),
            density=(
                received.entries.numel() / (layout.total * received.active)
                if received.active
                else None
            ),
            residual_norm=float(self._residual.norm()),
            residual_ratio=ratio,
            overflow=int(wanted.sum()) - entries.numel(),
        )
        self._adapt(received, taus, local.step)
        return report

    def end_block(self) -> None:
        """Drop the residual, if the settings say so."""
        if self._settings.residual == "reset":
            self._residual.zero_()

    def subgroup_state(self) -> dict[str, Any]:
        """Taus by parameter name, reference samples, capacity."""
        taus = (
            {}
            if self._taus is None
            else dict(zip(self._layout.names, self._taus.tolist(), strict=True))
        )
        return {"taus": taus, "reference": self._reference, "capacity": self._capacity}

    def rank_state(self) -> dict[str, Any]:
        """The residual by parameter name."""
        begun = self._residual.numel() > 0
        return {"residual": self._layout.to_named(self._residual) if begun else {}}

    def load(self, subgroup: dict[str, Any], rank: dict[str, Any] | None) -> None:
        """See ``InnerState``; without a rank part the residual starts empty."""
        names, taus = self._layout.names, subgroup.get("taus")
        self._taus = torch.tensor([taus[name] for name in names]) if taus else None
        self._reference = subgroup.get("reference", 0.0)
        self._capacity = subgroup.get("capacity", 0)
        self._residual = torch.empty(0)
        if rank is not None and rank.get("residual"):
            self._residual = self._layout.from_named(
                rank["residual"], torch.empty(self._layout.total)
            )

    def _agree_on_start(self, gradient: Tensor, samples: float, step: int) -> None:
        """First taus (their geometric mean over workers), reference samples, and capacity."""
        parameters = len(self._layout.names)
        proposal = torch.zeros(parameters + 2, dtype=torch.float64)
        if samples > 0 and bool(gradient.any()):
            taus = self._settings.threshold.initial(self._layout.split(gradient), step)
            proposal[:parameters] = taus.double().log()
            proposal[parameters], proposal[parameters + 1] = samples, 1.0
        total = self._exchange.all_reduce(proposal.to(gradient.device)).cpu()
        workers = float(total[-1])
        if workers == 0:  # nobody has a gradient yet: an empty message now, and we ask again
            return
        self._taus = (total[:parameters] / workers).exp().float()
        self._reference = float(total[parameters]) / workers
        wanted = 0
        if samples > 0:
            first = self._layout.split(gradient * (samples / self._reference))
            wanted = sum(
                int(codec.quantise(part, tau, self._settings.max_quanta)[1].abs().sum())
                for part, tau in zip(first, self._taus.tolist(), strict=True)
            )
        most = self._exchange.all_gather(torch.tensor([wanted], device=gradient.device)).max()
        self._capacity = self._capacity_for(int(most), step)

    def _hold_tensors(self, gradient: Tensor) -> None:
        """Make the residual and the scratch tensor where the gradient is, if they are not there."""
        if self._scratch.numel() == 0:
            self._scratch = torch.zeros_like(gradient, dtype=torch.int32)
        if self._residual.numel() == 0:
            self._residual = torch.zeros_like(gradient)
        self._residual = self._residual.to(gradient.device)  # a loaded one is on the CPU

    def _encode(
        self, gradient: Tensor, samples: float, taus: Tensor, step: int
    ) -> tuple[Tensor, Tensor, float]:
        """Move this worker's gradient into the residual, and out of it what is sent now.

        Returns the entries, the quanta each parameter wanted to send ``(parameters,)``, and the
        largest ``|r| / tau`` that is left.
        """
        if samples == 0 or self._reference == 0:
            nothing = torch.zeros(len(self._layout.names), dtype=torch.int32)
            return torch.zeros(0, dtype=torch.int32), nothing, 1.0
        residual, weight = self._residual, samples / self._reference
        positions, quanta, offset = [], [], 0
        for part, new, tau in zip(
            self._layout.split(residual), self._layout.split(gradient), taus.tolist(), strict=True
        ):
            where, what = codec.accumulate(part, new, weight, tau, self._settings.max_quanta)
            positions.append(where + offset)
            quanta.append(what)
            offset += part.numel()
        wanted = torch.stack([part.abs().sum() for part in quanta]).to(torch.int32).cpu()
        passed, all_quanta = torch.cat(positions), torch.cat(quanta)
        found = torch.tensor([part.numel() for part in positions])
        passed_taus = taus.repeat_interleave(found).to(residual.device)

        start = int(step * ROTATION % 1 * self._layout.total)
        sent = codec.limit(all_quanta, self._capacity, first=int(torch.searchsorted(passed, start)))
        codec.subtract(residual, passed, sent, passed_taus)
        ratios = residual[passed].abs() / passed_taus
        largest = max(1.0, float(ratios.max())) if ratios.numel() else 1.0  # all others are below 1
        return codec.to_entries(passed, sent), wanted, largest

    def _decode(self, received: message.Received, taus: Tensor, out: Tensor) -> None:
        """The subgroup's mean gradient, into ``out``.

        The residual carries more than this step's samples; a step of fewer than a usual batch
        must not blow it up.
        """
        weight = max(received.samples, self._reference)
        scales = (taus.double() * (self._reference / weight if weight else 0.0)).float()
        ends = torch.tensor(self._layout.sizes).cumsum(0).to(out.device)
        where, counts = codec.count(received.entries, self._scratch)
        parameter = torch.searchsorted(ends, where, right=True)
        out.zero_()
        out[where] = counts * scales.to(out.device)[parameter]

    def _adapt(self, received: message.Received, taus: Tensor, step: int) -> None:
        """The next step's taus and capacity, from counts that all ranks have gathered."""
        usual = self._reference * received.active
        if self._taus is None or received.samples < LEAST_EVIDENCE * usual or not received.active:
            return
        wanted = received.wanted.cpu()
        sizes = torch.tensor(self._layout.sizes)
        density = wanted.sum(dim=0).double() / (sizes * received.active)
        self._taus = self._settings.threshold.update(taus, density, step)
        self._capacity = self._capacity_for(int(wanted.sum(dim=1).max()), step + 1)

    def _capacity_for(self, quanta: int, step: int) -> int:
        """Room for what ``step`` is likely to send, after one that wanted to send ``quanta``."""
        total, target = self._layout.total, self._settings.threshold.target_density(step)
        bound = total * self._settings.max_quanta
        if target is not None:
            bound = min(bound, math.ceil(self.BURST * target * total))
        return max(self.MIN_CAPACITY, min(math.ceil(quanta * self.CAPACITY_MARGIN), bound))


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
