"""Pictures of results: each `plot_x` draws into the Axes it is given, or into a new figure's, and returns it.

No backend is chosen and no global state of matplotlib is touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilesim.files import atomic_write
from tilesim.sweep_plots import (
    Curve,
    plot_error_over_length,
    plot_heatmap,
    plot_pareto,
    plot_throughput_over_tile,
)
from tilesim.timing.device_time import LANES, OPERATIONS
from tilesim.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tilesim.memory.budget import Budget, MemoryBudget
    from tilesim.memory.buffers import Buffer
    from tilesim.memory.footprint import Footprint
    from tilesim.result import SimulationResult
    from tilesim.timing import DeviceTime, Timeline

__all__ = [
    "Curve",
    "budget_figure",
    "device_figure",
    "footprint_figure",
    "plot_budget",
    "plot_error_over_length",
    "plot_errors",
    "plot_footprint",
    "plot_heatmap",
    "plot_pareto",
    "plot_roofline",
    "plot_simulation",
    "plot_throughput_over_tile",
    "plot_timeline",
    "plot_usage",
    "save_figure",
]

DPI = 150
LIMIT_COLOR = "#aa1111"
KIB = 1024

BUFFER_COLORS = {
    "score": "#4477aa",
    "mask": "#66ccee",
    "partial": "#228833",
    "probability": "#ccbb44",
    "sum": "#ee6677",
    "max": "#aa3377",
    "exp_max": "#bbbbbb",
    "accumulator": "#eeaa66",
    "normalisation scratch": "#88ccaa",
    "softmax temporary": "#775544",
    "message slot": "#222222",
    "softcap temporary": "#cc9966",
    "distance": "#225555",
    "bias": "#55aaaa",
    "sinks": "#663399",
    "split": "#336633",
    "split sum": "#993333",
    "split state": "#996699",
}
OPERATION_COLORS = (
    "#114477", "#4477aa", "#77aadd", "#99ccee", "#117744", "#44aa77", "#cc6677", "#aa4455", "#777711",
    "#aaaa44", "#4477aa", "#88ccee", "#dd7788", "#ddaa77", "#77aadd", "#aa4488", "#774411", "#cc99bb",
    "#bbbbbb", "#999999", "#336633", "#993333",
)  # fmt: skip
"""One for each kind of operation."""
_LEAST_ERROR = 1e-12
"""Errors below this, zero included, are drawn at the foot of the logarithmic axis."""


def _look(buffer: Buffer) -> dict[str, Any]:
    """Return how a buffer is drawn, the same in every picture."""
    label = f"{buffer.name}: {format_size(buffer.total_bytes)}"
    label += f" ({buffer.count} x)" if buffer.count > 1 else ""
    return {"color": BUFFER_COLORS[buffer.name], "edgecolor": "white", "linewidth": 0.8, "label": label}


def _new_axes(width: float, height: float) -> Axes:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def plot_usage(budget: Budget, *, ax: Axes | None = None) -> Axes:
    """Draw what fills UB as one stacked bar against its limits.

    Parameters
    ----------
    budget : Budget
    ax : Axes, optional

    Returns
    -------
    Axes
        KiB along the x axis; one line at the available bytes and one at the capacity.
    """
    ax = _new_axes(9.5, 3.6) if ax is None else ax
    ub = budget.memories["UB"]
    left = 0.0
    for buffer in ub.buffers:
        width = buffer.total_bytes / KIB
        ax.barh(0, width, left=left, height=0.5, **_look(buffer))
        left += width
    _limit_lines(ax, ub, horizontal=False)
    verdict = "fits" if ub.fits else f"{format_size(ub.excess_bytes)} over"
    tile = budget.tile
    ax.set_title(
        f"UB of one vector core, {budget.platform.title}: {format_size(ub.used_bytes)} used, {verdict}\n"
        f"SOFTMAX_ROWS {tile.softmax_rows}, KV_TILE {tile.kv_tile}, query rows {tile.query_rows}, "
        f"{budget.precision.name}",
        fontsize=10,
        color="black" if ub.fits else LIMIT_COLOR,
    )
    ax.set_xlabel("UB in use (KiB)")
    ax.set_xlim(0, 1.06 * max(ub.used_bytes, ub.capacity_bytes) / KIB)
    ax.set_ylim(-0.4, 0.4)
    ax.set_yticks([])
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=3, fontsize=8, frameon=False)
    return ax


def plot_budget(budget: Budget, *, ax: Axes | None = None) -> Axes:
    """Draw the UB buffers as lanes over the stages of the kernel, each at its planned offset.

    Parameters
    ----------
    budget : Budget
    ax : Axes, optional

    Returns
    -------
    Axes
        Stages along the x axis, UB address in KiB along the y axis; lines at available bytes and capacity.
    """
    ax = _new_axes(9.5, 5.5) if ax is None else ax
    ub = budget.memories["UB"]
    stages = ub.stages
    for buffer in ub.buffers:
        first, last = stages.index(buffer.first_stage), stages.index(buffer.last_stage)
        bottom, height = buffer.offset_bytes / KIB, buffer.total_bytes / KIB
        ax.bar((first + last) / 2, height, width=last - first + 1, bottom=bottom, alpha=0.9, **_look(buffer))
    _limit_lines(ax, ub, horizontal=True)
    verdict = "fits" if ub.fits else f"{format_size(ub.excess_bytes)} over"
    ax.set_title(
        f"UB of one vector core, {budget.platform.title}: {format_size(ub.used_bytes)} allocated statically, "
        f"{verdict}\nwith dead buffers reused, as drawn: {format_size(ub.peak_bytes)}",
        fontsize=10,
        color="black" if ub.fits else LIMIT_COLOR,
    )
    ax.set_xticks(range(len(stages)), labels=list(stages))
    ax.set_xlim(-0.5, len(stages) - 0.5)
    ax.set_xlabel("stage of one vector core")
    ax.set_ylabel("UB address (KiB)")
    ax.set_ylim(0, 1.06 * max(ub.peak_bytes, ub.capacity_bytes) / KIB)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, fontsize=8, frameon=False)
    return ax


def _limit_lines(ax: Axes, ub: MemoryBudget, *, horizontal: bool) -> None:
    draw = ax.axhline if horizontal else ax.axvline
    for limit, style, name in (
        (ub.available_bytes, "-", "available"),
        (ub.capacity_bytes, ":", "capacity"),
    ):
        label = f"{name}: {format_size(limit)}"
        draw(limit / KIB, color=LIMIT_COLOR, linestyle=style, linewidth=1.6, label=label)


def plot_footprint(footprint: Footprint, *, ax: Axes | None = None) -> Axes:
    """Draw UB against sequence length: the tiled kernel stacked by buffer, the full-row kernel as a line.

    Parameters
    ----------
    footprint : Footprint
    ax : Axes, optional

    Returns
    -------
    Axes
        Sequence length along the x axis, logarithmic to base 2; UB in KiB along the y axis.
    """
    ax = _new_axes(9.5, 5.5) if ax is None else ax
    lengths = footprint.lengths
    names = list(dict.fromkeys(buffer.name for budget in footprint.tiled for buffer in budget.buffers))
    sizes = [
        [sum(b.total_bytes for b in budget.buffers if b.name == name) / KIB for budget in footprint.tiled]
        for name in names
    ]
    # What holds at one length is drawn back to the one before: the long path begins right behind KV_TILE.
    ax.stackplot(
        lengths, *sizes, labels=[f"tiled: {name}" for name in names],
        colors=[BUFFER_COLORS[name] for name in names], alpha=0.85, step="pre",
    )  # fmt: skip
    whole = [budget.used_bytes / KIB for budget in footprint.full_row]
    ax.plot(lengths, whole, color="black", linestyle="--", marker=".", label="full score rows: all buffers")
    ub = footprint.tiled[0].memories["UB"]
    _limit_lines(ax, ub, horizontal=True)
    first = footprint.first_unfit_length
    if first is not None and lengths[0] <= first <= lengths[-1]:
        ax.axvline(first, color="black", linestyle=":", linewidth=1.0)
        ax.annotate(
            f"full rows no longer fit\nfrom {first:,} on", (first, 0.97), xytext=(-6, 0), va="top",
            ha="right", fontsize=8, xycoords=("data", "axes fraction"), textcoords="offset points",
        )  # fmt: skip
    tile = footprint.tiled[0].requested_tile
    ax.set_title(
        f"UB footprint against sequence length, {footprint.tiled[0].platform.title}\n"
        f"SOFTMAX_ROWS {tile.softmax_rows}, KV_TILE {tile.kv_tile}, {footprint.tiled[0].precision.name}",
        fontsize=10,
    )
    tallest = max(ub.capacity_bytes, *(budget.used_bytes for budget in footprint.tiled)) / KIB
    ax.set_ylim(0, 1.6 * tallest)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.set_xlim(lengths[0], max(lengths[-1], lengths[0] + 1))
    ax.set_xlabel("sequence length (queries and keys)")
    ax.set_ylabel("UB in use by one vector core (KiB)")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, fontsize=8, frameon=False)
    return ax


def plot_errors(result: SimulationResult, *, ax: Axes | None = None) -> Axes:
    """Draw the rms and the largest absolute error of each policy as horizontal bars.

    Parameters
    ----------
    result : SimulationResult
    ax : Axes, optional

    Returns
    -------
    Axes
        Logarithmic error axis, in the units of the output.
    """
    ax = _new_axes(7.0, 3.0) if ax is None else ax
    names = list(result.errors)
    for offset, field, label, color in ((-0.2, "rms", "rms", "#4477aa"), (0.2, "max_abs", "max", "#cc6677")):
        values = [getattr(result.errors[name], field) for name in names]
        places = [index + offset for index in range(len(names))]
        bars = ax.barh(places, [_drawable(value) for value in values], height=0.36, label=label, color=color)
        ax.bar_label(bars, labels=[f"{value:.2e}" for value in values], padding=3, fontsize=8)
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.set_xlim(low / 3, high * 8)
    ax.set_yticks(range(len(names)), labels=names)
    ax.invert_yaxis()
    ax.set_xlabel("absolute error against float64 (units of the output)")
    ax.set_title("Error of the output by precision policy", fontsize=10)
    ax.legend(loc="lower right", fontsize=8)
    ax.grid(axis="x", alpha=0.3)
    return ax


def _drawable(value: float) -> float:
    return value if _LEAST_ERROR < value < float("inf") else _LEAST_ERROR


def plot_simulation(result: SimulationResult) -> Figure:
    """Return one figure of a simulation: UB against its limit above, the errors of the policies below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 6.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, height_ratios=(1.2, 1.0))
    plot_usage(result.budget, ax=top)
    plot_errors(result, ax=bottom)
    return figure


def budget_figure(budget: Budget) -> Figure:
    """Return one figure of a budget: UB against its limit above, its buffers over the stages below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 8.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, height_ratios=(1.0, 2.4))
    plot_usage(budget, ax=top)
    plot_budget(budget, ax=bottom)
    legend = top.get_legend()
    if legend is not None:  # the lower picture has the same entries
        legend.remove()
    return figure


def footprint_figure(footprint: Footprint) -> Figure:
    """Return one figure of a footprint over sequence lengths."""
    figure = plot_footprint(footprint).figure
    assert figure is not None
    return figure  # type: ignore[return-value]


def plot_timeline(timeline: Timeline, *, ax: Axes | None = None, tiles: int = 2) -> Axes:
    """Draw the first tiles of one core as a Gantt chart: one row a lane, one bar an operation.

    Parameters
    ----------
    timeline : Timeline
    ax : Axes, optional
    tiles : int
        Tiles of the first tasks to draw.

    Returns
    -------
    Axes
        Time in us along the x axis, lanes along the y axis.
    """
    ax = _new_axes(11.0, 5.0) if ax is None else ax
    turns = sorted({(event.task, event.tile) for event in timeline.events})[:tiles]
    shown = [event for event in timeline.events if (event.task, event.tile) in turns]
    lanes = list(dict.fromkeys(sorted((event.lane for event in shown), key=LANES.index)))
    for name in dict.fromkeys(event.name for event in shown):
        own = [event for event in shown if event.name == name]
        ax.barh(
            [lanes.index(event.lane) for event in own],
            [event.end_us - event.start_us for event in own],
            left=[event.start_us for event in own],
            height=0.7,
            color=OPERATION_COLORS[OPERATIONS.index(name)],
            label=name,
        )
    device = timeline.device_time
    ax.set_yticks(range(len(lanes)), labels=lanes, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("modelled time from the launch on (us)")
    ax.set_title(
        f"Core {timeline.core} of {device.platform}, first {len(turns)} tiles; whole launch "
        f"{device.time_us:.1f} us, bound: {device.bound}",
        fontsize=10,
    )
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=5, fontsize=7, frameon=False)
    ax.grid(axis="x", alpha=0.3)
    return ax


def plot_roofline(device: DeviceTime, *, ax: Axes | None = None) -> Axes:
    """Draw what the launch reaches under the roofs of the matrix unit, L2 and HBM.

    Parameters
    ----------
    device : DeviceTime
    ax : Axes, optional

    Returns
    -------
    Axes
        Useful operations a byte of the tensors along the x axis, TFLOP/s along the y axis, both logarithmic.
    """
    ax = _new_axes(8.0, 4.5) if ax is None else ax
    bounds = device.roofline
    # Bytes a us from time and intensity: HBM moves the tensors, L2 the exchange between cores as well.
    reach = [bounds.intensity / 30, bounds.intensity * 30]
    for time_us, style, name in (
        (bounds.hbm_us, "-", "HBM: tensors once"),
        (bounds.l2_us, "--", "L2: with exchange between cores"),
    ):
        slope = device.useful_flops / time_us / 1e6 / bounds.intensity
        ax.plot(reach, [slope * x for x in reach], color=LIMIT_COLOR, linestyle=style, label=name)
    useful_peak = bounds.peak_tflops * device.useful_flops / device.executed_flops
    ax.axhline(bounds.peak_tflops, color="black", label=f"cube peak: {bounds.peak_tflops:.0f} TFLOP/s")
    ax.axhline(
        useful_peak,
        color="black",
        linestyle=":",
        label=f"cube peak, visible pairs: {useful_peak:.0f} TFLOP/s",
    )
    ax.plot([bounds.intensity], [device.tflops], "o", color="#4477aa", markersize=9)
    ax.annotate(
        f"{device.tflops:.1f} TFLOP/s, {device.time_us:.1f} us", (bounds.intensity, device.tflops),
        xytext=(10, -4), textcoords="offset points", fontsize=9,
    )  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(*reach)
    ax.set_ylim(device.tflops / 10, bounds.peak_tflops * 3)
    ax.set_xlabel("useful FLOP for each byte of the tensors")
    ax.set_ylabel("useful TFLOP/s")
    ax.set_title(f"Roofline of {device.platform}; bound: {device.bound}", fontsize=10)
    ax.legend(loc="lower right", fontsize=8)
    ax.grid(alpha=0.3, which="both")
    return ax


def device_figure(timeline: Timeline) -> Figure:
    """Return one figure of the modelled time: timeline above, roofline below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 10.0), layout="constrained")
    top, bottom = figure.subplots(2, 1, height_ratios=(1.3, 1.0))
    plot_timeline(timeline, ax=top)
    plot_roofline(timeline.device_time, ax=bottom)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure to a .png, .pdf or .svg file, whole or not at all.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    kind: Any = Path(path).suffix[1:].lower() or "png"
    with atomic_write(path) as file:
        figure.savefig(file, format=kind, dpi=DPI)
