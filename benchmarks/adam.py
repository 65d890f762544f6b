"""What GTC costs an optimizer at its best learning rate, on this repository's text.

    python -m tiered_dist.launch --workers 2 benchmarks/adam.py --out adam.jsonl

A character LSTM learns documents and sources; the last tenth of each file is held out. All ranks
are one subgroup and see the same windows of text in every training. GTC's density falls from 0.25
over the first quarter of a run; the learning rate rises over a twentieth and falls linearly to 0.
Rates go up and down by factors of 2 until the best has a worse one on either side.

Printed are the held-out loss at the best rate in nats a character, a mean over seeds, and its range
over them; GTC's density in the last half; and the sweep. ``--out`` takes a line a run, and what
stands there isn't run again.
"""

import argparse
import dataclasses
import json
import math
import statistics
from pathlib import Path

import torch
from torch import Tensor, nn

from tiered_dist import GTC, Dense, TargetDensity, TieredTrainer, Topology, init_process_group

ROOT = Path(__file__).resolve().parents[1]
WINDOW, BATCH, EMBEDDING, HIDDEN = 24, 8, 32, 96
FIRST_RATES = {"sgd": 2.0, "adam": 0.016}


@dataclasses.dataclass(frozen=True)
class Run:
    """One training; ``density`` is GTC's last, or None for a dense tier 1."""

    optimizer: str
    density: float | None
    rate: float
    seed: int
    steps: int


def main() -> None:
    """Sweep; rank 0 keeps the results and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--optimizers", nargs="+", choices=FIRST_RATES, default=list(FIRST_RATES))
    parser.add_argument("--densities", nargs="+", type=float, default=[0.1, 0.01])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="results, one JSON line a run")
    arguments = parser.parse_args()
    init_process_group()
    sweep = Sweep(arguments)
    rows = [f"{'optimizer':<10}{'tier 1':<10}{'loss':>7}{'range':>7}{'rate':>8}{'density':>9}"]
    for optimizer in arguments.optimizers:
        rate = FIRST_RATES[optimizer]
        for density in (None, *arguments.densities):
            rate, row = sweep.best(optimizer, density, rate)
            rows.append(row)
    if sweep.topology.rank == 0:
        print("\n".join(rows))


class Sweep:
    """The results so far, and what makes more."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.topology = Topology.build("host")
        self.training, self.held_out = read_text()
        self.symbols = 1 + max(int(self.training.max()), int(self.held_out.max()))
        self.results: dict[Run, dict[str, float]] = {}
        if arguments.out.exists():
            lines = [json.loads(line) for line in arguments.out.read_text().splitlines()]
            self.results = {Run(**run): result for run, result in lines}
        self.topology.world.barrier()  # nobody writes before all have read

    def best(self, optimizer: str, density: float | None, first: float) -> tuple[float, str]:
        """The best learning rate, looked for from ``first`` on, and a row of the table."""
        found: dict[float, list[dict[str, float]]] = {}  # a result a seed, by rate

        def loss(rate: float) -> float:
            if rate not in found:
                seeds, steps = range(self.arguments.seeds), self.arguments.steps
                runs = [Run(optimizer, density, rate, seed, steps) for seed in seeds]
                found[rate] = [self._result(run) for run in runs]
            return statistics.mean(result["loss"] for result in found[rate])

        rate = first
        while (better := min((rate / 2, rate, rate * 2), key=loss)) != rate:
            rate = better
        losses = [result["loss"] for result in found[rate]]
        seen = statistics.mean(result["density"] for result in found[rate])
        row = f"{optimizer:<10}{'dense' if density is None else f'GTC {density:g}':<10}"
        row += f"{loss(rate):>7.3f}{max(losses) - min(losses):>7.3f}{rate:>8.3g}{seen:>9.4f}   "
        return rate, row + ", ".join(f"{tried:.3g}: {loss(tried):.3f}" for tried in sorted(found))

    def _result(self, run: Run) -> dict[str, float]:
        if run not in self.results:
            self.results[run] = self._train(run)
            if self.topology.rank == 0:
                with self.arguments.out.open("a") as file:
                    print(json.dumps([dataclasses.asdict(run), self.results[run]]), file=file)
        return self.results[run]

    def _train(self, run: Run) -> dict[str, float]:
        """Held-out loss, infinite for NaN, and the density; the same bits on every rank."""
        torch.manual_seed(run.seed)
        lstm = nn.LSTM(EMBEDDING, HIDDEN, batch_first=True)
        head = nn.Linear(HIDDEN, self.symbols)
        model = nn.ModuleList([nn.Embedding(self.symbols, EMBEDDING), lstm, head])
        optimizer, inner = make_optimizer(run, model), make_inner(run)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share(step, run.steps))
        trainer = TieredTrainer(model, optimizer, self.topology, inner, clip=1.0)
        generator = torch.Generator().manual_seed(1000 * run.seed + self.topology.rank)
        densities = []
        for _ in range(run.steps):
            starts = torch.randint(len(self.training) - WINDOW, (BATCH,), generator=generator)
            windows = self.training[starts[:, None] + torch.arange(WINDOW + 1)]
            cross_entropy(model, windows).backward()
            densities.append(trainer.step(samples=BATCH * WINDOW).density or 0.0)
            schedule.step()
        with torch.no_grad():
            loss = float(cross_entropy(model, self.held_out.unfold(0, WINDOW + 1, WINDOW)))
        density = statistics.mean(densities[run.steps // 2 :])
        return {"loss": loss if math.isfinite(loss) else math.inf, "density": density}


def read_text() -> tuple[Tensor, Tensor]:
    """What is trained on, and what is held out, as numbers of the bytes that occur."""
    files = [ROOT / "LICENSE", ROOT / "README.md", *sorted((ROOT / "asr").rglob("*.py"))]
    files += [ROOT / "docs/tiered_dist.md", *sorted((ROOT / "tiered_dist").rglob("*.py"))]
    texts = [path.read_bytes() for path in files]
    number = {byte: i for i, byte in enumerate(sorted(set(b"".join(texts))))}
    training = b"".join(text[: len(text) * 9 // 10] for text in texts)
    held_out = b"".join(text[len(text) * 9 // 10 :] for text in texts)
    return torch.tensor([number[b] for b in training]), torch.tensor([number[b] for b in held_out])


def make_optimizer(run: Run, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum, or Adam."""
    if run.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=run.rate, momentum=0.9)
    return torch.optim.Adam(model.parameters(), lr=run.rate)


def make_inner(run: Run) -> Dense | GTC:
    """Dense, or GTC as docs/tiered_dist.md recommends it."""
    if run.density is None:
        return Dense()
    return GTC(TargetDensity(run.density, ramp_steps=run.steps // 4), max_quanta=16)


def share(step: int, steps: int) -> float:
    """The learning rate in ``step``, as a share of the largest."""
    warmup = max(1, steps // 20)
    return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))


def cross_entropy(model: nn.ModuleList, windows: Tensor) -> Tensor:
    """A symbol's, after the first, given those before it in its window ``(N, WINDOW + 1)``."""
    embedding, lstm, head = model
    logits = head(lstm(embedding(windows[:, :-1]))[0])
    return nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


if __name__ == "__main__":
    main()
