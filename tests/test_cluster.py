"""Stages 1 and 2 by Dask: real schedulers and worker processes of this machine."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from speech_helpers import block, readers_of, small_corpus, start_stage, workspace

from asr import features
from asr.cluster import SlurmJobs, _slurm_cluster, worker_map
from asr.config import load_config
from asr.errors import UserError
from asr.features import FeaturesConfig
from asr.processes import WorkerDied


def written(root: Path) -> dict[str, bytes]:
    """Shards, statistics and manifests."""
    folder = root / "features"
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("stage.")
    }


def test_a_stage_outlives_a_killed_worker(tmp_path):
    """Killed in the middle of its shard; the bytes are those of this machine's processes."""
    small_corpus(tmp_path)
    features.run(workspace(tmp_path, "speeds=[1.0, 0.9]"))
    expected = written(tmp_path)
    audio = tmp_path / "audio" / "train-3.flac"
    block(audio)
    stage = start_stage(
        tmp_path, "features", "--force", "speeds=[1.0, 0.9]", "cluster=local", "jobs=2"
    )
    with readers_of(audio) as workers:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        said = stage.communicate()[1]
    assert stage.returncode == 0, said
    assert written(tmp_path) == expected


def add_ten(value: int) -> int:
    return value + 10


def die_at_three(value: int) -> int:
    if value == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def fail_by_name(value: int) -> int:
    raise UserError(f"utterance u{value}")


@pytest.fixture(scope="module")
def scheduler():
    """The address of a scheduler with one worker process."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def test_results_come_in_the_order_of_the_tasks(scheduler):
    with worker_map(None, scheduler, preload=__name__) as mapped:
        assert list(mapped(add_ten, range(100))) == [value + 10 for value in range(100)]


def test_a_users_error_comes_through(scheduler):
    with (
        worker_map(None, scheduler, preload=__name__) as mapped,
        pytest.raises(UserError, match="^utterance u0$"),
    ):
        list(mapped(fail_by_name, [0]))


@pytest.mark.parametrize("cluster", [None, "scheduler"])
def test_a_task_that_kills_every_worker_is_told(cluster, request):
    where = cluster and request.getfixturevalue(cluster)
    with (
        worker_map(1, where, preload=__name__) as mapped,
        pytest.raises(WorkerDied) as died,
    ):
        list(mapped(die_at_three, [1, 3]))
    assert died.value.task <= 1


def test_no_scheduler_is_a_clear_error(monkeypatch):
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}),
        pytest.raises(UserError, match=r"127\.0\.0\.1:9: no Dask scheduler answers.*dask worker"),
        worker_map(None, "tcp://127.0.0.1:9", preload=__name__),
    ):
        pass


@pytest.mark.parametrize(
    ("package", "cluster"),
    [("distributed", "local"), ("dask_jobqueue", SlurmJobs(1, 1, "1GB", "00:10:00"))],
)
def test_a_missing_package_names_the_file_to_install(monkeypatch, package, cluster):
    monkeypatch.setitem(sys.modules, package, None)
    with (
        pytest.raises(UserError, match=rf"{package}.*pip install -r requirements-cluster\.txt"),
        worker_map(1, cluster, preload=__name__),
    ):
        pass


def test_what_a_cluster_may_be():
    def given(*overrides):
        return load_config(FeaturesConfig, [], overrides).cluster

    assert given("cluster=null") is None
    assert given("cluster=tcp://host:8786") == "tcp://host:8786"
    slurm = ("cluster.jobs=20", "cluster.cores=16", "cluster.memory=32GB")
    assert given(*slurm, "cluster.walltime=02:00:00", "cluster.queue=cpu") == SlurmJobs(
        20, 16, "32GB", "02:00:00", "cpu"
    )
    with pytest.raises(UserError, match="walltime=0; give 1 second"):
        given(*slurm, "cluster.walltime=0")
    with pytest.raises(UserError, match="scheduler's address such as tcp"):
        given("cluster=slurm")
    with pytest.raises(UserError, match="walltime"):
        given(*slurm)


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("02:00:00", "02:00:00"),
        ("12:00:00", "12:00:00"),  # to YAML a number of base 60
        ("1:05", "00:01:05"),
        ("100:00:01", "100:00:01"),
        ("3-12", "3-12"),
        ("7200", "02:00:00"),
        ("'90'", "90"),
    ],
)
def test_a_time_limit_comes_to_sbatch_as_it_was_meant(written, asked, tmp_path):
    file = tmp_path / "features.yaml"
    file.write_text(f"cluster: {{jobs: 1, cores: 1, memory: 1GB, walltime: {written}}}\n")
    assert load_config(FeaturesConfig, [file], []).cluster.time_limit == asked
    words = [f"cluster.{word}" for word in ("jobs=1", "cores=1", "memory=1GB")]
    words.append(f"cluster.walltime={written}")
    assert load_config(FeaturesConfig, [], words).cluster.time_limit == asked


SBATCH = """#!{python}
import pathlib, subprocess, sys
script = pathlib.Path(sys.argv[-1])
pathlib.Path("{folder}/script").write_text(script.read_text())
job = subprocess.Popen(["bash", script], start_new_session=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
print("Submitted batch job", job.pid)
"""


def put_on_path(folder, monkeypatch, **programs):
    """Programs, by name, that are found before others."""
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_jobs_of_slurm(tmp_path, monkeypatch):
    """sbatch is a stand-in that runs the script on this machine, scancel one that ends it."""
    put_on_path(
        tmp_path,
        monkeypatch,
        sbatch=SBATCH.format(python=sys.executable, folder=tmp_path),
        scancel='#!/bin/sh\nkill -- "-$1"\n',
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    slurm = SlurmJobs(1, 2, "2GB", 600, queue="cpu", account="speech", interface="lo")
    with worker_map(None, slurm, preload=__name__) as mapped:
        assert list(mapped(add_ten, [1, 2])) == [11, 12]
    script = (tmp_path / "script").read_text()
    for line in ("-p cpu", "-A speech", "-t 00:10:00", "--cpus-per-task=2", "--mem=2G"):
        assert f"#SBATCH {line}\n" in script
    assert "--death-timeout 600 " in script


def test_a_job_finds_the_code_in_a_folder_of_any_name(tmp_path, monkeypatch):
    """Of a job script the line that says so, run by bash."""
    sbatch = f'#!/bin/sh\ncp "$1" {tmp_path}/script\necho Submitted batch job 1\n'
    put_on_path(tmp_path, monkeypatch, sbatch=sbatch, scancel="#!/bin/sh\n")
    monkeypatch.setattr("asr.cluster.__file__", "/my code; $HOME/asr/cluster.py")
    slurm = SlurmJobs(1, 1, "1GB", 600, interface="lo")
    with _slurm_cluster(slurm) as cluster:
        [line] = [line for line in cluster.job_script().splitlines() if "PYTHONPATH" in line]
    for before, after in (("", "/my code; $HOME"), ("/before", "/my code; $HOME:/before")):
        told = subprocess.check_output(
            ["bash", "-c", line + '; printf %s "$PYTHONPATH"'],
            env=os.environ | {"PYTHONPATH": before},
            text=True,
        )
        assert told == after
