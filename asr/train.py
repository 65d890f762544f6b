"""Stages 4 to 6: train one system, and refuse to call it done if it was not what it says.

On one machine this process starts the system's workers through the local launcher. Where
torchrun or srun has started ``python -m asr train`` as one rank of many, this process is a
worker, and rank 0 keeps the stage's marker. There, SIGUSR1 or SIGTERM to any rank ends training at
the next block's end with a checkpoint, and with exit status 75.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from asr.config import dump_yaml
from asr.errors import UserError
from asr.files import read_json, write_text
from asr.interruption import listen, listen_no_more
from asr.stages import StageResult, Workspace, run_stage
from asr.training.config import TrainConfig
from asr.training.trainer import CHECKPOINTS, CONFIG, MODEL, SUMMARY, SystemTrainer
from tiered_dist import ExchangeError, init_process_group, launched_as_rank, list_checkpoints
from tiered_dist.launch import spawn_command


def run(workspace: Workspace, system: str) -> None:
    """Train ``conf/systems/<system>.yaml``, laid over ``conf/train.yaml``.

    UserError if a worker fails, or if the run fails its own check (``check_tiers``).
    """
    train_system(workspace, system, workspace.config(TrainConfig, "train", f"systems/{system}"))


def train_system(workspace: Workspace, system: str, config: TrainConfig) -> None:
    """Train a system of any configuration, in stage ``train/<system>``; errors as for ``run``."""
    if workspace.resume:
        _check_resumable(workspace, workspace.directory(f"train/{system}"))
    if launched_as_rank():
        listen()
        _train_as_rank(workspace, system, config)
    else:
        listen_no_more()  # the launcher ends its workers
        _run_stage(workspace, system, config, lambda: _launch(workspace, system, config))


def _check_resumable(workspace: Workspace, directory: Path) -> None:
    """UserError, before anything is touched, where --resume makes no sense."""
    if workspace.force:
        raise UserError("--force begins anew, --resume goes on: give one of them")
    if not list_checkpoints(directory / CHECKPOINTS):
        raise UserError(f"{directory / CHECKPOINTS}: no checkpoint to resume from")


def check_tiers(summary: dict[str, Any], config: TrainConfig) -> None:
    """UserError, with the figures, unless the tiers that the configuration names have run."""
    if failures := tier_failures(summary, config):
        raise UserError(
            f"{summary['system']}: trained, but not in the tiers it is named for: "
            f"{'; '.join(failures)}. Train longer (epochs), or change block_steps, density, ramp"
        )


def tier_failures(summary: dict[str, Any], config: TrainConfig) -> list[str]:
    """What keeps a run from being what its configuration names; of a plan, too.

    GTC: a mean sent density after the ramp of at most ``max_density``. BMUF: at least
    ``min_memory_spans`` / (1 - eta) blocks. Several subgroups: models that differed before every
    block's end.
    """
    failures = []
    if config.inner.kind != "dense":
        density = summary["density"]
        if summary["inner"] == "none":
            failures.append("GTC had nobody to exchange with: subgroups of one worker")
        elif density is None or not density <= config.max_density:
            failures.append(
                f"mean sent density after the ramp {density}, not {config.max_density} or less"
            )
    if config.outer.kind == "bmuf":
        if config.workers > 1 and summary["subgroups"] == 1:
            failures.append("BMUF had nothing to average: a single subgroup")
        # A filter with momentum eta remembers 1 / (1 - eta) blocks; in a run of few such spans it
        # has not shown what it does.
        needed = config.min_memory_spans / (1 - summary["block_momentum"])
        if summary["blocks"] < needed:
            failures.append(
                f"{summary['blocks']} blocks, fewer than {config.min_memory_spans:g}/(1 - eta) = "
                f"{needed:.0f}"
            )
        if summary["subgroups"] > 1 and not summary["least_spread"]:
            failures.append("the subgroups' models did not differ before a block's end")
    return failures


def _run_stage(
    workspace: Workspace, system: str, config: TrainConfig, train: Callable[[], None]
) -> bool:
    def build(directory: Path) -> StageResult:
        if workspace.resume:
            (directory / SUMMARY).unlink(missing_ok=True)
        write_text(directory / CONFIG, dump_yaml(config))
        if not (directory / SUMMARY).exists():
            train()
        summary = read_json(directory / SUMMARY)
        check_tiers(summary, config)
        return StageResult(
            counts={key: summary[key] for key in ("steps", "blocks", "samples", "best_dev_wer")},
            outputs=[directory / CONFIG, directory / MODEL],
            measured={key: summary[key] for key in ("train_seconds", "frames_per_second")},
        )

    return run_stage(workspace, f"train/{system}", config, ["features", "tokens"], build)


def _launch(workspace: Workspace, system: str, config: TrainConfig) -> None:
    """Train with local workers."""
    arguments = ["--recipe", workspace.recipe, "--dir", workspace.root, "--system", system]
    directory = workspace.directory(f"train/{system}")
    command = spawn_command(
        workers=config.workers,
        module="asr.training.rank",
        arguments=[str(argument) for argument in arguments],
        preload=["asr.training.trainer"],
        log_dir=directory / "logs",
    )
    if status := _run(command):
        raise UserError(
            f"training {system} failed (exit status {status}); the lines above name the rank, "
            f"{directory / 'logs'} has the other ranks' output. The same command goes on from the "
            "last checkpoint"
        )


def _run(command: list[str]) -> int:
    """The command's exit status; after Ctrl-C, which it gets too, it is given time to end."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise


def _train_as_rank(workspace: Workspace, system: str, config: TrainConfig) -> None:
    """This process is one rank; rank 0 decides whether there is anything to do.

    ``Stopped`` on all ranks when one was asked to stop, and all have saved.
    """
    init_process_group(config.timeout_seconds)
    try:
        if dist.get_rank() == 0:
            _lead(workspace, system, config)
        elif _hear():
            SystemTrainer(workspace, system).run()
    except ExchangeError as error:
        raise UserError(str(error)) from error


def _lead(workspace: Workspace, system: str, config: TrainConfig) -> None:
    """Rank 0: run the stage, and tell the others whether there is anything to train."""
    told = False

    def train() -> None:
        nonlocal told
        told = True
        _tell(True)
        SystemTrainer(workspace, system).run()

    try:
        _run_stage(workspace, system, config, train)
    finally:
        if not told:
            _tell(False)


def _tell(train: bool) -> None:
    dist.broadcast_object_list([train], src=0)


def _hear() -> bool:
    told = [False]
    dist.broadcast_object_list(told, src=0)
    return told[0]
