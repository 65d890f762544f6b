"""``python -m tiered_dist plan``: how fast four systems would be on machines that are not there.

Speed-up over one GPU, from one host on, for a dense all-reduce (overlapped with the backward pass,
as DistributedDataParallel has it), GTC alone, BMUF alone and two tiers, each with the settings that
make it fastest, by ``cost_model``; and what it would take for two tiers to be 1.25 times as fast as
BMUF alone and 100 times as fast as one GPU at 128, as Ladkat et al. (Interspeech 2019) report.
Everything printed is modelled, nothing is measured.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiered_dist.cost_model import Case, Constants, Machine, Times, predict
from tiered_dist.costs import World
from tiered_dist.gtc import GTC
from tiered_dist.host_level import DenseInHost
from tiered_dist.inner import Dense
from tiered_dist.layout import ParameterLayout
from tiered_dist.threshold import TargetDensity

# What Ladkat et al. report: over BMUF alone, and over one GPU with 128.
OVER_BMUF, EFFICIENCY = 1.25, 100 / 128
PASS_BYTES = 12  # residual.add_(gradient) reads two floats an element and writes one


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked: see ``python -m tiered_dist plan --help`` for each option."""

    hosts: int
    gpus: int
    parameters: int
    step_ms: float
    link_gbit: float
    host_gbyte: float
    memory_gbyte: float
    spread: float
    density: float
    longest_block: tuple[int, int]
    overlap: float
    bucket_mbyte: float
    constants: Constants

    def __post_init__(self) -> None:
        for name in (
            "hosts",
            "gpus",
            "parameters",
            "step_ms",
            "link_gbit",
            "host_gbyte",
            "memory_gbyte",
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name)}: above 0")
        if min(self.longest_block) < 1:
            raise ValueError(f"--longest-block {self.longest_block}: at least 1")
        for name in ("spread", "bucket_mbyte"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name)}: 0 or more")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"--overlap {self.overlap}: from 0 to 1")
        TargetDensity(self.density, self.density)  # checks it

    @property
    def known(self) -> Constants:
        """The constants, with what these GPUs send in place of what was measured elsewhere."""
        return dataclasses.replace(self.constants, byte_seconds=1 / (1e9 * self.host_gbyte))

    @property
    def machine(self) -> Machine:
        """The GPUs and links."""
        pass_seconds = PASS_BYTES / (1e9 * self.memory_gbyte)
        return Machine(1e9 * self.link_gbit, pass_seconds, spread=self.spread)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A system with settings that it could have; ``block_steps`` is 1 without tier 2."""

    system: str
    settings: str
    case: Case
    block_steps: int
    times: Times

    @property
    def step(self) -> float:
        """Seconds a step."""
        return self.times.step(self.block_steps)

    @property
    def speedup(self) -> float:
        """Over one GPU."""
        return self.times.speedup(self.block_steps)


@dataclasses.dataclass(frozen=True)
class Plan:
    """``tried`` are all settings by number of GPUs and system, the fastest first; ``needs`` are
    sentences."""

    question: Question
    tried: dict[int, dict[str, list[Candidate]]]
    needs: list[str]


def plan(question: Question) -> Plan:
    """Answer it. ValueError for what cannot be trained."""
    tried = {
        hosts * question.gpus: {
            system: sorted(found, key=lambda candidate: candidate.step)
            for system, found in candidates(question, hosts).items()
        }
        for hosts in host_counts(question.hosts)
    }
    return Plan(question, tried, needs(question, tried[question.hosts * question.gpus]))


def host_counts(most: int) -> list[int]:
    """1, 2, 4, ... and ``most``."""
    return [2**power for power in range(most.bit_length()) if 2**power < most] + [most]


def candidates(question: Question, hosts: int) -> dict[str, list[Candidate]]:
    """All settings that are compared, by system.

    A longer block and a lower density are always faster: those are given, not looked for.
    """
    ranks, gtc = hosts * question.gpus, GTC(TargetDensity(question.density, question.density), 16)
    sparse = f"density {question.density:g}"
    found: dict[str, list[Candidate]] = {"dense": [], "GTC": [], "BMUF": [], "two tiers": []}
    for dtype in ("fp32", "bf16"):
        found["dense"].append(_candidate(question, hosts, "dense", dtype, ranks, Dense(dtype)))
    levels = DenseInHost(gtc, "bf16")
    found["GTC"].append(_candidate(question, hosts, "GTC", f"flat, {sparse}", ranks, gtc))
    if hosts > 1 and question.gpus > 1:
        settings = f"between hosts, {sparse}; bf16 in them"
        found["GTC"].append(_candidate(question, hosts, "GTC", settings, ranks, levels))
    alone, in_tiers = question.longest_block
    found["BMUF"].append(_candidate(question, hosts, "BMUF", f"K {alone}", 1, Dense(), alone))
    for settings, inner in ((f"GTC, {sparse}", gtc), ("dense bf16", Dense("bf16"))):
        settings = f"{settings} in a host, K {in_tiers}"
        found["two tiers"].append(
            _candidate(question, hosts, "two tiers", settings, question.gpus, inner, in_tiers)
        )
    return found


def _candidate(
    question: Question,
    hosts: int,
    system: str,
    settings: str,
    subgroup: int,
    inner: Dense | GTC | DenseInHost,
    block_steps: int | None = None,
) -> Candidate:
    world = World.of(hosts * question.gpus, subgroup, question.gpus)
    total = question.parameters
    layout = ParameterLayout(("parameters",), ((total,),), (total,), total)
    case = Case(
        world,
        inner,
        layout,
        question.step_ms / 1000,
        question.machine,
        has_blocks=block_steps is not None,
    )
    if system == "dense":
        sent = 4 * total if inner == Dense() else 2 * total
        tail = min(1.0, 1e6 * question.bucket_mbyte / sent)
        case = dataclasses.replace(case, overlap=question.overlap, tail=tail)
    return Candidate(system, settings, case, block_steps or 1, predict(case, question.known))


def needs(question: Question, tried: dict[str, list[Candidate]]) -> list[str]:
    """What it would take for the reported figures to come out at the largest number of GPUs."""
    bmuf, two_tiers = tried["BMUF"][0], tried["two tiers"][0]
    ratio = bmuf.step / two_tiers.step
    lines = [
        f"samples a second, two tiers over BMUF alone: {ratio:.3f} (K {two_tiers.block_steps} and "
        f"{bmuf.block_steps}; {two_tiers.settings})"
    ]
    lines += [
        f"  {other.settings}: {bmuf.step / other.step:.3f}" for other in tried["two tiers"][1:]
    ]
    lines.append(
        f"{OVER_BMUF:g} in the time to one word error rate: if BMUF alone needs "
        f"{OVER_BMUF / ratio:.2f} times the samples of two tiers"
    )
    block = crossing(bmuf.times.step, OVER_BMUF * two_tiers.step, 1.0, 1e6)
    lines.append(
        f"{OVER_BMUF:g} in samples a second: "
        + (
            "not by the blocks of BMUF alone"
            if block is None
            else f"if BMUF alone can have no longer blocks than of {block:.3g} steps"
        )
    )
    return [*lines, _need_for_efficiency(question, two_tiers)]


def _need_for_efficiency(question: Question, two_tiers: Candidate) -> str:
    """The block, link, computation and spread of which each alone would bring the reported one."""
    target, block_steps = EFFICIENCY * two_tiers.times.ranks, two_tiers.block_steps

    def speedup(**changed: float) -> float:
        asked = dataclasses.replace(question, **changed)  # type: ignore[arg-type]
        case = dataclasses.replace(
            two_tiers.case, compute_seconds=asked.step_ms / 1000, machine=asked.machine
        )
        return predict(case, question.known).speedup(block_steps)

    values = {
        "blocks of {:.3g} steps": crossing(two_tiers.times.speedup, target, 1.0, 1e6),
        "links of {:.3g} Gbit/s": crossing(lambda x: speedup(link_gbit=x), target, 1e-4, 1e6),
        "{:.3g} ms of computation a step": crossing(
            lambda x: speedup(step_ms=x), target, 1e-3, 1e6
        ),
        "a spread of {:.2g}": crossing(lambda x: speedup(spread=x), target, 1e-4, 10.0),
    }
    ways = ", or ".join(way.format(x) for way, x in values.items() if x is not None)
    return (
        f"{target:.4g} times one GPU: two tiers are at {two_tiers.speedup:.1f}, and there with "
        + (ways or "no change of block, link, computation or spread alone")
    )


def crossing(
    function: Callable[[float], float], target: float, low: float, high: float
) -> float | None:
    """Where a monotone ``function`` comes to ``target``, to a thousandth; None if not in between.

    ``low`` and ``high`` are above 0.
    """
    rises = function(high) > function(low)
    if not min(function(low), function(high)) <= target <= max(function(low), function(high)):
        return None
    while high > low * 1.001:
        middle = math.sqrt(low * high)
        if (function(middle) < target) == rises:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def render(answer: Plan) -> str:
    """The plan as text: the table, what it would take, what is assumed."""
    question = answer.question
    lines = [
        f"{question.parameters:,} parameters, {question.step_ms:g} ms of computation a step, hosts "
        f"of {question.gpus} GPUs, links of {question.link_gbit:g} Gbit/s",
        "modelled, not measured: speed-up over one GPU, and milliseconds of a step",
    ]
    head = ["GPUs", "system", "speed-up", "step", "compute", "trainer"]
    table = [[*head, "tier 1", "tier 2", "waiting", "settings"]]
    for gpus, tried in answer.tried.items():
        for candidate, *_ in tried.values():
            parts = candidate.times.at(candidate.block_steps).values()
            figures = [f"{1e3 * part:.1f}" for part in (candidate.step, *parts)]
            speedup = f"{candidate.speedup:.1f}"
            table.append([str(gpus), candidate.system, speedup, *figures, candidate.settings])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[1], cells[-1] = row[1].ljust(widths[1]), row[-1]
        lines.append("  ".join(cells))
    gpus = question.hosts * question.gpus
    lines += ["", f"what it would take, at {gpus} GPUs", *(f"  {line}" for line in answer.needs)]
    return "\n".join([*lines, "", "assumed", *(f"  {line}" for line in assumptions(question))])


def assumptions(question: Question) -> list[str]:
    """All that the figures rest on."""
    constants = question.constants
    round_trip = constants.latency_seconds + constants.message_seconds
    return [
        f"every GPU has as many samples a step as the one alone, and computes "
        f"{question.step_ms:g} ms; times are normal with a spread of {question.spread:g} of it, "
        f"independent of each other, and waits {constants.straggling:.3g} times what that makes",
        f"rings that take ranks host by host; {1e6 * round_trip:.3g} us a round of messages, a "
        f"link {constants.link_stretch:.3g} times as long as its {question.link_gbit:g} Gbit/s "
        f"say, and {question.host_gbyte:g} GB/s out of a GPU",
        f"dense hides behind {question.overlap:.2g} of the computation, but for its last "
        f"{question.bucket_mbyte:g} MB; nothing else hides. (One LSTM of cuDNN gives all its "
        "gradients at its end, and dense then hides less)",
        f"a pass over the model, {PASS_BYTES} bytes an element at {question.memory_gbyte:g} GB/s, "
        f"takes {1e3 * question.parameters * question.machine.pass_seconds:.3g} ms; a step takes "
        f"{constants.trainer_passes:.3g} of them and {1e3 * constants.trainer_seconds:.3g} ms, GTC "
        f"{constants.codec_passes:.3g} and {1e3 * constants.codec_seconds:.3g} ms, a block's end "
        f"{constants.filter_passes:.3g} and {1e3 * constants.filter_seconds:.3g} ms; an entry of "
        f"GTC {constants.encode_entry_passes:.3g} elements' share of a pass to encode, "
        f"{constants.decode_entry_passes:.3g} to decode",
        f"K is the longest and the density ({question.density:g}) the lowest that does no harm: "
        "that is for a study of word error rates to say",
        f"constants: {constants.source}",
    ]


def as_dict(answer: Plan) -> dict[str, Any]:
    """Everything in plain types; seconds."""
    return {
        "modelled": True,
        "question": dataclasses.asdict(answer.question),
        "rows": [
            {
                "gpus": gpus,
                "system": candidate.system,
                "fastest": candidate is found[0],
                "settings": candidate.settings,
                "block_steps": candidate.block_steps if candidate.case.has_blocks else None,
                "speedup": candidate.speedup,
                "step": candidate.step,
                **candidate.times.at(candidate.block_steps),
            }
            for gpus, tried in answer.tried.items()
            for found in tried.values()
            for candidate in found
        ],
        "needs": answer.needs,
        "assumptions": assumptions(answer.question),
    }


def draw(answer: Plan, path: Path) -> None:
    """Speed-up against GPUs, as SVG. ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    question, gpus = answer.question, list(answer.tried)
    with matplotlib.rc_context({"svg.hashsalt": "tiered_dist", "svg.fonttype": "none"}):
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(gpus, gpus, color="0.6", linestyle="--", label="ideal")
        for system, marker in zip(answer.tried[gpus[0]], "os^D", strict=True):
            speedups = [tried[system][0].speedup for tried in answer.tried.values()]
            axes.plot(gpus, speedups, marker=marker, markersize=5, label=system)
        axes.set(
            xlabel="GPUs",
            ylabel="speed-up over one GPU",
            title=f"Modelled, not measured: {question.parameters / 1e6:g} M parameters, "
            f"{question.step_ms:g} ms a step, {question.link_gbit:g} Gbit/s",
        )
        axes.title.set_fontsize(10)
        axes.set_xticks(gpus)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})
