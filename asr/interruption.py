"""Being asked to stop, by Slurm before it preempts a job or by a person, and agreeing on when.

A rank that exchanges gradients cannot stop alone: what one of them hears becomes all ranks' answer
at the next place where they can be saved.
"""

import signal
import time
from types import FrameType

import torch

from tiered_dist import Topology

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class StopRequest:
    """Whether this process was asked to stop by one of ``SIGNALS``."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> "StopRequest":
        """Take the signals from now on, in place of what they did; the main thread only."""
        for number in SIGNALS:
            signal.signal(number, self._take)
        return self

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


class CheckpointClock:
    """When all ranks save together: every ``minutes`` (None: never), and when one is to stop."""

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
