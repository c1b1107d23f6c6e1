"""The command ``tilesim sweep``: a grid from flags or a file, its rows, pictures, advice and report."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tilesim.advise import Advice, advise
from tilesim.errors import OutputError
from tilesim.files import atomic_write, check_writable
from tilesim.grid import AXES, FLAGS, Grid, load_grid, parse_axis
from tilesim.options import OutputOptions, Whole
from tilesim.results_file import SUFFIXES
from tilesim.sweep import Progress, SweepTable, sample_rms_error, sweep
from tilesim.units import parse_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLEAR_LINE = "\r\033[K"
REPORT_S = 2.0
"""Seconds between two lines of progress where standard error is no terminal."""


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class GridOptions:
    """The grid: each option takes a list, A,B,C, or for numbers a range, A:B doubling or A:B:STEP.

    Attributes
    ----------
    batch
        Batch sizes.
    heads
        Query heads.
    kv_heads
        Key and value heads; auto for as many as query heads.
    seq
        Query rows and keys.
    seq_q
        Query rows.
    seq_kv
        Keys; auto for as many as query rows.
    head_dim
        Elements of one row.
    mask
        causal, full or window.
    window
        Windows, separated by semicolons: N or LEFT,RIGHT.
    align
        bottom-right or top-left.
    softcap
        Softcaps; 0 for none.
    alibi
        With ALiBi.
    sinks
        With a sink for each head.
    softmax_rows
        SOFTMAX_ROWS.
    kv_tile
        KV_TILE.
    query_rows
        Query rows of one task; auto for the reference rule.
    slots
        Slots.
    kv_splits
        Parts of the keys that are tasks of their own.
    precision
        Precision policies.
    platform
        Chips.
    """

    batch: str | None = None
    heads: str | None = None
    kv_heads: str | None = None
    seq: str | None = None
    seq_q: str | None = None
    seq_kv: str | None = None
    head_dim: str | None = None
    mask: str | None = None
    window: str | None = None
    align: str | None = None
    softcap: str | None = None
    alibi: bool | None = None
    sinks: bool | None = None
    softmax_rows: str | None = None
    kv_tile: str | None = None
    query_rows: str | None = None
    slots: str | None = None
    kv_splits: str | None = None
    precision: str | None = None
    platform: str | None = None

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of the axes that were given."""
        given = {name: getattr(self, name) for name in (*AXES, "seq")}
        return {
            name: (value,) if name in FLAGS else parse_axis(name, value)
            for name, value in given.items()
            if value is not None
        }


def sweep_command(
    *,
    axes: GridOptions = GridOptions(),
    grid: Path | None = None,
    output_file: Annotated[Path | None, Parameter(name="--output")] = None,
    resume: bool = False,
    workers: Whole | None = None,
    scheduler: str | None = None,
    errors: bool = False,
    run: bool = False,
    seed: Whole = 0,
    best: bool = False,
    max_ub: str | None = None,
    max_error: float | None = None,
    plot: Path | None = None,
    html: Path | None = None,
    output: OutputOptions = OutputOptions(),  # noqa: B008
) -> int:
    """Plan and estimate many configurations; keep, draw and rank them.

    Parameters
    ----------
    grid
        A TOML file with one key an axis; options override it.
    output_file
        Write one row a configuration to this .csv, .jsonl or .parquet file, as they come.
    resume
        Go on with the rows that are in the output file.
    workers
        Processes. [default: one for each core]
    scheduler
        Address of a Dask scheduler to run on.
    errors
        Note the rms error of each tile and precision on the bundled real sample.
    run
        Run every configuration that fits on random tensors too, for error and throughput.
    seed
        Seed of the random tensors.
    best
        Recommend a configuration, with the reason its neighbours lose. Implied by the limits.
    max_ub
        UB that the recommended one may use, such as 128KiB.
    max_error
        Largest rms error of the recommended one on the bundled real sample; implies --errors.
    plot
        Draw every picture into this directory.
    html
        Write one self-contained page with tables and pictures.
    """
    points = Grid(axes=(load_grid(grid) if grid is not None else {}) | axes.axes())
    wants_best = best or max_ub is not None or max_error is not None
    limit_bytes = None if max_ub is None else parse_bytes(max_ub)
    _check_outputs(output_file, plot, html)
    with _progress(quiet=output.quiet) as progress:
        table = sweep(
            points,
            output=output_file,
            resume=resume,
            workers=workers if len(points) > 200 or workers is not None else 1,
            scheduler=scheduler,
            errors=errors or max_error is not None,
            run=run,
            seed=seed,
            progress=progress,
        )
    advice = advise(table, max_ub_bytes=limit_bytes, max_error=max_error) if wants_best else None
    if plot is not None or html is not None:
        _draw(points, table, advice, plot, html)
    _print(table, advice, output)
    return 0


def _check_outputs(output_file: Path | None, plot: Path | None, html: Path | None) -> None:
    if output_file is not None:
        check_writable(output_file, SUFFIXES)
    if html is not None:
        check_writable(html, (".html",))
    if plot is not None:
        try:
            plot.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError("--plot", str(plot), f"must be a directory: {error.strerror}") from None
        check_writable(plot / "heatmap.png", (".png",))


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress | None]:
    """Give a callback that prints rows, rate and time left on standard error now and then."""
    if quiet:
        yield None
        return
    began = last = time.monotonic()
    first: int | None = None
    terminal = sys.stderr.isatty()

    def report(done: int, total: int) -> None:
        nonlocal last, first, began
        now = time.monotonic()
        if first is None:
            # The rate counts from the first chunk on: before it workers start and compile.
            first, began = done, now
        if now - last < REPORT_S or done == first:
            return
        last = now
        rate = (done - first) / (now - began)
        left_s = (total - done) / rate
        text = f"{done:,} of {total:,} configurations, {rate:,.0f} a second, {left_s:,.0f} s left"
        line = f"{CLEAR_LINE}{text}" if terminal else f"{text}\n"
        print(line, end="", file=sys.stderr, flush=True)

    yield report
    if terminal:
        print(CLEAR_LINE, end="", file=sys.stderr, flush=True)


def _draw(grid: Grid, table: SweepTable, advice: Advice | None, plot: Path | None, html: Path | None) -> None:
    from tilesim.html_report import sweep_page
    from tilesim.plots import save_figure

    pictures = figures(grid, table)
    if plot is not None:
        for name, (_, figure) in pictures.items():
            save_figure(figure, plot / f"{name}.png")
    if html is not None:
        page = sweep_page(grid, table.rows, dict(pictures.values()), advice)
        with atomic_write(html) as file:
            file.write(page.encode())


def figures(grid: Grid, table: SweepTable) -> dict[str, tuple[str, Figure]]:
    """Return every picture of a sweep: file name -> (caption, figure)."""
    from tilesim import plots

    tiles = sorted({value for value in grid.axes["kv_tile"] if value <= 1024}) or [512]
    drawn = {
        "heatmap": ("Device time over the tile", plots.plot_heatmap(table)),
        "pareto": ("Time against UB", plots.plot_pareto(table)),
        "footprint": ("UB against sequence length", plots.plot_footprint(_footprint(grid))),
        "error": (
            "Error of half against float state",
            plots.plot_error_over_length(_error_curves(tiles[-1])),
        ),
        "throughput": ("Speed of the simulation", plots.plot_throughput_over_tile(_speed_curves(tiles))),
    }
    return {name: (caption, ax.figure) for name, (caption, ax) in drawn.items()}  # type: ignore[misc]


def _footprint(grid: Grid) -> Any:
    from tilesim.memory.footprint import footprint, parse_lengths
    from tilesim.tile import Tile
    from tilesim.workload import Workload

    first = {name: values[0] for name, values in grid.axes.items()}
    workload = Workload(heads=first["heads"], head_dim=first["head_dim"])
    tile = Tile(softmax_rows=first["softmax_rows"], kv_tile=first["kv_tile"], slots=first["slots"])
    lengths = parse_lengths("128:131072")
    return footprint(workload, tile, first["precision"], first["platform"], lengths)


def _error_curves(kv_tile: int) -> list[Any]:
    from tilesim.sweep_plots import Curve

    lengths = (64, 128, 256, 512, 1024)
    return [
        Curve(name=name, x=lengths, y=[sample_rms_error(8, kv_tile, name, keys) or 0.0 for keys in lengths])
        for name in ("half-data-float-state", "half-data-half-state", "float")
    ]


def _speed_curves(tiles: list[int]) -> list[Any]:
    from tilesim.attention import attention
    from tilesim.samples import load_sample
    from tilesim.sweep_plots import Curve
    from tilesim.tile import Tile
    from tilesim.workload import Workload

    q, k, v = load_sample()
    flops = Workload(
        heads=q.shape[1], kv_heads=k.shape[1], seq_q=q.shape[2], head_dim=q.shape[3]
    ).useful_flops

    def gflops(precision: str, kv_tile: int) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            attention(q, k, v, precision=precision, tile=Tile(kv_tile=kv_tile))
            times.append(time.perf_counter() - start)
        return flops / sorted(times)[2] / 1e9

    return [
        Curve(name=name, x=tiles, y=[gflops(name, kv_tile) for kv_tile in tiles])
        for name in ("half-data-float-state", "float")
    ]


def _print(table: SweepTable, advice: Advice | None, output: OutputOptions) -> None:
    if output.json:
        document: dict[str, Any] = {"schema": 1, "counts": table.counts()}
        document |= {"rows": table.rows} if advice is None else {"advice": advice.to_dict()}
        print(json.dumps(document, allow_nan=False))
        return
    from tilesim import report

    console = report.console()
    console.print(report.sweep_report(table.rows, table.counts(), advice))
