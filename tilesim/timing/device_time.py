"""The modelled time of one launch: what it takes, what bounds it, where each lane waits."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilesim.errors import ConfigError
from tilesim.memory.budget import expect, make_launch
from tilesim.memory.buffers import REFERENCE_LAYOUT, Launch, Layout
from tilesim.platform import Platform
from tilesim.platform import platform as find_platform
from tilesim.precision import Precision
from tilesim.precision import precision as find_precision
from tilesim.tile import Tile
from tilesim.timing.costs import VectorCosts, rates
from tilesim.timing.roofline import Roofline, roofline
from tilesim.timing.schedule import Chunk, CoreLoad, chunks, core_loads, tile_table
from tilesim.units import ceil_div
from tilesim.workload import Workload

CUBE_LANES = ("SCALAR", "MTE2", "MTE1", "CUBE", "FIXP")
VECTOR_LANES = ("SCALAR", "MTE2", "VECTOR", "MTE3")
LANES = (
    *(f"AIC.{lane}" for lane in CUBE_LANES),
    *(f"AIV{unit}.{lane}" for unit in range(2) for lane in VECTOR_LANES),
)
"""Lanes of one AI core, in the order of the pipeline's arrays."""
PIPES = ("CUBE", "VECTOR", "SCALAR", "MTE1", "MTE2", "MTE3", "FIXP")
REASONS = ("issue", "data", "buffer", "QK_READY", "PROB_READY", "PV_READY", "PV_DONE", "task")
"""What a lane waited for: the scalar unit, an operation on another lane, a free buffer, a cross-core flag."""
WARM_HEADS = 3
"""Heads a core runs before it is taken to repeat itself."""
OPERATIONS = (
    "load query", "load key", "load probability", "load value", "move left", "move right", "multiply QK",
    "multiply PV", "store score", "store partial", "copy score in", "copy mask in", "softmax",
    "copy probability out", "copy partial in", "accumulate", "normalise", "store output", "queue operation",
    "matmul call",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceTime:
    """What the model says of one launch.

    Attributes
    ----------
    time_us : float
        Launch overhead, the slowest core, or the chip's bandwidth if that is what ends last.
    launch_us : float
        The overhead in it.
    bound : str
        What bounds it: the lane that works most of the time on the slowest core, or the handshake that lane
        mostly waits for if it waits more than it works, or ``"L2"`` or ``"HBM"``.
    busy_us : mapping of str to float
        Lane of the slowest core -> time it works.
    stall_us : mapping of str to mapping of str to float
        Lane -> reason -> time it waits.
    steps : mapping of str to (int, float)
        Kind of operation -> how often it runs on the slowest core, and its time in us.
    core_us : tuple of float
        Time of each core that has a task, launch overhead aside.
    executed_flops, useful_flops : int
        Products of whole tiles, masked pairs included; and of visible pairs only.
    gm_bytes, ub_bytes : int
        Bytes through GM (tensors and exchange between cores) and in and out of UB, of the whole launch.
    roofline : Roofline
        Lower bounds from peak rates.
    platform : str
        Name of the chip.
    """

    time_us: float
    launch_us: float
    bound: str
    busy_us: Mapping[str, float]
    stall_us: Mapping[str, Mapping[str, float]]
    steps: Mapping[str, tuple[int, float]]
    core_us: tuple[float, ...]
    executed_flops: int
    useful_flops: int
    gm_bytes: int
    ub_bytes: int
    roofline: Roofline
    platform: str

    @property
    def pipes(self) -> dict[str, float]:
        """Pipe -> time it works on the slowest core, in us; of the units that have it, the busiest."""
        return {
            pipe: max(time for lane, time in self.busy_us.items() if lane.endswith("." + pipe))
            for pipe in PIPES
        }

    @property
    def tflops(self) -> float:
        """Useful floating-point operations a second, in 10^12."""
        return self.useful_flops / self.time_us / 1e6

    @property
    def balance(self) -> float:
        """Mean over slowest core: 1 if all cores that have a task work equally long."""
        return min(1.0, sum(self.core_us) / len(self.core_us) / max(self.core_us))

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as JSON types."""
        return {
            "time_us": self.time_us,
            "launch_us": self.launch_us,
            "bound": self.bound,
            "pipes": self.pipes,
            "busy_us": dict(self.busy_us),
            "stall_us": {lane: dict(reasons) for lane, reasons in self.stall_us.items()},
            "steps": {
                name: {"count": count, "time_us": time_us} for name, (count, time_us) in self.steps.items()
            },
            "cores": len(self.core_us),
            "balance": self.balance,
            "executed_flops": self.executed_flops,
            "useful_flops": self.useful_flops,
            "tflops": self.tflops,
            "gm_bytes": self.gm_bytes,
            "ub_bytes": self.ub_bytes,
            "roofline": self.roofline.to_dict(),
            "platform": self.platform,
        }


def estimate(
    workload: Workload,
    tile: Tile,
    precision: str | Precision,
    platform: str | Path | Platform,
    *,
    layout: Layout = REFERENCE_LAYOUT,
) -> DeviceTime:
    """Return the modelled time of one launch; needs no tensors.

    Parameters
    ----------
    workload, tile, precision, platform, layout
        As for `tilesim.budget`; whether the configuration fits is not asked.

    Raises
    ------
    ConfigError
        If an argument has another type, or the platform has no timing figures.
    UnknownNameError
        For a policy or platform that does not exist.
    """
    return prepare(workload, tile, precision, platform, layout).device_time()


def prepare(
    workload: Workload,
    tile: Tile,
    precision: str | Precision,
    platform: str | Path | Platform,
    layout: Layout,
) -> Timing:
    """Return a launch that is ready to be run; raises as `estimate`."""
    expect("workload", workload, Workload)
    expect("tile", tile, Tile)
    expect("layout", layout, Layout)
    chip = find_platform(platform)
    if not chip.has_timing:
        raise ConfigError(f"platform {chip.name!r}", "no timing figures", "must have a table timing")
    return Timing(make_launch(workload, tile, find_precision(precision), chip, layout), chip)


class Timing:
    """One launch on one chip, ready to be run.

    Parameters
    ----------
    launch : Launch
    platform : Platform
        With timing figures.
    """

    def __init__(self, launch: Launch, platform: Platform) -> None:
        from tilesim.kernels.pipeline import Ending

        self.launch, self.platform = launch, platform
        self.blocks = chunks(launch)
        self.loads = core_loads(launch, self.blocks)
        costs = VectorCosts(launch, platform)
        self.tiles, self.table = tile_table(launch, self.blocks, costs)
        halves = {half for block in self.blocks for half in (ceil_div(block.rows, 2), block.rows // 2)}
        self.ending = Ending(*(np.array(cycles) for cycles in costs.endings(halves)))
        self.rates = rates(platform, launch.precision.data.itemsize == 4)
        self.shape = _shape(launch)

    @property
    def cycles_per_us(self) -> float:
        """Clock of the chip."""
        return self.platform.timing["clock_mhz"]

    def run(self, load: CoreLoad) -> tuple[float, Any]:
        """Return the cycles of one core and its state afterwards.

        Heads are alike: once the core runs one head as it ran the head before, the rest is multiplied out.
        """
        period = len(self.blocks)
        heads = load.tasks // period
        if heads > WARM_HEADS + 2:
            short = load.tasks - (heads - WARM_HEADS) * period
            runs = [self.run_tasks(load.first, short + extra * period) for extra in range(3)]
            steps = [late[0] - early[0] for early, late in itertools.pairwise(runs)]
            if math.isclose(*steps, rel_tol=1e-12):
                more = heads - WARM_HEADS - 2
                (before, early), (end, core) = runs[1:]
                for name in ("busy", "stall", "work"):
                    late = getattr(core, name)
                    late += more * (late - getattr(early, name))
                return end + more * (end - before), core
        return self.run_tasks(load.first, load.tasks)

    def run_tasks(self, first: int, tasks: int, events: int = 0) -> tuple[float, Any]:
        """Run tasks one by one from a chunk on; return the cycles and the state of the core afterwards."""
        from tilesim.kernels import pipeline

        core = _fresh_core(events)
        order = (first + np.arange(tasks)) % len(self.blocks)
        end = pipeline.run_core(self.table[order], self.tiles, self.rates, self.shape, self.ending, core)
        return float(end), core

    def slowest(self) -> tuple[CoreLoad, float, Any, list[float]]:
        """Run every distinct load; return the slowest, its cycles and state, and the cycles of all cores."""
        runs = [(load, *self.run(load)) for load in self.loads]
        cycles = [0.0] * sum(len(load.cores) for load in self.loads)
        places = sorted(core for load in self.loads for core in load.cores)
        for load, end, _ in runs:
            for core in load.cores:
                cycles[places.index(core)] = end
        load, end, core = max(runs, key=lambda run: run[1])
        return load, end, core, cycles

    def device_time(self) -> DeviceTime:
        """Return what the model says of the launch."""
        _, end, core, cycles = self.slowest()
        launch_us, clock = self.platform.timing["launch_us"], self.cycles_per_us
        traffic = _traffic(self.launch, self.blocks)
        bounds = roofline(self.launch, self.platform, traffic.gm_bytes, traffic.executed_flops)
        core_us = end / clock
        chip_us = max(bounds.l2_us, bounds.hbm_us)
        bound = _bound(core) if core_us >= chip_us else ("L2" if bounds.l2_us >= bounds.hbm_us else "HBM")
        return DeviceTime(
            time_us=launch_us + max(core_us, chip_us),
            launch_us=launch_us,
            bound=bound,
            busy_us={lane: float(time) / clock for lane, time in zip(LANES, core.busy, strict=True)},
            stall_us={
                lane: {
                    reason: float(time) / clock for reason, time in zip(REASONS, row, strict=True) if time > 0
                }
                for lane, row in zip(LANES, core.stall, strict=True)
            },
            steps={
                name: (int(count), float(time) / clock)
                for name, (count, time) in zip(OPERATIONS, core.work, strict=True)
                if count
            },
            core_us=tuple(time / clock for time in cycles),
            executed_flops=traffic.executed_flops,
            useful_flops=self.launch.workload.useful_flops,
            gm_bytes=traffic.gm_bytes,
            ub_bytes=traffic.ub_bytes,
            roofline=bounds,
            platform=self.platform.name,
        )


def _fresh_core(events: int) -> Any:
    from tilesim.kernels import pipeline

    return pipeline.Core(
        free=np.zeros(pipeline.LANES),
        busy=np.zeros(pipeline.LANES),
        stall=np.zeros((pipeline.LANES, pipeline.REASONS)),
        work=np.zeros((pipeline.OPERATIONS, 2)),
        events=np.zeros((events, pipeline.EVENT_COLUMNS)),
        used=np.zeros(1, np.int64),
        where=np.zeros(3, np.int64),
        flags=np.zeros((5, 64)),
        queues=np.zeros((pipeline.VECTOR_CORES, 3, 64)),
    )


def _shape(launch: Launch) -> Any:
    from tilesim.kernels.pipeline import Shape

    workload, tile, layout = launch.workload, launch.tile, launch.layout
    itemsize = launch.precision.data.itemsize
    return Shape(
        head_dim=workload.head_dim,
        head_dim_v=workload.head_dim_v,
        itemsize=itemsize,
        partial_itemsize=launch.dtype("partial").itemsize,
        mask_itemsize=launch.dtype("mask").itemsize,
        softmax_rows=tile.softmax_rows,
        slots=tile.slots,
        score_buffers=min(64, layout.score_buffers),
        mask_buffers=min(64, layout.mask_buffers),
        prob_buffers=min(64, layout.probability_buffers),
        base_rows=layout.base_rows,
        base_columns=layout.base_columns,
        base_depth=layout.base_depth_bytes // itemsize,
        short=tile.is_short(workload),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Traffic:
    executed_flops: int
    gm_bytes: int
    ub_bytes: int


def _traffic(launch: Launch, blocks: list[Chunk]) -> _Traffic:
    """Return operations and bytes of the whole launch."""
    workload, data = launch.workload, launch.precision.data.itemsize
    heads = workload.batch * workload.heads
    pairs = sum(block.rows * columns for block in blocks for columns in block.columns)
    masked = sum(
        block.rows * columns
        for block in blocks
        for columns, hidden in zip(block.columns, block.masked, strict=True)
        if hidden
    )
    keys = sum(sum(block.columns) for block in blocks)
    widths = workload.head_dim + workload.head_dim_v
    partials = sum(block.rows * len(block.columns) for block in blocks) * workload.head_dim_v
    output = workload.seq_q * workload.head_dim_v
    tensors = keys * widths + workload.seq_q * workload.head_dim + output
    mask_bytes = masked * launch.dtype("mask").itemsize * (launch.layout.mask_buffers > 0)
    partial_bytes = partials * launch.dtype("partial").itemsize
    return _Traffic(
        executed_flops=2 * heads * pairs * widths,
        # Scores, probabilities and partial products go to GM and come back.
        gm_bytes=heads * (tensors * data + 4 * pairs * data + 2 * partial_bytes + mask_bytes),
        ub_bytes=heads * (2 * pairs * data + partial_bytes + mask_bytes + output * data),
    )


def _bound(core: Any) -> str:
    """Return the lane that works most, or what it waits for if it mostly waits."""
    lane = int(np.argmax(core.busy))
    reasons: npt.NDArray[np.float64] = core.stall[lane]
    if reasons.max() > core.busy[lane]:
        return f"{LANES[lane]} waiting for {REASONS[int(np.argmax(reasons))]}"
    return LANES[lane]
