"""Every operation of one core on the modelled chip, in the order in which the model runs them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tilesim.memory.layout import REFERENCE_LAYOUT, Layout
from tilesim.platform import Platform
from tilesim.precision import Precision
from tilesim.tile import Tile
from tilesim.timing.device_time import LANES, OPERATIONS, DeviceTime, prepare
from tilesim.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """One operation.

    Attributes
    ----------
    lane : str
        One of ``LANES``: unit and pipe, such as ``"AIV0.VECTOR"``.
    name : str
        One of ``OPERATIONS``.
    start_us, end_us : float
        From the launch on.
    task, tile, group : int
        Task of the core, tile of the task and group of softmax_rows of the tile, counted from 0.
    """

    lane: str
    name: str
    start_us: float
    end_us: float
    task: int
    tile: int
    group: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timeline:
    """What one core does in one launch.

    Attributes
    ----------
    core : int
        The slowest core, or one of those that are equally slow.
    events : tuple of Event
    device_time : DeviceTime
    """

    core: int
    events: tuple[Event, ...]
    device_time: DeviceTime


def timeline(
    workload: Workload,
    tile: Tile,
    precision: str | Precision,
    platform: str | Path | Platform,
    *,
    layout: Layout = REFERENCE_LAYOUT,
) -> Timeline:
    """Return every operation of the slowest core of a launch.

    Raises
    ------
    ConfigError, UnknownNameError
        As `tilesim.estimate`.
    """
    timing = prepare(workload, tile, precision, platform, layout)
    load, _, counted, _ = timing.slowest()
    end, core = timing.run_tasks(load.first, load.tasks, events=int(counted.work[:, 0].sum()))
    timing.combine(core, end, load.tasks)
    device_time, clock = timing.device_time(), timing.cycles_per_us
    events = tuple(
        Event(
            lane=LANES[int(lane)],
            name=OPERATIONS[int(name)],
            start_us=device_time.launch_us + start / clock,
            end_us=device_time.launch_us + end / clock,
            task=int(task),
            tile=int(index),
            group=int(group),
        )
        for lane, name, start, end, task, index, group in core.events[: core.used[0]].tolist()
    )
    return Timeline(core=load.cores[0], events=events, device_time=device_time)
