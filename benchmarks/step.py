"""What the tiers add to a training step, on this machine's real ranks.

    python -m tiered_dist.launch --workers 4 benchmarks/step.py --layers 5 --hidden 800 --bf16

An LSTM goes forward and backward over random frames, 1,000 a rank, once with its bare optimizer and
once with each pair of tiers, which take turns; all share the machine, so the bare step has the same
contention. Its gradients are then overwritten with noise, in every way alike, and GTC begins in the
state that a long run of such noise ends in (``settled_noise``). The density that was then sent is
printed.

Printed are medians over the rounds: the wall time of forward and backward, and of what follows, the
optimizer's step alone or with the tiers; what a pair adds to the bare optimizer, as a share of the
whole bare step and in passes of ``residual.add_(gradient)`` over the model; and the bytes that a
rank sends. What follows begins when all ranks have come to it and ends when all have ended it: with
more ranks than cores they come apart, which is no cost of an exchange. Subgroups are halves of the
world.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from settled_noise import Noise, begin_settled
from torch import nn

from tiered_dist import BMUF, GTC, Dense, TargetDensity, TieredTrainer, Topology, init_process_group

FRAMES, BATCH, INPUTS, CLASSES = 1000, 10, 192, 500
BACKWARD, BARE, BLOCK = "forward, backward", "bare optimizer", "a block's end"


def main() -> None:
    """Measure; rank 0 prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--density", type=float, default=1e-3)
    parser.add_argument("--block-steps", type=int, default=50)
    parser.add_argument("--settle", type=int, default=10, help="steps before the first is timed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="steps of each way in a round")
    parser.add_argument("--bf16", action="store_true", help="autocast, as a training would")
    arguments = parser.parse_args()
    init_process_group()
    topology = Topology.build(max(1, int(os.environ.get("WORLD_SIZE", "1")) // 2))
    bench = Bench(arguments, topology)
    seconds, sent = bench.run()
    if topology.rank == 0:
        bench.print(seconds, sent)


class Bench:
    """One model, and the ways to take a step with it."""

    def __init__(self, arguments: argparse.Namespace, topology: Topology) -> None:
        self.arguments, self.topology = arguments, topology
        torch.manual_seed(0)
        lstm = nn.LSTM(INPUTS, arguments.hidden, arguments.layers, batch_first=True)
        self.model = nn.ModuleList([lstm, nn.Linear(arguments.hidden, CLASSES)])
        self.parameters = list(self.model.parameters())
        self.elements = sum(p.numel() for p in self.parameters)
        self.inputs = torch.randn(BATCH, FRAMES // BATCH, INPUTS)
        self.targets = torch.randint(CLASSES, (FRAMES,))
        self.noise = Noise(self.elements, topology.rank)
        self.bare = self._sgd()
        gtc = GTC(TargetDensity(arguments.density, arguments.density), max_quanta=16)
        inners = {"dense": Dense(), "dense bf16": Dense("bf16"), "GTC": gtc}
        bmuf = BMUF(arguments.block_steps)
        self.trainers = {
            f"{name} + BMUF": TieredTrainer(self.model, self._sgd(), topology, inner, bmuf)
            for name, inner in inners.items()
        }
        begin_settled(self.trainers["GTC + BMUF"], arguments.density, FRAMES)

    def _sgd(self) -> torch.optim.SGD:
        return torch.optim.SGD(self.parameters, lr=1e-4, momentum=0.9)

    def run(self) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Seconds of every step of every way, and bytes sent by tier 1, payload and wire."""
        for _ in range(self.arguments.settle):
            self.noise.overwrite_gradients(self.model)
            self.trainers["GTC + BMUF"].step(samples=FRAMES)
        seconds: dict[str, list[float]] = {BACKWARD: [], BARE: [], "add_": []}
        sent: dict[str, list[float]] = {}
        flat, other = torch.zeros(2, self.elements).unbind()
        for _ in range(self.arguments.rounds):
            self._time("add_", lambda: flat.add_(other), seconds)
            for _ in range(self.arguments.steps):
                self._time(BACKWARD, self._backward, seconds)
                self._time(BARE, self._bare_step, seconds)
                for name, trainer in self.trainers.items():
                    self._time(BACKWARD, self._backward, seconds)
                    self._time(name, lambda: self._tiered_step(trainer, sent, name), seconds)  # noqa: B023
        for trainer in self.trainers.values():  # a block's end, which the rounds need not have had
            if trainer.at_block_start:
                self._backward()
                self._tiered_step(trainer, {}, "")
            self._time(BLOCK, trainer.finish, seconds)
        return seconds, sent

    def _time(
        self, name: str, action: Callable[[], object], seconds: dict[str, list[float]]
    ) -> None:
        self.topology.world.barrier()
        begin = time.perf_counter()
        action()
        self.topology.world.barrier()
        seconds.setdefault(name, []).append(time.perf_counter() - begin)

    def _backward(self) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.arguments.bf16):
            logits = self.model[1](self.model[0](self.inputs)[0])
        nn.functional.cross_entropy(logits.float().flatten(0, 1), self.targets).backward()
        self.noise.overwrite_gradients(self.model)

    def _bare_step(self) -> None:
        self.bare.step()
        self.bare.zero_grad()

    def _tiered_step(self, trainer: TieredTrainer, sent: dict[str, list[float]], name: str) -> None:
        report = trainer.step(samples=FRAMES)
        sent[name] = [report.inner_payload_bytes, report.inner_wire_bytes, report.density or 1.0]

    def print(self, seconds: dict[str, list[float]], sent: dict[str, list[float]]) -> None:
        """The table, and what tier 2 costs a step, which a round seldom has."""
        arguments, size = self.arguments, self.topology.inner.size
        median = {name: statistics.median(values) for name, values in seconds.items()}
        print(
            f"{self.elements:,} parameters, {self.topology.world_size} ranks in subgroups of "
            f"{size}, {FRAMES} frames a rank, {'bf16' if arguments.bf16 else 'fp32'}"
        )
        columns = ("ms", "added ms", "added %", "in add_", "payload", "wire")
        print(f"{'way':<18}" + "".join(f"{column:>12}" for column in columns))
        whole, add = median[BACKWARD] + median[BARE], median["add_"]
        for name, value in median.items():
            added = value - median[BARE]
            row = f"{name:<18}{1e3 * value:>12.1f}"
            if name in sent:
                row += f"{1e3 * added:>12.1f}{100 * added / whole:>12.1f}{added / add:>12.1f}"
                row += f"{sent[name][0]:>12,}{sent[name][1]:>12,}"
            print(row)
        share = median[BLOCK] / arguments.block_steps
        print(
            f"{BLOCK}, shared by its {arguments.block_steps} steps: {1e3 * share:.1f} ms, "
            f"{100 * share / whole:.1f} % of the bare step"
        )
        print(f"density of GTC's last step: {sent['GTC + BMUF'][2]:.5f}")
        print(self.topology.describe_costs(self.elements, arguments.density, arguments.block_steps))


if __name__ == "__main__":
    main()
