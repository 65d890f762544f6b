"""After a failed collective: which rank did not come.

A back-end's error names an address at best. Here every survivor writes to the job's store that it
gave up; who has not written some seconds later has died, hangs, or is not done waiting. Of the
processes on its own host a survivor sees which it is.
"""

import dataclasses
import os
import socket
import threading
import time
from collections.abc import Sequence

import torch.distributed as dist

PATIENCE_SECONDS = 5.0
# Ranks that waited together give up together, within this; who does so later came too late.
TOGETHER_SECONDS = 1.0
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
        except (FileNotFoundError, ProcessLookupError):
            return "has ended"
        except OSError:
            return None
        return {"Z": "has ended", "X": "has ended", "T": "is stopped"}.get(letter)


class Postmortem:
    """Finds who is missing; ``places`` are all ranks', ``store`` one that all of them share."""

    def __init__(self, rank: int, places: Sequence[Place], store: dist.Store) -> None:
        self._rank, self._places, self._store = rank, places, store

    def find(self, ranks: Sequence[int]) -> str:
        """Say which of ``ranks``, whose collective failed here, are missing, and what is known.

        It takes up to ``PATIENCE_SECONDS``, since not all ranks notice a failure at once; twice
        that where the store does not answer, because the process that holds it hangs too.
        """
        found: list[str] = []
        watch = threading.Thread(target=lambda: found.append(self._watch(ranks)), daemon=True)
        watch.start()
        watch.join(2 * PATIENCE_SECONDS)
        if found and found[0]:
            return found[0]
        seen = self._describe_gone(range(len(self._places)))
        return seen or "who is missing cannot be told, the ranks' store does not answer"

    def _watch(self, ranks: Sequence[int]) -> str:
        """What is found by way of the store; empty if it has gone."""
        try:
            self._store.set(_gave_up(self._rank), "")
            text = self._find(ranks)
            self._store.set(_said(self._rank), text)
        except RuntimeError:
            return ""
        return text

    def _find(self, ranks: Sequence[int]) -> str:
        begin, late = time.monotonic(), list[int]()
        while True:
            waited = time.monotonic() - begin
            # Of the whole job, since who is missing here may itself wait for one elsewhere.
            if gone := self._describe_gone(self._silent(self._gone())):
                return gone
            silent = self._silent(ranks)
            if waited < TOGETHER_SECONDS:
                late = silent
            elif late and not silent:
                return "; ".join(f"rank {rank} came too late" for rank in late)
            if not silent and (quoted := self._quote(ranks)):
                return quoted
            # A partner that gave up with us says what it found when its own patience ends.
            if waited > PATIENCE_SECONDS + (0 if silent else TOGETHER_SECONDS):
                break
            time.sleep(POLL_SECONDS)
        unheard = [f"rank {rank} on {self._places[rank].host} does not answer" for rank in silent]
        return "; ".join(unheard) or (
            "all of these ranks are alive; is a collective (finish, save_checkpoint) called on "
            "some of them only?"
        )

    def _silent(self, ranks: Sequence[int]) -> list[int]:
        return [rank for rank in ranks if not self._store.check([_gave_up(rank)])]

    def _gone(self) -> list[int]:
        return [rank for rank in range(len(self._places)) if self._state(rank)]

    def _state(self, rank: int) -> str | None:
        return self._places[rank].state(self._places[self._rank])

    def _describe_gone(self, ranks: Sequence[int]) -> str:
        states = {rank: self._state(rank) for rank in ranks}
        return "; ".join(
            f"rank {rank} {state} (pid {self._places[rank].pid})"
            for rank, state in states.items()
            if state
        )

    def _quote(self, ranks: Sequence[int]) -> str:
        """All have given up: what one of them has found out before us."""
        for rank in ranks:
            if rank != self._rank and self._store.check([_said(rank)]):
                said = self._store.get(_said(rank)).decode()
                return said if said.startswith("after ") else f"after rank {rank} gave up: {said}"
        return ""


def _gave_up(rank: int) -> str:
    return f"tiered_dist/gave_up/{rank}"


def _said(rank: int) -> str:
    return f"tiered_dist/said/{rank}"
