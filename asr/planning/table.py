"""A plan as text: preparation, then all systems side by side."""

import functools
from collections.abc import Callable, Sequence

from asr.planning.estimates import CHECKPOINTS_AT_ONCE, Machines, SystemPlan
from asr.planning.preparation import Preparation

Row = tuple[str, Callable[[SystemPlan], str]]


def render(preparation: Preparation, plans: Sequence[SystemPlan], machines: Machines) -> str:
    """The whole plan, a figure a line; what is an estimate says so."""
    lines = [*_preparation(preparation), "", *_systems(plans, machines)]
    for plan in plans:
        lines += [f"warning: {plan.name}: {warning}" for warning in plan.warnings]
    return "\n".join(lines)


def _preparation(preparation: Preparation) -> list[str]:
    counted = preparation.counted
    source = f"counted: {', '.join(counted)}" if counted else "from conf/plan.yaml"
    lines = [f"data ({source}; the rest is planned)" if counted else f"data ({source})"]
    lines += [
        f"  {name:<24} {split.hours:10,.1f} h {split.utterances:12,} utterances"
        for name, split in preparation.splits.items()
    ]
    lines.append("disk")
    lines += [
        f"  {stage:<24} {bytes_text(size):>12}" + ("" if stage in counted else "  planned")
        for stage, size in preparation.disk.items()
    ]
    lines.append(f"  {'all':<24} {bytes_text(sum(preparation.disk.values())):>12}")
    lines.append("preparation, core-hours at the rates measured now")
    lines += [f"  {what:<24} {hours:12,.2f}" for what, hours in preparation.core_hours.items()]
    for rate in preparation.rates.values():
        speeds = ", ".join(f"{speed}: {value:,.0f}" for speed, value in rate.features.items())
        lines.append(
            f"  measured: {rate.sample}: validation {rate.validation:,.0f} times real time, "
            f"features at speed {speeds}"
        )
    return lines


def _systems(plans: Sequence[SystemPlan], machines: Machines) -> list[str]:
    rows: list[Row] = [
        ("workers, hosts, subgroups", lambda p: f"{p.workers}, {p.hosts}, {p.subgroups}"),
        ("tier 1", lambda p: p.inner),
        ("parameters", lambda p: f"{p.parameters:,}"),
        ("steps an epoch, epochs", lambda p: f"{p.steps_an_epoch:,}, {p.epochs}"),
        ("steps", lambda p: f"{p.steps:,}"),
        ("blocks", lambda p: f"{p.blocks:,}" if p.blocks else "-"),
        ("blocks * (1 - eta)", lambda p: _number(p.memory_spans)),
        ("sent by a worker in a step", lambda p: ""),
        *_levels(plans),
        ("  dense fp32 in its place", lambda p: bytes_text(p.dense_bytes)),
        ("  tier 2, in a block", lambda p: bytes_text(p.block_bytes)),
        ("  tier 2, shared by its steps", lambda p: bytes_text(p.block_bytes_a_step)),
        ("sent by a worker in all, tier 1", lambda p: bytes_text(p.run_bytes["tier 1"])),
        ("sent by a worker in all, tier 2", lambda p: bytes_text(p.run_bytes["tier 2"])),
        ("leaving a host in a step", lambda p: bytes_text(p.link_bytes)),
        (
            f"  at {machines.link_gigabits:g} Gbit/s, ms",
            lambda p: f"{p.link_milliseconds:.3g}",
        ),
        ("memory of a GPU", lambda p: bytes_text(p.memory_bytes)),
        *_memory(plans),
        ("a checkpoint", lambda p: bytes_text(p.checkpoint_bytes)),
        (
            f"  {CHECKPOINTS_AT_ONCE} at once on disk",
            lambda p: bytes_text(CHECKPOINTS_AT_ONCE * p.checkpoint_bytes),
        ),
        ("models of evaluations on disk", lambda p: bytes_text(p.evaluated_models)),
    ]
    table = [["system", *(plan.name for plan in plans)]]
    table += [[label, *(value(plan) for plan in plans)] for label, value in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in table
    ]


def _levels(plans: Sequence[SystemPlan]) -> list[Row]:
    levels = dict.fromkeys(level for plan in plans for level in plan.levels)
    return [
        (f"  tier 1, {level}: {what}", functools.partial(_level, level=level, what=what))
        for level in levels
        for what in ("payload", "wire")
    ]


def _level(plan: SystemPlan, level: str, what: str) -> str:
    return bytes_text(plan.levels[level][what]) if level in plan.levels else "-"


def _memory(plans: Sequence[SystemPlan]) -> list[Row]:
    terms = dict.fromkeys(term for plan in plans for term in plan.memory)
    ordered = sorted(terms, key=lambda term: term.startswith("about"))
    return [(f"  {term}", functools.partial(_term, term=term)) for term in ordered]


def _term(plan: SystemPlan, term: str) -> str:
    return bytes_text(plan.memory.get(term, 0.0))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def bytes_text(size: float) -> str:
    """``1.23 GB``, in powers of ten; ``-`` for nothing."""
    if not size:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB" if size < 999.5 else f"{size:,.0f} TB"
