"""Many configurations: each planned, pruned if it does not fit, estimated, and on request run for numbers."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tilesim.errors import TilesimError
from tilesim.executors import open_executor
from tilesim.grid import AXES, Grid
from tilesim.memory.budget import budget as plan_budget
from tilesim.platform import platform as find_platform
from tilesim.results_file import ResultsFile
from tilesim.samples import load_sample, random_tensors
from tilesim.simulate import simulate
from tilesim.tile import Tile
from tilesim.timing import estimate
from tilesim.variant import standard_slopes
from tilesim.workload import Workload

MODEL_VERSION = 1
"""Raised when rows of an older version must not be mixed with new ones."""

MEASURES = (
    "status", "reason", "ub_used_bytes", "ub_peak_bytes", "ub_available_bytes", "time_us", "bound",
    "useful_tflops", "roofline_us", "load_balance", "sample_rms_error", "run_rms_error", "run_max_abs_error",
    "run_wall_s", "run_gflops",
)  # fmt: skip
COLUMNS = ("index", "grid", *AXES, *MEASURES)
"""Columns of every row, units in the names."""

CHUNK = 100
"""Configurations that a worker takes at a time."""
AHEAD = 4
"""Chunks in flight for each worker: enough to keep it busy, few enough to keep memory small."""
SAMPLE_KEYS = 1024

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured beside plan and estimate.

    Attributes
    ----------
    errors : bool
        Run the bundled real sample with each tile and precision, and note its rms error.
    run : bool
        Run every configuration that fits on random tensors, and note error and throughput.
    seed : int
        Seed of the random tensors.
    """

    errors: bool = False
    run: bool = False
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepTable:
    """The rows of a sweep, in the order of the grid.

    Attributes
    ----------
    rows : list of dict
        One flat record a configuration, with the keys of `columns`.
    """

    rows: list[dict[str, Any]]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return COLUMNS

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def counts(self) -> dict[str, int]:
        """Return status -> rows: ``fits``, ``over budget``, ``invalid``."""
        return dict(collections.Counter(row["status"] for row in self.rows))

    def fitting(self) -> list[dict[str, Any]]:
        """Return the rows that fit."""
        return [row for row in self.rows if row["status"] == "fits"]

    def to_pandas(self) -> Any:
        """Return a pandas data frame; needs pandas."""
        import pandas

        return pandas.DataFrame(self.rows, columns=list(COLUMNS))


def sweep(
    grid: Grid | None = None,
    *,
    output: str | Path | None = None,
    resume: bool = False,
    workers: int | None = 1,
    scheduler: str | None = None,
    errors: bool = False,
    run: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
    **axes: Any,
) -> SweepTable:
    """Plan and estimate every configuration of a grid.

    Parameters
    ----------
    grid : Grid, optional
        Or its axes as keyword arguments: ``sweep(kv_tile=[128, 256, 512], precision=[...])``.
    output : str or path, optional
        .jsonl, .csv or .parquet file to which rows go as they arrive.
    resume : bool
        Go on with the rows that are in `output`; they must be of the same grid and model.
    workers : int, optional
        Processes: 1 stays in this one, None takes one for each core.
    scheduler : str, optional
        Address of a Dask scheduler to run on instead.
    errors, run, seed
        See `Settings`.
    progress : callable, optional
        Called with rows done and rows in all.

    Returns
    -------
    SweepTable
        The same rows, whatever runs them.

    Raises
    ------
    ConfigError, UnknownNameError
        If the grid is malformed. A configuration that is not possible is a row with the reason.
    InputError, OutputError
        If `output` cannot be used.

    Examples
    --------
    >>> table = sweep(kv_tile=[256, 512], softmax_rows=[8, 16])
    >>> [(row["softmax_rows"], row["kv_tile"], row["status"]) for row in table]
    [(8, 256, 'fits'), (8, 512, 'fits'), (16, 256, 'fits'), (16, 512, 'fits')]
    """
    points = Grid(axes=axes) if grid is None else grid
    settings = Settings(errors=errors, run=run, seed=seed)
    digest = grid_digest(points, settings)
    if output is None:
        rows: list[dict[str, Any]] = []
        for chunk in _chunks(points, settings, digest, 0, workers, scheduler, progress):
            rows += chunk
        return SweepTable(rows=rows)
    with ResultsFile(output, COLUMNS, digest, resume=resume) as file:
        rows = list(file.complete)
        for chunk in _chunks(points, settings, digest, len(rows), workers, scheduler, progress):
            file.append(chunk)
            rows += chunk
    return SweepTable(rows=rows)


def grid_digest(grid: Grid, settings: Settings) -> str:
    """Return what the rows of a sweep depend on, as a short digest: grid, settings, model, chip figures."""
    chips = {}
    for name in grid.axes["platform"]:
        try:
            chips[name] = find_platform(name).to_dict()
        except TilesimError as error:
            chips[name] = {"error": str(error)}
    return grid.digest(dataclasses.asdict(settings), MODEL_VERSION, chips)


def _chunks(
    grid: Grid,
    settings: Settings,
    digest: str,
    start: int,
    workers: int | None,
    scheduler: str | None,
    progress: Progress | None,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows from `start` on, chunk by chunk in order, however the workers finish."""
    bounds = ((low, min(low + CHUNK, len(grid))) for low in range(start, len(grid), CHUNK))
    with open_executor(workers, scheduler) as (executor, count):
        pending: collections.deque[Any] = collections.deque()
        done = start
        while True:
            while len(pending) < AHEAD * count and (bound := next(bounds, None)) is not None:
                pending.append(executor.submit(evaluate_chunk, grid, settings, digest, *bound))
                if count == 1 and scheduler is None:
                    break
            if not pending:
                return
            rows = pending.popleft().result()
            done += len(rows)
            if progress is not None:
                progress(done, len(grid))
            yield rows


def evaluate_chunk(
    grid: Grid, settings: Settings, digest: str, start: int, stop: int
) -> list[dict[str, Any]]:
    """Return the rows of the configurations ``start ... stop - 1``."""
    return [evaluate(grid[index], settings, index, digest) for index in range(start, stop)]


def evaluate(point: dict[str, Any], settings: Settings, index: int = 0, digest: str = "") -> dict[str, Any]:
    """Return the row of one configuration; one that is not possible has status ``invalid`` and the reason."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"index": index, "grid": digest, **point, "window": _window_text(point["window"])}
    try:
        workload, tile = _workload(point), _tile(point)
        plan = plan_budget(workload, tile, point["precision"], point["platform"])
        row |= {
            "kv_heads": workload.kv_heads,
            "seq_kv": workload.seq_kv,
            "query_rows": plan.tile.query_rows,
            "status": "fits" if plan.fits else "over budget",
            "ub_used_bytes": plan.used_bytes,
            "ub_peak_bytes": plan.peak_bytes,
            "ub_available_bytes": plan.available_bytes,
        }
        if not plan.fits:
            row["reason"] = "; ".join(f"{m.name} over by {m.excess_bytes} bytes" for m in plan.overflowing)
            return row
        if plan.platform.has_timing:
            row |= _estimated(workload, tile, plan.precision, plan.platform)
        if settings.errors:
            row["sample_rms_error"] = sample_rms_error(
                tile.softmax_rows, min(tile.kv_tile, SAMPLE_KEYS), point["precision"]
            )
        if settings.run:
            row |= _measured(workload, tile, point, settings.seed)
    except TilesimError as error:
        row |= {"status": "invalid", "reason": str(error)}
    return row


def _window_text(window: Any) -> str | None:
    if window is None or isinstance(window, int):
        return None if window is None else str(window)
    return ",".join("none" if side is None else str(side) for side in window)


def _workload(point: dict[str, Any]) -> Workload:
    names = (
        "batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "mask", "align", "softcap", "alibi",
        "sinks",
    )  # fmt: skip
    window = point["window"]
    return Workload(
        **{name: point[name] for name in names}, window=tuple(window) if isinstance(window, list) else window
    )


def _tile(point: dict[str, Any]) -> Tile:
    names = ("softmax_rows", "kv_tile", "query_rows", "slots", "kv_splits")
    return Tile(**{name: point[name] for name in names})


def _estimated(workload: Workload, tile: Tile, precision: Any, platform: Any) -> dict[str, Any]:
    device = estimate(workload, tile, precision, platform)
    return {
        "time_us": device.time_us,
        "bound": device.bound,
        "useful_tflops": device.tflops,
        "roofline_us": device.roofline.time_us,
        "load_balance": device.balance,
    }


def _measured(workload: Workload, tile: Tile, point: dict[str, Any], seed: int) -> dict[str, Any]:
    q, k, v = random_tensors(workload, seed)
    result = simulate(
        q,
        k,
        v,
        tile=tile,
        precision=point["precision"],
        mask=workload.mask,
        window=workload.window,
        platform=point["platform"],
        compare=(),
        align=workload.align,
        softcap=workload.softcap,
        alibi_slopes=standard_slopes(workload.heads) if workload.alibi else None,
        sinks=np.zeros(workload.heads) if workload.sinks else None,
    )
    stats = result.errors[point["precision"]]
    return {
        "run_rms_error": stats.to_dict()["rms"],
        "run_max_abs_error": stats.to_dict()["max_abs"],
        "run_wall_s": result.throughput.wall_s,
        "run_gflops": result.throughput.gflops,
    }


@functools.lru_cache(maxsize=4096)
def sample_rms_error(
    softmax_rows: int, kv_tile: int, precision: str, keys: int = SAMPLE_KEYS
) -> float | None:
    """Return the rms error of a tile and a policy on the first `keys` tokens of the bundled real sample."""
    q, k, v = (x[:, :, :keys] for x in load_sample())
    tile = Tile(softmax_rows=softmax_rows, kv_tile=kv_tile)
    result = simulate(q, k, v, tile=tile, precision=precision, compare=(), allow_over_budget=True)
    rms: float | None = result.errors[precision].to_dict()["rms"]
    return rms
