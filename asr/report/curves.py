"""How training went, from the TensorBoard files that it wrote."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Which scalars are drawn, by their names in the report.
SCALARS = {
    "loss": "train/loss_per_frame",
    "density": "tier1/density",
    "residual": "tier1/residual_norm",
    "spread": "tier2/spread",
}
DEV = "dev/wer"
# Totals since training began, written with each dev WER.
TOTALS = {"samples": "dev/samples", "seconds": "dev/seconds", "bytes": "dev/bytes"}
POINTS = 120


def read_curves(system: str, events: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Points of a system's curves; each of ``SCALARS`` is a mean over equal stretches of steps.

    Dev WER (per cent) has samples, seconds and bytes beside its steps. Runs that did not write
    these totals have them in proportion to their steps, and ``totals_measured`` is False.
    """
    # Imported when needed: it takes seconds.
    from tensorboard.backend.event_processing import (  # type: ignore[import-untyped]
        event_accumulator,
    )

    logging.getLogger("tensorboard").setLevel(logging.WARNING)
    scalars = event_accumulator.EventAccumulator(str(events), size_guidance={"scalars": 0}).Reload()
    there = set(scalars.Tags()["scalars"])
    curves: dict[str, Any] = {"system": system}
    for name, tag in SCALARS.items():
        if tag in there:
            points = [(event.step, event.value) for event in scalars.Scalars(tag)]
            curves[name] = thin(points, POINTS)
    if DEV in there:
        dev = {event.step: 100 * event.value for event in scalars.Scalars(DEV)}
        totals = {
            name: {event.step: event.value for event in scalars.Scalars(tag)}
            for name, tag in TOTALS.items()
            if tag in there
        }
        curves.update(dev_curve(dev, totals, summary))
    return curves


def dev_curve(
    dev: Mapping[int, float],
    totals: Mapping[str, Mapping[int, float]],
    summary: Mapping[str, Any],
) -> dict[str, Any]:
    """Dev WER over steps, samples, seconds and bytes; ``dev`` and ``totals`` are by step."""
    steps = sorted(dev)
    measured = all(step in totals.get(name, {}) for name in TOTALS for step in steps)
    curve: dict[str, list[float] | None] = {"step": [float(step) for step in steps]}
    ends = {
        "samples": summary.get("samples"),
        "seconds": summary.get("train_seconds"),
        "bytes": _bytes(summary),
    }
    last = summary.get("steps")
    for name, end in ends.items():
        if measured:
            curve[name] = [totals[name][step] for step in steps]
        elif end is not None and last:
            curve[name] = [end * min(1.0, step / last) for step in steps]
        else:
            curve[name] = None
    curve["wer"] = [round(dev[step], 4) for step in steps]
    return {"dev": curve, "totals_measured": measured}


def thin(points: Sequence[tuple[int, float]], number: int) -> dict[str, list[float]]:
    """At most ``number`` points: means of steps and values over equal stretches.

    Values that are not finite are left out.
    """
    array = np.array([point for point in points if np.isfinite(point[1])]).reshape(-1, 2)
    parts = np.array_split(array, min(number, len(array))) if len(array) else []
    means = [part.mean(axis=0) for part in parts]
    return {
        "step": [round(float(step), 1) for step, _ in means],
        "value": [float(f"{value:.5g}") for _, value in means],
    }


def _bytes(summary: Mapping[str, Any]) -> float | None:
    sent = summary.get("bytes_per_worker") or {}
    inner, outer = sent.get("inner_wire"), sent.get("outer")
    return None if inner is None or outer is None else float(inner + outer)
