"""The report's plots, as SVG to stand in its page: text is text, colours are the page's."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Matplotlib draws in these; the page's style sheet says what they look like, light and dark.
INK = "#010101"
FAINT = "#020202"
SERIES = [f"#03030{i}" for i in range(8)]
PAGE_COLOURS = {
    INK: "currentColor",
    FAINT: "var(--faint)",
    **{colour: f"var(--s{i})" for i, colour in enumerate(SERIES)},
}
SIZE = (4.6, 2.9)  # inches; on a phone the page shrinks it little
MARKERS = "osD^vPX*"
DASHES = ["-", "--", "-.", ":"]


def draw_all(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """Title, caption and SVG of every plot that the report has data for."""
    names = [row["system"] for row in report["systems"]]
    plots = [_rates(report)]
    dev = [(row["system"], row["dev"]) for row in report["curves"] if row.get("dev")]
    guessed = [row["system"] for row in report["curves"] if row.get("totals_measured") is False]
    note = f" In proportion to steps for {', '.join(guessed)}." if guessed else ""
    for axis, title, scale in (
        ("samples", "samples (30 ms frames of all workers, millions)", 1e6),
        ("seconds", "minutes of training", 60),
        ("bytes", "MB sent by each worker", 1e6),
    ):
        lines = [(s, [x / scale for x in d[axis]], d["wer"]) for s, d in dev if d.get(axis)]
        if any(any(xs) for _, xs, _ in lines):
            plots.append(
                _curves(
                    names, f"Dev WER against {axis}", note, lines, title, "dev WER, %", marks=True
                )
            )
    for name, title, label, log_scale in (
        ("loss", "Training loss", "CTC loss per frame", True),
        ("density", "Density of tier 1", "share of values sent", True),
        ("residual", "Residual of tier 1", "norm of what is not sent yet", False),
        ("spread", "Spread before blocks", "spread of the subgroups' weights", False),
    ):
        lines = [
            (row["system"], row[name]["step"], row[name]["value"])
            for row in report["curves"]
            if row.get(name, {}).get("step")
        ]
        if lines:
            plots.append(_curves(names, title, "", lines, "step", label, log_scale=log_scale))
    workers = {row["workers"] for row in report["systems"]} - {None}
    if len(workers) > 1:
        plots.append(_workers(report))
    return [plot for plot in plots if plot]


def _rates(report: Mapping[str, Any]) -> dict[str, str]:
    rows = [
        (test_set, i, row["system"], row["rates"][test_set])
        for test_set in report["test_sets"]
        for i, row in enumerate(report["systems"])
        if row["rates"][test_set]["wer"] is not None
    ]
    if not rows:
        return {}

    def draw(axes: "Axes") -> None:
        for place, (_, i, _, rate) in enumerate(rows):
            ends = rate["interval"] or {"low": rate["wer"], "high": rate["wer"]}
            colour, marker = SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]
            axes.plot([ends["low"], ends["high"]], [-place, -place], color=colour, lw=1.6)
            axes.plot([rate["wer"]], [-place], marker, color=colour, ms=5)
        axes.set_yticks(
            [-place for place in range(len(rows))],
            [f"{test_set}  {system}".strip() for test_set, _, system, _ in rows],
        )
        axes.set_ylim(0.6 - len(rows), 0.6)
        axes.set_xlabel("WER, %")

    height = max(1.6, 0.9 + 0.27 * len(rows))
    caption = "Word error rates, with 95 % bootstrap intervals over utterances."
    described = "; ".join(f"{s} on {t}: {r['wer']:.2f} %" for t, _, s, r in rows)
    return _plot("Word error rates", caption, described, draw, (SIZE[0], height), [])


def _curves(
    names: Sequence[str],
    title: str,
    note: str,
    lines: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    marks: bool = False,
    log_scale: bool = False,
) -> dict[str, str]:
    def draw(axes: "Axes") -> None:
        for system, xs, ys in lines:
            i = names.index(system)
            style: dict[str, Any] = {
                "color": SERIES[i % len(SERIES)],
                "ls": DASHES[i % len(DASHES)],
                "lw": 1.4,
            }
            marker = MARKERS[i % len(MARKERS)] if marks else ""
            axes.plot(xs, ys, marker=marker, ms=4, label=system, **style)
        positive = all(y > 0 for _, _, ys in lines for y in ys)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        if log_scale and positive:
            _log_scale(axes)

    described = "; ".join(f"{system}: {ys[-1]:.4g} at the end" for system, _, ys in lines)
    legend = [system for system, _, _ in lines]
    return _plot(title, f"{title}.{note}", described, draw, SIZE, legend)


def _log_scale(axes: "Axes") -> None:
    """The y axis by logarithms; matplotlib's own labels would be formulas, which are off here."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _workers(report: Mapping[str, Any]) -> dict[str, str]:
    rows = [row for row in report["systems"] if row["workers"] is not None]

    def draw(axes: "Axes") -> None:
        for k, test_set in enumerate(report["test_sets"]):
            points = sorted(
                (row["workers"], row["rates"][test_set]["wer"])
                for row in rows
                if row["rates"][test_set]["wer"] is not None
            )
            colour, marker = SERIES[k % len(SERIES)], MARKERS[k % len(MARKERS)]
            axes.plot(*zip(*points, strict=True), marker, color=colour, ms=5, label=test_set)
        counts = sorted({row["workers"] for row in rows})
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, list(map(str, counts)))
        axes.minorticks_off()
        axes.set(xlabel="workers", ylabel="WER, %")

    described = "; ".join(
        f"{row['workers']} workers, {row['system']} on {name}: {rate['wer']:.2f} %"
        for row in rows
        for name, rate in row["rates"].items()
        if rate["wer"] is not None
    )
    title = "WER against number of workers"
    legend = list(report["test_sets"])
    return _plot(title, f"{title}, a mark for each system.", described, draw, SIZE, legend)


def _plot(
    title: str,
    caption: str,
    described: str,
    draw: Callable[["Axes"], None],
    size: tuple[float, float],
    legend: Sequence[str],
) -> dict[str, str]:
    # Imported when needed: it takes a second. Without pyplot no display is looked for.
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": title,  # ids of one page's plots differ, those of two runs do not
        "text.parse_math": False,  # a name may hold a $
        "font.size": 9,
        "font.family": "sans-serif",
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "grid.color": FAINT,
        "grid.alpha": 0.35,
        "grid.linewidth": 0.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        axes.grid(True)
        draw(axes)
        if legend:
            axes.legend(frameon=False, fontsize=8)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    return {
        "title": title,
        "caption": caption,
        "described": described,
        "svg": _inline(written.getvalue()),
    }


def _inline(svg: str) -> str:
    """An SVG file's element alone, in the page's colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1; font-family: inherit", svg)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    for colour, of_page in PAGE_COLOURS.items():
        svg = svg.replace(colour, of_page)
    return re.sub(r"\n\s*", "\n", svg)
