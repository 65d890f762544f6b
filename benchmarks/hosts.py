"""Steps and blocks of four systems on hosts with shaped links, and the cost model fitted to them.

    PYTHONPATH=. python benchmarks/hosts.py measure [--hosts 2 4 8] [--mbit 50 100 200 400 none]
    PYTHONPATH=. python benchmarks/hosts.py fit      # constants for python -m tiered_dist plan
    PYTHONPATH=. python benchmarks/hosts.py table    # what was measured, in Markdown

The ranks are real processes with the library's trainer, gloo and TCP, on hosts that are network
namespaces (``network_hosts``, which also says where that is not allowed). **The computation of a
step is simulated, by sleeping**: many ranks share few processors here, and real forward and
backward passes would slow one another down as they do on no cluster. A rank sleeps for a normally
distributed time, drawn anew each step, and then has gradients of noise; GTC is in the state that a
long run of such noise ends in (``settled_noise``). Exchange, codec, optimizer and filter are real.

Systems: dense and GTC have one subgroup of all ranks, BMUF a subgroup a rank, two tiers one a host.

The rates are to the model's size as 25 Gbit/s is to 24 M parameters: its 217,000 parameters and 250
ms of computation at 226 Mbit/s stand for 24 M and 250 ms at 25 Gbit/s. On a V100, 24 M parameters
take 60 to 230 ms for 2,500 to 10,000 frames, at 6 operations a parameter and frame and two fifths
of its 15.7e12 operations a second in float32. A dense all-reduce over 128 ranks takes 62 ms there,
0.27 to 1 of the computation; 50 to 400 Mbit/s here make it 0.13 to 1.

``measure`` adds to the results, a line of JSON a row, what they lack, so that it can be stopped at
any time; measure on an idle machine. Seconds are means over ranks and steps. ``step_seconds`` are a
step without its block's end, ``block_seconds`` a block's end; both include waiting. The bytes that
interfaces count must be those of StepReport, but for headers and acknowledgements: up to 7 %, and 1
kB for each message of a collective, before which gloo's ranks tell each other that they are ready.
"""

import argparse
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import codec
import network_hosts
import numpy as np
import torch
from settled_noise import Noise, begin_settled
from torch import nn

from tiered_dist import (
    BMUF,
    GTC,
    Dense,
    StepReport,
    TargetDensity,
    TieredTrainer,
    Topology,
    init_process_group,
)
from tiered_dist.cost_model import (
    Amounts,
    Case,
    Constants,
    Machine,
    Observation,
    block_amounts,
    fit,
    predict,
    step_amounts,
)
from tiered_dist.costs import World, block_traffic, step_traffic
from tiered_dist.layout import ParameterLayout

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/hosts.jsonl"
CONSTANTS = ROOT / "tiered_dist/fitted_constants.json"
# docs/speed.md has this command.
PLAN = ["--hosts", "16", "--gpus", "8", "--parameters", "24e6", "--step-ms", "250"]
PLAN += ["--link-gbit", "25", "--latency-us", "50"]
INPUTS, LAYERS = 80, 3
FRAMES = 1000
HEADERS, BYTES_A_MESSAGE = 0.07, 1000
# Sizes and densities at which the work of one rank alone is measured.
HIDDEN_ALONE, BLOCKS_ALONE = (96, 256), 4
CODEC_ELEMENTS, CODEC_DENSITIES, CODEC_WORKERS = 8_000_000, (1e-3, 1e-2), (2, 8)


class System(NamedTuple):
    """Subgroups as ``Topology.build`` takes them (0: one of all ranks), and the tiers."""

    subgroups: str | int
    inner: Dense | GTC
    has_blocks: bool


def systems(density: float) -> dict[str, System]:
    """By name."""
    gtc = GTC(TargetDensity(density, density), max_quanta=16)
    return {
        "dense": System(0, Dense(), False),
        "GTC": System(0, gtc, False),
        "BMUF": System(1, Dense(), True),
        "two tiers": System("host", gtc, True),
    }


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of one row: what was run. ``mbit`` None is a link without a limit."""

    system: str
    hosts: int
    ranks_per_host: int
    mbit: float | None
    hidden: int
    compute_seconds: float
    spread: float
    density: float
    block_steps: int
    blocks: int

    @property
    def ranks(self) -> int:
        """In all."""
        return self.hosts * self.ranks_per_host


def main(words: Sequence[str]) -> int:
    """Run a verb; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON lines (%(default)s)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("measure", help="what the results lack")
    verb.add_argument("--hosts", type=int, nargs="+", default=[2, 4, 8])
    verb.add_argument("--mbit", type=_rate, nargs="+", default=[50, 100, 200, 400, None])
    verb.add_argument("--systems", nargs="+", default=list(systems(0.01)), choices=systems(0.01))
    verb.add_argument("--ranks-per-host", type=int, default=2)
    verb.add_argument("--hidden", type=int, default=96, help="of an LSTM of 3 layers")
    verb.add_argument("--compute-ms", type=float, default=250, help="mean computation of a step")
    verb.add_argument("--spread", type=float, default=0.05, help="its deviation over its mean")
    verb.add_argument("--density", type=float, default=0.01)
    verb.add_argument("--block-steps", type=int, default=5)
    verb.add_argument("--blocks", type=int, default=4, help="measured, after one that is not")
    verb = verbs.add_parser("fit", help="constants, and errors where they were not fitted")
    verb.add_argument("--hosts", type=int, nargs="+", default=[2, 4], help="to fit on")
    verb.add_argument("--mbit", type=_rate, nargs="+", default=[50, 200, None], help="to fit on")
    verb.add_argument("--out", type=Path, default=CONSTANTS)
    verb.add_argument("--document", type=Path, help="docs/speed.md, to refresh its figures")
    verbs.add_parser("table", help="print what was measured")
    verb = verbs.add_parser("rank", help="what measure starts; not for you")
    verb.add_argument("settings", type=json.loads)
    arguments = parser.parse_args(words)
    if arguments.verb == "rank":
        _run_rank([Settings(**settings) for settings in arguments.settings])
        return 0
    rows = read(arguments.results)
    if arguments.verb == "measure":
        return _measure(arguments, rows)
    if arguments.verb == "table":
        print(table(rows))
        return 0
    if not any(row["kind"] == "hosts" for row in rows):
        parser.error(f"{arguments.results}: no rows of hosts; measure first")
    constants, text = fit_rows(rows, arguments.hosts, arguments.mbit)
    print(text)
    constants.save(arguments.out)
    if arguments.document is not None:
        _document(rows, text, arguments.document)
    return 0


def _rate(word: str) -> float | None:
    return None if word == "none" else float(word)


def read(path: Path) -> list[dict[str, Any]]:
    """All rows, none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


# ---- measuring


def _measure(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    if not any(row["kind"] == "alone" for row in rows):
        _append(arguments.results, _rows_alone(arguments.density))
    done = [row["settings"] for row in rows if row["kind"] == "hosts"]
    for hosts in arguments.hosts:
        for mbit in arguments.mbit:
            wanted = [
                Settings(
                    system,
                    hosts,
                    arguments.ranks_per_host,
                    mbit,
                    arguments.hidden,
                    arguments.compute_ms / 1000,
                    arguments.spread,
                    arguments.density,
                    arguments.block_steps,
                    arguments.blocks,
                )
                for system in arguments.systems
            ]
            wanted = [one for one in wanted if dataclasses.asdict(one) not in done]
            status, measured = run_ranks(wanted) if wanted else (0, [])
            _append(arguments.results, measured)
            if status:
                return status
            for row in measured:
                _print_row(row)
                if not bytes_agree(row):
                    print("error: these are not the bytes that were reported", file=sys.stderr)
                    return 1
    return 0


def run_ranks(wanted: list[Settings]) -> tuple[int, list[dict[str, Any]]]:
    """Run systems on the same hosts, one after the other; the exit status, and a row each."""
    first = wanted[0]
    command = [sys.executable, str(ROOT / "benchmarks/network_hosts.py")]
    command += ["--hosts", str(first.hosts)]
    command += [] if first.mbit is None else ["--mbit", str(first.mbit)]
    command += [sys.executable, "-m", "tiered_dist.launch", "--workers", str(first.ranks)]
    command += ["--with-parent", str(os.getpid()), __file__, "rank"]
    command += [json.dumps([dataclasses.asdict(settings) for settings in wanted])]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    return result.returncode, [json.loads(line) for line in result.stdout.splitlines()]


def _print_row(row: dict[str, Any]) -> None:
    settings = Settings(**row["settings"])
    print(
        f"{settings.system:<10}{settings.hosts:>3} hosts{_rate_text(settings.mbit):>10} Mbit/s"
        f"{1e3 * row['step_seconds']:>8.1f} ms a step{1e3 * row['block_seconds']:>8.1f} a block's "
        f"end, bytes {row['interface_bytes'] / row['reported_bytes']:.3f} of those reported",
        flush=True,
    )


def bytes_agree(row: dict[str, Any]) -> bool:
    """Whether interfaces have counted what StepReport did, and headers: see above."""
    settings, known = Settings(**row["settings"]), case(row, pass_seconds=0.0)
    traffic = settings.block_steps * step_traffic(known.world, known.inner, known.layout, step=0)
    if known.has_blocks:
        traffic += block_traffic(known.world, known.layout.total)
    messages = settings.blocks * sum(t.rounds * sum(map(len, t.groups)) for t in traffic)
    most = (1 + HEADERS) * row["reported_bytes"] + BYTES_A_MESSAGE * messages
    return row["reported_bytes"] <= row["interface_bytes"] <= most


def _run_rank(wanted: list[Settings]) -> None:
    """Be one rank; rank 0 prints the rows."""
    network_hosts.enter(int(os.environ["RANK"]) // wanted[0].ranks_per_host)
    init_process_group()
    for settings in wanted:
        system = systems(settings.density)[settings.system]
        topology = Topology.build(system.subgroups or settings.ranks)
        row = _measure_system(settings, system, topology)
        if topology.rank == 0:
            print(json.dumps(row), flush=True)


def make_model(hidden: int) -> nn.LSTM:
    """Parameters; it is never called."""
    return nn.LSTM(INPUTS, hidden, LAYERS)


class Taken(NamedTuple):
    """Seconds of one step of one rank."""

    compute: float
    step: float
    report: StepReport


def _measure_system(settings: Settings, system: System, topology: Topology) -> dict[str, Any]:
    trainer = _trainer(settings.hidden, settings.density, settings.block_steps, system, topology)
    stepper = Stepper(settings, trainer)
    for _ in range(settings.block_steps):
        stepper.step()
    steps = settings.blocks * settings.block_steps
    topology.world.barrier()
    before = network_hosts.sent_bytes()
    taken = [stepper.step() for _ in range(steps)]
    topology.world.barrier()
    after = network_hosts.sent_bytes()
    own = {
        **_means(taken),
        "host": topology.hosts[topology.rank],
        "sent": {name: after[name] - before[name] for name in after},
        "reported_bytes": sum(t.report.inner_wire_bytes + t.report.outer_wire_bytes for t in taken),
    }
    everyone = topology.world.gather_objects(own)
    by_host = {rank["host"]: rank["sent"] for rank in everyone}
    return {
        "kind": "hosts",
        "settings": dataclasses.asdict(settings),
        "processors": len(os.sched_getaffinity(0)),
        **{key: statistics.mean(rank[key] for rank in everyone) for key in SECONDS},
        "reported_bytes": sum(rank["reported_bytes"] for rank in everyone),
        "interface_bytes": sum(sum(sent.values()) for sent in by_host.values()),
        "link_bytes": max(sent[network_hosts.LINK] for sent in by_host.values()),
    }


SECONDS = (
    "compute_seconds",
    "step_seconds",
    "encode_seconds",
    "exchange_seconds",
    "waiting_seconds",
    "decode_seconds",
    "block_seconds",
    "block_waiting_seconds",
)


def _means(taken: list[Taken]) -> dict[str, float]:
    """A rank's ``SECONDS``, of a step and of a block's end."""
    reports = [t.report for t in taken]
    blocks = [report for report in reports if report.block]
    values = {
        "compute_seconds": [t.compute for t in taken],
        "step_seconds": [t.step - t.report.filter_seconds for t in taken],
        "encode_seconds": [report.encode_seconds for report in reports],
        "exchange_seconds": [report.exchange_seconds for report in reports],
        "waiting_seconds": [report.waiting_seconds for report in reports],
        "decode_seconds": [report.decode_seconds for report in reports],
        "block_seconds": [report.filter_seconds for report in blocks],
        "block_waiting_seconds": [report.block.waiting_seconds for report in blocks],
    }
    return {name: statistics.fmean(numbers or [0.0]) for name, numbers in values.items()}


class Stepper:
    """A rank's steps: computation by sleeping, the rest by the trainer."""

    def __init__(self, settings: Settings, trainer: TieredTrainer) -> None:
        self._settings, self._trainer = settings, trainer
        rank = trainer.topology.rank
        elements = sum(parameter.numel() for parameter in trainer.model.parameters())
        self._noise, self._draw = Noise(elements, rank), np.random.default_rng(rank)

    def step(self) -> Taken:
        """Take one."""
        begin, settings = time.perf_counter(), self._settings
        self._noise.overwrite_gradients(self._trainer.model)
        lasts = settings.compute_seconds * self._draw.normal(1.0, settings.spread)
        time.sleep(max(0.0, begin + lasts - time.perf_counter()))
        computed = time.perf_counter()
        report = self._trainer.step(samples=FRAMES)
        return Taken(computed - begin, time.perf_counter() - begin, report)


def _trainer(
    hidden: int, density: float, block_steps: int, system: System, topology: Topology
) -> TieredTrainer:
    torch.manual_seed(0)
    model = make_model(hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    outer = BMUF(block_steps) if system.has_blocks else None
    trainer = TieredTrainer(model, optimizer, topology, system.inner, outer)
    if isinstance(system.inner, GTC):
        begin_settled(trainer, density, FRAMES)
    return trainer


def _rows_alone(density: float) -> list[dict[str, Any]]:
    """The work of one rank that has a processor of its own: trainer and codec, at two sizes."""
    torch.set_num_threads(1)
    rows = []
    for hidden in HIDDEN_ALONE:
        for name in ("BMUF", "two tiers"):
            settings = Settings(name, 1, 1, None, hidden, 0.0, 0.0, density, 5, BLOCKS_ALONE)
            system = systems(density)[name]
            stepper = Stepper(settings, _trainer(hidden, density, 5, system, Topology.build(1)))
            taken = [stepper.step() for _ in range(5 + 5 * BLOCKS_ALONE)][5:]
            row = {"kind": "alone", "settings": dataclasses.asdict(settings), "processors": 1}
            rows.append(row | _means(taken))
    for workers in CODEC_WORKERS:
        for sent in CODEC_DENSITIES:
            ways = codec.measure(CODEC_ELEMENTS, sent, 5, workers)
            native = "native" if "encode, native" in ways else "torch"
            rows.append(
                {
                    "kind": "codec",
                    "density": sent,
                    "workers": workers,
                    "pass_seconds": ways["add_"] / CODEC_ELEMENTS,
                    "seconds": ways[f"encode, {native}"] + ways[f"decode, {native}"],
                }
            )
    return rows


# ---- the cost model


def pass_seconds(rows: list[dict[str, Any]]) -> float:
    """An element's share in ``residual.add_(gradient)`` over a model that no cache holds."""
    return statistics.median(row["pass_seconds"] for row in rows if row["kind"] == "codec")


def case(row: dict[str, Any], pass_seconds: float) -> Case:
    """What the cost model is told of a row: its settings, and how long computations were."""
    settings = Settings(**row["settings"])
    system = systems(settings.density)[settings.system]
    machine = Machine(
        link_bits=math.inf if settings.mbit is None else 1e6 * settings.mbit,
        pass_seconds=pass_seconds,
        crowd=max(1.0, settings.ranks / row["processors"]),
        spread=settings.spread,
    )
    return Case(
        World.of(settings.ranks, system.subgroups or settings.ranks, settings.ranks_per_host),
        system.inner,
        ParameterLayout.of(make_model(settings.hidden)),
        row["compute_seconds"],
        machine,
        system.has_blocks,
    )


def observations(row: dict[str, Any], pass_seconds: float) -> list[Observation]:
    """A step without its computation, and a block's end; or a codec's passes."""
    if row["kind"] == "codec":
        share, entries = pass_seconds * CODEC_ELEMENTS, row["density"]
        amounts = {
            "codec_passes": share,
            "encode_entry_passes": entries * share,
            "decode_entry_passes": entries * row["workers"] * share,
        }
        return [Observation(amounts, row["seconds"], row["seconds"])]
    known, block_steps = case(row, pass_seconds), row["settings"]["block_steps"]
    step = _joined(step_amounts(known).values())
    # An error counts by the time that a training takes, not by the part that it is of.
    scale = a_step(row)
    found = [Observation(step, row["step_seconds"] - row["compute_seconds"], scale)]
    if known.has_blocks:
        block = block_amounts(known)
        for name, amount in block["waiting"].items():
            block["waiting"][name] = math.sqrt(block_steps) * amount
        amounts = _joined(block.values())
        found.append(Observation(amounts, row["block_seconds"], block_steps * scale))
    return found


def _joined(parts: Iterable[Amounts]) -> Amounts:
    joined: Amounts = {}
    for amounts in parts:
        for name, amount in amounts.items():
            joined[name] = joined.get(name, 0.0) + amount
    return joined


def fit_rows(
    rows: list[dict[str, Any]], hosts: Sequence[int], rates: Sequence[float | None]
) -> tuple[Constants, str]:
    """The constants, and a text with them and the errors where the fit had no part."""
    measured = [row for row in rows if row["kind"] == "hosts"]
    seen = [
        row
        for row in measured
        if row["settings"]["hosts"] in hosts and row["settings"]["mbit"] in rates
    ]
    a_pass = pass_seconds(rows)
    source = f"benchmarks/hosts.py fit, {len(seen)} of {len(measured)} rows of hosts"
    work = [one for row in rows if row["kind"] != "hosts" for one in observations(row, a_pass)]
    constants = fit(work, Constants.of_work(), Constants(source=source))
    exchanges = [one for row in seen for one in observations(row, a_pass)]
    others = [name for name in Constants.names() if name not in Constants.of_work()]
    constants = fit(exchanges, others, constants)
    said = ", ".join(_rate_text(rate) for rate in rates)
    lines = [f"fitted on {len(seen)} rows, of {hosts} hosts at {said} Mbit/s; work on ranks alone"]
    lines += [f"  {name:<22}{getattr(constants, name):>12.4g}" for name in Constants.names()]
    unseen = [row for row in measured if row not in seen]
    return constants, "\n".join(lines + _errors(unseen, constants, a_pass))


def _errors(rows: list[dict[str, Any]], constants: Constants, pass_seconds: float) -> list[str]:
    """Of a step with its share of the block's end, by row; their median and the largest."""
    lines, errors = [], []
    for row in rows:
        found, said = a_step(row), modelled(row, constants, pass_seconds)
        errors.append(said / found - 1)
        settings = Settings(**row["settings"])
        lines.append(
            f"{settings.system:<12}{settings.hosts:>7}{_rate_text(settings.mbit):>10}"
            f"{1e3 * found:>10.1f}{1e3 * said:>10.1f}{100 * errors[-1]:>7.1f}%"
        )
    if not rows:
        return ["all rows were fitted on: no error to tell"]
    sizes = sorted(map(abs, errors))
    head = f"{'not seen':<12}{'hosts':>7}{'Mbit/s':>10}{'measured':>10}{'modelled':>10}{'error':>8}"
    median = 100 * statistics.median(sizes)
    return [
        f"{head}   ms a step",
        *lines,
        f"{len(rows)} rows: median error {median:.1f} %, largest {100 * sizes[-1]:.1f} %",
    ]


def _rate_text(mbit: float | None) -> str:
    return "no limit" if mbit is None else f"{mbit:g}"


def document(path: Path, parts: dict[str, str]) -> None:
    """Put each text between its two marks in a Markdown file. ValueError where there are none."""
    text = path.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"{path}: no place for what is {name}")
        before, _, rest = text.partition(begin)
        text = before + begin + part + end + rest.partition(end)[2]
    path.write_text(text, encoding="utf-8")


def _document(rows: list[dict[str, Any]], fitted: str, path: Path) -> None:
    """The measured table, the fit, and the plan with its picture, in docs/speed.md."""
    command = [sys.executable, "-m", "tiered_dist", "plan", *PLAN]
    command += ["--figure", str(path.with_suffix(".svg"))]
    plan = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    parts = {"fitted": fitted, "modelled": plan.rstrip()}
    document(path, {"measured": table(rows)} | {n: f"```\n{t}\n```" for n, t in parts.items()})


def a_step(row: dict[str, Any]) -> float:
    """Measured seconds of a step, with its share of the block's end."""
    return row["step_seconds"] + row["block_seconds"] / row["settings"]["block_steps"]


def modelled(row: dict[str, Any], constants: Constants, pass_seconds: float) -> float:
    """The same by the cost model."""
    return predict(case(row, pass_seconds), constants).step(row["settings"]["block_steps"])


def table(rows: list[dict[str, Any]]) -> str:
    """Measured milliseconds a step, with what of it is waiting, by hosts and rate, in Markdown."""
    names = list(systems(0.01))
    lines = [
        f"| hosts | ranks | Mbit/s | {' | '.join(names)} | bytes counted / reported |",
        "|" + "---|" * (len(names) + 4),
    ]
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "hosts":
            settings = Settings(**row["settings"])
            key = (settings.hosts, settings.ranks, settings.mbit)
            groups.setdefault(key, {})[settings.system] = row
    for (hosts, ranks, mbit), found in groups.items():
        cells = [_cell(found[name]) if name in found else "" for name in names]
        ratios = [row["interface_bytes"] / row["reported_bytes"] for row in found.values()]
        lines.append(
            f"| {hosts} | {ranks} | {_rate_text(mbit)} | {' | '.join(cells)} | "
            f"{min(ratios):.3f} to {max(ratios):.3f} |"
        )
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    block_steps = row["settings"]["block_steps"]
    waiting = row["waiting_seconds"] + row["block_waiting_seconds"] / block_steps
    return f"{1e3 * a_step(row):.0f} ({1e3 * waiting:.0f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
