"""Checkpoints on a file system that all ranks share: whole, or not there.

ROOT/step-00001200/shared.pt        once
                   subgroup-000.pt  one a subgroup
                   rank-000.pt      one a rank
"""

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from tiered_dist.layout import join_pieces
from tiered_dist.trainer import TieredTrainer, check_format

RESIDUAL_POLICIES = ("drop", "keep", "redistribute")
# The rank part of a rank that the old world did not have.
_NEW_RANK: dict[str, Any] = {"inner": {}, "buffers": {}, "caller": None}


def save_checkpoint(
    root: Path | str,
    trainer: TieredTrainer,
    shared: dict[str, Any],
    rank: dict[str, Any],
    keep: int = 2,
) -> Path:
    """Write the trainer's state and the caller's own; a collective of all ranks.

    ``shared`` and ``rank`` are the caller's plain values (data position, random states). The
    directory gets its name when all parts are on disk; the newest ``keep`` are kept. ValueError
    names a value that is not plain, and could not be loaded.
    """
    root, topology, state = Path(root), trainer.topology, trainer.state_dict()
    _check_plain("shared", shared)
    _check_plain("rank", rank)
    final = root / f"step-{trainer.steps:08d}"
    partial = root / f".partial-{final.name}"
    if topology.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    topology.world.barrier()
    _write(partial / _rank_file(topology.rank), {**state["rank"], "caller": rank})
    if topology.inner.index == 0:
        _write(partial / _subgroup_file(topology.subgroup), state["subgroup"])
    if topology.rank == 0:
        _write(partial / "shared.pt", {**state["shared"], "caller": shared})
    topology.world.barrier()
    if topology.rank == 0:
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        for old in list_checkpoints(root)[:-keep]:
            if old != final:  # a run that began anew beside a longer one's checkpoints
                shutil.rmtree(old)
    return final


def list_checkpoints(root: Path | str) -> list[Path]:
    """Whole checkpoints under ``root``, oldest first."""
    return sorted(Path(root).glob("step-*"))


def load_checkpoint(
    path: Path | str, trainer: TieredTrainer, residuals: str = "drop"
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Restore the trainer; returns the caller's shared and rank parts.

    On the world that saved it, training goes on bit for bit. On another, ``residuals`` says what
    becomes of what GTC had not sent yet: "drop"; "keep", rank i goes on with the old rank i's (with
    ``DenseInHost`` that is a part of the model, and the rest starts empty); "redistribute", every
    rank gets the mean of all, so that nothing is lost of what subgroups deliver on average. The log
    says what was done. The rank part is None when the world has changed and this rank was not in
    the old one. ValueError for an unknown policy, and for another model's checkpoint;
    FileNotFoundError where there is none (``list_checkpoints`` finds them).
    """
    path = Path(path)
    if not (path / "shared.pt").exists():
        raise FileNotFoundError(
            f"{path}: no checkpoint (no shared.pt); list_checkpoints(root)[-1] is a root's newest"
        )
    if residuals not in RESIDUAL_POLICIES:
        raise ValueError(f"residuals={residuals!r}: one of {', '.join(RESIDUAL_POLICIES)}")
    topology = trainer.topology
    shared = read_part(path / "shared.pt")
    subgroup_path = path / _subgroup_file(topology.subgroup)
    rank_path = path / _rank_file(topology.rank)
    subgroup = read_part(subgroup_path if subgroup_path.exists() else path / _subgroup_file(0))
    rank = read_part(rank_path) if rank_path.exists() else dict(_NEW_RANK)
    check_format(shared)
    if not trainer.has_same_residuals(shared):
        rank = {**rank, "inner": _inherited(path, shared, topology.rank, residuals, trainer.shapes)}
    trainer.load_state_dict({"shared": shared, "subgroup": subgroup, "rank": rank})
    return shared["caller"], rank["caller"]


def _inherited(
    path: Path, shared: dict[str, Any], rank: int, policy: str, shapes: dict[str, torch.Size]
) -> dict[str, Any]:
    """The inner tier's rank part for ``rank``, out of what other ranks or another tier 1 saved.

    "redistribute" averages over each old subgroup's workers, then over the subgroups: that is what
    they would have delivered. "samples" are the old ranks' reference, in whose units residuals are.
    """
    if policy == "drop":
        return {}
    groups = shared["subgroups"] if policy == "redistribute" else [[rank]]
    parts = [[_inner_of(path, old) for old in ranks] for ranks in groups]
    inherited: dict[str, Any] = {}
    for what in ("residual", "velocity"):
        vectors = [[part.get(what, {}) for part in group] for group in parts]
        if any(any(group) for group in vectors):
            whole = [join_pieces(group, shapes) for group in vectors]
            inherited[what] = {name: sum(w[name] for w in whole) / len(whole) for name in shapes}
    if inherited and (samples := _samples_a_rank(path, shared)):
        inherited["samples"] = samples
    return inherited


def _inner_of(path: Path, rank: int) -> dict[str, Any]:
    file = path / _rank_file(rank)
    return read_part(file)["inner"] if file.exists() else {}


def _samples_a_rank(path: Path, shared: dict[str, Any]) -> float:
    """A rank's samples in the batches that GTC takes for usual; 0 if there was no GTC."""
    workers = {rank: len(team) for team in shared["residual_holders"] for rank in team}
    found = []
    for number, ranks in enumerate(shared["subgroups"]):
        of_subgroup = read_part(path / _subgroup_file(number))["inner"]
        agreed = [_inner_of(path, rank).get("agreed", of_subgroup) for rank in ranks]
        references = [
            a.get("reference", 0.0) / workers.get(r, 1) for a, r in zip(agreed, ranks, strict=True)
        ]
        found += [reference for reference in references if reference]
    return sum(found) / len(found) if found else 0.0


def _check_plain(name: str, value: Any) -> None:
    """ValueError for what ``torch.load`` would refuse to make of a file."""
    if value is None or isinstance(
        value, bool | int | float | complex | str | bytes | torch.Tensor
    ):
        return
    if isinstance(value, dict):
        parts = [(f"{name}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, list | tuple | set):
        parts = [(f"{name}[{number}]", part) for number, part in enumerate(value)]
    else:
        raise ValueError(f"{name} is a {type(value).__name__}: save plain values and tensors only")
    for part_name, part in parts:
        _check_plain(part_name, part)


def _subgroup_file(subgroup: int) -> str:
    return f"subgroup-{subgroup:03d}.pt"


def _rank_file(rank: int) -> str:
    return f"rank-{rank:03d}.pt"


def _write(path: Path, value: dict[str, Any]) -> None:
    with open(path, "wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())


def read_part(path: Path) -> dict[str, Any]:
    """One file of a checkpoint: plain types and CPU tensors."""
    return torch.load(path, map_location="cpu", weights_only=True)
