"""The arithmetic behind ``python -m asr plan``: what a run needs, from its settings and its data.

Pure functions: no file is read. Steps come from the batches that training would take, bytes and
held memory from the library's own message sizes; what is an estimate says so.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from asr.filterbank.frames import STACKED_FRAMES
from asr.model import AcousticModel, ModelConfig
from asr.train import tier_failures
from asr.training.config import OptimizerConfig, TrainConfig
from asr.training.data import BatchStream, UtteranceSet
from tiered_dist import costs
from tiered_dist.layout import ParameterLayout

GIGA = 1e9
# Shape of the gamma distribution that durations are drawn from where only their mean is known:
# read speech between pauses has one mode, and few utterances near zero.
DURATION_SHAPE = 4.0
# Where GTC's density falls, its bytes are summed at so many places.
RAMP_PLACES = 16
# Memory of a CUDA context with cuDNN, cuBLAS and NCCL's buffers: about.
CONTEXT_BYTES = 1.5e9
# On the disk: save_checkpoint keeps two, and writes the next beside them.
CHECKPOINTS_AT_ONCE = 3


def spread_durations(
    seconds: float, utterances: int, shortest: float, longest: float, seed: int
) -> np.ndarray:
    """Durations ``(utterances,)`` in seconds that sum to about ``seconds``, within the bounds.

    An estimate: they are drawn from a gamma distribution.
    """
    mean = seconds / utterances
    random = np.random.default_rng([seed, utterances])
    drawn = random.gamma(DURATION_SHAPE, mean / DURATION_SHAPE, utterances)
    for _ in range(10):  # the bounds take away what lies outside; the rest makes up for it
        drawn = np.clip(drawn * (seconds / drawn.sum()), shortest, longest)
    return drawn


def speed_frames(durations: np.ndarray, speeds: list[float], frame_shift: float) -> np.ndarray:
    """Frames ``(n, speeds)`` of utterances of ``durations`` ``(n,)`` seconds, unperturbed first."""
    ordered = sorted(speeds, key=lambda speed: (speed != 1.0, speed))
    columns = [np.round(durations / (speed * frame_shift)) for speed in ordered]
    return np.maximum(1, np.stack(columns, axis=1)).astype(np.int64)


class ImaginedUtterances(UtteranceSet):
    """Utterances of which nothing is known but their frames, ``(n, speeds)``, and their corpora.

    ``corpus`` ``(n,)`` counts in the names ``corpora``.
    """

    def __init__(self, frames: np.ndarray, corpora: Sequence[str], corpus: np.ndarray) -> None:
        self.speed_frames = frames
        self.frames = frames[:, 0]
        self.corpora = list(corpora)
        self.corpus = corpus

    def __len__(self) -> int:
        return len(self.frames)

    def id(self, index: int) -> str:
        """A name for messages."""
        return f"number {index} (imagined from the mean duration)"


@dataclasses.dataclass(frozen=True)
class Data:
    """What a system trains on: train's ``utterances``, the model's input ``bins``, output
    ``vocabulary``, and the tokens of a long utterance."""

    utterances: UtteranceSet
    bins: int
    vocabulary: int
    tokens_in_utterance: float


@dataclasses.dataclass(frozen=True)
class Machines:
    """``ranks_per_host``, the GPU's memory (1e9 bytes) and the links between hosts (1e9 bits a
    second, one way, of a whole host)."""

    ranks_per_host: int
    gpu_gigabytes: float
    link_gigabits: float


@dataclasses.dataclass(frozen=True)
class SystemPlan:
    """What one system needs. Bytes; ``memory`` by what takes it, ``checkpoint`` by part;
    ``evaluated_models`` of those that stay on disk.

    ``levels`` has tier 1's payload and wire bytes a rank and step, by level, when the density has
    come to its end; ``run_bytes`` the wire bytes of a rank over the whole run, the denser beginning
    included. ``link_bytes`` leave a host in a step, tier 2's share included.
    """

    name: str
    title: str
    workers: int
    hosts: int
    subgroups: int
    inner: str
    parameters: int
    epochs: int
    steps_an_epoch: int
    steps: int
    blocks: int
    block_momentum: float | None
    memory_spans: float | None
    levels: dict[str, dict[str, float]]
    dense_bytes: int
    block_bytes: float
    block_bytes_a_step: float
    run_bytes: dict[str, float]
    link_bytes: float
    link_milliseconds: float
    memory: dict[str, float]
    checkpoint: dict[str, int]
    evaluated_models: int
    warnings: list[str]

    @property
    def memory_bytes(self) -> float:
        """All of a GPU's."""
        return sum(self.memory.values())

    @property
    def checkpoint_bytes(self) -> int:
        """One checkpoint, all ranks' files."""
        return sum(self.checkpoint.values())


def plan_system(name: str, config: TrainConfig, data: Data, machines: Machines) -> SystemPlan:
    """What training ``config`` on ``data`` takes; UserError for an utterance that fits no batch."""
    steps, steps_an_epoch = _steps(
        data.utterances,
        config.workers,
        config.epochs,
        config.seed,
        config.batch_frames,
        tuple(sorted(config.corpus_weights.items())),
    )
    world = costs.World.of(config.workers, config.subgroup_size, machines.ranks_per_host)
    model = empty_model(config.model, data.bins, data.vocabulary)
    layout = ParameterLayout.of(model)
    inner, outer = config.inner.make(steps), config.outer.make()
    subgroups = len(world.subgroups)
    tier1 = config.inner.kind if len(world.subgroups[0]) > 1 else "none"

    step = costs.step_traffic(world, inner, layout, steps)
    block = costs.block_traffic(world, layout.total) if outer else []
    blocks = costs.blocks(steps, outer) if outer else 0
    momentum = outer.block_momentum(subgroups) if outer else None
    block_bytes = sum(traffic.wire for traffic in block)
    a_step = block_bytes / outer.block_steps if outer and outer.block_steps else 0.0
    link = sum(traffic.leaving_host(world.hosts) for traffic in step)
    if outer and outer.block_steps:
        leaving = sum(traffic.leaving_host(world.hosts) for traffic in block)
        link += leaving / outer.block_steps
    summary = {
        "system": name,
        "inner": tier1,
        "density": config.inner.density,
        "blocks": blocks,
        "block_momentum": momentum,
        "subgroups": subgroups,
        "least_spread": 1.0,
    }
    plan = SystemPlan(
        name=name,
        title=config.title,
        workers=config.workers,
        hosts=len(dict.fromkeys(world.hosts)),
        subgroups=subgroups,
        inner=tier1,
        parameters=layout.total,
        epochs=config.epochs,
        steps_an_epoch=steps_an_epoch,
        steps=steps,
        blocks=blocks,
        block_momentum=momentum,
        memory_spans=None if momentum is None else blocks * (1 - momentum),
        levels={t.level: {"payload": t.payload, "wire": t.wire} for t in step if t.wire},
        dense_bytes=costs.dense_bytes(world, layout.total),
        block_bytes=block_bytes,
        block_bytes_a_step=a_step,
        run_bytes={
            "tier 1": _tier1_bytes(config, world, layout, steps),
            "tier 2": block_bytes * blocks,
        },
        link_bytes=link,
        link_milliseconds=1e3 * 8 * link / (machines.link_gigabits * GIGA),
        memory=_memory(config, data, world, layout, steps),
        checkpoint=checkpoint(config, world, model, steps),
        evaluated_models=costs.FLOAT * layout.total * min(config.keep_models, config.evaluations),
        warnings=tier_failures(summary, config),
    )
    plan.warnings.extend(_more_warnings(plan, machines, step))
    return plan


@functools.cache  # systems share them
def _steps(
    utterances: UtteranceSet,
    workers: int,
    epochs: int,
    seed: int,
    batch_frames: int,
    weights: tuple[tuple[str, float], ...],
) -> tuple[int, int]:
    """Steps of a run, and of its first epoch."""
    stream = BatchStream(
        utterances,
        worker=0,
        workers=workers,
        epochs=epochs,
        seed=seed,
        batch_frames=batch_frames,
        weights=dict(weights),
    )
    return len(stream), len(stream.plan(0))


def empty_model(config: ModelConfig, bins: int, vocabulary: int) -> AcousticModel:
    """The model that would be trained, without memory for its values."""
    with torch.device("meta"):
        return AcousticModel(config, vocabulary, torch.zeros(bins), torch.ones(bins))


def _tier1_bytes(
    config: TrainConfig, world: costs.World, layout: ParameterLayout, steps: int
) -> float:
    """What a rank sends in tier 1 in all steps, warm-up and the density's fall included."""
    inner, outer = config.inner.make(steps), config.outer.make()
    warmup = min(steps, outer.warmup_steps) if outer else 0
    synchronous = sum(t.wire for t in costs.warmup_traffic(world, layout.total)) if warmup else 0.0
    ramp = max(0, min(steps, config.inner.ramp_steps(steps)) - warmup)
    if config.inner.kind == "dense":
        ramp = 0
    places = [warmup + int(ramp * (i + 0.5) / RAMP_PLACES) for i in range(RAMP_PLACES)]

    def at(step: int) -> float:
        return sum(traffic.wire for traffic in costs.step_traffic(world, inner, layout, step))

    falling = ramp * sum(map(at, places)) / RAMP_PLACES if ramp else 0.0
    return warmup * synchronous + falling + (steps - warmup - ramp) * at(steps)


def optimizer_state_bytes(config: OptimizerConfig, model: torch.nn.Module) -> int:
    """What the optimizer holds after its first step, by taking one on tensors without values."""
    parameters = list(model.parameters())
    optimizer = config.make(parameters)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in states if isinstance(value, torch.Tensor))


def checkpoint(
    config: TrainConfig, world: costs.World, model: AcousticModel, steps: int
) -> dict[str, int]:
    """Bytes of a checkpoint by part; they are written at a block's end, where SGD's momentum has
    just been reset."""
    outer, inner = config.outer.make(), config.inner.make(steps)
    held = optimizer_state_bytes(config.optimizer, model)
    if outer is not None and outer.resets(config.optimizer.make(list(model.parameters()))):
        held = 0
    layout = ParameterLayout.of(model)
    parts = costs.checkpoint_bytes(world, inner, outer, layout, held)
    if config.ema is not None:
        parts["average of the weights"] = costs.FLOAT * layout.total
    return parts


def _memory(
    config: TrainConfig, data: Data, world: costs.World, layout: ParameterLayout, steps: int
) -> dict[str, float]:
    """A GPU's memory by what takes it; names that begin with "about" are estimates."""
    model = empty_model(config.model, data.bins, data.vocabulary)
    inner, outer = config.inner.make(steps), config.outer.make()
    parameters = costs.FLOAT * layout.total
    held = costs.memory(world, inner, outer, layout)
    return {
        "parameters": parameters,
        "gradients": parameters,
        "optimizer": optimizer_state_bytes(config.optimizer, model),
        **{name: float(size) for name, size in held.items() if size},
        **({} if config.ema is None else {"average of the weights": parameters}),
        "about: bf16 copies of the weights": parameters / 2 if config.bf16 else 0.0,
        "about: copies at a block's end": costs.passing_memory(world, inner, outer, layout),
        "about: activations": activation_bytes(config, data),
        "about: CUDA, cuDNN, NCCL": CONTEXT_BYTES,
    }


def activation_bytes(config: TrainConfig, data: Data) -> float:
    """What forward and backward of a full batch keep: an estimate.

    An LSTM layer keeps four gates, the cell and its output a stacked frame and direction; going
    back, one layer's gradients of these are there, too. The output layer has its logits, their
    log-softmax and its gradient in float32, CTC its forward and backward variables.
    """
    model, item = config.model, 2 if config.bf16 else costs.FLOAT
    frames = config.batch_frames // STACKED_FRAMES
    directions = 2 if model.bidirectional else 1
    layer = directions * (5 * model.hidden + (model.projection or model.hidden)) * item
    features = 2 * data.bins * STACKED_FRAMES * costs.FLOAT  # as read, and normalised
    output = data.vocabulary * (item + 3 * costs.FLOAT)
    lattice = 2 * (2 * data.tokens_in_utterance + 1) * costs.FLOAT
    return frames * ((model.layers + 1) * layer + features + output + lattice)


def _more_warnings(plan: SystemPlan, machines: Machines, step: list[costs.Traffic]) -> list[str]:
    found = [
        f"GTC in a {traffic.level} of {len(traffic.groups[0])} sends {traffic.wire:,.0f} bytes a "
        f"step, a dense all-reduce {traffic.dense:,.0f}: lower the density, or use dense"
        for traffic in step
        if traffic.dense is not None and traffic.wire >= traffic.dense > 0
    ]
    if plan.memory_bytes > machines.gpu_gigabytes * GIGA:
        found.append(
            f"{plan.memory_bytes / GIGA:.1f} GB a GPU, more than gpu_gigabytes="
            f"{machines.gpu_gigabytes:g}: lower batch_frames"
        )
    if plan.workers % machines.ranks_per_host and plan.workers > machines.ranks_per_host:
        found.append(f"{plan.workers} workers do not fill hosts of {machines.ranks_per_host}")
    return found


def as_dict(plan: SystemPlan) -> dict[str, Any]:
    """A plan in plain types, with its sums."""
    return {
        **dataclasses.asdict(plan),
        "memory_bytes": plan.memory_bytes,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "checkpoints_on_disk": CHECKPOINTS_AT_ONCE * plan.checkpoint_bytes,
    }
