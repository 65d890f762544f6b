"""Tier 2: how the subgroups' models become one at the end of every block."""

import dataclasses
import math

import torch
from torch import Tensor, nn

from tiered_dist.block_filter import BlockFilter
from tiered_dist.exchange import Exchange
from tiered_dist.inner import Clock
from tiered_dist.topology import Topology


@dataclasses.dataclass(frozen=True)
class BMUF:
    """Settings of Blockwise Model-Update Filtering (see ``block_filter`` for the equations).

    A block has ``block_steps`` K steps, or about ``block_samples`` samples of all ranks together:
    then the first has one step, and each block's count sets the next one's steps. ``momentum``
    "auto" is 1 - 1/G with G the number of subgroups, whose models are averaged: a rule of thumb,
    not a law. ``warmup_steps`` of synchronous training, a dense all-reduce over all ranks, come
    before the first block.

    ``inner_state`` says what a block's end does with the inner optimizer's state: "auto" resets
    SGD's momentum, which points the way the subgroup went alone, and keeps any other's (Adam's
    moments); or "reset", "keep", or "average", weighted by samples. ``buffers`` says it of the
    model's (batch normalisation's statistics): "average" over ranks, "broadcast" rank 0's, "keep".

    Relatives: ``model_averaging``, ``slowmo`` and ``diloco`` are settings of the same filter.
    """

    block_steps: int | None = None
    momentum: float | str = "auto"
    learning_rate: float = 1.0
    nesterov: bool = False
    inner_state: str = "auto"
    block_samples: float | None = None
    warmup_steps: int = 0
    buffers: str = "average"

    def __post_init__(self) -> None:
        if (self.block_steps is None) == (self.block_samples is None):
            raise ValueError(
                f"block_steps={self.block_steps}, block_samples={self.block_samples}: "
                "a block's length is one of them"
            )
        if self.block_steps is not None and self.block_steps < 1:
            raise ValueError(f"block_steps={self.block_steps}: at least 1")
        if self.block_samples is not None and not 0 < self.block_samples < math.inf:
            raise ValueError(f"block_samples={self.block_samples}: must be positive")
        if self.momentum != "auto" and not (
            isinstance(self.momentum, int | float) and 0 <= self.momentum < 1
        ):
            raise ValueError(f"momentum={self.momentum!r}: 'auto', or from 0 to below 1")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate={self.learning_rate}: must be positive")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps={self.warmup_steps}: cannot be negative")
        for name, allowed in (
            ("inner_state", ("auto", "reset", "keep", "average")),
            ("buffers", ("average", "broadcast", "keep")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: one of {', '.join(allowed)}")

    def next_block_steps(self, steps: int, samples: float) -> int:
        """Steps of the next block, after one of ``steps`` steps and ``samples`` samples."""
        if self.block_steps is not None:
            return self.block_steps
        assert self.block_samples is not None
        return max(1, round(self.block_samples * steps / samples)) if samples else steps

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


def model_averaging(block_steps: int) -> BMUF:
    """Plain averaging of the subgroups' models (Zinkevich et al. 2010; Povey et al. 2014)."""
    return BMUF(block_steps, momentum=0.0)


def slowmo(block_steps: int, momentum: float = 0.7, learning_rate: float = 1.0) -> BMUF:
    """SlowMo (Wang et al. 2020) at a constant inner learning rate: classical filtering.

    Its buffer is ours divided by the inner learning rate, which cancels while that is constant.
    """
    return BMUF(block_steps, momentum, learning_rate)


def diloco(block_steps: int, momentum: float = 0.9, learning_rate: float = 0.7) -> BMUF:
    """DiLoCo's outer step (Douillard et al. 2023), Nesterov; for AdamW inside, which keeps state.

    Its model is the point from which the next block starts, not ``model_for_eval``'s W.
    """
    return BMUF(block_steps, momentum, learning_rate, nesterov=True, inner_state="keep")


@dataclasses.dataclass(frozen=True)
class MeanMove:
    """The subgroups' mean move over a block, and what was learnt beside it.

    ``samples`` are those that count, ``not_finite`` the subgroups whose model had overflowed and
    was left out. ``spread`` is the root mean square distance of the subgroups' models from their
    mean, over the length of the mean move: 0 means that there were no two different models.
    ``waiting_seconds`` were spent until the other subgroups came.
    """

    move: Tensor
    samples: float
    subgroups_with_data: int
    not_finite: int
    spread: float
    waiting_seconds: float


def mean_move(topology: Topology, move: Tensor, samples: float, has_data: bool) -> MeanMove:
    """Average the subgroups' moves ``(P,)``, weighted by their samples; ``move`` is used up.

    The move is cut into as many shards as the smallest subgroup has ranks. Place j of every
    subgroup reduces shard j across subgroups, then the subgroup gathers its shards: all replicas
    in a subgroup are equal, so no byte crosses subgroups twice. Moves are averaged rather than
    models, since a mean of equal models is not bitwise that model.
    """
    shards = topology.shards
    total = move.numel()
    size = math.ceil(total / shards)
    padded = nn.functional.pad(move, (0, missing)) if (missing := size * shards - total) else move
    finite = math.isfinite(float(move.norm()))
    if not finite:
        padded.zero_()
        samples = 0.0
    # Places beyond the smallest subgroup hold no shard; they only receive. Their row is ignored.
    place = min(topology.inner.index, shards - 1)
    shard = padded[place * size : (place + 1) * size]
    facts = torch.zeros(5, dtype=torch.float64, device=move.device)
    waiting_seconds = 0.0
    if topology.outer is not None:
        totals = torch.tensor(
            [samples, float(has_data), float(not finite)], dtype=torch.float64, device=move.device
        )
        clock = Clock()
        samples_of_all = float(topology.outer.all_reduce(totals)[0])
        waiting_seconds = clock.lap()
        weight = samples / samples_of_all if samples_of_all else 0.0
        own = shard.clone()
        topology.outer.all_reduce(shard.mul_(weight))
        distance = topology.outer.all_reduce(weight * _square(own.sub_(shard)))
        facts = torch.cat([totals, distance, _square(shard)])
    gathered = topology.inner.all_gather(shard)[:shards].reshape(-1)[:total]
    all_facts = topology.inner.all_gather(facts)[:shards]
    length = math.sqrt(float(all_facts[:, 4].sum()))
    spread = math.sqrt(float(all_facts[:, 3].sum()))
    return MeanMove(
        move=gathered,
        samples=float(all_facts[0, 0]),
        subgroups_with_data=int(all_facts[0, 1]),
        not_finite=int(all_facts[0, 2]),
        spread=spread / length if length else spread,
        waiting_seconds=waiting_seconds,
    )


def _square(vector: Tensor) -> Tensor:
    """The squared norm, ``(1,)`` float64."""
    return vector.norm().double().square().view(1)


def share_buffers(model: nn.Module, world: Exchange, how: str) -> None:
    """Make the model's buffers one over all ranks; whole numbers are always rank 0's.

    Differences from rank 0's are averaged, so that equal buffers keep their bits.
    """
    for buffer in model.buffers() if how != "keep" else ():
        if how == "broadcast" or not buffer.is_floating_point():
            world.broadcast(buffer)
        else:
            first = world.broadcast(buffer.clone())
            buffer.copy_(first + world.all_reduce(buffer - first) / world.size)


def average_optimizer_state(
    optimizer: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    topology: Topology,
    samples: float,
) -> None:
    """Average over subgroups what the optimizer holds of a parameter's shape, by samples.

    A part that some rank has not got yet (a subgroup that has had no data) is left alone.
    """
    held = {
        (i, name): value
        for i, parameter in enumerate(parameters)
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim()
    }
    everywhere = set.intersection(*topology.world.gather_objects(set(held)))
    values = [held[key] for key in sorted(everywhere)]
    if not values:
        return
    flat = torch.cat([value.flatten() for value in values])
    mean = mean_move(topology, flat, samples, has_data=samples > 0)
    if mean.samples:
        for value, part in zip(values, mean.move.split([v.numel() for v in values]), strict=True):
            value.copy_(part.view_as(value))
