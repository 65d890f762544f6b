"""Pools of worker processes that leave nothing behind."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.process import BaseProcess


def cores() -> int:
    """Number of cores this process may use."""
    return len(os.sched_getaffinity(0))


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
