"""Work spread over the processes of one machine, or over a cluster's by Dask."""

import contextlib
import logging
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asr.errors import UserError
from asr.processes import Map, Result, Task, WorkerDied, cores, pool_map

if TYPE_CHECKING:
    from distributed import Client, LocalCluster
    from distributed.deploy import Cluster

LOCAL = "local"
REQUIREMENTS = "requirements-cluster.txt"
# Tasks that go to the scheduler in one message; a shard's names its hundreds of utterances.
BATCH = 64

WORKER_START_SECONDS = 600

log = logging.getLogger("asr")


@dataclass(frozen=True)
class SlurmJobs:
    """``jobs`` Slurm jobs, each with a worker for each of its ``cores``, that share ``memory``.

    ``walltime`` is text as sbatch takes it, or a number of seconds: YAML reads 12:00:00 as one, if
    it is not quoted. A job that comes to its end is submitted anew, and what it was at is done
    again. Null leaves queue and account to Slurm. ``interface`` is the network device over which
    workers reach this machine (say ``ib0``; null: that of its address).
    """

    jobs: int
    cores: int
    memory: str
    walltime: str | int
    queue: str | None = None
    account: str | None = None
    interface: str | None = None

    def __post_init__(self) -> None:
        if min(self.jobs, self.cores) < 1:
            raise ValueError(f"cluster: jobs={self.jobs}, cores={self.cores}; give 1 or more")
        if isinstance(self.walltime, int) and self.walltime < 1:
            raise ValueError(f"cluster: walltime={self.walltime}; give 1 second or more")

    @property
    def time_limit(self) -> str:
        """``walltime`` as sbatch takes it."""
        if isinstance(self.walltime, str):
            return self.walltime
        minutes, seconds = divmod(self.walltime, 60)
        return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"


def check_cluster(cluster: str | SlurmJobs | None) -> None:
    """ValueError for what ``worker_map`` does not take."""
    if isinstance(cluster, str) and cluster != LOCAL and "://" not in cluster:
        raise ValueError(
            f"cluster={cluster!r}; give null (processes of this machine), {LOCAL} (the same by "
            "Dask), a Dask scheduler's address such as tcp://host:8786, or Slurm's jobs, cores, "
            "memory and walltime"
        )


@contextlib.contextmanager
def worker_map(jobs: int | None, cluster: str | SlurmJobs | None, preload: str) -> Iterator[Map]:
    """Something to map with: ``jobs`` processes (None: one a core), or the workers of a cluster.

    ``cluster`` None: a pool that imports the module ``preload`` once for all. ``local``: as many
    Dask workers of this machine. An address: the workers of the Dask scheduler there, which go on
    afterwards. SlurmJobs: workers that Slurm starts, and ends afterwards. A task whose worker dies
    goes to another one, up to three times. UserError where Dask is missing or the scheduler is not
    there or goes away.
    """
    if cluster is None:
        with pool_map(jobs, preload) as mapped:
            yield mapped
    else:
        with _connected(cluster, jobs or cores()) as client:
            yield _ClusterMap(client)


@contextlib.contextmanager
def _connected(cluster: str | SlurmJobs, jobs: int) -> Iterator["Client"]:
    try:
        from distributed import Client
    except ImportError as error:
        raise _missing(error) from None
    logging.getLogger("distributed").setLevel(logging.WARNING)  # it tells of every connection
    with contextlib.ExitStack() as stack:
        address: str | Cluster
        if isinstance(cluster, SlurmJobs):
            address = stack.enter_context(_slurm_cluster(cluster))
        elif cluster == LOCAL:
            address = stack.enter_context(_local_cluster(jobs))
        else:
            address = cluster
        try:
            client = Client(address)
        except (OSError, ValueError) as error:
            raise UserError(
                f"cluster={cluster}: no Dask scheduler answers there ({error}); start one with "
                "'dask scheduler', and workers with 'dask worker ADDRESS --nthreads 1'"
            ) from None
        with client:
            log.info("cluster: %s (work begins when workers come)", client)
            yield client


def _missing(error: ImportError) -> UserError:
    return UserError(f"cluster: {error}; pip install -r {REQUIREMENTS}, or leave cluster null")


def _local_cluster(jobs: int) -> "LocalCluster":
    from distributed import LocalCluster

    return LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None)


def _slurm_cluster(slurm: SlurmJobs) -> "Cluster":
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError as error:
        raise _missing(error) from None
    code = shlex.quote(str(Path(__file__).parent.parent))
    cluster = SLURMCluster(
        queue=slurm.queue,
        account=slurm.account,
        cores=slurm.cores,
        processes=slurm.cores,
        memory=slurm.memory,
        walltime=slurm.time_limit,
        interface=slurm.interface,
        # A worker that gives up is not started again: many that import from one busy disk may take
        # longer than the minute that is the default.
        death_timeout=WORKER_START_SECONDS,
        job_script_prologue=[f"export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}}"],
    )
    cluster.adapt(minimum_jobs=slurm.jobs, maximum_jobs=slurm.jobs)
    return cluster


class _ClusterMap:
    """``Map`` by a Dask client."""

    def __init__(self, client: "Client") -> None:
        self.client = client

    def __call__(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[Result]:
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError

        # Not pure: a task writes files, and is to run again in another run of the same stage.
        futures = deque(self.client.map(function, tasks, pure=False, batch_size=BATCH))
        for done in range(len(futures)):
            try:
                yield futures.popleft().result()
            except KilledWorker:
                raise WorkerDied(done) from None
            except FutureCancelledError as error:
                raise UserError(
                    f"cluster: the Dask scheduler went away ({error}); rerun the stage, which "
                    "takes up what is finished"
                ) from None
            except ImportError as error:
                raise UserError(
                    f"cluster: a worker lacks the recipe's code ({error}); start workers with "
                    f"PYTHONPATH={Path(__file__).parent.parent} in the recipe's environment"
                ) from None
