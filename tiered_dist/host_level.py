"""Tier 1 in two levels: a dense reduction inside a host, GTC between the hosts of a subgroup."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from tiered_dist.exchange import Exchange
from tiered_dist.gtc import GTC, GTCState
from tiered_dist.inner import Clock, Dense, DenseState, InnerState, Local, Reduced, weigh
from tiered_dist.layout import ParameterLayout
from tiered_dist.topology import Topology


@dataclasses.dataclass(frozen=True)
class DenseInHost:
    """Dense inside a host, where links are fast, ``gtc`` between a subgroup's hosts; for tier 1.

    A host of L ranks is one worker of GTC. Its rank number j takes part j of the model: the host's
    gradients are reduced and scattered, every part is compressed and exchanged with the other hosts
    by the ranks of its number, and the means are gathered in the host. So a rank encodes, and keeps
    a residual of, an L-th of the model, and no byte crosses hosts twice. ``dtype`` is what travels
    inside a host, both ways: "fp32" or "bf16".

    ``clip`` bounds a host's mean gradient as ``GTC`` does a worker's; ``dense_below`` counts what a
    parameter has in the part. With one host a subgroup this is ``Dense``, with one rank a host it
    is ``gtc``.
    """

    gtc: GTC = GTC()
    dtype: str = "fp32"

    def __post_init__(self) -> None:
        Dense(self.dtype)  # checks it

    @property
    def momentum(self) -> float:
        """GTC's."""
        return self.gtc.momentum

    def start(self, layout: ParameterLayout, topology: Topology, clip: float | None) -> InnerState:
        """The running part for one rank.

        ValueError, on every rank, where the hosts of a subgroup have different numbers of its
        ranks, for too few parameters, and for ``gtc.momentum`` in a subgroup on one host.
        """
        for teams in topology.teams():
            self._check(teams, layout.total)
        host, between = topology.within_host, topology.between_hosts
        assert between is not None  # every host has as many places
        if between.size == 1:
            return DenseState(Dense(self.dtype), host, clip)
        if host.size == 1:
            return GTCState(self.gtc, layout, between, clip)
        return HostLevelState(self, layout, host, between, clip)

    def residual_holders(self, topology: Topology) -> list[list[int]]:
        """The ranks of each host, but for subgroups on one host, where nothing waits."""
        return [list(team) for teams in topology.teams() if len(teams) > 1 for team in teams]

    def _check(self, teams: tuple[tuple[int, ...], ...], parameters: int) -> None:
        """See ``start``; ``teams`` are the ranks of one subgroup by host."""
        size = len(teams[0])
        if any(len(team) != size for team in teams):
            raise ValueError(
                f"DenseInHost: a subgroup has ranks {teams} on its hosts; each must have as many. "
                "Choose other subgroups, or GTC without it"
            )
        if len(teams) > 1 and slot_elements(parameters, size) * (size - 1) >= parameters:
            raise ValueError(
                f"DenseInHost: {parameters} parameters cannot be cut into {size} parts"
            )
        if len(teams) == 1 and self.gtc.momentum:
            raise ValueError(
                f"DenseInHost: the ranks {teams[0]} of a subgroup are on one host, where "
                "GTC(momentum=...) has no part; give the optimizer the momentum"
            )


def slot_elements(parameters: int, size: int) -> int:
    """Elements of a part, the last of which may have fewer."""
    return -(-parameters // size)


class HostLevelState:
    """A running ``DenseInHost``: GTC's state of this rank's part of the model."""

    def __init__(
        self,
        settings: DenseInHost,
        layout: ParameterLayout,
        host: Exchange,
        between: Exchange,
        clip: float | None,
    ) -> None:
        self._slot = slot_elements(layout.total, host.size)
        first = self._slot * host.index
        self._layout = layout.part(first, first + self._slot)
        self._dtype = torch.bfloat16 if settings.dtype == "bf16" else torch.float32
        self._total = layout.total
        self._host = host
        self._between = between
        self._clip = None if clip is None else clip * math.sqrt(between.size)
        self._gtc = GTCState(settings.gtc, self._layout, between, clip=None)

    def reduce(self, local: Local) -> Reduced:
        """See ``InnerState``."""
        host, gradient, clock = self._host, local.gradient, Clock()
        sent_before = host.bytes_sent
        totals = weigh(local, host)
        clock.lap()
        padded = gradient.new_zeros(self._slot * host.size, dtype=self._dtype)
        padded[: self._total] = gradient
        slot = host.reduce_scatter(padded).float()
        part = slot[: self._layout.total]
        finite = self._clip_together(part)
        exchange_seconds = totals.waiting_seconds + clock.lap()
        reduced = self._gtc.reduce(
            Local(
                part,
                totals.samples if finite else 0.0,
                totals.out_of_data,
                local.step,
                totals.not_finite + (not finite),
            )
        )
        clock.lap()
        gradient.copy_(host.all_gather(slot.to(self._dtype)).flatten()[: self._total])
        sent = host.bytes_sent - sent_before
        return dataclasses.replace(
            reduced,
            payload_bytes=reduced.payload_bytes + sent,
            host_wire_bytes=sent,
            exchange_seconds=exchange_seconds + reduced.exchange_seconds + clock.lap(),
            waiting_seconds=totals.waiting_seconds + reduced.waiting_seconds,
        )

    def _clip_together(self, part: Tensor) -> bool:
        """Bound the norm of the host's whole gradient, of which this rank has a part, in place.

        Whether it is finite: the sum of finite gradients may not be. One that is not becomes zeros.
        """
        square = part.norm().double().square().view(1)
        norm = math.sqrt(float(self._host.all_reduce(square)))
        if not math.isfinite(norm):
            part.zero_()
        elif self._clip is not None and self._clip < norm:
            part.mul_(self._clip / norm)
        return math.isfinite(norm)

    def end_block(self, resets_optimizer: bool) -> None:
        """GTC's."""
        self._gtc.end_block(resets_optimizer)

    def subgroup_state(self) -> dict[str, Any]:
        """Empty: what GTC agrees on, it does for each part of the model by itself."""
        return {}

    def rank_state(self) -> dict[str, Any]:
        """GTC's, and in "agreed" what the ranks of this number hold alike."""
        return {**self._gtc.rank_state(), "agreed": self._gtc.subgroup_state()}

    def load(self, subgroup: dict[str, Any], rank: dict[str, Any]) -> None:
        """See ``InnerState``; without "agreed", GTC chooses its taus anew."""
        agreed = rank.get("agreed", {})
        if not agreed and "samples" in rank:  # a rank's; GTC's worker here is a host
            agreed = {"reference": rank["samples"] * self._host.size}
        self._gtc.load(agreed, rank)
