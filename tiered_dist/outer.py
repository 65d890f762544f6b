"""Tier 2: how the subgroups' models become one at the end of every block."""

import dataclasses
import math

import torch
from torch import Tensor

from tiered_dist.block_filter import BlockFilter
from tiered_dist.topology import Topology


@dataclasses.dataclass(frozen=True)
class BMUF:
    """Settings of Blockwise Model-Update Filtering (see ``block_filter`` for the equations).

    ``block_steps`` is K, steps a block. ``momentum`` "auto" is 1 - 1/G with G the number of
    subgroups, whose models are averaged: a rule of thumb, not a law. ``momentum`` 0 with
    ``learning_rate`` 1 is plain model averaging. ``inner_state`` says what a block's end does
    with the inner optimizer's state: "auto" resets SGD's momentum, which points the way the
    subgroup went alone, and keeps any other's (Adam's moments); or "reset", or "keep".
    """

    block_steps: int
    momentum: float | str = "auto"
    learning_rate: float = 1.0
    nesterov: bool = False
    inner_state: str = "auto"

    def __post_init__(self) -> None:
        if self.block_steps < 1:
            raise ValueError(f"block_steps={self.block_steps}: at least 1")
        if self.momentum != "auto" and not (
            isinstance(self.momentum, int | float) and 0 <= self.momentum < 1
        ):
            raise ValueError(f"momentum={self.momentum!r}: 'auto', or from 0 to below 1")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate={self.learning_rate}: must be positive")
        if self.inner_state not in ("auto", "reset", "keep"):
            raise ValueError(f"inner_state={self.inner_state!r}: 'auto', 'reset' or 'keep'")

    def block_momentum(self, subgroups: int) -> float:
        """eta, with "auto" resolved for ``subgroups`` averaged models."""
        return 1 - 1 / subgroups if self.momentum == "auto" else float(self.momentum)

    def resets(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a block's end clears the state of ``optimizer``."""
        if self.inner_state == "auto":
            return isinstance(optimizer, torch.optim.SGD)
        return self.inner_state == "reset"

    def start_filter(self, model: Tensor, subgroups: int) -> BlockFilter:
        """The filter at the start of training, for a flat initial model ``(P,)``."""
        return BlockFilter(
            momentum=self.block_momentum(subgroups),
            learning_rate=self.learning_rate,
            nesterov=self.nesterov,
            model=model,
            update=torch.zeros_like(model),
        )


@dataclasses.dataclass(frozen=True)
class MeanMove:
    """The subgroups' mean move over a block, and what was learnt beside it.

    ``samples`` are those that count, ``not_finite`` the subgroups whose model had overflowed and
    was left out. ``spread`` is the root mean square distance of the subgroups' models from their
    mean, over the length of the mean move: 0 means that there were no two different models.
    """

    move: Tensor
    samples: float
    subgroups_with_data: int
    not_finite: int
    spread: float


def mean_move(topology: Topology, move: Tensor, samples: float, has_data: bool) -> MeanMove:
    """Average the subgroups' moves ``(P,)``, weighted by their samples in the block.

    The move is cut into as many shards as the smallest subgroup has ranks. Place j of every
    subgroup reduces shard j across subgroups, then the subgroup gathers its shards: all replicas
    in a subgroup are equal, so no byte crosses subgroups twice. Moves are averaged rather than
    models, since a mean of equal models is not bitwise that model.
    """
    shards = topology.shards
    size = math.ceil(move.numel() / shards)
    padded = torch.zeros(size * shards, dtype=move.dtype, device=move.device)
    padded[: move.numel()] = move
    finite = bool(move.isfinite().all())
    if not finite:
        padded.zero_()
        samples = 0.0
    # Places beyond the smallest subgroup hold no shard; they only receive. Their row is ignored.
    place = min(topology.inner.index, shards - 1)
    shard = padded[place * size : (place + 1) * size].clone()
    facts = torch.zeros(5, dtype=torch.float64, device=move.device)
    if topology.outer is not None:
        totals = torch.tensor(
            [samples, float(has_data), float(not finite)], dtype=torch.float64, device=move.device
        )
        topology.outer.all_reduce(totals)
        weight = samples / float(totals[0]) if totals[0] else 0.0
        own = shard.clone()
        topology.outer.all_reduce(shard.mul_(weight))
        distance = torch.zeros(1, dtype=torch.float64, device=move.device)
        distance += weight * (own - shard).double().square().sum()
        topology.outer.all_reduce(distance)
        facts = torch.cat([totals, distance, shard.double().square().sum().view(1)])
    gathered = topology.inner.all_gather(shard)[:shards].reshape(-1)[: move.numel()]
    all_facts = topology.inner.all_gather(facts)[:shards]
    length = math.sqrt(float(all_facts[:, 4].sum()))
    spread = math.sqrt(float(all_facts[:, 3].sum()))
    return MeanMove(
        move=gathered,
        samples=float(all_facts[0, 0]),
        subgroups_with_data=int(all_facts[0, 1]),
        not_finite=int(all_facts[0, 2]),
        spread=spread / length if length else spread,
    )
