"""Results as tables for people; the documents for programs are the `to_dict` of each type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from tilesim.advise import TILE_AXES, Advice
from tilesim.compare import ErrorStats
from tilesim.effects import Effects
from tilesim.grid import AXES
from tilesim.memory.budget import Budget, MemoryBudget
from tilesim.memory.footprint import Footprint
from tilesim.platform import MEMORIES, Platform
from tilesim.result import SimulationResult, Throughput
from tilesim.tile import TileCounts
from tilesim.timing import DeviceTime
from tilesim.units import format_bytes, format_seconds, format_size
from tilesim.workload import Workload

LISTED_LENGTHS = 4
"""Key lengths that are listed one by one."""
FASTEST = 10
"""Rows of the table of a sweep."""
PLAIN_WIDTH = 116
"""Columns of a table that goes to a file or a pipe."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Return a console on standard output, wide enough for the tables where there is no terminal."""
    out = _Console(highlight=False)
    return out if out.is_terminal else _Console(highlight=False, width=PLAIN_WIDTH)


def _table(title: str, *columns: str, left: tuple[str, ...] = (), wrap: tuple[str, ...] = ()) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        justify: JustifyMethod = "left" if column in left + wrap else "right"
        table.add_column(
            column,
            justify=justify,
            no_wrap=column not in wrap,
            overflow="fold" if column in wrap else "ellipsis",
        )
    return table


def budget_report(
    budget: Budget, width: int = PLAIN_WIDTH, measured_bytes: Mapping[str, int] | None = None
) -> RenderableType:
    """Return the UB table, the totals under it and one line for each memory; `width` in columns."""
    ub = budget.memories["UB"]
    title = f"Unified Buffer of one vector core, {budget.platform.title}"
    columns = ["buffer", "position", "type", "shape", "count", "bytes each", "bytes", "% of UB", "stages"]
    hidden = {"stages"} if width < PLAIN_WIDTH else set()
    hidden |= {"position", "bytes each"} if width < 92 else set()
    shown = [column for column in columns if column not in hidden]
    table = _table(title, *shown, left=("buffer", "position", "type", "stages"))
    for buffer in ub.buffers:
        cells = {
            "buffer": buffer.name,
            "position": buffer.position,
            "type": buffer.dtype,
            "shape": " x ".join(str(size) for size in buffer.shape),
            "count": str(buffer.count),
            "bytes each": f"{buffer.bytes_each:,}",
            "bytes": f"{buffer.total_bytes:,}",
            "% of UB": f"{100 * buffer.total_bytes / ub.capacity_bytes:.1f}",
            "stages": _stages(buffer.first_stage, buffer.last_stage),
        }
        table.add_row(*(cells[column] for column in shown))
    share = f"{100 * ub.used_bytes / ub.capacity_bytes:.1f}"
    totals = {"buffer": "used", "bytes": f"{ub.used_bytes:,}", "% of UB": share}
    table.add_section()
    table.add_row(*(totals.get(column, "") for column in shown), style="bold")
    blank = Text()
    memories = memories_table(budget, measured_bytes)
    return Group(Text(_configuration(budget)), blank, table, blank, Text(_ub_line(ub)), blank, memories)


def _stages(first: str, last: str) -> str:
    return first if first == last else f"{first} - {last}"


def _configuration(budget: Budget) -> str:
    tile = budget.tile
    splits = f"key splits {tile.kv_splits}, " if tile.kv_splits > 1 else ""
    return (
        f"{workload_line(budget.workload)}\n"
        f"SOFTMAX_ROWS {tile.softmax_rows}, KV_TILE {tile.kv_tile}, query rows {tile.query_rows}, "
        f"slots {tile.slots}, {splits}{budget.precision.name}"
    )


def workload_line(workload: Workload) -> str:
    """Return the workload as one line."""
    heads = f"{workload.heads} heads"
    if workload.kv_heads != workload.heads:
        heads += f" on {workload.kv_heads} key heads"
    mask = workload.mask if workload.window is None else f"{workload.mask} {workload.window}"
    width = "" if workload.head_dim_v == workload.head_dim else f" (values {workload.head_dim_v})"
    return (
        f"batch {workload.batch}, {heads}, {workload.seq_q} queries x {workload.seq_kv} keys, "
        f"head dim {workload.head_dim}{width}, {', '.join([mask, *_variant(workload)])}"
    )


def _variant(workload: Workload) -> list[str]:
    """Return what is out of the ordinary about a workload."""
    lengths = workload.key_lengths or ()
    listed = ", ".join(str(length) for length in lengths[:LISTED_LENGTHS])
    more = f" and {len(lengths) - LISTED_LENGTHS:,} more" if len(lengths) > LISTED_LENGTHS else ""
    parts = {
        f"aligned {workload.align}": workload.align != Workload.align,
        f"key lengths {listed}{more}": workload.key_lengths is not None,
        f"{workload.attn_mask} mask tensor": workload.attn_mask is not None,
        f"softcap {workload.softcap:g}": workload.softcap > 0,
        "ALiBi": workload.alibi,
        "sinks": workload.sinks,
    }
    return [text for text, present in parts.items() if present]


def _ub_line(ub: MemoryBudget) -> str:
    verdict = f"fits, {format_size(ub.available_bytes - ub.used_bytes)} left"
    if not ub.fits:
        verdict = f"DOES NOT FIT, {format_size(ub.excess_bytes)} over"
    return (
        f"UB: {format_bytes(ub.used_bytes)} used of {ub.available_bytes:,} B available "
        f"({ub.capacity_bytes:,} less {ub.reserved_bytes:,} reserved): {verdict}.\n"
        f"Peak, if dead buffers made room for later ones: {format_bytes(ub.peak_bytes)}, "
        f"fullest in stage {ub.peak_stage}."
    )


def memories_table(budget: Budget, measured_bytes: Mapping[str, int] | None = None) -> Table:
    """Return one row for each memory of the chip."""
    columns = ["memory", "used", "peak", "measured", "available", "% used", "fits", "per"]
    if measured_bytes is None:
        columns.remove("measured")
    table = _table("All memories", *columns, left=("memory", "per"))
    owners = {"UB": "vector core", "GM": "launch"}
    for name, memory in budget.memories.items():
        table.add_row(
            name,
            format_size(memory.used_bytes),
            format_size(memory.peak_bytes),
            *([] if measured_bytes is None else [format_size(measured_bytes[name])]),
            format_size(memory.available_bytes),
            f"{100 * memory.used_bytes / max(1, memory.available_bytes):.1f}",
            "yes" if memory.fits else "NO",
            owners.get(name, "cube core"),
            style=None if memory.fits else "bold red",
        )
    return table


def error_table(errors: Mapping[str, ErrorStats]) -> Table:
    """Return one column for each policy: its error against the float64 reference."""
    names = [name.replace("-data-", "-data\n") for name in errors]
    table = _table("Error of the output against the float64 reference", "", *names, left=("",))
    figures = (
        ("max abs", "max_abs", ".3e"),
        ("rms", "rms", ".3e"),
        ("max rel", "max_rel", ".3e"),
        ("max ulp of half", "max_ulp_half", ",.2f"),
        ("cosine distance", "cosine_distance", ".3e"),
        ("overflow to inf", "overflow_count", ",d"),
        ("underflow to 0", "underflow_count", ",d"),
        ("NaN", "nan_count", ",d"),
    )
    for label, field, style in figures:
        table.add_row(label, *(format(getattr(stats, field), style) for stats in errors.values()))
    return table


def half_state_line(errors: Mapping[str, ErrorStats]) -> str:
    """Return one line that sets half state against float state."""
    float_state, half_state = (errors[f"half-data-{kind}-state"] for kind in ("float", "half"))
    if not float_state.rms > 0.0:
        return f"Half state: rms error {half_state.rms:.3e}; float state: {float_state.rms:.3e}."
    ratio = half_state.rms / float_state.rms
    return f"Half state has {ratio:.3f} times the rms error of float state on these tensors."


def effect_lines(effects: Mapping[str, Effects]) -> str:
    """Return one line for each policy: which rounding point causes its error."""
    return "\n".join(f"{name}: {one.describe()}." for name, one in effects.items())


def throughput_lines(throughput: Throughput) -> str:
    """Return the measured speed of the simulation."""
    start = f", after {format_seconds(throughput.compile_s)} to compile or load the kernels"
    return (
        f"Simulated on this machine in {format_seconds(throughput.wall_s)} with {throughput.threads} "
        f"thread{'s' if throughput.threads > 1 else ''}{start if throughput.compile_s >= 0.001 else ''}:\n"
        f"{throughput.gflops:.1f} useful GFLOP/s, {throughput.score_tiles_per_s:,.0f} score tiles/s "
        f"({throughput.score_tiles:,} tiles, "
        f"{format_size(throughput.gm_bytes)} of tensors through GM on the chip)."
    )


def tiles_line(tiles: TileCounts) -> str:
    """Return how many score tiles are full, partial and skipped."""
    return (
        f"Score tiles: {tiles.full:,} full, {tiles.partial:,} partial, {tiles.skipped:,} skipped "
        f"of {tiles.total:,}."
    )


def device_table(device: DeviceTime) -> Table:
    """Return one row for each lane of the slowest core: how long it works and what it waits for."""
    waits_for = "waits for (us)"
    table = _table("Slowest core", "lane", "busy us", "% busy", waits_for, left=("lane",), wrap=(waits_for,))
    whole_us = max(device.core_us)
    for lane, busy_us in device.busy_us.items():
        if busy_us == 0.0:
            continue
        waits = sorted(device.stall_us[lane].items(), key=lambda item: -item[1])
        text = ", ".join(f"{reason} {time_us:.1f}" for reason, time_us in waits if time_us >= 0.05)
        table.add_row(lane, f"{busy_us:.1f}", f"{100 * busy_us / whole_us:.0f}", text)
    return table


def device_line(device: DeviceTime) -> str:
    """Return the modelled device time as text."""
    bounds = device.roofline
    return (
        f"Modelled on {device.platform}: {device.time_us:.1f} us, of which launch {device.launch_us:.1f} us; "
        f"bound: {device.bound}.\n"
        f"{device.tflops:.1f} useful TFLOP/s of {bounds.peak_tflops:.0f} peak; "
        f"roofline {bounds.time_us:.1f} us (cube {bounds.compute_us:.1f}, L2 {bounds.l2_us:.1f}, "
        f"HBM {bounds.hbm_us:.1f}).\n"
        f"{len(device.core_us)} cores, load balance {device.balance:.2f}; "
        f"{format_size(device.gm_bytes)} through GM with what cores exchange, "
        f"{format_size(device.ub_bytes)} in and out of UB."
    )


def device_report(device: DeviceTime) -> RenderableType:
    """Return all that `tilesim estimate` prints of the modelled time."""
    steps = _table(
        "Steps of the slowest core, both vector cores", "step", "count", "total us", left=("step",)
    )
    for name, (count, time_us) in sorted(device.steps.items(), key=lambda item: -item[1][1]):
        steps.add_row(name, f"{count:,}", f"{time_us:.2f}")
    return Group(Text(device_line(device)), Text(), device_table(device), Text(), steps)


def estimate_report(device: DeviceTime, budget: Budget) -> RenderableType:
    """Return the configuration, what it takes of UB and its modelled time."""
    ub = _ub_line(budget.memories["UB"]).splitlines()[0]
    return Group(Text(_configuration(budget)), Text(ub), Text(), device_report(device))


def simulation_report(result: SimulationResult, source: str, width: int = PLAIN_WIDTH) -> RenderableType:
    """Return all that `tilesim run` prints; `width` in columns."""
    parts: list[RenderableType] = [Text(f"Tensors: {source}")]
    if result.over_budget:
        parts.append(Text("OVER BUDGET: the chip could not run this configuration.", style="bold red"))
    parts += [
        budget_report(result.budget, width, result.measured_bytes),
        Text(),
        error_table(result.errors),
        Text(),
        Text(half_state_line(result.errors)),
        Text(effect_lines(result.effects)),
        Text(tiles_line(result.tiles)),
        Text(throughput_lines(result.throughput)),
    ]
    if result.device is not None:
        parts += [Text(), Text(device_line(result.device)), Text(), device_table(result.device)]
    return Group(*parts)


def footprint_report(footprint: Footprint) -> RenderableType:
    """Return UB against sequence length: the tiled kernel beside one that keeps whole score rows."""
    first = footprint.tiled[0]
    title = f"UB of one vector core against sequence length, {first.platform.title}"
    table = _table(title, "seq", "tiled", "reused", "fits", "full rows", "reused ", "fits ", left=())
    for length, tiled, whole in zip(footprint.lengths, footprint.tiled, footprint.full_row, strict=True):
        sizes = [
            cell
            for budget in (tiled, whole)
            for cell in (
                format_size(budget.used_bytes),
                format_size(budget.peak_bytes),
                "yes" if budget.fits else "NO",
            )
        ]
        table.add_row(f"{length:,}", *sizes)
    limit = format_bytes(first.available_bytes)
    unfit = footprint.first_unfit_length
    verdict = "fit at every length" if unfit is None else f"no longer fit from sequence length {unfit:,} on"
    return Group(table, Text(), Text(f"Available: {limit}. Full score rows {verdict}."))


def platform_report(platform: Platform) -> RenderableType:
    """Return every figure of a chip with its source."""
    table = _table(
        f"{platform.name}: {platform.title}", "figure", "value", "source", left=("figure",), wrap=("source",)
    )
    for name, figure in platform.figures.items():
        fitted = f"fitted on {figure.fitted}: " if figure.fitted else ""
        table.add_row(name, f"{figure.value:,}", fitted + figure.source)
    return table


def platforms_report(platforms: Sequence[Platform]) -> RenderableType:
    """Return the chips side by side, then every figure of each with its source."""
    table = _table(
        "Platforms", "name", "chip", "cube cores", "vector cores", *MEMORIES, left=("name", "chip")
    )
    for chip in platforms:
        sizes = (format_size(chip.memories[name].capacity_bytes) for name in MEMORIES)
        table.add_row(chip.name, chip.title, str(chip.cube_cores), str(chip.vector_cores), *sizes)
    figures = [part for chip in platforms for part in (Text(), platform_report(chip))]
    return Group(table, *figures)


def sweep_report(
    rows: Sequence[Mapping[str, Any]], counts: Mapping[str, int], advice: Advice | None
) -> RenderableType:
    """Return how many configurations fit, the fastest ones, and the recommendation if there is one."""
    total = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    parts: list[RenderableType] = [Text(f"{len(rows):,} configurations: {total}.")]
    fitting = [row for row in rows if row["status"] == "fits" and row["time_us"] is not None]
    fastest = sorted(fitting, key=lambda row: (row["time_us"], row["ub_used_bytes"], row["index"]))[:FASTEST]
    if fastest:
        varied = [name for name in AXES if len({str(row[name]) for row in rows}) > 1]
        table = _table(
            f"The {len(fastest)} fastest", *varied, "time us", "UB bytes", "bound", left=("bound",)
        )
        for row in fastest:
            cells = [str(row[name]) for name in varied]
            table.add_row(*cells, f"{row['time_us']:.1f}", f"{row['ub_used_bytes']:,}", row["bound"])
        parts += [Text(), table]
    if advice is not None:
        parts += [Text(), *_advice_lines(advice)]
    return Group(*parts)


def _advice_lines(advice: Advice) -> list[RenderableType]:
    best = advice.best
    chosen = ", ".join(f"{name} {best[name]}" for name in TILE_AXES)
    error = "" if best["sample_rms_error"] is None else f", rms error {best['sample_rms_error']:.3e}"
    size = f"{best['ub_used_bytes']:,} bytes of UB{error}"
    lines: list[RenderableType] = [
        Text(f"Recommended: {chosen}: {best['time_us']:.1f} us, {size}.", style="bold")
    ]
    lines += [Text(f"  {n.axis} {n.value}: {n.reason}") for n in advice.neighbours]
    lines.append(Text(f"{len(advice.front)} configurations are beaten by no other in everything."))
    return lines
