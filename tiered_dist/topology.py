"""Which rank belongs to which subgroup: the only owner of process groups."""

import atexit
import dataclasses
import datetime
import os
import socket
from collections.abc import Sequence

import torch
import torch.distributed as dist

from tiered_dist import entries, slurm
from tiered_dist.exchange import Exchange

DEFAULT_TIMEOUT_SECONDS = 600.0


def init_process_group(timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
    """Join the world that the launcher's environment describes; without one, stay alone.

    Under ``python -m tiered_dist.launch`` the ranks meet through a file store, under torchrun by
    its own rendezvous, under srun at the first host of the job step. The back-end is NCCL where
    every rank of this host has a GPU of its own, else gloo. The process leaves the world by itself
    when it exits.
    """
    if not launched_as_rank() or dist.is_initialized():
        return
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = local_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store_path = os.environ.get("TIERED_DIST_STORE")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.FileStore(store_path, world_size) if store_path else None,
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout_seconds),
    )
    # Gloo's threads that are still running when the interpreter ends abort a process whose work
    # is done (measured under torchrun: 9 of 60 runs of two ranks; none of 60 with this).
    atexit.register(_leave)


def launched_as_rank() -> bool:
    """Whether the local launcher, torchrun or srun has started this process as one rank of many."""
    slurm.announce()
    return "RANK" in os.environ


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def local_device() -> torch.device:
    """This rank's own GPU if every rank of its host has one, else the CPU: never a mixture.

    A rank must see all GPUs of its host (under srun: no ``--gpus-per-task``, no ``--gpu-bind``).
    """
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.is_available() and ranks_here <= torch.cuda.device_count():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Topology:
    """The world cut into subgroups, and this rank's three exchanges.

    ``subgroups`` lists the global ranks of each. ``inner`` joins this rank's subgroup. ``outer``
    joins the ranks with the same place in every subgroup, so that place j can reduce shard j of
    the model across subgroups; where subgroups are of unequal size, the places beyond the
    smallest one have no ``outer``. ``world`` joins all ranks; ``hosts`` are their hosts' names.
    """

    rank: int
    subgroups: tuple[tuple[int, ...], ...]
    inner: Exchange
    outer: Exchange | None
    world: Exchange
    hosts: tuple[str, ...]

    @classmethod
    def build(
        cls,
        subgroups: str | int | Sequence[Sequence[int]] = "host",
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> "Topology":
        """Make the groups: ``"host"`` (one subgroup a host), a subgroup's size, or rank lists.

        Every rank makes every group in the same order, as torch.distributed demands. Without an
        initialised process group the world is this one process. Raises ValueError when the
        subgroups do not cover every rank exactly once.
        """
        rank = dist.get_rank() if dist.is_initialized() else 0
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        world = Exchange(range(world_size), rank, _world_group() if world_size > 1 else None)
        hosts = tuple(world.gather_objects(socket.gethostname()))
        cut = _cut(subgroups, hosts)
        timeout = datetime.timedelta(seconds=timeout_seconds)
        inner = _make_groups(cut, rank, timeout)
        assert inner is not None  # the subgroups cover every rank
        outer = _make_groups(_columns(cut), rank, timeout)
        return cls(rank, cut, inner, outer, world, hosts)

    @property
    def world_size(self) -> int:
        """Number of ranks, N."""
        return self.world.size

    @property
    def subgroup(self) -> int:
        """Index of this rank's subgroup."""
        return self.subgroups.index(self.inner.ranks)

    @property
    def shards(self) -> int:
        """Into how many parts tier 2 cuts the model: the smallest subgroup's size."""
        return min(len(ranks) for ranks in self.subgroups)

    def describe(self) -> str:
        """Which rank is in which subgroup, and on which host, a line a subgroup."""
        lines = [f"{self.world_size} ranks in {len(self.subgroups)} subgroups"]
        for i, ranks in enumerate(self.subgroups):
            hosts = dict.fromkeys(self.hosts[rank] for rank in ranks)
            lines.append(f"  subgroup {i}: ranks {list(ranks)} on {', '.join(hosts)}")
        return "\n".join(lines)

    def describe_costs(self, elements: int, density: float, block_steps: int) -> str:
        """What the tiers send for a model of ``elements`` parameters, by rank and step, in lines.

        Payload of ring algorithms: GTC at ``density`` beside a dense all-reduce in float32, and
        the filter in blocks of ``block_steps``.
        """
        size, groups = self.inner.size, len(self.subgroups)
        sent = round(density * elements)
        gtc = (size - 1) * 4 * entries.words(sent, elements, sent)
        dense = 2 * (size - 1) / size * 4 * elements
        shard = 4 * elements / self.shards
        block = 2 * (groups - 1) / groups * shard + (size - 1) * shard
        return (
            f"{elements:,} parameters, bytes sent by a rank:\n"
            f"  tier 1, each step: dense {dense:,.0f}, GTC at density {density:g} {gtc:,}\n"
            f"  tier 2, each block: {block:,.0f}, a step in blocks of {block_steps}: "
            f"{block / block_steps:,.0f}"
        )


def _world_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert isinstance(group, dist.ProcessGroup)
    return group


def _cut(
    subgroups: str | int | Sequence[Sequence[int]], hosts: tuple[str, ...]
) -> tuple[tuple[int, ...], ...]:
    world_size = len(hosts)
    if subgroups == "host":
        cut = [[r for r, host in enumerate(hosts) if host == name] for name in dict.fromkeys(hosts)]
    elif isinstance(subgroups, str):
        raise ValueError(f"subgroups={subgroups!r}: 'host', a size, or lists of ranks")
    elif isinstance(subgroups, int):
        if subgroups < 1 or world_size % subgroups:
            raise ValueError(
                f"subgroups={subgroups}: {world_size} ranks cannot be cut into subgroups of this "
                f"size; choose a divisor, or give explicit lists of ranks"
            )
        cut = [list(range(i, i + subgroups)) for i in range(0, world_size, subgroups)]
    else:
        cut = [sorted(ranks) for ranks in subgroups]  # torch's groups keep ranks in this order
    if sorted(rank for ranks in cut for rank in ranks) != list(range(world_size)) or [] in cut:
        raise ValueError(
            f"subgroups={cut}: every rank from 0 to {world_size - 1} must be in exactly one"
        )
    return tuple(tuple(ranks) for ranks in cut)


def _columns(cut: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Ranks with the same place in each subgroup: as many columns as the smallest one has."""
    return tuple(tuple(sorted(column)) for column in zip(*cut, strict=False))


def _new_group(ranks: Sequence[int], timeout: datetime.timedelta) -> dist.ProcessGroup | None:
    """None on the ranks that are not in it."""
    group = dist.new_group(list(ranks), timeout=timeout)
    return group if isinstance(group, dist.ProcessGroup) else None


def _make_groups(
    cut: tuple[tuple[int, ...], ...], rank: int, timeout: datetime.timedelta
) -> Exchange | None:
    mine = None
    for ranks in cut:
        group = _new_group(ranks, timeout) if len(ranks) > 1 else None
        if rank in ranks:
            mine = Exchange(ranks, rank, group)
    return mine
