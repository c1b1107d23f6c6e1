"""Pictures of results: each `plot_x` draws into the Axes it is given, or into a new figure's, and returns it.

No backend is chosen and no global state of matplotlib is touched.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilesim.files import atomic_write
from tilesim.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tilesim.memory.budget import Budget
    from tilesim.result import SimulationResult

__all__ = ["budget_figure", "plot_budget", "plot_errors", "plot_simulation", "save_figure"]

DPI = 150
KIB = 1024

BUFFER_COLORS = (
    "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677",
    "#aa3377", "#bbbbbb", "#eeaa66", "#88ccaa", "#775544",
)  # fmt: skip
_LEAST_ERROR = 1e-12
"""Errors below this, zero included, are drawn at the foot of the logarithmic axis."""


def _new_axes(width: float, height: float) -> Axes:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def plot_budget(budget: Budget, *, ax: Axes | None = None) -> Axes:
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
    for buffer, color in zip(ub.buffers, itertools.cycle(BUFFER_COLORS), strict=False):
        width = buffer.total_bytes / KIB
        label = f"{buffer.name}: {format_size(buffer.total_bytes)}"
        label += f" ({buffer.count} x)" if buffer.count > 1 else ""
        ax.barh(0, width, left=left, height=0.5, color=color, edgecolor="white", linewidth=0.8, label=label)
        left += width
    for limit, style, name in (
        (ub.available_bytes, "-", "available"),
        (ub.capacity_bytes, ":", "capacity"),
    ):
        size = format_size(limit)
        ax.axvline(limit / KIB, color="#aa1111", linestyle=style, linewidth=1.6, label=f"{name}: {size}")
    verdict = "fits" if ub.fits else f"{format_size(ub.excess_bytes)} over"
    tile = budget.tile
    ax.set_title(
        f"UB of one vector core, {budget.platform.title}: {format_size(ub.used_bytes)} used, {verdict}\n"
        f"SOFTMAX_ROWS {tile.softmax_rows}, KV_TILE {tile.kv_tile}, query rows {tile.query_rows}, "
        f"{budget.precision.name}",
        fontsize=10,
        color="black" if ub.fits else "#aa1111",
    )
    ax.set_xlabel("UB in use (KiB)")
    ax.set_xlim(0, 1.06 * max(ub.used_bytes, ub.capacity_bytes) / KIB)
    ax.set_ylim(-0.4, 0.4)
    ax.set_yticks([])
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=3, fontsize=8, frameon=False)
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
    plot_budget(result.budget, ax=top)
    plot_errors(result, ax=bottom)
    return figure


def budget_figure(budget: Budget) -> Figure:
    """Return one figure of a budget: UB against its limit."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    plot_budget(budget, ax=figure.subplots())
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
