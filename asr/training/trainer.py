"""Training one system, as one rank of its world sees it; started by ``asr.train``."""

import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from asr.config import load_config, to_dict
from asr.decode import recognise
from asr.errors import Stopped, UserError
from asr.features import STATISTICS
from asr.files import read_json, read_jsonl, write_json
from asr.interruption import asked_to_stop
from asr.model import AcousticModel, check_bf16, save_model
from asr.scoring.align import ErrorCounts, total_errors
from asr.stages import Workspace
from asr.tokens import Tokenizer
from asr.training.checkpoint_clock import CheckpointClock
from asr.training.config import TrainConfig
from asr.training.data import Batch, BatchStream, UtteranceSet
from asr.training.ema import WeightAverage
from asr.training.evaluated_models import MODELS, forget_after, keep_model
from tiered_dist import (
    BlockReport,
    StepReport,
    TieredTrainer,
    Topology,
    list_checkpoints,
    load_checkpoint,
    local_device,
    save_checkpoint,
)

CONFIG = "config.yaml"
MODEL = "model.pt"
SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"
# Where there are no blocks, ranks ask each other every so many steps whether to save.
STEPS_BETWEEN_QUESTIONS = 10

log = logging.getLogger("asr")


@dataclasses.dataclass
class Progress:
    """What has happened since training began, on this rank; checkpoints carry rank 0's.

    ``samples`` are 30 ms frames of all workers. ``sent_density`` sums the density of the
    ``compressed_steps`` after the ramp. ``unaligned`` counts utterances whose CTC loss was
    infinite, ``not_finite`` gradients that the subgroup left out.
    """

    samples: float = 0.0
    train_seconds: float = 0.0
    inner_payload_bytes: int = 0
    inner_wire_bytes: int = 0
    outer_wire_bytes: int = 0
    sent_density: float = 0.0
    compressed_steps: int = 0
    least_spread: float | None = None
    unaligned: int = 0
    not_finite: int = 0
    best_dev_wer: float | None = None
    best_step: int = 0


def read_config(workspace: Workspace, system: str) -> TrainConfig:
    """The resolved configuration that ``asr.train`` has put into the system's directory."""
    return load_config(TrainConfig, [workspace.directory(f"train/{system}") / CONFIG], [])


class SystemTrainer:
    """One rank's model, data, two-tier trainer and progress."""

    def __init__(self, workspace: Workspace, system: str) -> None:
        self.directory = workspace.directory(f"train/{system}")
        self.system = system
        self.config = config = read_config(workspace, system)
        self.topology = Topology.build(config.subgroup_size, config.timeout_seconds)
        if self.topology.world_size != config.workers:
            raise UserError(
                f"{self.directory / CONFIG}: workers={config.workers}, but this world has "
                f"{self.topology.world_size} ranks"
            )
        torch.manual_seed(config.seed)  # the same model on every rank
        self.device = local_device()
        if config.bf16:
            check_bf16(self.device)
        splits = workspace.require("corpus")["counts"]["splits"]
        statistics = read_json(workspace.directory("features") / STATISTICS)
        self.tokenizer = Tokenizer(workspace.directory("tokens") / "tokens.model")
        self.travels_with = {
            "features": statistics["features"],
            "tokens": read_json(workspace.directory("tokens") / "tokens.json"),
        }
        mean, std = torch.tensor(statistics["mean"]), torch.tensor(statistics["std"])
        self.model = AcousticModel(config.model, self.tokenizer.size, mean, std).to(self.device)
        self.stream = BatchStream(
            UtteranceSet.of_split(workspace, splits["train"]),
            worker=self.topology.rank,
            workers=self.topology.world_size,
            epochs=config.epochs,
            seed=config.seed,
            batch_frames=config.batch_frames,
            augment=config.augment,
            mean=mean.numpy(),
            weights=config.corpus_weights,
            sorted_epochs=config.sorted_epochs,
        )
        self.dev = UtteranceSet.of_split(workspace, splits["dev"])
        listing = read_jsonl(workspace.directory("tokens") / f"{splits['dev']}.jsonl")
        self.dev_texts = {row["id"]: row["text"] for row in listing}
        self.steps = len(self.stream)
        self.optimizer = config.optimizer.make(list(self.model.parameters()))
        self.trainer = TieredTrainer(
            self.model,
            self.optimizer,
            self.topology,
            config.inner.make(self.steps),
            config.outer.make(),
            config.clip,
        )
        self.average = None if config.ema is None else WeightAverage(self.model, config.ema)
        self.progress = Progress()
        torch.manual_seed(config.seed + 1 + self.topology.rank)  # dropout differs between ranks

    def run(self) -> None:
        """Train to the end, from the last checkpoint if there is one; rank 0 writes the files.

        Stopped, on all ranks, when one of them was asked to stop: then there is a checkpoint.
        """
        self._resume()
        self._try_largest_batch()
        self.clock = CheckpointClock(self.topology, self.device, self.config.checkpoint_minutes)
        self.steps = self.trainer.steps + self.stream.remaining  # another world has other steps
        self.evaluation_steps = self._evaluation_steps()
        writer = None
        if self.topology.rank == 0:
            log.info("%s: %s", self.system, self.topology.describe())
            forget_after(self.directory / MODELS, self.trainer.steps)
            writer = SummaryWriter(
                str(self.directory / "tensorboard"), purge_step=self.trainer.steps + 1
            )
        bar = tqdm(
            total=self.steps,
            initial=min(self.trainer.steps, self.steps),
            desc=self.system,
            unit="step",
            disable=self.topology.rank != 0,
            mininterval=1.0,
        )
        begin = time.monotonic()
        for batch in self.trainer.batches(self.stream):
            loss = self._step(batch)
            self.progress.train_seconds += time.monotonic() - begin
            self._show(bar, writer, loss)
            self._check_health()
            evaluated = self.trainer.steps in self.evaluation_steps
            if evaluated:
                self._evaluate(writer)
            if evaluated or self._may_save():
                self._save_if_due(writer, due=evaluated)
            begin = time.monotonic()
        if (last_block := self.trainer.finish()) is not None:
            self._account_block(last_block)
            self._follow()
        self._evaluate(writer)
        bar.close()
        if writer is not None:
            writer.close()
            write_json(self.directory / SUMMARY, self._summary())

    def _try_largest_batch(self) -> None:
        """Compute its gradient and forget it: too little memory shows now, not hours later.

        UserError where a GPU's memory does not hold it.
        """
        if not self.stream.remaining:
            return
        state = _random_state(self.device)
        batch = self.stream.largest_batch()
        try:
            self._loss(batch)[0].backward()
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"{self.system}: the largest batch ({tuple(batch.features.shape)} with padding) "
                f"does not fit into the memory of {self.device}: {error}; lower batch_frames, now "
                f"{self.config.batch_frames}"
            ) from None
        self.optimizer.zero_grad()
        _set_random_state(state, self.device)

    def _step(self, batch: Batch | None) -> float | None:
        factor = self.config.schedule.factor(self.stream.done)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.optimizer.learning_rate * factor
        frames, loss = 0, None
        if batch is not None:
            mean_loss, frames, unaligned = self._loss(batch)
            mean_loss.backward()
            loss = mean_loss.item()
            self.progress.unaligned += unaligned
        self.report = self.trainer.step(samples=frames)
        self._account(self.report)
        if self._model_moved(self.report):
            self._follow()
        return loss

    def _model_moved(self, report: StepReport) -> bool:
        """Whether the model that all ranks have alike is another one than before the step.

        It is not within a block, nor where no rank had a gradient to give: at the end of the data
        ranks take steps, and a whole block perhaps, without any.
        """
        if self.config.outer.kind == "none" or report.synchronous:
            return report.stepped
        return report.block is not None

    def _follow(self) -> None:
        """Take the model, which all ranks have alike now, into the average."""
        if self.average is not None:
            self.average.update(self.trainer.model_for_eval())

    def _loss(self, batch: Batch) -> tuple[Tensor, int, int]:
        """CTC loss a frame, the frames, and how many utterances could not be aligned."""
        features = batch.features.to(self.device)
        lengths = batch.feature_lengths.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.bf16):
            log_probs, out_lengths = self.model(features, lengths)
        losses = torch.nn.functional.ctc_loss(
            log_probs.transpose(0, 1),  # (T, N, V)
            batch.tokens.to(self.device),
            out_lengths,
            batch.token_lengths.to(self.device),
            reduction="none",
            zero_infinity=True,
        )
        frames = int(out_lengths.sum())
        return losses.sum() / frames, frames, int((losses == 0).sum())

    def _account(self, report: StepReport) -> None:
        progress = self.progress
        progress.inner_payload_bytes += report.inner_payload_bytes
        progress.inner_wire_bytes += report.inner_wire_bytes
        progress.outer_wire_bytes += report.outer_wire_bytes
        progress.not_finite += report.not_finite
        if report.density is not None and report.step > self.config.inner.ramp_steps(self.steps):
            progress.sent_density += report.density
            progress.compressed_steps += 1
        if self.config.outer.kind == "none" or report.synchronous:
            progress.samples += report.samples
        self._account_block(report.block)

    def _account_block(self, block: BlockReport | None) -> None:
        if block is None:
            return
        progress, least = self.progress, self.progress.least_spread
        progress.samples += block.samples
        progress.least_spread = block.spread if least is None else min(least, block.spread)
        progress.not_finite += block.not_finite

    def _check_health(self) -> None:
        share = self.progress.not_finite / (self.trainer.steps * self.topology.inner.size)
        if self.progress.not_finite >= 10 and share > self.config.max_not_finite:
            raise UserError(
                f"{self.system}: {self.progress.not_finite} gradients with NaN or infinity in "
                f"{self.trainer.steps} steps, more than max_not_finite="
                f"{self.config.max_not_finite}; lower the learning rate, or look at the data"
            )

    def _show(self, bar: tqdm, writer: SummaryWriter | None, loss: float | None) -> None:
        if writer is None or loss is None:
            return
        report, seconds = self.report, max(self.progress.train_seconds, 1e-9)
        if report.step <= self.steps:
            bar.update(report.step - bar.n)
        bar.set_postfix(
            loss=f"{loss:.3f}",
            frames_s=f"{self.progress.samples / seconds:.0f}",
            dev_wer=_percent(self.progress.best_dev_wer),
            refresh=False,
        )
        scalars = {
            "train/loss_per_frame": loss,
            "train/learning_rate": self.optimizer.param_groups[0]["lr"],
            "train/frames_per_second": self.progress.samples / seconds,
            "tier1/wire_bytes": report.inner_wire_bytes,
            "tier1/payload_bytes": report.inner_payload_bytes,
            "tier1/density": report.density,
            "tier1/residual_norm": report.residual_norm,
            "tier1/residual_over_tau": report.residual_ratio,
            "tier1/encode_ms": 1e3 * report.encode_seconds,
            "tier1/exchange_ms": 1e3 * report.exchange_seconds,
            "tier1/waiting_ms": 1e3 * report.waiting_seconds,
            "tier1/decode_ms": 1e3 * report.decode_seconds,
            "tier2/filter_ms": 1e3 * report.filter_seconds if report.outer_wire_bytes else None,
            "tier2/waiting_ms": 1e3 * report.block.waiting_seconds if report.block else None,
            "tier2/wire_bytes": report.outer_wire_bytes,
            "tier2/spread": report.block.spread if report.block else None,
        }
        for name, value in scalars.items():
            if value is not None:
                writer.add_scalar(name, value, report.step)

    def _evaluation_steps(self) -> set[int]:
        """Steps after which to evaluate: evenly spread, each at a block's end."""
        block = self.config.outer.block_steps if self.config.outer.kind == "bmuf" else 1
        count = self.config.evaluations
        spread = {round(self.steps * i / count / block) * block for i in range(1, count)}
        return {step for step in spread if 0 < step < self.steps}

    def _evaluate(self, writer: SummaryWriter | None) -> None:
        """Dev WER of the model to evaluate, every rank a share; rank 0 keeps it, and the best."""
        average = None if self.average is None else self.average.model
        model = average or self.trainer.model_for_eval()
        assert isinstance(model, AcousticModel)
        share = range(self.topology.rank, len(self.dev), self.topology.world_size)
        hypotheses = recognise(
            model, self.dev, self.tokenizer, self.config.batch_frames, indices=share
        )
        counts = total_errors(self.dev_texts, hypotheses)
        total = sum(self.topology.world.gather_objects(counts), ErrorCounts())
        wer = total.rate
        assert wer is not None  # stage 1 refuses a dev set without words
        if self.topology.rank == 0:
            keep_model(
                *(self.directory / MODELS, self.trainer.steps, wer, model, self.travels_with),
                self.config.keep_models,
            )
        if self.progress.best_dev_wer is None or wer < self.progress.best_dev_wer:
            self.progress.best_dev_wer, self.progress.best_step = wer, self.trainer.steps
            if self.topology.rank == 0:
                save_model(self.directory / MODEL, model, self.travels_with)
        if writer is not None:
            writer.add_scalar("dev/wer", wer, self.trainer.steps)
            for name, total in self._totals().items():
                writer.add_scalar(f"dev/{name}", total, self.trainer.steps)
            tqdm.write(f"{self.system}: step {self.trainer.steps}, dev WER {_percent(wer)}")

    def _totals(self) -> dict[str, float]:
        """What dev WER is drawn against in the report, since training began."""
        progress = self.progress
        return {
            "samples": progress.samples,
            "seconds": progress.train_seconds,
            "bytes": progress.inner_wire_bytes + progress.outer_wire_bytes,
        }

    def _may_save(self) -> bool:
        """Whether this is a place where ranks ask each other: a block's end, if there are blocks.

        Checkpoints of other places are larger, and another world could not use all of them.
        """
        if self.config.outer.kind == "bmuf":
            return self.trainer.at_block_start
        return self.trainer.steps % STEPS_BETWEEN_QUESTIONS == 0

    def _save_if_due(self, writer: SummaryWriter | None, due: bool) -> None:
        """Save if that is ``due``, or the ranks agree to; Stopped if they agree to stop."""
        save, stop = self.clock.agree(asked_to_stop())
        if save or due:
            self._save()
        if stop:
            if writer is not None:
                writer.close()
            self.topology.world.barrier()  # the checkpoint has its name before a rank may be gone
            raise Stopped(
                f"{self.system}: stopped at step {self.trainer.steps} of {self.steps}, as it was "
                "asked to; the same command goes on from the checkpoint"
            )

    def _save(self) -> None:
        self.clock.restart()
        save_checkpoint(
            self.directory / CHECKPOINTS,
            self.trainer,
            shared={
                "progress": dataclasses.asdict(self.progress),
                "stream": self.stream.state_dict(),
                "must_not_change": self._must_not_change(),
                "average": None if self.average is None else self.average.state_dict(),
            },
            rank={"random": _random_state(self.device)},
        )

    def _resume(self) -> None:
        checkpoints = list_checkpoints(self.directory / CHECKPOINTS)
        if not checkpoints:
            return
        self._check_checkpoint(checkpoints[-1])
        settings = [dict(group) for group in self.optimizer.param_groups]
        shared, rank = load_checkpoint(checkpoints[-1], self.trainer)
        for group, configured in zip(self.optimizer.param_groups, settings, strict=True):
            group.update({key: configured[key] for key in configured if key != "params"})
        self.progress = Progress(**shared["progress"])
        self.stream.load_state_dict(shared["stream"])
        if self.average is not None and shared.get("average") is not None:
            self.average.load_state_dict(shared["average"])
        if rank is not None:
            _set_random_state(rank["random"], self.device)
        if self.topology.rank == 0:
            log.info("%s: goes on from %s", self.system, checkpoints[-1])

    def _check_checkpoint(self, path: Path) -> None:
        """UserError if the model, its features or tokens, or the optimizer is another one."""
        then = torch.load(path / "shared.pt", map_location="cpu", weights_only=True)["caller"]
        for what, value in self._must_not_change().items():
            if then["must_not_change"][what] != value:
                raise UserError(
                    f"{path}: trained with {what} {then['must_not_change'][what]}, not {value}; "
                    "it cannot go on with another one: begin anew with --force"
                )

    def _must_not_change(self) -> dict[str, Any]:
        return {
            "model": dataclasses.asdict(self.config.model),
            "optimizer": self.config.optimizer.kind,
            **self.travels_with,
        }

    def _summary(self) -> dict[str, Any]:
        config, progress = self.config, self.progress
        outer = config.outer.make()
        return {
            "system": self.system,
            "title": config.title,
            "workers": self.topology.world_size,
            "subgroups": len(self.topology.subgroups),
            "inner": config.inner.kind if self.topology.inner.size > 1 else "none",
            "outer": config.outer.kind,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "train_seconds": round(progress.train_seconds, 1),
            "frames_per_second": round(progress.samples / progress.train_seconds),
            "steps": min(self.trainer.steps, self.steps),
            "epochs": config.epochs,
            "blocks": self.trainer.blocks,
            "block_steps": config.outer.block_steps if outer else None,
            "block_momentum": outer.block_momentum(self.trainer.groups) if outer else None,
            "density": (
                progress.sent_density / progress.compressed_steps
                if progress.compressed_steps
                else None
            ),
            "least_spread": progress.least_spread,
            "samples": round(progress.samples),
            "bytes_per_worker": {
                "inner_wire": progress.inner_wire_bytes,
                "inner_payload": progress.inner_payload_bytes,
                "outer": progress.outer_wire_bytes,
            },
            "best_dev_wer": progress.best_dev_wer,
            "best_step": progress.best_step,
            "unaligned": progress.unaligned,
            "not_finite": progress.not_finite,
            "seed": config.seed,
            "config": to_dict(config),
        }


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.2f}%"


def _random_state(device: torch.device) -> dict[str, Tensor]:
    """What dropout draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
