"""srun's environment in torchrun's words. No Slurm runs here: its variables are set by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiered_dist import slurm

TASK = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_JOB_NODELIST": "gpu[07-09],login",
    "SLURM_STEP_NODELIST": "gpu[08-09]",
    "SLURM_STEP_NUM_TASKS": "12",
    "SLURM_STEP_TASKS_PER_NODE": "8,4",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


def test_a_task_of_a_step_is_a_rank():
    assert slurm.variables(TASK) == {
        "RANK": "9",
        "WORLD_SIZE": "12",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "gpu08",
        "MASTER_PORT": str(slurm.FIRST_PORT + 1234567 % slurm.PORTS),
    }
    assert slurm.variables(TASK | {"SLURM_STEP_TASKS_PER_NODE": "4(x3)"})["LOCAL_WORLD_SIZE"] == "4"


def test_a_batch_script_and_an_interactive_shell_are_no_ranks():
    script = {name: value for name, value in TASK.items() if "STEP" not in name}
    assert slurm.variables(script | {"SLURM_NTASKS": "12"}) == {}
    assert slurm.variables(TASK | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) == {}
    assert slurm.variables({}) == {}


def test_another_launchers_rank_and_a_users_port_stay():
    environment = TASK | {"RANK": "0"}
    slurm.announce(environment)
    assert environment == TASK | {"RANK": "0"}
    environment = TASK | {"MASTER_PORT": "29500"}
    slurm.announce(environment)
    assert (environment["RANK"], environment["MASTER_PORT"]) == ("9", "29500")


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu[07-09,12],login", "gpu07"),
        ("n[3]", "n3"),
        ("a1,b2", "a1"),
        ("solo", "solo"),
        ("rack[1-2]node[01-04]", "rack1node01"),
    ],
)
def test_first_host(nodes, host):
    assert slurm.first_host(nodes) == host


def test_two_real_processes_meet_with_srun_s_variables(tmp_path):
    script = (
        "import json, sys, torch.distributed as dist, tiered_dist as t\n"
        "t.init_process_group(60)\n"
        "world = t.Topology.build('host').world\n"
        "print(json.dumps(world.gather_objects(dist.get_rank())))\n"
    )
    both = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NODEID": "0",
        "SLURM_JOB_ID": str(os.getpid()),
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=os.environ | both | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=100)
        assert process.returncode == 0 and json.loads(output) == [0, 1]
