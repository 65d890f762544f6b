"""When all ranks of a run save together."""

import time

import torch

from tiered_dist import Topology


class CheckpointClock:
    """When all ranks save together: every ``minutes`` (None: never), and when one is to stop.

    A rank that exchanges gradients cannot stop alone: what one of them was asked becomes the answer
    of all, at a place where they can be saved.
    """

    def __init__(self, topology: Topology, device: torch.device, minutes: float | None) -> None:
        self._topology, self._device = topology, device
        self._seconds = None if minutes is None else 60 * minutes
        self._last = time.monotonic()

    def restart(self) -> None:
        """A checkpoint has been written."""
        self._last = time.monotonic()

    def agree(self, stop: bool) -> tuple[bool, bool]:
        """Whether to save now, and whether to stop then; a collective of all ranks.

        Rank 0's clock counts, ``stop`` of any rank.
        """
        elapsed = time.monotonic() - self._last
        due = self._seconds is not None and elapsed >= self._seconds and self._topology.rank == 0
        votes = torch.tensor([float(due), float(stop)], device=self._device)
        due_now, stop_now = self._topology.world.all_reduce(votes).tolist()
        return due_now + stop_now > 0, stop_now > 0
