"""Start N real workers on this machine, cheaply: import once, then fork.

    python -m tiered_dist.launch --workers 4 train.py --rate 0.1
    python -m tiered_dist.launch --workers 128 --preload my_model -m my_training --rate 0.1

torch and the ``--preload`` modules are imported once, by a process with one thread, and the
workers are forked from it: they share the imported pages and start in milliseconds. Preload what
every worker imports anyway; a module that starts threads cannot be preloaded.

A worker finds RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE in its environment, as under
torchrun, and TIERED_DIST_STORE, a path for ``torch.distributed.FileStore``, in the place of
torchrun's MASTER_ADDR and MASTER_PORT. It computes with one thread (OMP_NUM_THREADS=1 and the
like, unless they were set), and its generators (random, numpy, torch) start at seed = its rank,
since forked processes would else draw equal numbers. Helper processes inside a worker (a
DataLoader's) use the forkserver start method, or none.

stdout is rank 0's alone. Without ``--log-dir`` the other ranks write to stderr; with it, to
``DIR/rank-001.log`` and so on, which a new run overwrites.

The first worker that fails is named with its rank, pid and reason, and the others get SIGTERM,
then, after a grace, SIGKILL. The exit status is that worker's, or 128 + the signal's number;
Ctrl-C gives 130. Workers die with the launcher, even when it is killed. One that hangs is the
business of the process group's timeout.
"""

import argparse
import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import io
import multiprocessing.util
import os
import random
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
LOG_LINES_SHOWN = 30
LATER_FAILURES_SHOWN = 5
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class LaunchError(Exception):
    """The workers could not be started; the message says why and what to do."""


class Program(NamedTuple):
    """What every worker runs: a script's path, or a module's name, and its arguments."""

    name: str
    is_module: bool
    arguments: list[str]


class Outcome(NamedTuple):
    """How a worker ended; ``code`` is its exit status, or minus the signal that killed it."""

    rank: int
    pid: int
    code: int

    def __str__(self) -> str:
        who = f"rank {self.rank} (pid {self.pid})"
        if self.code >= 0:
            return f"{who} exited with status {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:  # real-time signals have no name
            name = "no name"
        return f"{who} was killed by signal {-self.code} ({name})"

    @property
    def status(self) -> int:
        """The exit status a shell would report."""
        return self.code if self.code >= 0 else 128 - self.code


def spawn_command(
    workers: int,
    module: str,
    arguments: Sequence[str],
    preload: Sequence[str] = (),
    log_dir: Path | None = None,
) -> list[str]:
    """The command line, for subprocess, that runs ``python -m module`` in ``workers`` workers.

    The workers end when this process does, which must be the one that runs it.
    """
    command = [sys.executable, "-m", "tiered_dist.launch", "--workers", str(workers)]
    command += ["--with-parent", str(os.getpid())]
    for name in preload:
        command += ["--preload", name]
    if log_dir is not None:
        command += ["--log-dir", str(log_dir)]
    return [*command, "-m", module, *arguments]


def main(words: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    options, program = _parse(words)
    _limit_threads()
    try:
        if options.with_parent is not None:
            _end_with_parent(options.with_parent)
        _import_once([*options.preload], program)
        return _launch(options.workers, program, options.log_dir, options.timeout_grace)
    except LaunchError as error:
        print(f"launch: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before the workers exist
        return 128 + signal.SIGINT


def _end_with_parent(parent: int) -> None:
    """Have SIGTERM sent to this launcher when ``parent``, which started it, ends."""
    _ask_for_signal_at_parents_end(signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the call
        raise LaunchError("the process that started the launcher has ended")


def _ask_for_signal_at_parents_end(number: signal.Signals) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, Program]:
    parser = argparse.ArgumentParser(
        prog="python -m tiered_dist.launch",
        usage="%(prog)s [options] (SCRIPT | -m MODULE) [arguments of the script or module]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workers", type=int, required=True, metavar="N")
    parser.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="import MODULE before the workers are forked; may be given several times",
    )
    parser.add_argument(
        "--log-dir", type=Path, metavar="DIR", help="where all ranks but 0 write their output"
    )
    parser.add_argument(
        "--timeout-grace",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="time between SIGTERM and SIGKILL when workers must end (default: 5)",
    )
    parser.add_argument(
        "--with-parent",
        type=int,
        metavar="PID",
        help="stop the workers when PID, the process that started this one, ends",
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.workers < 1:
        parser.error(f"--workers {options.workers}: at least one worker is needed")
    if not options.timeout_grace >= 0:
        parser.error(f"--timeout-grace {options.timeout_grace}: must be 0 or more")
    command = options.module or options.script
    if not command:
        parser.error("name a script, or a module with -m")
    program = Program(command[0], bool(options.module), command[1:])
    if not program.is_module and not os.path.isfile(program.name):
        parser.error(f"{program.name}: no such script")
    return options, program


def _limit_threads() -> None:
    """Set the thread variables and start again, for libraries read them when they load."""
    missing = [name for name in THREAD_VARIABLES if name not in os.environ]
    if missing:
        os.environ.update(dict.fromkeys(missing, "1"))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _import_once(preload: Sequence[str], program: Program) -> None:
    """Import all that the workers share; LaunchError if they could not be forked after it."""
    if not program.is_module and not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.abspath(program.name))  # as python SCRIPT does
    # To make an optimizer imports torch._dynamo and sympy: 1.6 s in every worker (measured).
    for name in ["torch.distributed", "torch._dynamo", *preload]:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise LaunchError(f"cannot import {name}: {error}") from None
        if _thread_count() > 1:
            raise LaunchError(
                f"after importing {name} this process has {_thread_count()} threads, and forking "
                "is safe only from one; let the workers import what starts them (leave it out of "
                f"--preload), and leave {', '.join(THREAD_VARIABLES)} at 1"
            )
    if program.is_module and not _is_module(program.name):
        raise LaunchError(f"no module named {program.name!r}")
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        raise LaunchError(
            "CUDA was initialised by an import, and does not survive forking; "
            "let the workers make their first CUDA call themselves"
        )


def _thread_count() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except FileNotFoundError:
        raise LaunchError("this launcher needs Linux (/proc); use torchrun here") from None
    return next(int(line.split()[1]) for line in lines if line.startswith("Threads:"))


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package that it would be in
        return False


def _launch(workers: int, program: Program, log_dir: Path | None, grace: float) -> int:
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
    # A signal that was ignored when we were started (nohup, a shell's background job) stays so.
    stop = {
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with tempfile.TemporaryDirectory(
        prefix="tiered-dist-", ignore_cleanup_errors=True
    ) as directory:
        # The signals wait until _supervise takes them one by one: none can interrupt the forking.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *stop})
        fork = _Forker(workers, program, log_dir, Path(directory), mask)
        running: dict[int, int] = {}
        try:
            for rank in range(workers):
                running[fork(rank)] = rank
        except OSError as error:
            _signal(running, signal.SIGKILL)
            raise LaunchError(
                f"could not fork worker {rank + 1} of {workers}: {error}; "
                "look at the limits on processes and memory (ulimit -u, free)"
            ) from None
        return _supervise(running, stop, grace, fork)


class _Forker:
    """Forks workers; knows where each of them writes."""

    def __init__(
        self,
        workers: int,
        program: Program,
        log_dir: Path | None,
        directory: Path,
        mask: Iterable[int],
    ) -> None:
        self.workers = workers
        self.program = program
        self.log_dir = log_dir
        self.directory = directory
        self.mask = mask
        self.parent = os.getpid()
        sys.stdout.flush()  # else every worker would write the rest once more
        sys.stderr.flush()
        gc.collect()
        gc.freeze()  # the collector would touch, and so copy, the pages that workers share

    def __call__(self, rank: int) -> int:
        """Fork worker ``rank``; returns its pid (and, in the worker, not at all)."""
        pid = os.fork()
        if pid == 0:
            self._work(rank)
        return pid

    def log(self, rank: int) -> Path | None:
        """The file that takes this rank's output, if any."""
        if rank == 0 or self.log_dir is None:
            return None
        return self.log_dir / f"rank-{rank:03}.log"

    def report(self, rank: int) -> Path:
        """The file in which a worker that raised leaves its traceback or last message."""
        return self.directory / f"report-{rank}"

    def _work(self, rank: int) -> NoReturn:
        """Be a worker. Leaves by ``os._exit``: what the launcher does at exit is not ours."""
        code = 1
        try:
            self._die_with_parent()
            self._reset(rank)
            code = self._run(rank)
        except BaseException as error:
            self._tell(rank, _format(error))
        finally:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except OSError:
                    code = code or 120  # as python's own exit
            os._exit(code)

    def _die_with_parent(self) -> None:
        _ask_for_signal_at_parents_end(signal.SIGKILL)
        if os.getppid() != self.parent:  # it died before the call
            os._exit(128 + signal.SIGKILL)

    def _reset(self, rank: int) -> None:
        """Make the forked copy a process of its own: exit handlers, signals, files, seeds."""
        atexit._clear()
        atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
        # A terminal's Ctrl-C reaches every process; the launcher alone acts on it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        if rank > 0:
            _redirect(os.open(os.devnull, os.O_RDONLY), 0)
            log = self.log(rank)
            if log is None:
                os.dup2(2, 1)
            else:
                _redirect(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), 1, 2)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(self.workers),
            LOCAL_WORLD_SIZE=str(self.workers),
            TIERED_DIST_STORE=str(self.directory / "store"),
        )
        # All workers are on this machine, whatever its host name resolves to.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        _seed(rank)

    def _run(self, rank: int) -> int:
        """Run the program as ``python`` would; returns its exit status."""
        code = 0
        sys.argv = [self.program.name, *self.program.arguments]
        try:
            if self.program.is_module:
                runpy.run_module(self.program.name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(self.program.name, run_name="__main__")
        except SystemExit as error:
            if isinstance(error.code, int):
                code = error.code & 0xFF
            elif error.code is not None:
                self._tell(rank, f"{error.code}\n")
                code = 1
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        return code

    def _tell(self, rank: int, message: str) -> None:
        """Leave the message to the launcher, which shows the first failure's alone."""
        self.report(rank).write_text(message, encoding="utf-8")
        if self.log(rank) is not None:
            sys.stderr.write(message)


def _redirect(source: int, *targets: int) -> None:
    for target in targets:
        os.dup2(source, target)
    os.close(source)


def _seed(seed: int) -> None:
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def _format(error: BaseException) -> str:
    """The traceback, from the program's first line on."""
    place = error.__traceback__
    while place is not None and (
        place.tb_frame.f_globals is globals() or place.tb_frame.f_globals["__name__"] == "runpy"
    ):
        place = place.tb_next
    return "".join(traceback.format_exception(type(error), error, place))


def _supervise(
    running: dict[int, int], stop: set[signal.Signals], grace: float, workers: _Forker
) -> int:
    """Wait until all workers have ended; ``running`` maps pid to rank. Returns the exit status."""
    status: int | None = None  # until something makes the workers end
    deadline: float | None = None
    later: list[Outcome] = []
    while running:
        event = _next_signal({signal.SIGCHLD, *stop}, deadline)
        if event is None:
            _signal(running, signal.SIGKILL)
            deadline = None
            continue
        if event.si_signo != signal.SIGCHLD:
            # The second Ctrl-C does not wait.
            _signal(running, signal.SIGTERM if status is None else signal.SIGKILL)
            if status is None:
                status = 128 + event.si_signo
                deadline = time.monotonic() + grace
                name = signal.Signals(event.si_signo).name
                print(f"launch: {name}: stopping {len(running)} workers", file=sys.stderr)
            continue
        for outcome in _reap(running, event.si_pid):
            if outcome.code == 0:
                continue
            if status is None:
                status = outcome.status
                _signal(running, signal.SIGTERM)
                deadline = time.monotonic() + grace
                _show(outcome, workers)
            else:
                later.append(outcome)
    _show_later([outcome for outcome in later if outcome.code > 0], workers)
    return status or 0


def _next_signal(
    signals: set[signal.Signals], deadline: float | None
) -> signal.struct_siginfo | None:
    """The next of the (blocked) signals; None when the deadline has passed."""
    if deadline is None:
        return signal.sigwaitinfo(signals)
    return signal.sigtimedwait(signals, max(0.0, deadline - time.monotonic()))


def _reap(running: dict[int, int], first: int) -> list[Outcome]:
    """Take the ended workers out of ``running``, the one that ended first in front.

    SIGCHLD carries the pid of the first child that ended; deaths that follow while it is pending
    send no signal of their own.
    """
    outcomes = []
    for pid in sorted(running, key=lambda pid: pid != first):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            outcomes.append(Outcome(running.pop(pid), pid, os.waitstatus_to_exitcode(status)))
    return outcomes


def _signal(running: Iterable[int], number: signal.Signals) -> None:
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _show(outcome: Outcome, workers: _Forker) -> None:
    """Say which worker failed first and why, with the end of its log or its traceback."""
    log, report = workers.log(outcome.rank), workers.report(outcome.rank)
    if log is not None and log.exists():
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print(f"launch: the end of {log}:", *lines[-LOG_LINES_SHOWN:], sep="\n", file=sys.stderr)
    elif report.exists():
        print(f"launch: rank {outcome.rank}:", file=sys.stderr)
        print(report.read_text(encoding="utf-8"), end="", file=sys.stderr)
    print(f"launch: {outcome}; stopping the other workers", file=sys.stderr)
    if outcome.code == -signal.SIGKILL:
        print("launch: if nobody sent it, the machine ran out of memory (dmesg)", file=sys.stderr)


def _show_later(outcomes: Sequence[Outcome], workers: _Forker) -> None:
    """One line for each worker that failed by itself after the first one did."""
    for outcome in outcomes[:LATER_FAILURES_SHOWN]:
        report = workers.report(outcome.rank)
        last = report.read_text(encoding="utf-8").rstrip().splitlines() if report.exists() else []
        print(f"launch: then {outcome}: {last[-1] if last else 'no message'}", file=sys.stderr)
    if len(outcomes) > LATER_FAILURES_SHOWN:
        print(
            f"launch: then {len(outcomes) - LATER_FAILURES_SHOWN} more workers failed",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
