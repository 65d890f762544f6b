"""The two-tier trainer: what stands between ``backward()`` and the next batch."""

import copy
import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from tiered_dist.exchange import ExchangeError
from tiered_dist.inner import Clock, Dense, DenseState, InnerState, Local
from tiered_dist.layout import ParameterLayout, trainable, write_parameters
from tiered_dist.outer import BMUF, average_optimizer_state, mean_move, share_buffers
from tiered_dist.report import BlockReport, StepReport
from tiered_dist.topology import Topology

FORMAT_VERSION = 2
# Every so many steps the replicas of a subgroup are compared: they must be equal in every bit.
STEPS_BETWEEN_CHECKS = 100
Batch = TypeVar("Batch")
log = logging.getLogger("tiered_dist")


class Inner(Protocol):
    """Settings of a tier 1: ``Dense()``, ``GTC(...)`` or ``DenseInHost(GTC(...))``."""

    def start(self, layout: ParameterLayout, topology: Topology, clip: float | None) -> InnerState:
        """The running part for one rank."""

    def residual_holders(self, topology: Topology) -> list[list[int]]:
        """Which ranks hold one residual of the whole model together; empty if there is none."""


class TieredTrainer:
    """Data-parallel training in two tiers, one call a step.

    Every rank makes one with the same model architecture, optimizer type and settings; rank 0's
    parameters and buffers are copied to all. ``inner`` exchanges gradients inside this rank's
    subgroup every step; ``outer`` combines the subgroups' models every block (None: one subgroup
    only). ``clip`` bounds the gradient's norm by the rule of the inner tier. ``scaler`` is the loss
    scaler, if the loss was scaled before ``backward``: ``step`` takes the scale out and updates it.
    Each rank has its own; one whose gradient overflowed is left out of that step.

    Do not call ``optimizer.step`` or ``zero_grad``; ``step`` does. Learning-rate schedulers are
    the caller's: step them once after every ``step``, whatever it reports. Pass the bare model, not
    one that is wrapped in DistributedDataParallel.

    Raises ValueError and TypeError when the settings do not fit together, ExchangeError when ranks
    disagree about them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        topology: Topology,
        inner: Inner,
        outer: BMUF | None = None,
        clip: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        _check_types(model, optimizer, inner, outer, clip)
        if outer is None and len(topology.subgroups) > 1:
            raise ValueError(
                f"outer=None with {len(topology.subgroups)} subgroups: their models would never "
                "meet; give an outer tier, or one subgroup of all ranks"
            )
        self.model, self.optimizer, self.topology = model, optimizer, topology
        self._layout = ParameterLayout.of(model)
        self._parameters = list(trainable(model).values())
        self._check_optimizer(inner)
        self._check_agreement(
            {
                "parameters": self._layout.names,
                "shapes": self._layout.shapes,
                "inner": inner,
                "outer": outer,
                "clip": clip,
                "optimizer": _describe(optimizer),
            }
        )
        for tensor in [*model.parameters(), *model.buffers()]:
            topology.world.broadcast(tensor.data)
        self._gradient = self._flat([None] * len(self._parameters))
        self._outer = outer
        self._filter = (
            None if outer is None else outer.start_filter(self._flat(self._parameters), self.groups)
        )
        self._inner = inner.start(self._layout, topology, clip)
        self._residual_holders = inner.residual_holders(topology)
        self._warmup = DenseState(Dense(), topology.world, clip)
        self._scaler = scaler
        self._is_stepping = False
        self._stepped_outside = False
        self._warned_of_no_gradient = False
        optimizer.register_step_post_hook(self._notice_step)
        self.steps = 0
        self.blocks = 0
        self._block_start = 0  # the step at which the running block began
        self._block_steps = 0 if outer is None else outer.block_steps or 1
        self._block_samples = 0.0
        self._out_of_data = False
        self._without_batch = False
        self._everyone_out = False

    @property
    def groups(self) -> int:
        """Number of subgroups, G."""
        return len(self.topology.subgroups)

    @property
    def at_block_start(self) -> bool:
        """Whether all subgroups' models are equal now; without an outer tier they always are."""
        return self._filter is None or self.steps == self._block_start

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch | None]:
        """This rank's batches, then None until every rank is out of them.

        A rank with less data must go on calling ``step``, or the others would wait for it; for a
        None batch ``step`` counts no samples whatever it is told. A loader may yield None itself
        where this rank sits a step out. With an outer tier, the end is agreed at a block's end.
        """
        iterator = iter(loader)
        self._out_of_data = self._everyone_out = False
        try:
            while not self._everyone_out:
                batch = None
                if not self._out_of_data:
                    try:
                        batch = next(iterator)
                    except StopIteration:
                        self._out_of_data = True
                        if self.topology.world_size == 1:
                            break
                self._without_batch = batch is None
                yield batch
        finally:  # also when the caller leaves its loop early
            self._without_batch = self._out_of_data = False

    def step(self, samples: float = 1.0) -> StepReport:
        """Exchange, optimizer step, and at a block's end the filter; a collective of all ranks.

        Call it after ``backward()``. The gradients must be means over this rank's ``samples``
        (say, frames), by which ranks and subgroups are weighted. A rank whose gradient has a NaN
        or an infinity is left out of the step, and reported. ExchangeError when a rank died,
        hung beyond the timeout, or is at another step.
        """
        if not 0 <= samples < math.inf:
            raise ValueError(f"samples={samples}: cannot be negative, infinite or NaN")
        if self._stepped_outside:
            raise RuntimeError(
                "optimizer.step() was called outside of the trainer, whose step() calls it: leave "
                "it out, or the ranks' models come apart"
            )
        if self._without_batch:
            samples = 0.0
        step = self.steps
        try:
            return self._step(float(samples))
        except ExchangeError as error:
            raise ExchangeError(f"step {step}: {error}") from None

    def finish(self) -> BlockReport | None:
        """Filter the last, partial block, if there is one; a collective of all ranks."""
        if self._filter is None or self.at_block_start:
            return None
        return self._end_block(has_data=False)[0]

    def model_for_eval(self) -> nn.Module:
        """A copy of the model in eval mode, with the parameters to evaluate, average and export.

        With an outer tier these are W of the last block's end, neither the subgroup's own model
        nor the point from which Nesterov's next block starts.
        """
        model = copy.deepcopy(self.model).eval()
        if self._filter is not None:
            write_parameters(model, self._layout, self._filter.model)
        return model

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """All state in plain types, in the parts that have to be kept once, G and N times.

        ``shared`` is the same on all ranks, ``subgroup`` on the ranks of a subgroup, ``rank`` is
        this rank's own. Nothing is changed by it, and no other rank need call it.
        """
        shared: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "subgroups": [list(ranks) for ranks in self.topology.subgroups],
            "residual_holders": self._residual_holders,
            "steps": self.steps,
            "blocks": self.blocks,
            "block_start": self._block_start,
            "block_steps": self._block_steps,
        }
        if self._filter is not None:
            shared["filter_model"] = self._layout.to_named(self._filter.model)
            shared["filter_update"] = self._layout.to_named(self._filter.update)
        subgroup = {
            "subgroup": self.topology.subgroup,
            "model": self._layout.to_named(self._flat(self._parameters)),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "block_samples": self._block_samples,
            "inner": self._inner.subgroup_state(),
        }
        rank: dict[str, Any] = {
            "rank": self.topology.rank,
            "buffers": {name: value.clone() for name, value in self.model.named_buffers()},
            "inner": self._inner.rank_state(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
        }
        return {"shared": shared, "subgroup": subgroup, "rank": rank}

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Take up what ``state_dict`` gave to this rank; training goes on bit for bit.

        When the world or its subgroups have changed since, the shared part and any subgroup's
        part serve, with what the rank part has of the inner tier (see ``load_checkpoint``); the
        unfinished block is dropped, and the log says so (a collective then, since rank 0's buffers
        go to all). An outer tier may come or go between. ValueError for another rank's state or
        another format.
        """
        shared, subgroup = state["shared"], state["subgroup"]
        check_format(shared)
        same_world = shared["subgroups"] == [list(ranks) for ranks in self.topology.subgroups]
        if same_world:
            self._check_owner(state)
        keeps_block = same_world and (self._filter is not None) == ("filter_model" in shared)
        self._load_model(shared, subgroup, keeps_block)
        self._load_buffers(state["rank"]["buffers"], same_world)
        self.optimizer.load_state_dict(copy.deepcopy(subgroup["optimizer"]))
        self.steps, self.blocks = shared["steps"], shared["blocks"]
        self._block_start = shared["block_start"] if keeps_block else self.steps
        self._block_samples = subgroup["block_samples"] if keeps_block else 0.0
        if self._outer is not None and self._outer.block_samples and shared["block_steps"]:
            self._block_steps = shared["block_steps"]
        self._inner.load(subgroup["inner"], state["rank"]["inner"])
        if self._scaler is not None and state["rank"].get("scaler"):
            self._scaler.load_state_dict(state["rank"]["scaler"])
        if not keeps_block:
            self._restart_block()
            if self._outer is not None and self._outer.resets(self.optimizer):
                self.optimizer.state.clear()
        if self.topology.rank == 0:
            self._tell_what_changed(shared, keeps_block)

    def _tell_what_changed(self, shared: dict[str, Any], keeps_block: bool) -> None:
        dropped = 0 if keeps_block else shared["steps"] - shared["block_start"]
        if dropped:
            log.warning(
                "resumed on subgroups %s, saved on %s: the %d steps of the unfinished block are "
                "dropped",
                [list(ranks) for ranks in self.topology.subgroups],
                shared["subgroups"],
                dropped,
            )
        if not self.has_same_residuals(shared):
            begins = self._inner.rank_state().get("residual")
            log.warning(
                "resumed on other ranks, or with another tier 1: rank 0's residual %s",
                "begins with what it was given" if begins else "is empty",
            )

    def has_same_residuals(self, shared: dict[str, Any]) -> bool:
        """Whether the rank part saved with ``shared`` has this rank's own residual, or none."""
        return self._residual_holders == shared["residual_holders"]

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shapes of the trainable parameters, by name."""
        return {name: parameter.shape for name, parameter in trainable(self.model).items()}

    def _load_model(
        self, shared: dict[str, Any], subgroup: dict[str, Any], keeps_block: bool
    ) -> None:
        live = self._layout.from_named(subgroup["model"], self._flat(self._parameters))
        filtered = shared.get("filter_model")
        if filtered is not None and not keeps_block:
            live = self._layout.from_named(filtered, live)
        write_parameters(self.model, self._layout, live)
        if self._filter is None:
            return
        if filtered is None:
            self._filter.model.copy_(live)
            self._filter.update.zero_()
        else:
            self._layout.from_named(filtered, self._filter.model)
            self._layout.from_named(shared["filter_update"], self._filter.update)

    def _load_buffers(self, saved: dict[str, Tensor], same_world: bool) -> None:
        for name, buffer in self.model.named_buffers():
            if name in saved:
                buffer.copy_(saved[name])
            if not same_world:
                self.topology.world.broadcast(buffer)

    def _step(self, samples: float) -> StepReport:
        synchronous = self._outer is not None and self.steps < self._outer.warmup_steps
        exchange = self.topology.world if synchronous else self.topology.inner
        sent, received = self._bytes()
        self._unscale()
        self._warn_without_gradient(samples)
        self._layout.flatten((p.grad for p in self._parameters), self._gradient)
        tier = self._warmup if synchronous else self._inner
        reduced = tier.reduce(Local(self._gradient, samples, self._out_of_data, step=self.steps))
        sent_inner, received_inner = self._bytes()
        if reduced.samples > 0:
            self._hand_over_gradients()
            self._is_stepping = True
            self.optimizer.step()
            self._is_stepping = False
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self._block_samples += reduced.samples
        if self.steps % STEPS_BETWEEN_CHECKS == 0:
            self._check_replicas()
        has_data = reduced.out_of_data < exchange.size
        block, clock = None, Clock()
        if self._outer is None or synchronous:
            self._everyone_out = not has_data
        if synchronous:
            self._follow_model()
        elif self._outer is not None and self.steps - self._block_start >= self._block_steps:
            block, self._everyone_out = self._end_block(has_data)
        filter_seconds, (sent_all, received_all) = clock.lap(), self._bytes()
        return StepReport(
            step=self.steps,
            stepped=reduced.samples > 0,
            synchronous=synchronous,
            samples=reduced.samples,
            not_finite=reduced.not_finite,
            inner_payload_bytes=reduced.payload_bytes,
            inner_wire_bytes=sent_inner - sent,
            host_wire_bytes=sent_inner - sent
            if self.topology.is_one_host(exchange.ranks)
            else reduced.host_wire_bytes,
            outer_wire_bytes=sent_all - sent_inner,
            inner_received_bytes=received_inner - received,
            outer_received_bytes=received_all - received_inner,
            density=reduced.density,
            residual_norm=reduced.residual_norm,
            residual_ratio=reduced.residual_ratio,
            overflow=reduced.overflow,
            encode_seconds=reduced.encode_seconds,
            exchange_seconds=reduced.exchange_seconds,
            waiting_seconds=reduced.waiting_seconds,
            decode_seconds=reduced.decode_seconds,
            filter_seconds=filter_seconds,
            block=block,
        )

    def _notice_step(self, *hook_arguments: object) -> None:
        if not self._is_stepping:
            self._stepped_outside = True

    def _warn_without_gradient(self, samples: float) -> None:
        if samples == 0 or self._warned_of_no_gradient:
            return
        if all(parameter.grad is None for parameter in self._parameters):
            self._warned_of_no_gradient = True
            log.warning(
                "step %d has samples but no gradient: call backward() before step(), and leave "
                "zero_grad() to it",
                self.steps,
            )

    def _unscale(self) -> None:
        """Take the loss scale out of the gradients, and choose the next."""
        if self._scaler is None or all(p.grad is None for p in self._parameters):
            return
        self._scaler.unscale_(self.optimizer)
        self._scaler.update()

    def _end_block(self, has_data: bool) -> tuple[BlockReport | None, bool]:
        """Filter the block; what happened, if anybody had data, and whether all are out of it."""
        self._check_parameters()
        assert self._filter is not None and self._outer is not None
        move = self._flat(self._parameters).sub_(self._filter.start_point())
        samples, steps = self._block_samples, self.steps - self._block_start
        mean = mean_move(self.topology, move, samples, has_data)
        report = None
        if mean.samples > 0:  # a block in which nobody had data is no block: D must not decay
            self._filter.apply(mean.move)
            self.blocks += 1
            report = BlockReport(
                self.blocks, mean.samples, mean.not_finite, mean.spread, mean.waiting_seconds
            )
        self._block_steps = self._outer.next_block_steps(steps, mean.samples)
        self._restart_block()
        resets_optimizer = self._outer.resets(self.optimizer)
        self._inner.end_block(resets_optimizer)
        if resets_optimizer:
            self.optimizer.state.clear()
        elif self._outer.inner_state == "average":
            average_optimizer_state(self.optimizer, self._parameters, self.topology, samples)
        share_buffers(self.model, self.topology.world, self._outer.buffers)
        return report, mean.subgroups_with_data == 0

    def _check_replicas(self) -> None:
        """ExchangeError, with both checksums, if a rank's model is not its subgroup's."""
        bits = self._flat(self._parameters).view(torch.int32)
        checksums = self.topology.inner.all_gather(bits.sum(dtype=torch.int64).view(1)).flatten()
        for rank, checksum in zip(self.topology.inner.ranks, checksums.tolist(), strict=True):
            if checksum != int(checksums[0]):
                raise ExchangeError(
                    f"the model of rank {rank} is not that of rank {self.topology.inner.ranks[0]}, "
                    f"though both are replicas of subgroup {self.topology.subgroup} (checksums "
                    f"{checksum} and {int(checksums[0])}); was it changed outside of the trainer?"
                )

    def _follow_model(self) -> None:
        """In synchronous training all ranks have one model, and it is what a block starts from."""
        assert self._filter is not None
        self._layout.flatten(self._parameters, self._filter.model)
        self._filter.update.zero_()
        self._restart_block()

    def _check_parameters(self) -> None:
        """What is frozen or replaced after the trainer was made would never be exchanged."""
        now = trainable(self.model)
        if tuple(now) != self._layout.names or any(
            ours is not theirs for ours, theirs in zip(self._parameters, now.values(), strict=True)
        ):
            raise ValueError(
                "the model's trainable parameters are no longer those the trainer was made with: "
                "make it after freezing or replacing parameters, and again when that changes"
            )

    def _restart_block(self) -> None:
        if self._filter is not None:
            write_parameters(self.model, self._layout, self._filter.start_point())
        self._block_start = self.steps
        self._block_samples = 0.0

    def _hand_over_gradients(self) -> None:
        """Let the optimizer see the reduced gradient, in place of what ``backward`` left."""
        views = self._layout.split(self._gradient)
        for parameter, view in zip(self._parameters, views, strict=True):
            parameter.grad = view.view_as(parameter).to(parameter.dtype)

    def _flat(self, tensors: Iterable[Tensor | None]) -> Tensor:
        device = self._parameters[0].device
        return self._layout.flatten(tensors, torch.empty(self._layout.total, device=device))

    def _bytes(self) -> tuple[int, int]:
        """Sent and received by this rank since it began."""
        exchanges = self.topology.exchanges()
        sent = sum(exchange.bytes_sent for exchange in exchanges)
        return sent, sum(exchange.bytes_received for exchange in exchanges)

    def _check_optimizer(self, inner: Inner) -> None:
        if getattr(inner, "momentum", 0) and any(
            group.get("momentum") for group in self.optimizer.param_groups
        ):
            raise ValueError(
                "GTC(momentum=...) and the optimizer's momentum are the same thing twice: give "
                "the optimizer momentum=0"
            )
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        missing = [n for n, p in trainable(self.model).items() if id(p) not in held]
        if missing:
            raise ValueError(
                f"the optimizer does not hold these parameters: {', '.join(missing)}; give them to "
                "it, or requires_grad_(False)"
            )

    def _check_agreement(self, settings: dict[str, Any]) -> None:
        mine = {name: repr(value) for name, value in settings.items()}
        for rank, theirs in enumerate(self.topology.world.gather_objects(mine)):
            for name, ours in mine.items():
                if ours != theirs[name]:
                    raise ExchangeError(
                        f"{name}: {theirs[name]} on rank {rank}, {ours} on rank "
                        f"{self.topology.rank}; model and settings must be the same on every rank"
                    )

    def _check_owner(self, state: dict[str, dict[str, Any]]) -> None:
        saved = (state["subgroup"]["subgroup"], state["rank"]["rank"])
        if saved != (self.topology.subgroup, self.topology.rank):
            raise ValueError(
                f"state of subgroup {saved[0]}, rank {saved[1]} given to subgroup "
                f"{self.topology.subgroup}, rank {self.topology.rank}"
            )


def _check_types(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inner: Inner,
    outer: BMUF | None,
    clip: float | None,
) -> None:
    """TypeError or ValueError for what would fail in the first step, or train something else."""
    if isinstance(inner, type) or not hasattr(inner, "residual_holders"):
        raise TypeError(f"inner={inner!r}: Dense(), GTC(...) or DenseInHost(GTC(...))")
    if outer is not None and not isinstance(outer, BMUF):
        raise TypeError(f"outer={outer!r}: BMUF(...) or one of its relatives, or None")
    if clip is not None and not (isinstance(clip, int | float) and clip > 0):
        raise ValueError(f"clip={clip!r}: must be a positive number, or None")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS evaluates the model several times a step; give another optimizer")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise TypeError("pass the bare model (model.module): the trainer exchanges the gradients")


def check_format(shared: dict[str, Any]) -> None:
    """ValueError for a shared part that another version of this library wrote."""
    if shared["format_version"] != FORMAT_VERSION:
        raise ValueError(f"state of format {shared['format_version']}, not {FORMAT_VERSION}")


def _describe(optimizer: torch.optim.Optimizer) -> str:
    """Type and settings of an optimizer, without its parameters and state."""
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    return f"{type(optimizer).__name__} {groups}"
