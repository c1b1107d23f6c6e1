"""Pictures of sweeps; see `plots` for the rules."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilesim.advise import pareto_front

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KIB = 1024
Row = Mapping[str, Any]


def _axes(ax: Axes | None, width: float, height: float) -> Axes:
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def plot_heatmap(rows: Iterable[Row], *, ax: Axes | None = None) -> Axes:
    """Draw device time over SOFTMAX_ROWS x KV_TILE, the region that does not fit hatched.

    Of several rows with the same two values the fastest that fits is drawn.

    Parameters
    ----------
    rows : iterable of rows
    ax : Axes, optional

    Returns
    -------
    Axes
        KV_TILE along the x axis, SOFTMAX_ROWS along the y axis, time in us as colour and number.
    """
    import numpy as np
    from matplotlib.patches import Rectangle

    ax = _axes(ax, 9.0, 5.0)
    table = list(rows)
    columns = sorted({row["kv_tile"] for row in table})
    lines = sorted({row["softmax_rows"] for row in table})
    times = np.full((len(lines), len(columns)), np.nan)
    for row in table:
        if row["status"] == "fits" and row["time_us"] is not None:
            place = lines.index(row["softmax_rows"]), columns.index(row["kv_tile"])
            times[place] = np.fmin(times[place], row["time_us"])
    image = ax.imshow(times, origin="lower", aspect="auto", cmap="viridis_r")
    middle = np.nanmean(times) if np.isfinite(times).any() else 0.0
    for (y, x), time_us in np.ndenumerate(times):
        if math.isnan(time_us):
            ax.add_patch(
                Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, hatch="///", edgecolor="#999999", linewidth=0)
            )
        elif times.size <= 150:
            color = "white" if time_us > middle else "black"
            ax.text(x, y, f"{time_us:.0f}", ha="center", va="center", fontsize=8, color=color)
    ax.set_xticks(range(len(columns)), labels=[f"{value:,}" for value in columns])
    ax.set_yticks(range(len(lines)), labels=[str(value) for value in lines])
    ax.set_xlabel("KV_TILE (keys)")
    ax.set_ylabel("SOFTMAX_ROWS (rows)")
    ax.set_title("Modelled device time; hatched: does not fit", fontsize=10)
    figure = ax.figure
    figure.colorbar(image, ax=ax, label="device time (us)")
    return ax


def plot_pareto(rows: Iterable[Row], *, ax: Axes | None = None) -> Axes:
    """Draw device time against UB use, with the Pareto front.

    Parameters
    ----------
    rows : iterable of rows
    ax : Axes, optional

    Returns
    -------
    Axes
        UB in KiB along the x axis, device time in us along the y axis.
    """
    ax = _axes(ax, 9.0, 5.0)
    fitting = [row for row in rows if row["status"] == "fits" and row["time_us"] is not None]
    for precision in dict.fromkeys(row["precision"] for row in fitting):
        own = [row for row in fitting if row["precision"] == precision]
        ax.scatter(
            [row["ub_used_bytes"] / KIB for row in own], [row["time_us"] for row in own], s=18, alpha=0.6,
            label=precision,
        )  # fmt: skip
    front = sorted(pareto_front(fitting, ("time_us", "ub_used_bytes")), key=lambda row: row["ub_used_bytes"])
    ax.step(
        [row["ub_used_bytes"] / KIB for row in front], [row["time_us"] for row in front], "k.--", linewidth=1,
        where="post", label="front: none is both faster and smaller",
    )  # fmt: skip
    for row in front[:12]:
        ax.annotate(
            f"{row['softmax_rows']} x {row['kv_tile']}", (row["ub_used_bytes"] / KIB, row["time_us"]),
            xytext=(4, 4), textcoords="offset points", fontsize=7,
        )  # fmt: skip
    if fitting:
        available = fitting[0]["ub_available_bytes"] / KIB
        ax.axvline(available, color="#aa1111", label=f"UB available: {available:.2f} KiB")
    ax.set_xlabel("UB in use by one vector core (KiB)")
    ax.set_ylabel("modelled device time (us)")
    ax.set_title("Time against UB; labels: SOFTMAX_ROWS x KV_TILE", fontsize=10)
    ax.legend(fontsize=8)
    ax.grid(alpha=0.3)
    return ax


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Measured points of one policy.

    Attributes
    ----------
    name : str
    x, y : sequences of float
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]


def _plot_curves(curves: Iterable[Curve], ax: Axes) -> None:
    # Curves may lie on each other: later ones are drawn open and dashed.
    for place, (curve, marker) in enumerate(zip(curves, "os^Dv", strict=False)):
        style = "-" if place == 0 else "--"
        face = None if place == 0 else "none"
        ax.plot(curve.x, curve.y, style, marker=marker, markersize=5 + 3 * place, mfc=face, label=curve.name)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.legend(fontsize=8)
    ax.grid(alpha=0.3)


def plot_error_over_length(curves: Iterable[Curve], *, ax: Axes | None = None) -> Axes:
    """Draw the rms error of policies against sequence length on real data.

    Parameters
    ----------
    curves : iterable of Curve
        Length and rms error.
    ax : Axes, optional

    Returns
    -------
    Axes
        Logarithmic on both axes.
    """
    ax = _axes(ax, 8.0, 4.5)
    _plot_curves(curves, ax)
    ax.set_yscale("log")
    ax.set_xlabel("sequence length (first tokens of the real sample)")
    ax.set_ylabel("rms error against float64 (units of the output)")
    ax.set_title("Error of half state beside float state", fontsize=10)
    return ax


def plot_throughput_over_tile(curves: Iterable[Curve], *, ax: Axes | None = None) -> Axes:
    """Draw the measured speed of the simulation against KV_TILE on real data.

    Parameters
    ----------
    curves : iterable of Curve
        KV_TILE and GFLOP/s.
    ax : Axes, optional

    Returns
    -------
    Axes
        KV_TILE along the x axis, logarithmic to base 2.
    """
    ax = _axes(ax, 8.0, 4.5)
    _plot_curves(curves, ax)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("KV_TILE (keys)")
    ax.set_ylabel("useful GFLOP/s on this machine")
    ax.set_title("Speed of the simulation against tile size, real sample", fontsize=10)
    return ax
