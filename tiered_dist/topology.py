"""Which rank belongs to which subgroup: the only owner of process groups."""

import atexit
import dataclasses
import datetime
import os
from collections.abc import Sequence

import torch
import torch.distributed as dist

from tiered_dist import entries, slurm
from tiered_dist.exchange import Exchange, ExchangeError
from tiered_dist.postmortem import Place, Postmortem

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
    """The world cut into subgroups, and this rank's exchanges.

    ``subgroups`` lists the global ranks of each. ``inner`` joins this rank's subgroup. ``outer``
    joins the ranks with the same place in every subgroup, so that place j can reduce shard j of
    the model across subgroups; where subgroups are of unequal size, the places beyond the
    smallest one have no ``outer``. ``world`` joins all ranks; ``hosts`` are their hosts' names.

    For a third level in between: ``within_host`` joins the ranks of this rank's subgroup that are
    on its host, ``between_hosts`` those with its place on each of the subgroup's hosts (None beyond
    the least of them).
    """

    rank: int
    subgroups: tuple[tuple[int, ...], ...]
    inner: Exchange
    outer: Exchange | None
    world: Exchange
    hosts: tuple[str, ...]
    within_host: Exchange
    between_hosts: Exchange | None

    @classmethod
    def build(
        cls,
        subgroups: str | int | Sequence[Sequence[int]] = "host",
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        ranks_per_host: int | None = None,
    ) -> "Topology":
        """Make the groups: ``"host"`` (one subgroup a host), a subgroup's size, or rank lists.

        A host is what has one name, or so many of its ranks, in their order, as ``ranks_per_host``
        says: to treat a few GPUs with fast links as a host, or to try several hosts on one machine.
        Every rank makes every group in the same order, as torch.distributed demands. Without an
        initialised process group the world is this one process. Raises ValueError when the
        subgroups do not cover every rank exactly once, ExchangeError when ranks ask for others, and
        RuntimeError in one of several launched processes that have not joined the world.
        """
        if launched_as_rank() and int(os.environ["WORLD_SIZE"]) > 1 and not dist.is_initialized():
            raise RuntimeError(
                f"WORLD_SIZE={os.environ['WORLD_SIZE']}, but this process has not joined the "
                "world: call tiered_dist.init_process_group() before Topology.build()"
            )
        rank = dist.get_rank() if dist.is_initialized() else 0
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        group = _world_group() if world_size > 1 else None
        asked = f"subgroups={subgroups!r}, ranks_per_host={ranks_per_host}"
        gathered = Exchange(range(world_size), rank, group).gather_objects((Place.here(), asked))
        for other, (_, theirs) in enumerate(gathered):
            if theirs != asked:
                raise ExchangeError(
                    f"rank {other} asked for {theirs}, rank {rank} for {asked}: "
                    "Topology.build needs the same on every rank"
                )
        places = [place for place, _ in gathered]
        postmortem = Postmortem(rank, places, _store()) if group else None
        world = Exchange(range(world_size), rank, group, postmortem)
        hosts = tuple(place.host for place in places)
        if ranks_per_host is not None:
            hosts = _numbered(hosts, ranks_per_host)
        cut = cut_world(subgroups, hosts)
        teams = [by_host(ranks, hosts) for ranks in cut]
        groups = _Groups(rank, datetime.timedelta(seconds=timeout_seconds), postmortem)
        inner = groups.make(cut)
        outer = groups.make(columns(cut))
        within_host = groups.make([team for host_teams in teams for team in host_teams])
        between_hosts = groups.make([c for host_teams in teams for c in columns(host_teams)])
        assert inner is not None and within_host is not None  # these cover every rank
        # A rank's side of a connection may be ready before the other's: one that ended now would
        # make the other fail (measured: 2 of 150 times on a busy machine).
        world.barrier()
        return cls(rank, cut, inner, outer, world, hosts, within_host, between_hosts)

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

    def teams(self) -> list[tuple[tuple[int, ...], ...]]:
        """Each subgroup's ranks, host by host."""
        return [by_host(ranks, self.hosts) for ranks in self.subgroups]

    def is_one_host(self, ranks: Sequence[int]) -> bool:
        """Whether all of ``ranks`` are on one host."""
        return len({self.hosts[rank] for rank in ranks}) == 1

    def exchanges(self) -> set[Exchange]:
        """All of this rank's; one may serve in several places."""
        places = (self.inner, self.outer, self.world, self.within_host, self.between_hosts)
        return {exchange for exchange in places if exchange is not None}

    def describe(self) -> str:
        """Which rank is in which subgroup, and on which host, a line a subgroup."""
        lines = [f"{self.world_size} ranks in {len(self.subgroups)} subgroups"]
        for i, ranks in enumerate(self.subgroups):
            hosts = dict.fromkeys(self.hosts[rank] for rank in ranks)
            lines.append(f"  subgroup {i}: ranks {list(ranks)} on {', '.join(hosts)}")
        return "\n".join(lines)

    def describe_costs(self, elements: int, density: float, block_steps: int) -> str:
        """What the tiers send for a model of ``elements`` parameters, by rank and step, in lines.

        Payload of ring algorithms: GTC at ``density`` beside a dense all-reduce in float32, both
        levels of ``DenseInHost`` where there are two, and the filter in blocks of ``block_steps``.
        """
        size, groups = self.inner.size, len(self.subgroups)
        shard = 4 * elements / self.shards
        block = 2 * (groups - 1) / groups * shard + (size - 1) * shard
        lines = [
            f"{elements:,} parameters, bytes sent by a rank:",
            f"  tier 1, each step: dense {_dense_bytes(size, elements):,.0f}, GTC at density "
            f"{density:g} {_gtc_bytes(size, elements, density):,}",
        ]
        here, hosts = self.within_host.size, self.between_hosts
        if here > 1 and hosts is not None and hosts.size > 1:
            between = _gtc_bytes(hosts.size, -(-elements // here), density)
            lines.append(
                f"    in two levels: dense inside a host {_dense_bytes(here, elements):,.0f}, "
                f"GTC between {hosts.size} hosts {between:,}"
            )
        lines.append(
            f"  tier 2, each block: {block:,.0f}, a step in blocks of {block_steps}: "
            f"{block / block_steps:,.0f}"
        )
        return "\n".join(lines)


def _dense_bytes(size: int, elements: int) -> float:
    return 2 * (size - 1) / size * 4 * elements


def _gtc_bytes(size: int, elements: int, density: float) -> int:
    sent = round(density * elements)
    return (size - 1) * 4 * entries.words(sent, elements, sent)


def _world_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert isinstance(group, dist.ProcessGroup)
    return group


def _store() -> dist.Store:
    """The store that the ranks met by."""
    return dist.distributed_c10d._get_default_store()  # public only to who made it


def cut_world(
    subgroups: str | int | Sequence[Sequence[int]], hosts: tuple[str, ...]
) -> tuple[tuple[int, ...], ...]:
    """The ranks of each subgroup, ``subgroups`` being what ``Topology.build`` takes.

    ValueError when they do not cover every rank exactly once.
    """
    world_size = len(hosts)
    if subgroups == "host":
        cut = [[r for r, host in enumerate(hosts) if host == name] for name in dict.fromkeys(hosts)]
    elif isinstance(subgroups, str):
        raise ValueError(f"subgroups={subgroups!r}: 'host', a size, or lists of ranks")
    elif isinstance(subgroups, int):
        if subgroups < 1 or world_size % subgroups:
            raise ValueError(
                f"subgroups={subgroups}: {world_size} ranks cannot be cut into subgroups of this "
                "size; choose a divisor, or give explicit lists of ranks"
                + (" (was this started without a launcher?)" if world_size == 1 else "")
            )
        cut = [list(range(i, i + subgroups)) for i in range(0, world_size, subgroups)]
    else:
        cut = [sorted(ranks) for ranks in subgroups]  # torch's groups keep ranks in this order
    if sorted(rank for ranks in cut for rank in ranks) != list(range(world_size)) or [] in cut:
        raise ValueError(
            f"subgroups={cut}: every rank from 0 to {world_size - 1} must be in exactly one"
        )
    return tuple(tuple(ranks) for ranks in cut)


def _numbered(hosts: tuple[str, ...], ranks_per_host: int) -> tuple[str, ...]:
    """Names of hosts that have so many ranks each."""
    for host in dict.fromkeys(hosts):
        if ranks_per_host < 1 or hosts.count(host) % ranks_per_host:
            raise ValueError(
                f"ranks_per_host={ranks_per_host}: the {hosts.count(host)} ranks of {host} are no "
                "whole number of such hosts"
            )
    places = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    return tuple(
        f"{host}/{place // ranks_per_host}" for host, place in zip(hosts, places, strict=True)
    )


def by_host(ranks: tuple[int, ...], hosts: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """The ranks that are on each of their hosts."""
    names = dict.fromkeys(hosts[rank] for rank in ranks)
    return tuple(tuple(rank for rank in ranks if hosts[rank] == name) for name in names)


def columns(cut: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Ranks with the same place in each part: as many columns as the smallest one has."""
    return tuple(tuple(sorted(column)) for column in zip(*cut, strict=False))


class _Groups:
    """Makes process groups, each once however often it is asked for."""

    def __init__(
        self, rank: int, timeout: datetime.timedelta, postmortem: Postmortem | None
    ) -> None:
        self._rank, self._timeout, self._postmortem = rank, timeout, postmortem
        self._made: dict[tuple[int, ...], Exchange | None] = {}

    def make(self, cut: Sequence[tuple[int, ...]]) -> Exchange | None:
        """All groups of a cut, on every rank in one order; this rank's own, if it is in one."""
        for ranks in cut:
            if ranks not in self._made:
                group = dist.new_group(list(ranks), timeout=self._timeout) if ranks[1:] else None
                self._made[ranks] = self._exchange(ranks, group)
        return next((self._made[ranks] for ranks in cut if self._rank in ranks), None)

    def _exchange(self, ranks: tuple[int, ...], group: object) -> Exchange | None:
        if self._rank not in ranks:
            return None
        group = group if isinstance(group, dist.ProcessGroup) else None
        return Exchange(ranks, self._rank, group, self._postmortem)
