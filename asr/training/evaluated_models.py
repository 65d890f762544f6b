"""The models that training has evaluated on dev: the last few are kept, to be averaged.

models/step-00001200-dev-12.34.pt, with the dev word error rate in per cent.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from asr.model import AcousticModel, save_model

MODELS = "models"
NAME = re.compile(r"step-(\d+)-dev-(\d+\.\d+)\.pt")


class EvaluatedModel(NamedTuple):
    """A model after ``step`` steps; ``dev_wer`` in per cent, as in the file's name."""

    step: int
    dev_wer: float
    path: Path


def evaluated_models(folder: Path) -> list[EvaluatedModel]:
    """The models kept in ``folder``, oldest first; none where there is no folder."""
    found = []
    for path in folder.glob("step-*.pt"):
        if match := NAME.fullmatch(path.name):
            found.append(EvaluatedModel(int(match[1]), float(match[2]), path))
    return sorted(found)


def keep_model(
    folder: Path,
    step: int,
    dev_wer: float,
    model: AcousticModel,
    travels_with: dict[str, Any],
    keep: int,
) -> None:
    """Write a model, and remove all but the newest ``keep``; ``dev_wer`` 0.1234 is 12.34 %."""
    if keep:
        forget_after(folder, step - 1)
        path = folder / f"step-{step:08d}-dev-{100 * dev_wer:.2f}.pt"
        save_model(path, model, travels_with)
    for old in evaluated_models(folder)[: -keep or None]:
        old.path.unlink()


def forget_after(folder: Path, step: int) -> None:
    """Remove models of later steps: of a run that was killed, and goes on from ``step``."""
    for model in evaluated_models(folder):
        if model.step > step:
            model.path.unlink()


def choose(
    models: list[EvaluatedModel], last: int | None, best: int | None
) -> list[EvaluatedModel]:
    """The ``last`` models, or the ``best`` by dev word error rate (among equals the older),
    oldest first; fewer where there are fewer."""
    if last is not None:
        return models[-last:]
    return sorted(sorted(models, key=lambda model: (model.dev_wer, model.step))[:best])
