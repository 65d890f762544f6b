"""``python -m asr average``: a system whose weights are the mean of a trained one's.

The mean of the last n models that training evaluated, or of the n best on dev of those that it kept
(``keep_models``), is the model of a system ``<system>-avg-last<n>`` or ``<system>-avg-best<n>``,
which is decoded, scored and compared like any other.
"""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from asr.config import dump_yaml
from asr.decode import recognise
from asr.errors import UserError
from asr.files import read_json, read_jsonl, write_json, write_text
from asr.model import AcousticModel, load_model, save_model
from asr.scoring.align import total_errors
from asr.stages import StageResult, Workspace, run_stage
from asr.tokens import MODEL as TOKEN_MODEL
from asr.tokens import Tokenizer
from asr.training.data import UtteranceSet
from asr.training.evaluated_models import MODELS, EvaluatedModel, choose, evaluated_models
from asr.training.trainer import CONFIG, MODEL, SUMMARY, read_config

log = logging.getLogger("asr")


@dataclasses.dataclass(frozen=True)
class AverageConfig:
    """Which of a system's evaluated models are averaged."""

    system: str
    kind: Literal["last", "best"]
    number: int

    @property
    def name(self) -> str:
        """The new system's."""
        return f"{self.system}-avg-{self.kind}{self.number}"


def run(workspace: Workspace, system: str, last: int | None, best: int | None) -> None:
    """Average the ``last`` or the ``best`` models of a system, in stage ``train/<new system>``.

    UserError where the system has not been trained, and where it kept fewer models.
    """
    number = last if last is not None else best
    assert number is not None
    config = AverageConfig(system, "best" if last is None else "last", number)
    if number < 1:
        raise UserError(f"--{config.kind} {number}: at least 1")

    workspace.require(f"train/{system}")
    chosen = _choose(workspace, config)  # before a folder is begun

    def build(directory: Path) -> StageResult:
        return _build(workspace, config, chosen, directory)

    inputs = [f"train/{system}", "features", "tokens"]
    run_stage(workspace, f"train/{config.name}", config, inputs, build)


def mean_weights(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor, summed in float64; state dicts of one kind of model."""
    return {
        name: torch.stack([state[name].double() for state in states]).mean(dim=0).to(tensor.dtype)
        for name, tensor in states[0].items()
    }


def _choose(workspace: Workspace, config: AverageConfig) -> list[EvaluatedModel]:
    folder = workspace.directory(f"train/{config.system}") / MODELS
    kept = evaluated_models(folder)
    is_last = config.kind == "last"
    chosen = choose(kept, config.number if is_last else None, None if is_last else config.number)
    if len(chosen) < config.number:
        raise UserError(
            f"{folder} has {len(kept)} models, not {config.number}; ask for fewer, or "
            "train with a larger keep_models and at least as many evaluations"
        )
    return chosen


def _build(
    workspace: Workspace, config: AverageConfig, chosen: list[EvaluatedModel], directory: Path
) -> StageResult:
    parent = workspace.directory(f"train/{config.system}")
    loaded = [load_model(model.path) for model in chosen]
    model, travels_with = loaded[-1]
    model.load_state_dict(mean_weights([one.state_dict() for one, _ in loaded]))
    save_model(directory / MODEL, model, travels_with)
    title = f"mean of the {config.kind} {config.number} models of {config.system}"
    training = dataclasses.replace(read_config(workspace, config.system), title=title)
    write_text(directory / CONFIG, dump_yaml(training))
    wer = _dev_wer(workspace, model, training.batch_frames)
    steps = [one.step for one in chosen]
    summary: dict[str, Any] = {
        **read_json(parent / SUMMARY),  # what its training took
        "system": config.name,
        "title": title,
        "best_dev_wer": wer,
        "best_step": steps[-1],
        "averaged_steps": steps,
    }
    write_json(directory / SUMMARY, summary)
    shown = ", ".join(f"{one.step} ({one.dev_wer:.2f} %)" for one in chosen)
    log.info("%s: mean of steps %s: dev WER %.2f %%", config.name, shown, 100 * wer)
    return StageResult(
        counts={"averaged_steps": steps, "best_dev_wer": wer},
        outputs=[directory / CONFIG, directory / MODEL, directory / SUMMARY],
    )


def _dev_wer(workspace: Workspace, model: AcousticModel, batch_frames: int) -> float:
    split = workspace.require("corpus")["counts"]["splits"]["dev"]
    tokens = workspace.directory("tokens")
    utterances, tokenizer = UtteranceSet.of_split(workspace, split), Tokenizer(tokens / TOKEN_MODEL)
    heard = recognise(model, utterances, tokenizer, batch_frames)
    texts = {row["id"]: row["text"] for row in read_jsonl(tokens / f"{split}.jsonl")}
    rate = total_errors(texts, heard).rate
    assert rate is not None  # stage 1 refuses a dev set without words
    return rate
