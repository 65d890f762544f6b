"""Moving tensors among the ranks of one process group, and counting the bytes that it takes."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tiered_dist.postmortem import Postmortem

# torch 2.14 renamed them.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class ExchangeError(RuntimeError):
    """A collective failed: a rank of the group died, hung beyond the timeout, or disagreed."""


def all_reduce_bytes(size: int, nbytes: int) -> int:
    """What a rank sends in a ring all-reduce of ``nbytes`` a rank."""
    return 2 * (size - 1) * nbytes // size


def reduce_scatter_bytes(size: int, nbytes: int) -> int:
    """What a rank sends in a ring reduce-scatter that leaves it ``nbytes``."""
    return (size - 1) * nbytes


def all_gather_bytes(size: int, nbytes: int) -> int:
    """What a rank sends in a ring all-gather of ``nbytes`` a rank."""
    return (size - 1) * nbytes


class Exchange:
    """The collectives of one process group; it knows nothing of what the tensors mean.

    ``ranks`` are the global ranks of the group in order, ``index`` is this process' place among
    them. A group of one rank needs no process group, and its collectives do nothing.

    ``bytes_sent`` and ``bytes_received`` count what this rank puts on the wire and takes off it,
    as ring algorithms do: an all-gather of B bytes a rank sends ``(size - 1) * B``, a
    reduce-scatter of B bytes ``(size - 1) / size * B``, an all-reduce twice that. A rank receives
    as much as it sends, but for a broadcast. (Gloo reduce-scatters by an all-reduce: twice what is
    counted, measured on the wire.)
    """

    def __init__(
        self,
        ranks: Sequence[int],
        rank: int,
        group: dist.ProcessGroup | None,
        postmortem: Postmortem | None = None,
    ) -> None:
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.index = self.ranks.index(rank)
        self.bytes_sent = 0
        self.bytes_received = 0
        self._rank = rank
        self._group = group
        self._postmortem = postmortem

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum ``tensor`` over the group, in place; every rank gets the same bits."""
        if self.size > 1:
            with self._named("all-reduce"):
                dist.all_reduce(tensor, group=self._group)
            self._count(all_reduce_bytes(self.size, tensor.nbytes))
        return tensor

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        """Sum ``(size * n,)`` over the group; each rank gets its own n elements of the sum."""
        if self.size == 1:
            return tensor
        part = tensor.new_empty(tensor.numel() // self.size)
        with self._named("reduce-scatter"):
            _reduce_scatter(part, tensor, group=self._group)
        self._count(reduce_scatter_bytes(self.size, part.nbytes))
        return part

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Stack every rank's ``tensor`` (all of one shape) into ``(size, *shape)``."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        gathered = tensor.new_empty(self.size * tensor.numel())
        with self._named("all-gather"):
            _all_gather(gathered, tensor.flatten(), group=self._group)
        self._count(all_gather_bytes(self.size, tensor.nbytes))
        return gathered.view(self.size, *tensor.shape)

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Overwrite ``tensor`` with that of the group's member number ``source``."""
        if self.size > 1:
            with self._named("broadcast"):
                dist.broadcast(tensor, src=self.ranks[source], group=self._group)
            if self.index == source:
                self.bytes_sent += (self.size - 1) * tensor.nbytes
            else:
                self.bytes_received += tensor.nbytes
        return tensor

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's ``value``, in the group's order. For set-up, not for training steps."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._named("all-gather of settings"):
            dist.all_gather_object(values, value, group=self._group)
        return values

    def barrier(self) -> None:
        """Wait until every rank of the group has come here."""
        # .item() waits for the result, which NCCL only enqueues.
        self.all_reduce(torch.zeros(1, device=_device(self._group))).item()

    def _count(self, size: int) -> None:
        self.bytes_sent += size
        self.bytes_received += size

    @contextlib.contextmanager
    def _named(self, operation: str) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:  # a RuntimeError too, but of this rank alone
            raise
        except RuntimeError as error:  # torch's DistBackendError and time-outs are RuntimeErrors
            others = [rank for rank in self.ranks if rank != self._rank]
            found = self._postmortem.find(self.ranks) if self._postmortem else "one is missing"
            reason = str(error).partition("\n")[0].partition(". This is typically")[0]
            # The back-end's own traceback says nothing that this does not.
            raise ExchangeError(
                f"rank {self._rank}: {operation} with ranks {others} failed: {found} ({reason})"
            ) from None


def _device(group: dist.ProcessGroup | None) -> torch.device:
    if group is not None and dist.get_backend(group) == dist.Backend.NCCL:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
