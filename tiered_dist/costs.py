"""What the tiers will send, hold and save, said before a process is started.

Everything here follows from the settings, the model's shapes and the places of the ranks. Bytes on
the wire are those of ring algorithms, as ``Exchange`` counts them.
"""

import dataclasses
import math
from collections.abc import Sequence

from tiered_dist.exchange import (
    Exchange,
    all_gather_bytes,
    all_reduce_bytes,
    reduce_scatter_bytes,
)
from tiered_dist.gtc import GTC, GTCState
from tiered_dist.host_level import DenseInHost, slot_elements
from tiered_dist.inner import Dense
from tiered_dist.layout import ParameterLayout
from tiered_dist.outer import BMUF
from tiered_dist.topology import by_host, columns, cut_world

FLOAT = 4
# The float64 counts that go beside a dense reduction, beside the filter's, and for DenseInHost's
# norm.
COUNTS, FACTS, NORM = 4 * 8, 5 * 8, 8

Ranks = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class World:
    """A world that could be: its ``subgroups``, and the host of every rank."""

    subgroups: tuple[Ranks, ...]
    hosts: tuple[str, ...]

    @classmethod
    def of(cls, ranks: int, subgroups: str | int, ranks_per_host: int) -> "World":
        """``ranks`` placed on hosts in their order, cut as ``Topology.build(subgroups)`` would.

        ValueError when ``subgroups`` do not cover every rank exactly once.
        """
        hosts = tuple(f"host {rank // ranks_per_host}" for rank in range(ranks))
        return cls(cut_world(subgroups, hosts), hosts)

    @property
    def teams(self) -> list[tuple[Ranks, ...]]:
        """Each subgroup's ranks, host by host."""
        return [by_host(ranks, self.hosts) for ranks in self.subgroups]


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Collectives of ``groups``, all groups at once: ``payload`` and ``wire`` bytes that each of
    their ranks sends, in ``rounds`` of messages that wait for one another. ``level`` is where:
    "subgroup", "in host", "between hosts", "tier 2", "world". ``entries`` are GTC's that a rank
    sends, ``dense`` is what a dense all-reduce in float32 would send in its place."""

    level: str
    groups: tuple[Ranks, ...]
    payload: float
    wire: float
    rounds: int
    entries: int = 0
    dense: float | None = None

    def leaving_host(self, hosts: Sequence[str]) -> float:
        """Bytes that leave the host which sends most, by rings that take ranks in their order."""
        leaving = dict.fromkeys(hosts, 0.0)
        for ranks in self.groups:
            for rank, following in zip(ranks, ranks[1:] + ranks[:1], strict=True):
                if hosts[rank] != hosts[following]:
                    leaving[hosts[rank]] += self.wire
        return max(leaving.values())


def step_traffic(
    world: World, inner: Dense | GTC | DenseInHost, layout: ParameterLayout, step: int
) -> list[Traffic]:
    """Tier 1 in ``step``, if GTC's density is then what it aims at.

    A subgroup of unequal size sends like the first. ValueError for GTC with a fixed threshold.
    """
    if isinstance(inner, Dense):
        return [_dense("subgroup", world.subgroups, inner.dtype, layout.total)]
    if isinstance(inner, GTC):
        return [_compressed("subgroup", world.subgroups, inner, layout, step)]
    teams = tuple(team for subgroup in world.teams for team in subgroup)
    across = tuple(column for subgroup in world.teams for column in columns(subgroup))
    size = len(teams[0])
    if len(across[0]) == 1:
        return [_dense("in host", teams, inner.dtype, layout.total)]
    if size == 1:
        return [_compressed("between hosts", across, inner.gtc, layout, step)]
    slot = slot_elements(layout.total, size)
    nbytes = slot * _item_bytes(inner.dtype)
    sent = (
        reduce_scatter_bytes(size, nbytes)
        + all_gather_bytes(size, nbytes)
        + all_reduce_bytes(size, COUNTS)
        + all_reduce_bytes(size, NORM)
    )
    # Reduce-scatter and all-gather are the halves of an all-reduce; counts and norm have their own.
    rounds = 3 * all_reduce_rounds(size)
    return [
        Traffic("in host", teams, sent, sent, rounds),
        _compressed("between hosts", across, inner.gtc, layout.part(0, slot), step),
    ]


def block_traffic(world: World, elements: int) -> list[Traffic]:
    """Tier 2 at a block's end, for a model of ``elements``, without its buffers."""
    shards, groups = min(map(len, world.subgroups)), len(world.subgroups)
    shard = FLOAT * slot_elements(elements, shards)
    across = all_reduce_bytes(groups, shard) + all_reduce_bytes(groups, FACTS)
    size = len(world.subgroups[0])
    inside = all_gather_bytes(size, shard) + all_gather_bytes(size, FACTS)
    # Across: samples, the shard, and the subgroups' distances. Inside: the shards, and the facts.
    across_rounds, inside_rounds = 3 * all_reduce_rounds(groups), 2 * all_gather_rounds(size)
    return [
        Traffic("tier 2", columns(world.subgroups), across, across, across_rounds),
        Traffic("tier 2", world.subgroups, inside, inside, inside_rounds),
    ]


def warmup_traffic(world: World, elements: int) -> list[Traffic]:
    """A step of the synchronous warm-up before the first block."""
    return [_dense("world", (tuple(range(len(world.hosts))),), "fp32", elements)]


def memory(
    world: World, inner: Dense | GTC | DenseInHost, outer: BMUF | None, layout: ParameterLayout
) -> dict[str, int]:
    """Bytes that the trainer keeps on a rank, beside model, gradients and optimizer, by name."""
    total = FLOAT * layout.total
    held = {"flat gradient": total, "residual": 0, "scratch": 0, "velocity": 0, "filter": 0}
    if part := residual_elements(world, inner, layout.total):
        held |= {"residual": FLOAT * part, "scratch": FLOAT * part}
        held["velocity"] = FLOAT * part if inner_momentum(inner) else 0
    if outer is not None:
        held["filter"] = 2 * total  # W and D
    return held


def passing_memory(
    world: World, inner: Dense | GTC | DenseInHost, outer: BMUF | None, layout: ParameterLayout
) -> int:
    """The most that a step or a block's end takes for a moment, about: copies of the model."""
    size, total = len(world.subgroups[0]), FLOAT * layout.total
    step = 0
    if not isinstance(inner, GTC):
        step = _item_bytes(inner.dtype) * layout.total if size > 1 else 0
    # The move, a rank's own shard of it, and the shards gathered.
    block = total + total // size + total if outer is not None else 0
    return max(step, block)


def checkpoint_bytes(
    world: World,
    inner: Dense | GTC | DenseInHost,
    outer: BMUF | None,
    layout: ParameterLayout,
    optimizer_state: int,
) -> dict[str, int]:
    """What ``save_checkpoint`` writes at a block's end, by part, without files' headers.

    ``optimizer_state`` are the bytes that the optimizer then holds.
    """
    total, vectors = FLOAT * layout.total, 2 if inner_momentum(inner) else 1
    residual = FLOAT * residual_elements(world, inner, layout.total)
    return {
        "shared": 2 * total if outer is not None else 0,
        "subgroups": len(world.subgroups) * (total + optimizer_state),
        "ranks": len(world.hosts) * vectors * residual,
    }


def inner_momentum(inner: Dense | GTC | DenseInHost) -> float:
    """GTC's own momentum, 0 for Dense."""
    return 0.0 if isinstance(inner, Dense) else inner.momentum


def residual_elements(world: World, inner: Dense | GTC | DenseInHost, elements: int) -> int:
    """Elements of a rank's residual: those that it compresses."""
    if isinstance(inner, Dense):
        return 0
    if isinstance(inner, GTC):
        return elements
    teams = world.teams[0]
    return 0 if len(teams) == 1 else slot_elements(elements, len(teams[0]))


def _dense(level: str, groups: tuple[Ranks, ...], dtype: str, elements: int) -> Traffic:
    size = len(groups[0])
    sent = all_reduce_bytes(size, _item_bytes(dtype) * elements) + all_reduce_bytes(size, COUNTS)
    return Traffic(level, groups, sent, sent, 2 * all_reduce_rounds(size))


def _compressed(
    level: str, groups: tuple[Ranks, ...], gtc: GTC, layout: ParameterLayout, step: int
) -> Traffic:
    ranks = groups[0]
    state = GTCState(gtc, layout, Exchange(ranks, ranks[0], None), clip=None)
    dense = all_reduce_bytes(len(ranks), FLOAT * layout.total)
    payload, wire = state.expected_bytes(step)
    rounds = all_gather_rounds(len(ranks))
    if wire > dense > 0:  # such a step is a dense one, after the headers
        return Traffic(
            level, groups, payload, wire, rounds + all_reduce_rounds(len(ranks)), dense=dense
        )
    target = gtc.threshold.target_density(step)
    assert target is not None  # or there would be no bytes to expect
    entries = math.ceil(target * layout.total)
    return Traffic(level, groups, payload, wire, rounds, entries, dense)


def all_reduce_rounds(size: int) -> int:
    """Messages, one after the other, of a ring all-reduce."""
    return 2 * (size - 1)


def all_gather_rounds(size: int) -> int:
    """Messages, one after the other, of a ring all-gather."""
    return size - 1


def dense_bytes(world: World, elements: int) -> int:
    """What a rank would send in a step by a dense all-reduce of its subgroup in float32."""
    return all_reduce_bytes(len(world.subgroups[0]), FLOAT * elements)


def _item_bytes(dtype: str) -> int:
    return 2 if dtype == "bf16" else FLOAT


def blocks(steps: int, outer: BMUF) -> int:
    """Blocks of a run of ``steps`` steps, the last one perhaps shorter.

    ValueError where a block's length depends on the samples.
    """
    if outer.block_steps is None:
        raise ValueError("block_samples: the number of blocks follows from the data")
    return max(0, math.ceil((steps - outer.warmup_steps) / outer.block_steps))
