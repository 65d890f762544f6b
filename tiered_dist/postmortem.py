"""After a failed collective: which rank did not come.

A back-end's error names an address at best. Here every survivor writes to the job's store that it
gave up; who has not written some seconds later has died, hangs, or is not done waiting. Of the
processes on its own host a survivor sees which it is.
"""

import dataclasses
import os
import socket
import time
from collections.abc import Sequence

import torch.distributed as dist

PATIENCE_SECONDS = 5.0
POLL_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a rank runs. A pid means something on one host and in one pid namespace."""

    host: str
    namespace: str
    pid: int

    @classmethod
    def here(cls) -> "Place":
        """This process'."""
        try:
            namespace = os.readlink("/proc/self/ns/pid")
        except OSError:  # not Linux
            namespace = "unknown"
        return cls(socket.gethostname(), namespace, os.getpid())

    def state(self, seen_from: "Place") -> str | None:
        """What keeps it from coming: has ended, or is stopped; None if it runs or is not seen."""
        if (self.host, self.namespace) != (seen_from.host, seen_from.namespace):
            return None
        if self.namespace == "unknown":
            return None
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                letter = file.read().rpartition(")")[2].split()[0]
        except OSError:
            return "has ended"
        return {"Z": "has ended", "X": "has ended", "T": "is stopped"}.get(letter)


class Postmortem:
    """Finds who is missing; ``places`` are all ranks', ``store`` one that all of them share."""

    def __init__(self, rank: int, places: Sequence[Place], store: dist.Store) -> None:
        self._rank, self._places, self._store = rank, places, store

    def find(self, ranks: Sequence[int]) -> str:
        """Say which of ``ranks``, whose collective failed here, are missing, and what is known.

        It takes up to ``PATIENCE_SECONDS``, since not all ranks notice a failure at once.
        """
        try:
            return self._find(ranks)
        except RuntimeError as error:  # the store has gone with the process that held it
            return f"who is missing cannot be told, the store does not answer ({error})"

    def _find(self, ranks: Sequence[int]) -> str:
        self._store.set(_gave_up(self._rank), "")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            silent = [rank for rank in ranks if not self._store.check([_gave_up(rank)])]
            states = {rank: self._state(rank) for rank in silent}
            if all(states.values()) or time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        text = self._name_dead_or_silent(states) or self._quote(ranks)
        self._store.set(_said(self._rank), text)
        return text

    def _state(self, rank: int) -> str | None:
        return self._places[rank].state(self._places[self._rank])

    def _name_dead_or_silent(self, states: dict[int, str | None]) -> str:
        """The dead if there are any: the silent may only be waiting for them."""
        dead = [
            f"rank {rank} {state} (pid {self._places[rank].pid})"
            for rank, state in states.items()
            if state
        ]
        silent = [f"rank {rank} on {self._places[rank].host} does not answer" for rank in states]
        return "; ".join(dead or silent)

    def _quote(self, ranks: Sequence[int]) -> str:
        """All have given up: what one of them has found out before us."""
        for rank in ranks:
            if rank != self._rank and self._store.check([_said(rank)]):
                said = self._store.get(_said(rank)).decode()
                return said if said.startswith("after ") else f"after rank {rank} gave up: {said}"
        return "all of these ranks are alive"


def _gave_up(rank: int) -> str:
    return f"tiered_dist/gave_up/{rank}"


def _said(rank: int) -> str:
    return f"tiered_dist/said/{rank}"
