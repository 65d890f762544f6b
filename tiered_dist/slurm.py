"""What srun tells each of its tasks, in the words that torchrun uses."""

import os
import re
from collections.abc import Mapping, MutableMapping

# Ports for the rendezvous, one a job: below those that systems hand out by themselves.
FIRST_PORT, PORTS = 15_000, 10_000


def announce(environment: MutableMapping[str, str] = os.environ) -> None:
    """Under srun with several tasks, set what is not set of RANK, WORLD_SIZE and the others."""
    if "RANK" not in environment:
        for name, value in variables(environment).items():
            environment.setdefault(name, value)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """torchrun's variables for this task; none outside of srun, or with a single task.

    They come from the job *step*: within a batch script or an interactive allocation, where
    SLURM_PROCID may be set, too, but a command runs once, there is nothing to announce.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks == "1" or "SLURM_PROCID" not in environment:
        return {}
    nodes = environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"]
    by_node = _tasks_by_node(environment["SLURM_STEP_TASKS_PER_NODE"])
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(by_node[int(environment["SLURM_NODEID"])]),
        "MASTER_ADDR": first_host(nodes),
        "MASTER_PORT": str(FIRST_PORT + int(environment["SLURM_JOB_ID"]) % PORTS),
    }


def first_host(nodes: str) -> str:
    """The first host of Slurm's compressed list: ``gpu[07-09,12],login`` begins with ``gpu07``."""
    host = nodes
    while match := re.search(r"^([^,\[]*)\[([^\],-]*)[^\]]*\]", host):
        host = match[1] + match[2] + host[match.end() :]
    return host.split(",")[0]


def _tasks_by_node(counts: str) -> list[int]:
    """``8(x2),4`` is 8, 8 and 4."""
    tasks = []
    for part in counts.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        tasks += [int(count)] * int(times or 1)
    return tasks
