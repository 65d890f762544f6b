"""Pools of worker processes that leave nothing behind."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Protocol, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


class WorkerDied(Exception):
    """A worker was killed while it did task number ``task``, or one soon after."""

    def __init__(self, task: int) -> None:
        super().__init__(task)
        self.task = task


class Map(Protocol):
    """``map`` by many processes: results in the order of the tasks, as soon as they are there.

    Raises what ``function`` raises, and WorkerDied.
    """

    def __call__(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[Result]: ...


def cores() -> int:
    """Number of cores this process may use."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def pool_map(jobs: int | None, preload: str) -> Iterator[Map]:
    """``worker_pool`` to map with; it ends with the block."""
    pool = worker_pool(jobs, preload)

    def mapped(function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        done = 0
        try:
            for result in pool.map(function, tasks):
                yield result
                done += 1
        except BrokenProcessPool:
            raise WorkerDied(done) from None

    try:
        yield mapped
    finally:
        pool.shutdown(cancel_futures=True)


def worker_pool(jobs: int | None, preload: str) -> ProcessPoolExecutor:
    """A pool of ``jobs`` processes (None: one a core) that end with this one, however it ends.

    They are forked from a server that has imported the module ``preload`` and has no threads,
    never from this process, whose threads (torch's, say) would be lost in a fork. Ctrl-C is
    this process' business.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    return ProcessPoolExecutor(jobs or cores(), mp_context=context, initializer=_start_worker)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=[parent], daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
