"""What a system is: the configuration of one training run."""

import dataclasses
from typing import Literal

import torch

from asr.model import ModelConfig
from asr.training.augment import SpecAugmentConfig
from asr.training.schedule import ScheduleConfig
from tiered_dist import BMUF, GTC, Dense, DenseInHost, TargetDensity


@dataclasses.dataclass
class OptimizerConfig:
    """The optimizer that every worker runs. The learning rate is on the loss a frame (30 ms).

    Adam with GTC has been measured on a small task only (docs/tiered_dist.md): sweep its rate.
    """

    kind: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 1.0
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0

    def make(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer over ``parameters``."""
        if self.kind == "adam":
            return torch.optim.Adam(
                parameters, lr=self.learning_rate, weight_decay=self.weight_decay
            )
        return torch.optim.SGD(
            parameters,
            lr=self.learning_rate,
            momentum=self.momentum,
            nesterov=self.nesterov and self.momentum > 0,
            weight_decay=self.weight_decay,
        )


@dataclasses.dataclass
class InnerConfig:
    """Tier 1. The density falls from ``density_start`` to ``density`` over the fraction ``ramp``
    of all steps; ``dtype`` is what Dense sends; the rest is GTC's. Kind ``dense_in_host`` is both:
    Dense inside a host, GTC between a subgroup's hosts."""

    kind: Literal["dense", "gtc", "dense_in_host"] = "dense"
    dtype: Literal["fp32", "bf16"] = "fp32"
    density: float = 0.01
    density_start: float = 0.25
    ramp: float = 0.2
    max_quanta: int = 1
    residual: Literal["keep", "reset"] = "keep"
    residual_bound: float | None = None
    dense_below: int = 0
    momentum: float = 0.0
    nesterov: bool = False
    factor_masking: bool = True

    def make(self, steps: int) -> Dense | GTC | DenseInHost:
        """The settings for a run of ``steps`` steps."""
        if self.kind == "dense":
            return Dense(self.dtype)
        gtc = GTC(
            TargetDensity(self.density, self.density_start, self.ramp_steps(steps)),
            self.max_quanta,
            self.residual,
            self.residual_bound,
            self.dense_below,
            self.momentum,
            self.nesterov,
            self.factor_masking,
        )
        return gtc if self.kind == "gtc" else DenseInHost(gtc, self.dtype)

    def ramp_steps(self, steps: int) -> int:
        """The step at which the density has reached its end."""
        return round(self.ramp * steps)


@dataclasses.dataclass
class OuterConfig:
    """Tier 2, by the names of ``tiered_dist.BMUF``; kind ``none`` for a single subgroup."""

    kind: Literal["none", "bmuf"] = "none"
    block_steps: int = 10
    momentum: float | Literal["auto"] = "auto"
    learning_rate: float = 1.0
    nesterov: bool = False
    inner_state: Literal["auto", "reset", "keep", "average"] = "auto"
    warmup_steps: int = 0

    def make(self) -> BMUF | None:
        """The settings, or None."""
        if self.kind == "none":
            return None
        return BMUF(
            self.block_steps,
            self.momentum,
            self.learning_rate,
            self.nesterov,
            self.inner_state,
            warmup_steps=self.warmup_steps,
        )


@dataclasses.dataclass
class TrainConfig:
    """One system. ``subgroup_size`` 1 is BMUF alone; ``host`` makes each host a subgroup.

    ``batch_frames`` is a worker's batch, in padded 10 ms frames. ``evaluations`` of the dev WER
    are spread over the run, all but the last with a checkpoint; others are written at a block's end
    when ``checkpoint_minutes`` have passed since the last one (None: none). ``max_not_finite`` is
    the share of a subgroup's gradients with NaN or infinity above which training stops;
    ``max_density`` is what the mean sent density after the ramp must not exceed for a GTC run to
    count as done, and ``min_memory_spans`` how many times 1/(1 - eta) blocks a BMUF run must have.
    ``corpus_weights`` says how often an epoch has a corpus' utterances, where not once: at 1.5 all
    of them, and a random half again. The first ``sorted_epochs`` take short utterances first.
    ``keep_models`` of the models evaluated last stay for ``python -m asr average``. ``ema``:
    evaluated and kept is not the model but an exponential moving average of it, of this decay a
    step; with BMUF a block, and a step of its
    synchronous warm-up.
    """

    title: str
    workers: int = 1
    subgroup_size: int | Literal["host"] = 1
    epochs: int = 10
    batch_frames: int = 2400
    sorted_epochs: int = 0
    seed: int = 0
    bf16: bool = False
    clip: float | None = 1.0
    evaluations: int = 8
    keep_models: int = 8
    ema: float | None = None
    checkpoint_minutes: float | None = 20.0
    timeout_seconds: float = 600.0
    max_not_finite: float = 0.05
    max_density: float = 0.01
    min_memory_spans: float = 10.0
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    inner: InnerConfig = dataclasses.field(default_factory=InnerConfig)
    outer: OuterConfig = dataclasses.field(default_factory=OuterConfig)
    augment: SpecAugmentConfig | None = None
    corpus_weights: dict[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("workers", "epochs", "batch_frames", "evaluations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1")
        if isinstance(self.subgroup_size, int) and (
            self.subgroup_size < 1 or self.workers % self.subgroup_size
        ):
            raise ValueError(
                f"subgroup_size={self.subgroup_size} does not divide workers={self.workers}"
            )
        if self.checkpoint_minutes is not None and not self.checkpoint_minutes > 0:
            raise ValueError(
                f"checkpoint_minutes={self.checkpoint_minutes}: must be positive, or null"
            )
        for name in ("keep_models", "sorted_epochs"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: 0 or more")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema={self.ema}: between 0 and 1, or null")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip={self.clip}: must be positive, or null")
        if not self.optimizer.learning_rate > 0:
            raise ValueError(f"optimizer.learning_rate={self.optimizer.learning_rate}: above 0")
        for corpus, weight in self.corpus_weights.items():
            if not 0 <= weight <= 100:
                raise ValueError(f"corpus_weights.{corpus}={weight}: from 0 to 100")
        if not 0 <= self.inner.ramp <= 1:
            raise ValueError(f"inner.ramp={self.inner.ramp}: a fraction of all steps, 0 to 1")
        self.inner.make(steps=1)  # the library checks its own settings
        if self.inner.kind != "dense" and self.inner.momentum and self.optimizer.momentum:
            raise ValueError(
                "inner.momentum and optimizer.momentum are the same thing twice; "
                "set optimizer.momentum=0"
            )
        self.outer.make()
        if self.outer.kind == "none" and self.subgroup_size not in ("host", self.workers):
            raise ValueError(
                "outer.kind=none leaves several subgroups that never meet; "
                f"set subgroup_size={self.workers}, or outer.kind=bmuf"
            )
