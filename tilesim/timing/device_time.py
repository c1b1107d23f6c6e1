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
from tilesim.mask_tiles import MaskTiles
from tilesim.memory.budget import expect, make_launch
from tilesim.memory.buffers import Launch
from tilesim.memory.layout import REFERENCE_LAYOUT, Layout
from tilesim.platform import DEFAULT_PLATFORM, Platform
from tilesim.platform import platform as find_platform
from tilesim.precision import DEFAULT_PRECISION, Precision
from tilesim.precision import precision as find_precision
from tilesim.tile import Tile
from tilesim.timing import ahead
from tilesim.timing.costs import VectorCosts, rates
from tilesim.timing.roofline import Roofline, roofline
from tilesim.timing.schedule import CoreLoad, core_loads, schedule, tile_table
from tilesim.timing.traffic import traffic
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
REASONS = (
    "issue", "data", "buffer", "QK_READY", "PROB_READY", "PV_READY", "PV_DONE", "task", "splits",
)  # fmt: skip
"""What a lane waited for: the scalar unit, an operation on another lane, a free buffer, a cross-core flag; at
the end, before splits are combined, the other cores."""
WARM_HEADS = 3
"""Heads a core runs before it is taken to repeat itself."""
OPERATIONS = (
    "load query", "load key", "load probability", "load value", "move left", "move right", "multiply QK",
    "multiply PV", "store score", "store partial", "copy score in", "copy mask in", "softmax",
    "copy probability out", "copy partial in", "accumulate", "normalise", "store output", "queue operation",
    "matmul call", "load split", "combine split",
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
        mostly waits for if it waits more than it works, or ``"L2"`` or ``"HBM"``; ``"launch"`` without work.
    busy_us : mapping of str to float
        Lane of the slowest core -> time it works.
    stall_us : mapping of str to mapping of str to float
        Lane -> reason -> time it waits.
    steps : mapping of str to (int, float)
        Kind of operation -> how often it runs on the slowest core, and its time in us.
    core_us : tuple of float
        Time of each core that has a task, launch overhead aside; with the combination of splits, without the
        wait for it.
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
        """Useful floating-point operations a second, in 10^12; 0 where nothing takes time."""
        return self.useful_flops / self.time_us / 1e6 if self.time_us else 0.0

    @property
    def balance(self) -> float:
        """Mean over slowest core: 1 if all cores that have a task work equally long."""
        slowest_us = max(self.core_us)
        return min(1.0, sum(self.core_us) / len(self.core_us) / slowest_us) if slowest_us else 1.0

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
    shown: MaskTiles | None = None,
) -> DeviceTime:
    """Return the modelled time of one launch; needs no tensors.

    Parameters
    ----------
    workload, tile, precision, platform, layout
        As for `tilesim.budget`; whether the configuration fits is not asked.
    shown : MaskTiles, optional
        What the mask tensor of the workload holds, where it is at hand; without it every tile that the named
        mask does not skip is partial.

    Raises
    ------
    ConfigError
        If an argument has another type, or the platform has no timing figures.
    UnknownNameError
        For a policy or platform that does not exist.
    """
    return prepare(workload, tile, precision, platform, layout, shown).device_time()


def warm_up() -> None:
    """Compile the model, or load it from Numba's cache."""
    workload = Workload(heads=1, seq_q=1, head_dim=16)
    estimate(workload, Tile(), DEFAULT_PRECISION, DEFAULT_PLATFORM)


def prepare(
    workload: Workload,
    tile: Tile,
    precision: str | Precision,
    platform: str | Path | Platform,
    layout: Layout,
    shown: MaskTiles | None = None,
) -> Timing:
    """Return a launch that is ready to be run; raises as `estimate`."""
    expect("workload", workload, Workload)
    expect("tile", tile, Tile)
    expect("layout", layout, Layout)
    chip = find_platform(platform)
    if not chip.has_timing:
        raise ConfigError(f"platform {chip.name!r}", "no timing figures", "must have a table timing")
    return Timing(make_launch(workload, tile, find_precision(precision), chip, layout), chip, shown)


class Timing:
    """One launch on one chip, ready to be run.

    Parameters
    ----------
    launch : Launch
    platform : Platform
        With timing figures.
    shown : MaskTiles, optional
    """

    def __init__(self, launch: Launch, platform: Platform, shown: MaskTiles | None = None) -> None:
        from tilesim.kernels.pipeline import Ending

        self.launch, self.platform = launch, platform
        self.plan = schedule(launch, shown)
        self.loads = core_loads(launch, self.plan)
        costs = VectorCosts(launch, platform)
        self.tiles, self.kinds, self.table = tile_table(launch, self.plan.chunks, costs)
        halves = {half for chunk in self.plan.chunks for half in (ceil_div(chunk.rows, 2), chunk.rows // 2)}
        self.ending = Ending(*(np.array(cycles) for cycles in costs.endings(halves)))
        self.combining = costs.combine() if launch.splits > 1 else None
        self.rates = rates(platform, launch.precision.data.itemsize == 4)
        self.shape = _shape(launch)
        workload = launch.workload
        self.useful_flops = workload.useful_flops if shown is None else workload.flops(shown.visible_pairs)

    @property
    def cycles_per_us(self) -> float:
        """Clock of the chip."""
        return self.platform.timing["clock_mhz"]

    def run(self, load: CoreLoad) -> tuple[float, Any]:
        """Return the cycles of one core and its state afterwards.

        Where heads are alike, once the core runs one head as it ran the head before, the rest is multiplied
        out.
        """
        period = max(1, self.plan.period)
        heads = load.tasks // period
        order = self.plan.order[load.first : load.first + load.tasks]
        if heads > WARM_HEADS + 2 and (order[period:] == order[:-period]).all():
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
        """Run tasks one by one; return the cycles and the state of the core afterwards."""
        from tilesim.kernels import pipeline

        ahead.wait()
        core = _fresh_core(events)
        table = self.table[self.plan.order[first : first + tasks]]
        end = pipeline.run_core(table, self.tiles, self.kinds, self.rates, self.shape, self.ending, core)
        return float(end), core

    def combine(self, core: Any, end: float, tasks: int) -> float:
        """Combine splits on the core that ends last; return when all is done."""
        from tilesim.kernels import pipeline

        if self.combining is None or not tasks:
            return end
        return float(pipeline.run_combine(self.combining, self.rates, core, tasks))

    def slowest(self) -> tuple[CoreLoad, float, Any, list[float]]:
        """Run every distinct load; return the slowest, its cycles and state, and the cycles of all cores."""
        runs = [(load, *self.run(load)) for load in self.loads]
        cycles = [0.0] * sum(len(load.cores) for load in self.loads)
        places = sorted(core for load in self.loads for core in load.cores)
        for load, end, _ in runs:
            for core in load.cores:
                cycles[places.index(core)] = end
        load, end, core = max(runs, key=lambda run: run[1])
        last = self.combine(core, end, load.tasks)
        return load, last, core, [time + last - end for time in cycles]

    def device_time(self) -> DeviceTime:
        """Return what the model says of the launch."""
        _, end, core, cycles = self.slowest()
        launch_us, clock = self.platform.timing["launch_us"], self.cycles_per_us
        moved = traffic(self.launch, self.plan)
        bounds = roofline(self.launch, self.platform, moved.gm_bytes, moved.executed_flops, self.useful_flops)
        core_us = end / clock
        chip_us = max(bounds.l2_us, bounds.hbm_us)
        bound = _bound(core) if core_us >= chip_us else ("L2" if bounds.l2_us >= bounds.hbm_us else "HBM")
        bound = bound if core_us or chip_us else "launch"
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
            executed_flops=moved.executed_flops,
            useful_flops=self.useful_flops,
            gm_bytes=moved.gm_bytes,
            ub_bytes=moved.ub_bytes,
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
        output_bytes=workload.head_dim_v * itemsize if launch.splits == 1 else launch.split_row_bytes,
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


def _bound(core: Any) -> str:
    """Return the lane that works most, or what it waits for if it mostly waits."""
    lane = int(np.argmax(core.busy))
    reasons: npt.NDArray[np.float64] = core.stall[lane]
    if reasons.max() > core.busy[lane]:
        return f"{LANES[lane]} waiting for {REASONS[int(np.argmax(reasons))]}"
    return LANES[lane]
