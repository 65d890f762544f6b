"""The study's tables as Markdown, for people and for RESULTS.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from asr.report.figures import ABSENT, interval, number, yes_or_no
from asr.scoring.significance import not_worse
from asr.study.config import StudyConfig, show_point
from asr.study.summary import BMUF_SPANS, GTC_SPANS
from asr.study.sweeps import Sweeps

OUTSIDE = "†"


def format_study(
    config: StudyConfig, content: Mapping[str, Any], sweeps: Sweeps, command: str
) -> str:
    """The verdict, the systems with their rates and their regime, and the sweeps."""
    rows = content["systems"]
    parts = [
        f"Made by `{command}`.",
        *(_sentence(config, row) for row in content["verdict"]),
        "**Word error rates**, %: mean over seeds, with the 95 % interval of the mean (bootstrap "
        "over speakers and seeds; with one seed over speakers alone), and each seed's. The "
        f"relative difference in % is from {config.reference}; *better* is the share of replicas "
        f"with fewer errors than {config.baseline}.",
        _rates(config, rows),
        f"**Regime**, of the first seed. {OUTSIDE}: outside the regime that the tiers are made "
        f"for, fewer than {BMUF_SPANS} spans of BMUF's memory, blocks * (1 - eta), or {GTC_SPANS} "
        "of GTC's delay, steps * density. Samples are frames of 30 ms of all workers; MB are sent "
        "by a worker, over the wire.",
        _regime(rows),
        *_sweeps(config, sweeps),
    ]
    return "\n\n".join(parts) + "\n"


def _sentence(config: StudyConfig, row: Mapping[str, Any]) -> str:
    one, base = row["against_reference"], row["against_baseline"]
    if not one or not base:
        return f"On {row['test_set']} nothing can be said: a single speaker."
    said = "not worse" if row["not_worse"] else "not shown to be not worse"
    parts = [
        f"On {row['test_set']}, {config.two_tier} is **{said}** than {config.reference} at a "
        f"margin of {config.margin:g} %: relative difference {_relative(one)}",
        f"the data resolve about {number(row['resolved'], '.1f')} %",
        f"against {config.baseline} it is {_relative(base)}, with fewer errors in "
        f"{100 * base['probability_better']:.1f} % of replicas",
    ]
    seeds = "/".join(map(str, row["seeds"]))
    return "; ".join(parts) + f" (seeds: {seeds})."


def _relative(difference: Mapping[str, Any] | None) -> str:
    if difference is None or difference["relative"] is None:
        return ABSENT
    low, high = difference["relative_interval"] or (None, None)
    ends = interval(low, high, "+.1f")
    return f"{difference['relative']:+.1f} % ({ends})"


def _rates(config: StudyConfig, rows: Sequence[Mapping[str, Any]]) -> str:
    test_sets = list(rows[0]["rates"])
    header = ["system", "workers", "seeds"]
    for name in test_sets:
        header += [name, "interval", "by seed", "relative", "not worse", "better"]
    return _markdown([*header, "dev"], [_rate_row(config, row, test_sets) for row in rows])


def _rate_row(config: StudyConfig, row: Mapping[str, Any], test_sets: Sequence[str]) -> list[str]:
    cells = [row["system"], str(row["workers"]), str(len(row["seeds"]))]
    for name in test_sets:
        rate = row["rates"][name]
        one, base = (row["differences"].get(r, {}).get(name) for r in ("reference", "baseline"))
        shown = one and one["relative_interval"]
        cells += [
            f"{rate['wer']:.2f}",
            interval(*(rate["interval"] or (None, None))),
            ", ".join(f"{wer:.2f}" for wer in rate["by_seed"]),
            _relative(one),
            yes_or_no(not_worse(shown, config.margin) if shown else None),
            ABSENT if base is None else f"{100 * base['probability_better']:.1f} %",
        ]
    return [*cells, ", ".join(f"{wer:.2f}" for wer in row["dev_wer"])]


def _regime(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ["system", "workers", "subgroups", "tier 1", "tier 2", "block", "eta", "rate"]
    header += ["density %", "steps", "steps * density", "blocks", "blocks * (1 - eta)"]
    header += ["samples, M", "frames a step", "tier 1 MB", "tier 2 MB", "minutes"]
    return _markdown(header, list(map(_regime_row, rows)))


def _regime_row(row: Mapping[str, Any]) -> list[str]:
    outside, sent = row["outside"], row["bytes_per_worker"]
    density = row["density"]
    return [
        row["system"],
        str(row["workers"]),
        str(row["subgroups"]),
        row["inner"],
        row["outer"],
        number(row["block_steps"]),
        number(row["block_momentum"], ".4g"),
        f"{row['learning_rate']:g}",
        number(None if density is None else 100 * density, ".2f"),
        str(row["steps"]),
        number(row["gtc_spans"], ".1f") + (OUTSIDE if "GTC" in outside else ""),
        str(row["blocks"]),
        number(row["bmuf_spans"], ".1f") + (OUTSIDE if "BMUF" in outside else ""),
        f"{row['samples'] / 1e6:.2f}",
        f"{row['frames_a_step']:.0f}",
        f"{sent['inner_wire'] / 1e6:.0f}",
        f"{sent['outer'] / 1e6:.0f}",
        ", ".join(f"{seconds / 60:.1f}" for seconds in row["train_seconds"]),
    ]


def _sweeps(config: StudyConfig, sweeps: Sweeps) -> list[str]:
    parts = []
    for name, points in sweeps.points.items():
        ordered = sorted(points, key=lambda p: float("inf") if p.dev_wer is None else p.dev_wer)
        rows = [
            [
                show_point(point.point),
                "no model" if point.dev_wer is None else f"{point.dev_wer:.2f}",
            ]
            for point in ordered
        ]
        edge = sweeps.on_edge(name)
        warning = f" **On the edge of what was tried: {', '.join(edge)}.**" if edge else ""
        with_ = f", with {config.sweep_settings}" if config.sweep_settings else ""
        parts += [
            f"**Sweep of {name}** on dev, {len(points)} runs of one seed{with_}.{warning}",
            _markdown(["point", "dev WER %"], rows),
        ]
    return parts


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
