"""Being asked to stop, by Slurm before it preempts a job or at its time limit, or by a person.

This module imports nothing that takes time: a process should listen before it loads anything.
"""

import signal
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)

_asked = False
_before: dict[signal.Signals, Any] = {}


def listen() -> None:
    """From now on take ``SIGNALS`` as a request, in place of what they did; main thread only."""
    for number in SIGNALS:
        _before.setdefault(number, signal.signal(number, _take))


def listen_no_more() -> None:
    """Give the signals back what they did before."""
    global _asked
    _asked = False
    while _before:
        number, handler = _before.popitem()
        signal.signal(number, handler)


def ignore() -> None:
    """Nothing is left to be stopped: who has listened shall not be killed on its way out.

    Python gives the signals their defaults before it has unloaded everything, but for ignored ones.
    """
    for number in _before:
        signal.signal(number, signal.SIG_IGN)


def asked_to_stop() -> bool:
    """Whether this process was asked to stop since it began to listen."""
    return _asked


def _take(number: int, frame: FrameType | None) -> None:
    global _asked
    _asked = True
