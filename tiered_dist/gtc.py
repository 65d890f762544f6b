"""Tier 1 with Gradient Threshold Compression: its settings, and the running part of one rank."""

import dataclasses
import logging
import math
from typing import Any

import torch
from torch import Tensor

from tiered_dist import codec, entries, message
from tiered_dist.exchange import Exchange, ExchangeError, all_gather_bytes, all_reduce_bytes
from tiered_dist.inner import Clock, Local, Reduced, clip_norm
from tiered_dist.layout import ParameterLayout
from tiered_dist.threshold import TargetDensity, Threshold
from tiered_dist.topology import Topology

log = logging.getLogger("tiered_dist")

# More would overflow the counts of a message's header.
MAX_QUANTA = 1 << 15


@dataclasses.dataclass(frozen=True)
class GTC:
    """Gradient Threshold Compression inside a subgroup (Strom 2015; see ``codec``).

    ``threshold`` picks tau; ``max_quanta`` is the largest multiple of tau that an element sends
    in one step; ``residual`` says what a block's end does with the unsent rest (keeping it is
    the default: a reset throws away nearly all of a slow drift). ``residual_bound`` cuts what is
    left of an element that sends, at this multiple of tau: what is cut is lost (None: no bound).

    The decoded gradient is the mean over samples, as Dense's, except in a step of fewer samples
    than one worker's usual batch: there it is weighted as if it had them, since the residuals hold
    more than that step's gradients. A worker without a batch sends an empty message, and its
    residual waits: nothing of it fires.

    ``clip`` bounds each worker's contribution to the mean, ``g / S``, at ``clip / sqrt(S)``, as
    Deep Gradient Compression does: S equal and independent contributions of that norm make a mean
    of norm ``clip``, the bound that Dense puts on the mean itself. Contributions that agree may
    make one of ``clip * sqrt(S)``.

    Parameters of fewer than ``dense_below`` elements (biases) are sent as they are, every step. A
    step whose message would be larger than what a dense all-reduce sends is one: everything is
    delivered, nothing is left.

    ``momentum`` is Deep Gradient Compression's (Lin et al. 2017): each worker's residual gathers
    the velocity ``u <- momentum * u + g`` in place of g (with ``nesterov``, ``g + momentum * u``),
    and ``factor_masking`` stops the velocity of an element that has been sent. The optimizer then
    needs none of its own.
    """

    threshold: Threshold = TargetDensity()
    max_quanta: int = 1
    residual: str = "keep"
    residual_bound: float | None = None
    dense_below: int = 0
    momentum: float = 0.0
    nesterov: bool = False
    factor_masking: bool = True

    def __post_init__(self) -> None:
        if not hasattr(self.threshold, "initial"):
            raise TypeError(
                f"threshold={self.threshold!r}: TargetDensity(density) or FixedThreshold(tau)"
            )
        if not 1 <= self.max_quanta <= MAX_QUANTA:
            raise ValueError(f"max_quanta={self.max_quanta}: from 1 to {MAX_QUANTA}")
        if self.residual not in ("keep", "reset"):
            raise ValueError(f"residual={self.residual!r}: 'keep' or 'reset'")
        if self.residual_bound is not None and not self.residual_bound >= 1:
            raise ValueError(f"residual_bound={self.residual_bound}: at least 1 (tau), or None")
        if self.dense_below < 0:
            raise ValueError(f"dense_below={self.dense_below}: cannot be negative")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}: from 0 to below 1")

    def start(self, layout: ParameterLayout, topology: Topology, clip: float | None) -> "GTCState":
        """The running part for one rank. ValueError for a model too large for 32-bit entries."""
        return GTCState(self, layout, topology.inner, clip)

    def residual_holders(self, topology: Topology) -> list[list[int]]:
        """Every rank holds a whole residual."""
        return [[rank] for rank in range(topology.world_size)]


# Messages that are full in so many steps in a row are worth a word, at a high density too.
MANY_FULL = 20
# A step with less than this share of the usual samples says nothing of the next one's density.
LEAST_EVIDENCE = 0.5
# The share of the model by which the first element to be sent moves from step to step: multiples
# of the golden ratio fall everywhere alike.
ROTATION = 0.6180339887498949


@dataclasses.dataclass(frozen=True)
class _Outgoing:
    """What one worker sends in a step.

    ``wanted`` ``(parameters,)`` are quanta before the capacity cut any; ``positions`` ``(E,)`` and
    ``quanta`` what is sent; ``exact`` the small parameters' values; ``ratio`` the largest
    ``|r| / tau`` that is left.
    """

    positions: Tensor
    quanta: Tensor
    wanted: Tensor
    exact: Tensor
    ratio: float = 1.0


class GTCState:
    """A running ``GTC``: the residual, the taus, and the capacity of the next message.

    ``layout`` may be a part of the model, ``exchange`` any group whose ranks hold that part.
    """

    MIN_CAPACITY = 256
    # Counts vary from step to step; what does not fit is not lost, only later.
    CAPACITY_MARGIN = 1.25
    # A batch with a far larger gradient than usual wants to send as much as dozens of others
    # (measured: 0.5 of the elements at a target of 0.008); it is spread over the next steps.
    BURST = 2.0

    def __init__(
        self, settings: GTC, layout: ParameterLayout, exchange: Exchange, clip: float | None
    ) -> None:
        if layout.total > entries.MAX_ELEMENTS:
            raise ValueError(
                f"{layout.total} parameters: GTC's 32-bit entries reach {entries.MAX_ELEMENTS}"
            )
        self._settings = settings
        self._layout = layout
        self._exchange = exchange
        self._clip = None if clip is None else clip * math.sqrt(exchange.size)
        self._sizes = torch.tensor(layout.sizes)
        self._ends = self._sizes.cumsum(0)
        self._is_exact = self._sizes < settings.dense_below  # by parameter
        self._exact = self._is_exact.repeat_interleave(self._sizes).nonzero().squeeze(1)
        # All (P,), made on the gradient's device at the first step; scratch is int32 zeros.
        self._residual, self._scratch = torch.empty(0), torch.empty(0)
        self._velocity = torch.empty(0)  # without momentum it stays empty
        self._taus: Tensor | None = None  # (parameters,) float32 on the CPU
        self._reference = 0.0  # n_ref: samples a worker's batch held when training began
        self._capacity = 0
        self._lasted = 0.0  # seconds in the last exchange
        self._full = 0  # steps in a row whose message had no room for all

    def reduce(self, local: Local) -> Reduced:
        """See ``InnerState``."""
        gradient, layout, exchange = local.gradient, self._layout, self._exchange
        clock = Clock()
        finite = clip_norm(gradient, self._clip)
        samples = local.samples if finite else 0.0
        if self._taus is None:
            self._agree_on_start(gradient, samples, local.step)
        taus = torch.ones(len(layout.names)) if self._taus is None else self._taus
        self._hold_tensors(gradient)
        sent_before, dense = exchange.bytes_sent, self._dense_is_smaller(self._capacity)

        outgoing = self._encode(gradient, samples, taus, local.step, dense)
        count = int(outgoing.quanta.abs().sum())
        capacity = 0 if dense else self._capacity  # a dense step's message has no body
        body_words = entries.words(capacity, layout.total, capacity)
        body = entries.to_words(outgoing.positions, outgoing.quanta, layout.total, capacity)
        packed = message.pack(
            step=local.step,
            fingerprint=layout.fingerprint,
            taus=taus,
            not_finite=local.not_finite + (not finite),
            out_of_data=local.out_of_data,
            lasted=self._lasted,
            samples=samples,
            wanted=outgoing.wanted,
            exact=outgoing.exact.cpu(),
            count=count,
            body=body.cpu(),
            body_words=body_words,
        )
        encode_seconds = clock.lap()
        gathered = exchange.all_gather(packed.to(gradient.device))
        if dense:
            gradient.copy_(self._residual)
            if samples:
                self._residual.zero_()
            else:
                gradient.zero_()
            exchange.all_reduce(gradient)
        lasted, self._lasted = self._lasted, clock.lap()
        received = message.unpack(
            gathered, len(layout.names), len(outgoing.exact), exchange.ranks, exchange.index
        )
        self._decode(received, taus, gradient, capacity, dense)
        overflow = 0 if dense else int(outgoing.wanted.sum()) - count
        self._warn_when_full(overflow, local.step)
        unused = packed.element_size() * (body_words - body.numel())
        self._adapt(received, taus, local.step)
        return Reduced(
            samples=received.samples,
            not_finite=received.not_finite,
            out_of_data=received.out_of_data,
            payload_bytes=exchange.bytes_sent - sent_before - (exchange.size - 1) * unused,
            density=self._density(received, dense),
            residual_norm=float(self._residual.norm()),
            residual_ratio=outgoing.ratio,
            overflow=overflow,
            encode_seconds=encode_seconds,
            exchange_seconds=self._lasted,
            waiting_seconds=max(0.0, lasted - min(received.lasted)),
            decode_seconds=clock.lap(),
        )

    def expected_bytes(self, step: int) -> tuple[int, int]:
        """Payload and wire bytes that a rank sends in ``step`` if the density is its target.

        Needs no process group. ValueError for a threshold that does not aim at a density.
        """
        target, total = self._settings.threshold.target_density(step), self._layout.total
        if target is None:
            raise ValueError(f"threshold={self._settings.threshold}: sends what passes it")
        quanta = math.ceil(target * total)
        capacity, size = self._capacity_for(quanta, step), self._exchange.size
        words = message.HEADER_WORDS + len(self._layout.names)
        if self._dense_is_smaller(capacity):
            sent = all_gather_bytes(size, 4 * words) + all_reduce_bytes(size, 4 * total)
            return sent, sent
        words += len(self._exact)
        payload = words + entries.words(quanta, total, capacity)
        wire = words + entries.words(capacity, total, capacity)
        return all_gather_bytes(size, 4 * payload), all_gather_bytes(size, 4 * wire)

    def end_block(self, resets_optimizer: bool) -> None:
        """Drop the residual, if the settings say so, and the velocity with the optimizer's."""
        if self._settings.residual == "reset":
            self._residual.zero_()
        if resets_optimizer:
            self._velocity.zero_()

    def subgroup_state(self) -> dict[str, Any]:
        """Taus by parameter name, reference samples, capacity."""
        taus = (
            {}
            if self._taus is None
            else dict(zip(self._layout.names, self._taus.tolist(), strict=True))
        )
        return {"taus": taus, "reference": self._reference, "capacity": self._capacity}

    def rank_state(self) -> dict[str, Any]:
        """The residual by parameter name, and with momentum the velocity."""
        state = {"residual": self._named(self._residual)}
        if self._settings.momentum:
            state["velocity"] = self._named(self._velocity)
        return state

    def load(self, subgroup: dict[str, Any], rank: dict[str, Any]) -> None:
        """See ``InnerState``; what the rank part lacks starts empty.

        Without taus they are chosen anew, at the reference of another world's ranks if there is
        one ("samples").
        """
        names, taus = self._layout.names, subgroup.get("taus")
        self._taus = torch.tensor([taus[name] for name in names]) if taus else None
        self._reference = subgroup.get("reference", rank.get("samples", 0.0))
        self._capacity = subgroup.get("capacity", 0)
        self._residual = self._flat(rank.get("residual"))
        self._velocity = self._flat(rank.get("velocity") if self._settings.momentum else None)

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        return self._layout.to_named(flat) if len(flat) else {}

    def _flat(self, named: dict[str, Tensor] | None) -> Tensor:
        """``(P,)``, or empty for nothing: the inverse."""
        if not named:
            return torch.empty(0)
        return self._layout.from_named(named, torch.empty(self._layout.total))

    def _agree_on_start(self, gradient: Tensor, samples: float, step: int) -> None:
        """First taus (their geometric mean over workers), reference samples, and capacity."""
        parameters = len(self._layout.names)
        proposal = torch.zeros(parameters + 2, dtype=torch.float64)
        if samples > 0 and bool(gradient.any()):
            taus = self._settings.threshold.initial(self._layout.split(gradient), step)
            proposal[:parameters] = taus.double().log()
            proposal[parameters] = self._reference or samples  # a loaded residual is in its units
            proposal[parameters + 1] = 1.0
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
        """Make what is missing of the tensors; a loaded one is on the CPU."""
        if len(self._scratch) == 0:
            self._scratch = torch.zeros_like(gradient, dtype=torch.int32)
            self._exact = self._exact.to(gradient.device)
        if len(self._residual) == 0:
            self._residual = torch.zeros_like(gradient)
        if self._settings.momentum and len(self._velocity) == 0:
            self._velocity = torch.zeros_like(gradient)
        self._residual = self._residual.to(gradient.device)
        self._velocity = self._velocity.to(gradient.device)

    def _dense_is_smaller(self, capacity: int) -> bool:
        """Whether a ring all-reduce sends less than messages of this capacity would."""
        size, total = self._exchange.size, self._layout.total
        return size > 1 and entries.words(capacity, total, capacity) > 2 * total / size

    def _encode(
        self, gradient: Tensor, samples: float, taus: Tensor, step: int, dense: bool
    ) -> _Outgoing:
        """Move this worker's gradient into the residual, and out of it what is sent now.

        In a ``dense`` step nothing is taken out: the whole residual goes, by another way.
        """
        residual, device = self._residual, self._residual.device
        positions = torch.zeros(0, dtype=torch.int64, device=device)
        quanta = torch.zeros(0, dtype=torch.int32, device=device)
        exact = torch.zeros(0 if dense else len(self._exact), device=device)
        if samples == 0 or self._reference == 0:
            wanted = torch.zeros(len(self._layout.names), dtype=torch.int32)
            return _Outgoing(positions, quanta, wanted, exact)
        passed, passed_quanta, passed_taus, wanted = self._accumulate(gradient, samples, taus)
        if dense:
            return _Outgoing(positions, quanta, wanted, exact)

        start = int(step * ROTATION % 1 * self._layout.total)
        first = int(torch.searchsorted(passed, start))
        sent = codec.limit(passed_quanta, self._capacity, first)
        sent = entries.fit(passed, sent, self._layout.total, self._capacity)
        codec.subtract(residual, passed, sent, passed_taus)
        if self._settings.residual_bound is not None:
            bounds = passed_taus * self._settings.residual_bound
            residual[passed] = residual[passed].clamp(-bounds, bounds)
        if self._settings.momentum and self._settings.factor_masking:
            self._velocity[passed[sent != 0]] = 0
        exact = residual[self._exact]
        residual[self._exact] = 0
        ratios = residual[passed].abs() / passed_taus
        largest = max(1.0, float(ratios.max())) if len(ratios) else 1.0  # all others are below 1
        return _Outgoing(passed, sent, wanted, exact, largest)

    def _accumulate(
        self, gradient: Tensor, samples: float, taus: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Add the gradient, or with momentum the velocity, to the residual.

        Positions, quanta and taus of what passes ``(E,)``, and how many quanta each parameter
        wants to send. What is sent exactly passes nothing.
        """
        weight = samples / self._reference
        if momentum := self._settings.momentum:
            self._velocity.mul_(momentum).add_(gradient, alpha=weight)
            if self._settings.nesterov:
                gradient.mul_(weight).add_(self._velocity, alpha=momentum)
            else:
                gradient.copy_(self._velocity)
            weight = 1.0
        positions, quanta, offset = [], [], 0
        for part, new, tau, exact in zip(
            self._layout.split(self._residual),
            self._layout.split(gradient),
            taus.tolist(),
            self._is_exact.tolist(),
            strict=True,
        ):
            tau = math.inf if exact else tau
            where, what = codec.accumulate(part, new, weight, tau, self._settings.max_quanta)
            positions.append(where + offset)
            quanta.append(what)
            offset += len(part)
        wanted = torch.stack([part.abs().sum() for part in quanta]).to(torch.int32).cpu()
        found = torch.tensor([len(part) for part in positions])
        passed_taus = taus.repeat_interleave(found).to(gradient.device)
        return torch.cat(positions), torch.cat(quanta), passed_taus, wanted

    def _decode(
        self, received: message.Received, taus: Tensor, out: Tensor, capacity: int, dense: bool
    ) -> None:
        """The subgroup's mean gradient, into ``out``, which in a dense step holds the sum.

        The residual carries more than this step's samples; a step of fewer than a usual batch
        must not blow it up.
        """
        weight = max(received.samples, self._reference)
        scale = self._reference / weight if weight else 0.0
        if dense:
            out.mul_(scale)
            return
        values = (taus.double() * scale).float()
        try:
            entries.decode(
                received.bodies, received.counts, capacity, self._ends, values, self._scratch, out
            )
        except entries.NotThisModel as error:
            raise ExchangeError(f"from one of the ranks {self._exchange.ranks}: {error}") from error
        out[self._exact] = received.exact.sum(dim=0) * scale

    def _warn_when_full(self, overflow: int, step: int) -> None:
        """Once, when the messages have been too small for as long as an entry usually waits."""
        self._full = self._full + 1 if overflow > 0 else 0
        target = self._settings.threshold.target_density(step)
        if target is not None and self._full == max(MANY_FULL, math.ceil(1 / target)):
            log.warning(
                "GTC's messages have been full for %d steps: gradients grow faster than tau "
                "follows, and wait in the residual; lower the learning rate, raise the density, or "
                "lengthen its ramp",
                self._full,
            )

    def _density(self, received: message.Received, dense: bool) -> float | None:
        """Quanta sent an element and worker."""
        if dense or not received.active:
            return 1.0 if dense else None
        return sum(received.counts) / (self._layout.total * received.active)

    def _adapt(self, received: message.Received, taus: Tensor, step: int) -> None:
        """The next step's taus and capacity, from counts that all ranks have gathered."""
        usual = self._reference * received.active
        if self._taus is None or received.samples < LEAST_EVIDENCE * usual or not received.active:
            return
        wanted = received.wanted.cpu()
        density = wanted.sum(dim=0).double() / (self._sizes * received.active)
        updated = self._settings.threshold.update(taus, density, step)
        self._taus = torch.where(self._is_exact, taus, updated)
        self._capacity = self._capacity_for(int(wanted.sum(dim=1).max()), step + 1)

    def _capacity_for(self, quanta: int, step: int) -> int:
        """Room for what ``step`` is likely to send, after one that wanted to send ``quanta``."""
        total, target = self._layout.total, self._settings.threshold.target_density(step)
        bound = total * self._settings.max_quanta
        if target is not None:
            bound = min(bound, math.ceil(self.BURST * target * total))
        return max(self.MIN_CAPACITY, min(math.ceil(quanta * self.CAPACITY_MARGIN), bound))
