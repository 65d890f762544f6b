"""Wrong formulas, one line each, and whether the tests notice: ``python tests/mutants.py``.

Each mutant changes one place of ``tiered_dist`` or ``asr`` in a copy of the tree and runs the
tests named beside it until one fails. A mutant that survives is printed, and makes the exit
status 1.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
CODEC, SINGLE = "test_codec.py", "test_trainer_single.py"
FILTER, THRESHOLD, ENTRIES = "test_block_filter.py", "test_threshold.py", "test_entries.py"
HOSTS, CHECKPOINTS = "test_host_level.py", "test_checkpoints.py"
MODEL, COSTS = "test_cost_model.py", "test_costs.py"
STUDY, SIGNIFICANCE = "test_study.py", "test_significance.py"
RANKS, GTC_RANKS, OUTER_RANKS = "test_trainer_ranks.py", "test_gtc_ranks.py", "test_outer_ranks.py"


@dataclass(frozen=True)
class Mutant:
    """``old``, which the file has once, becomes ``new``; ``tests`` should then fail."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = [
    # codec
    Mutant(
        "tiered_dist/codec.py",
        "(values.abs() / tau).floor()",
        "(values.abs() / tau).round()",
        (CODEC,),
    ),
    Mutant(
        "tiered_dist/codec.py",
        "clamp(max=max_quanta) * values.sign()",
        "clamp(max=max_quanta)",
        (CODEC,),
    ),
    Mutant("tiered_dist/codec.py", "-= taus * quanta", "-= taus * quanta.sign()", (CODEC,)),
    Mutant(
        "tiered_dist/codec.py",
        "ahead = magnitude.roll(-first)",
        "ahead = magnitude.roll(first)",
        (CODEC,),
    ),
    Mutant("tiered_dist/codec.py", "(capacity - ahead)", "(capacity + 1 - ahead)", (CODEC,)),
    Mutant("tiered_dist/codec.py", "scratch[positions] = 0", "pass", (CODEC,)),
    Mutant(
        "tiered_dist/native.c", "fabsf(value) >= tau", "fabsf(value) > tau", ("test_native.py",)
    ),
    Mutant("tiered_dist/entries.py", "halves - (1 << 16)", "halves - (1 << 15)", (ENTRIES,)),
    Mutant(
        "tiered_dist/entries.py", "1 - ((entries & 1) << 1)", "((entries & 1) << 1) - 1", (ENTRIES,)
    ),
    # weighting and scales
    Mutant(
        "tiered_dist/gtc.py", "weight = samples / self._reference", "weight = 1.0", (SINGLE, RANKS)
    ),
    Mutant(
        "tiered_dist/gtc.py",
        "max(received.samples, self._reference)",
        "received.samples",
        (SINGLE,),
    ),
    Mutant("tiered_dist/gtc.py", "self._reference / weight if", "1 / weight if", (SINGLE, RANKS)),
    Mutant(
        "tiered_dist/gtc.py", "clip * math.sqrt(exchange.size)", "clip * exchange.size", (RANKS,)
    ),
    Mutant(
        "tiered_dist/gtc.py",
        "received.exact.sum(dim=0) * scale",
        "received.exact.sum(dim=0)",
        (GTC_RANKS,),
    ),
    Mutant("tiered_dist/gtc.py", "residual[self._exact] = 0", "pass", (GTC_RANKS,)),
    Mutant(
        "tiered_dist/gtc.py",
        "if samples:\n                self._residual.zero_()",
        "if True:\n                self._residual.zero_()",
        (GTC_RANKS,),
    ),
    Mutant(
        "tiered_dist/gtc.py",
        "self._velocity[passed[sent != 0]] = 0",
        "self._velocity[passed] *= 1",
        (SINGLE,),
    ),
    Mutant(
        "tiered_dist/gtc.py",
        "add_(self._velocity, alpha=momentum)",
        "add_(self._velocity)",
        (SINGLE,),
    ),
    Mutant(
        "tiered_dist/inner.py",
        "gradient.mul_(samples / counts[0] if",
        "gradient.mul_(1 / counts[0] if",
        (RANKS,),
    ),
    Mutant(
        "tiered_dist/inner.py",
        "gradient.mul_(bound / norm)",
        "gradient.mul_(norm / bound)",
        (SINGLE, RANKS),
    ),
    # controller
    Mutant(
        "tiered_dist/threshold.py",
        "density.double() / target",
        "target / density.double()",
        (THRESHOLD,),
    ),
    Mutant(
        "tiered_dist/threshold.py",
        "(target / following) **",
        "(following / target) **",
        (THRESHOLD,),
    ),
    Mutant("tiered_dist/threshold.py", "numel() - kept + 1", "numel() - kept", (THRESHOLD, SINGLE)),
    Mutant(
        "tiered_dist/gtc.py", "wanted.sum(dim=1).max()", "wanted.sum(dim=1).min() // 9", (SINGLE,)
    ),
    # filter
    Mutant(
        "tiered_dist/block_filter.py", "self.momentum * self.update if", "self.update if", (FILTER,)
    ),
    Mutant("tiered_dist/block_filter.py", "alpha=self.learning_rate", "alpha=1.0", (FILTER,)),
    Mutant(
        "tiered_dist/block_filter.py",
        "self.model.add_(self.update)",
        "self.model.add_(mean_move)",
        (FILTER,),
    ),
    Mutant("tiered_dist/outer.py", "1 - 1 / subgroups", "1 / subgroups", (FILTER, RANKS)),
    Mutant(
        "tiered_dist/outer.py",
        "samples / samples_of_all if",
        "1 / topology.outer.size if",
        (RANKS,),
    ),
    Mutant("tiered_dist/outer.py", "min(topology.inner.index, shards - 1)", "0", (RANKS,)),
    Mutant(
        "tiered_dist/outer.py",
        "self.block_samples * steps / samples",
        "self.block_samples / samples",
        (OUTER_RANKS,),
    ),
    Mutant(
        "tiered_dist/outer.py", "(buffer - first) / world.size", "(buffer - first)", (OUTER_RANKS,)
    ),
    # the step, and resuming
    Mutant(
        "tiered_dist/trainer.py",
        "        samples = 0.0\n        step",
        "        pass\n        step",
        (RANKS,),
    ),
    Mutant(
        "tiered_dist/trainer.py",
        "write_parameters(model, self._layout, self._filter.model)",
        "pass",
        (SINGLE,),
    ),
    Mutant(
        "tiered_dist/trainer.py",
        "self._filter.update)\n\n    def _load_buffers",
        "self._filter.model)\n\n    def _load_buffers",
        (CHECKPOINTS,),
    ),
    Mutant(
        "tiered_dist/trainer.py",
        'self._block_start = shared["block_start"]',
        'self._block_start = shared["steps"]',
        (CHECKPOINTS,),
    ),
    Mutant(
        "tiered_dist/gtc.py",
        'self._residual = self._flat(rank.get("residual"))',
        "pass",
        (CHECKPOINTS,),
    ),
    Mutant(
        "tiered_dist/gtc.py",
        'self._capacity = subgroup.get("capacity", 0)',
        "self._capacity = 300",
        (SINGLE,),
    ),
    Mutant("tiered_dist/layout.py", "holders[name][first:end] += 1", "pass", (CHECKPOINTS, HOSTS)),
    # two levels of tier 1
    Mutant(
        "tiered_dist/host_level.py", "totals.samples if finite", "local.samples if finite", (HOSTS,)
    ),
    Mutant("tiered_dist/host_level.py", "math.sqrt(between.size)", "1.0", (HOSTS,)),
    Mutant("tiered_dist/host_level.py", "self._slot * host.index", "0", (HOSTS,)),
    Mutant("tiered_dist/layout.py", "stop - start)", "stop)", (HOSTS,)),
    Mutant("tiered_dist/topology.py", "hosts[rank] == name)", "True)", (HOSTS,)),
    # decoding in C
    Mutant("tiered_dist/native.c", "1 - ((half & 1) << 1)", "1", ("test_native.py",)),
    Mutant(
        "tiered_dist/native.c", "(at->stretch << 15)", "(at->stretch << 16)", ("test_native.py",)
    ),
    Mutant("tiered_dist/native.c", "scratch[position] = 0;", ";", ("test_native.py",)),
    Mutant("tiered_dist/native.c", "position >= ends[parameter]", "0", ("test_native.py",)),
    # how long it will take
    Mutant(
        "tiered_dist/cost_model.py",
        "bits = case.machine, 8 * traffic",
        "bits = case.machine, traffic",
        (MODEL,),
    ),
    Mutant(
        "tiered_dist/cost_model.py",
        "self.block_waiting / math.sqrt(block_steps)",
        "self.block_waiting / block_steps",
        (MODEL,),
    ),
    Mutant("tiered_dist/cost_model.py", "(1 - case.tail) * exchange", "exchange", (MODEL,)),
    Mutant(
        "tiered_dist/cost_model.py",
        "traffic.entries * len(traffic.groups[0])",
        "traffic.entries",
        (MODEL,),
    ),
    Mutant(
        "tiered_dist/cost_model.py",
        "wait * subgroup_deviation * _deviation",
        "wait * _deviation",
        (MODEL,),
    ),
    Mutant(
        "tiered_dist/cost_model.py", "x.min() >= 0 and error < least", "error < least", (MODEL,)
    ),
    Mutant("tiered_dist/cost_model.py", "np.diff(below**number)", "np.diff(below)", (MODEL,)),
    Mutant("tiered_dist/costs.py", "return 2 * (size - 1)", "return 2 * size", (MODEL, COSTS)),
    Mutant(
        "tiered_dist/costs.py",
        "len(world.subgroups) * (total + optimizer_state)",
        "(total + optimizer_state)",
        (COSTS,),
    ),
    # what is said of error rates
    Mutant(
        "asr/scoring/significance.py",
        "generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=len(sums))",
        "np.ones((len(sums), seeds))",
        (STUDY,),
    ),
    Mutant("asr/scoring/significance.py", "            first += seeds\n", "", (STUDY,)),
    Mutant(
        "asr/scoring/significance.py",
        "mine.sum() / len(mine) - theirs",
        "mine.sum() - theirs",
        (STUDY,),
    ),
    Mutant(
        "asr/scoring/significance.py",
        "relative_interval.high < margin",
        "relative_interval.low < margin",
        (SIGNIFICANCE,),
    ),
]


def main() -> int:
    """Try the mutants; 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="of the mutants to try; all if none")
    numbers = parser.parse_args().numbers or range(len(MUTANTS))
    survivors = []
    for number in tqdm(numbers, unit="mutant"):
        killer = first_failure(MUTANTS[number])
        tqdm.write(f"{number:3} {MUTANTS[number].file}: {killer or 'SURVIVES'}")
        if killer is None:
            survivors.append(MUTANTS[number])
    for mutant in survivors:
        print(f"no test fails with {mutant.file}: {mutant.old!r} -> {mutant.new!r}")
    return 1 if survivors else 0


def first_failure(mutant: Mutant) -> str | None:
    """The test that fails with the mutant, or None."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("tiered_dist", "asr", "recipes", "tests", "pyproject.toml"):
            source = ROOT / part
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, Path(folder, part))
        apply(mutant, Path(folder))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        result = subprocess.run(
            [*command, *(f"tests/{test}" for test in mutant.tests)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": folder, "XDG_CACHE_HOME": folder},
            capture_output=True,
            text=True,
        )
    failed = [line.split()[1] for line in result.stdout.splitlines() if line[:7] == "FAILED "]
    if result.returncode == 1 and failed:
        return failed[0]
    if result.returncode == 0:
        return None
    raise RuntimeError(f"pytest could not run for {mutant}:\n{result.stdout}{result.stderr}")


def apply(mutant: Mutant, tree: Path) -> None:
    """Change the file; ValueError unless it has the place once."""
    path = tree / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1 or mutant.old == mutant.new:
        raise ValueError(f"{mutant.file} has {text.count(mutant.old)} times {mutant.old!r}")
    path.write_text(text.replace(mutant.old, mutant.new))


if __name__ == "__main__":
    sys.exit(main())
