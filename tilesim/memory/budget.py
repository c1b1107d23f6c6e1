"""Whether a configuration fits the chip: required against available bytes, and what to change if it does not.

Vocabulary: *capacity* is all of a memory, *reserved* what the system keeps of it, *available* the rest.
*Used* bytes are the plain sum of the buffers: what a kernel with static allocation takes, and what decides
whether it fits. *Peak* bytes are what a planner needs that gives the room of dead buffers to later ones.
Both are projected: computed before anything runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilesim.errors import BudgetError, ConfigError
from tilesim.memory.buffers import ALIGNMENT_BYTES, STAGES, Buffer, Launch, memory_buffers
from tilesim.memory.layout import REFERENCE_LAYOUT, Layout
from tilesim.memory.plan import Lifetime, plan
from tilesim.platform import MEMORIES, Memory, Platform
from tilesim.platform import platform as find_platform
from tilesim.precision import PRECISIONS, Precision
from tilesim.precision import precision as find_precision
from tilesim.tile import Tile
from tilesim.units import format_bytes, format_size
from tilesim.workload import Workload

AXES = ("kv_tile", "softmax_rows", "query_rows", "slots", "dtype")
"""What `Budget.nearest` changes, one at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """One memory and the buffers in it.

    Attributes
    ----------
    name : str
        UB (per vector core), L1, L0A, L0B, L0C (per cube core) or GM (of the chip).
    capacity_bytes, reserved_bytes : int
        All of it, and what the system keeps.
    peak_bytes : int
        Bytes needed if dead buffers make room for later ones.
    live_bytes : mapping of str to int
        Stage -> bytes of the buffers that are in use then.
    buffers : tuple of Buffer
        In order of allocation, offsets as planned for `peak_bytes`.
    """

    name: str
    capacity_bytes: int
    reserved_bytes: int
    peak_bytes: int
    live_bytes: Mapping[str, int]
    buffers: tuple[Buffer, ...]

    @property
    def available_bytes(self) -> int:
        """Bytes a kernel can plan with."""
        return self.capacity_bytes - self.reserved_bytes

    @property
    def used_bytes(self) -> int:
        """Plain sum of all buffers: what static allocation takes."""
        return sum(buffer.total_bytes for buffer in self.buffers)

    @property
    def excess_bytes(self) -> int:
        """Bytes by which the sum is over what is available; 0 when it fits."""
        return max(0, self.used_bytes - self.available_bytes)

    @property
    def fits(self) -> bool:
        """Whether the sum fits what is available."""
        return self.used_bytes <= self.available_bytes

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages of this memory, in order."""
        return STAGES[self.name]

    @property
    def peak_stage(self) -> str:
        """The stage with the most bytes in use; the first of them if there are several."""
        return max(self.stages, key=lambda stage: self.live_bytes[stage])

    def live_buffers(self, stage: str) -> tuple[Buffer, ...]:
        """Return the buffers in use at a stage, the largest first."""
        index = self.stages.index(stage)
        live = (
            buffer
            for buffer in self.buffers
            if self.stages.index(buffer.first_stage) <= index <= self.stages.index(buffer.last_stage)
        )
        return tuple(sorted(live, key=lambda buffer: -buffer.total_bytes))

    def to_dict(self) -> dict[str, Any]:
        """Return the memory as JSON types."""
        return {
            "capacity_bytes": self.capacity_bytes,
            "reserved_bytes": self.reserved_bytes,
            "available_bytes": self.available_bytes,
            "used_bytes": self.used_bytes,
            "peak_bytes": self.peak_bytes,
            "peak_stage": self.peak_stage,
            "excess_bytes": self.excess_bytes,
            "fits": self.fits,
            "live_bytes": dict(self.live_bytes),
            "buffers": [
                {
                    **dataclasses.asdict(buffer),
                    "logical_shape": list(buffer.logical_shape),
                    "shape": list(buffer.shape),
                    "total_bytes": buffer.total_bytes,
                }
                for buffer in self.buffers
            ],
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A configuration that fits and differs from the present one in a single setting.

    Attributes
    ----------
    axis : str
        The setting, one of `AXES`.
    value : int or str
        Its value: the largest below the present one that fits; for dtype the name of a precision policy.
    tile : Tile
        The whole tile, with `query_rows` as the user gave it.
    precision : Precision
        The whole precision.
    used_bytes : int
        UB bytes it takes.
    """

    axis: str
    value: int | str
    tile: Tile
    precision: Precision
    used_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What one configuration takes of every memory of a chip.

    Attributes
    ----------
    workload : Workload
        The attention problem.
    tile : Tile
        The tile, with `query_rows` resolved.
    requested_tile : Tile
        The tile as given.
    precision : Precision
        Element types.
    platform : Platform
        The chip.
    layout : Layout
        The other choices of the kernel.
    memories : mapping of str to MemoryBudget
        UB, L1, L0A, L0B, L0C and GM. The sizes and buffers of the budget itself are those of UB.
    softmax_tmp_bytes : (int, int)
        The operator's own minimum and maximum for the softmax temporary of one tile.
    """

    workload: Workload
    tile: Tile
    requested_tile: Tile
    precision: Precision
    platform: Platform
    layout: Layout
    memories: Mapping[str, MemoryBudget]
    softmax_tmp_bytes: tuple[int, int]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Buffers in UB."""
        return self.memories["UB"].buffers

    @property
    def used_bytes(self) -> int:
        """Sum of the UB buffers."""
        return self.memories["UB"].used_bytes

    @property
    def peak_bytes(self) -> int:
        """UB bytes needed if dead buffers make room for later ones."""
        return self.memories["UB"].peak_bytes

    @property
    def capacity_bytes(self) -> int:
        """All of UB."""
        return self.memories["UB"].capacity_bytes

    @property
    def reserved_bytes(self) -> int:
        """UB bytes that the system keeps."""
        return self.memories["UB"].reserved_bytes

    @property
    def available_bytes(self) -> int:
        """UB bytes a kernel can plan with."""
        return self.memories["UB"].available_bytes

    @property
    def overflowing(self) -> tuple[MemoryBudget, ...]:
        """The memories that do not fit, UB first."""
        return tuple(memory for memory in self.memories.values() if not memory.fits)

    @property
    def fits(self) -> bool:
        """Whether every memory fits."""
        return not self.overflowing

    @property
    def excess_bytes(self) -> int:
        """Bytes over, in the first memory that does not fit: UB unless only another one is short."""
        return self.overflowing[0].excess_bytes if self.overflowing else 0

    def require(self) -> None:
        """Do nothing if the configuration fits.

        Raises
        ------
        BudgetError
            If it does not; the error holds this budget.
        """
        if not self.fits:
            raise BudgetError(self)

    def nearest(self) -> tuple[Suggestion, ...]:
        """Return the nearest configurations that fit, at most one for each of `AXES`.

        On a number's axis that is the largest smaller value that fits. Values that do not fit may lie below
        it, as the footprint does not always grow with the value: a tile that is a basic block takes a larger
        temporary than its neighbours. On the dtype axis it is the policy with the widest types, data first.
        """
        found = (_nearest_value(self, axis) for axis in AXES[:-1])
        return tuple(suggestion for suggestion in (*found, _nearest_policy(self)) if suggestion is not None)

    def explain(self) -> str:
        """Return one line: which memory is over, by how much, because of what, and what would fit."""
        if self.fits:
            ub = self.memories["UB"]
            return f"UB fits: {format_bytes(ub.used_bytes)} of {format_bytes(ub.available_bytes)} available"
        memory = self.overflowing[0]
        parts = [
            f"{memory.name} does not fit: {format_bytes(memory.used_bytes)} required, "
            f"{format_bytes(memory.available_bytes)} available, {format_bytes(memory.excess_bytes)} over",
            "largest buffers: " + _shares(memory.buffers, memory.used_bytes, 3),
            f"fullest stage: {memory.peak_stage}, {format_size(memory.live_bytes[memory.peak_stage])} live"
            + _live_line(memory),
        ]
        also = ", ".join(
            f"{other.name} by {format_size(other.excess_bytes)}" for other in self.overflowing[1:]
        )
        if also:
            parts.append(f"also over: {also}")
        changes = " or ".join(f"{_option(s.axis)} {s.value}" for s in self.nearest())
        parts.append(f"would fit with {changes}" if changes else "no change of a single setting fits")
        return "; ".join(parts)

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat record for each buffer of every memory, as for a CSV file."""
        return [
            {
                "memory": memory.name,
                "name": buffer.name,
                "position": buffer.position,
                "dtype": buffer.dtype,
                "logical_shape": "x".join(str(size) for size in buffer.logical_shape),
                "shape": "x".join(str(size) for size in buffer.shape),
                "count": buffer.count,
                "bytes_each": buffer.bytes_each,
                "total_bytes": buffer.total_bytes,
                "offset_bytes": buffer.offset_bytes,
                "first_stage": buffer.first_stage,
                "last_stage": buffer.last_stage,
            }
            for memory in self.memories.values()
            for buffer in memory.buffers
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the budget as JSON types: UB at the top, every memory under ``memories``."""
        return {
            "schema": 1,
            "workload": self.workload.to_dict(),
            "tile": self.tile.to_dict(),
            "precision": self.precision.name,
            "platform": self.platform.name,
            **self.memories["UB"].to_dict(),
            "fits": self.fits,
            "excess_bytes": self.excess_bytes,
            "overflowing": [memory.name for memory in self.overflowing],
            "softmax_tmp_bytes": {
                "minimum": self.softmax_tmp_bytes[0],
                "maximum": self.softmax_tmp_bytes[1],
            },
            "nearest": []
            if self.fits
            else [{"axis": s.axis, "value": s.value, "used_bytes": s.used_bytes} for s in self.nearest()],
            "memories": {name: memory.to_dict() for name, memory in self.memories.items()},
        }


def budget(
    workload: Workload,
    tile: Tile,
    precision: str | Precision,
    platform: str | Path | Platform,
    *,
    layout: Layout = REFERENCE_LAYOUT,
) -> Budget:
    """Return what a configuration takes of every memory; needs no tensors.

    A configuration that does not fit gives a budget like any other: `Budget.require` is what refuses it.

    Parameters
    ----------
    workload : Workload
        The attention problem.
    tile : Tile
        Tile sizes; `query_rows` None takes the reference rule for the chip's cores.
    precision : str or Precision
        Policy, by name or as an object.
    platform : str, path or Platform
        Chip, by name, as a TOML file or as an object.
    layout : Layout
        The other choices of a kernel author; the reference kernel's by default.

    Raises
    ------
    ConfigError
        If an argument has another type.
    UnknownNameError
        For a policy or platform that does not exist.
    """
    expect("workload", workload, Workload)
    expect("tile", tile, Tile)
    expect("layout", layout, Layout)
    chip = find_platform(platform)
    launch = make_launch(workload, tile, find_precision(precision), chip, layout)
    tables = memory_buffers(launch)
    return Budget(
        workload=workload,
        tile=launch.tile,
        requested_tile=tile,
        precision=launch.precision,
        platform=chip,
        layout=layout,
        memories={name: _memory_budget(chip.memories[name], tables[name]) for name in MEMORIES},
        softmax_tmp_bytes=launch.softmax_tmp_bytes(),
    )


def expect(where: str, value: Any, kind: type) -> None:
    """Refuse a value of another type."""
    if not isinstance(value, kind):
        raise ConfigError(where, value, f"must be a {kind.__name__}")


def make_launch(workload: Workload, tile: Tile, policy: Precision, chip: Platform, layout: Layout) -> Launch:
    """Return the launch of a configuration, its query rows resolved."""
    return Launch(
        workload=workload,
        tile=dataclasses.replace(tile, query_rows=tile.resolve_query_rows(workload, chip.cube_cores)),
        precision=policy,
        layout=layout,
        cube_cores=chip.cube_cores,
        vector_cores_per_cube=chip.vector_cores_per_cube,
    )


def _memory_budget(memory: Memory, buffers: tuple[Buffer, ...]) -> MemoryBudget:
    stages = STAGES[memory.name]
    placed = plan(
        [
            Lifetime(
                size_bytes=buffer.total_bytes,
                first=stages.index(buffer.first_stage),
                last=stages.index(buffer.last_stage),
            )
            for buffer in buffers
        ],
        ALIGNMENT_BYTES[memory.name],
    )
    live = placed.live_bytes + (0,) * (len(stages) - len(placed.live_bytes))
    return MemoryBudget(
        name=memory.name,
        capacity_bytes=memory.capacity_bytes,
        reserved_bytes=memory.reserved_bytes,
        peak_bytes=placed.peak_bytes,
        live_bytes=dict(zip(stages, live, strict=True)),
        buffers=tuple(
            dataclasses.replace(buffer, offset_bytes=offset)
            for buffer, offset in zip(buffers, placed.offsets_bytes, strict=True)
        ),
    )


def launch_fits(launch: Launch, chip: Platform, but: tuple[str, ...] = ()) -> bool:
    """Return whether the plain sum of the buffers fits every memory, those in `but` aside."""
    return all(
        sum(buffer.total_bytes for buffer in buffers) <= chip.memories[name].available_bytes
        for name, buffers in memory_buffers(launch).items()
        if name not in but
    )


def last_true(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """Return the last value in ``[low, high]`` that holds, given that none holds after one that does not."""
    if low > high or not holds(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _nearest_value(budget: Budget, axis: str) -> Suggestion | None:
    chip, present = budget.platform, getattr(budget.tile, axis)
    # The smallest temporary bounds the footprint from below and only grows with the value, which the real one
    # does not, nor does GM with query_rows: fewer cores get a task. So halve on the bound, then walk down.
    bound = dataclasses.replace(budget.layout, basic_block=False, temporary="minimum")

    def launch(value: int, layout: Layout = budget.layout) -> Launch:
        tile = dataclasses.replace(budget.requested_tile, **{axis: value})
        return make_launch(budget.workload, tile, budget.precision, chip, layout)

    # Where all keys come to fit one tile the kernel takes its short path: another table, searched by itself.
    border = max(1, min(budget.workload.seq_kv, present)) if axis == "kv_tile" else present
    for low, high in ((border, present - 1), (1, border - 1)):
        if low > high or not launch_fits(launch(low, bound), chip):
            continue
        start = last_true(low, high, lambda value: launch_fits(launch(value, bound), chip, but=("GM",)))
        for value in range(low if start is None else start, low - 1, -1):
            if launch_fits(launch(value), chip):
                tile = dataclasses.replace(budget.requested_tile, **{axis: value})
                return _suggest(budget, axis, value, tile, budget.precision)
    return None


def _nearest_policy(budget: Budget) -> Suggestion | None:
    present = (budget.precision.data, budget.precision.state)
    others = [policy for policy in PRECISIONS.values() if (policy.data, policy.state) != present]
    for policy in sorted(others, key=lambda policy: (-policy.data.itemsize, -policy.state.itemsize)):
        launch = make_launch(budget.workload, budget.requested_tile, policy, budget.platform, budget.layout)
        if launch_fits(launch, budget.platform):
            return _suggest(budget, "dtype", policy.name, budget.requested_tile, policy)
    return None


def _suggest(budget: Budget, axis: str, value: int | str, tile: Tile, policy: Precision) -> Suggestion:
    launch = make_launch(budget.workload, tile, policy, budget.platform, budget.layout)
    used_bytes = sum(buffer.total_bytes for buffer in memory_buffers(launch)["UB"])
    return Suggestion(axis=axis, value=value, tile=tile, precision=policy, used_bytes=used_bytes)


def _live_line(memory: MemoryBudget) -> str:
    stage = memory.peak_stage
    if len(memory.stages) == 1:
        return ""
    live = _shares(memory.live_buffers(stage), memory.live_bytes[stage], None)
    reuse = ", would fit if dead buffers were reused" if memory.peak_bytes <= memory.available_bytes else ""
    return f" ({live}){reuse}"


def _shares(buffers: Sequence[Buffer], whole_bytes: int, most: int | None) -> str:
    largest = sorted(buffers, key=lambda buffer: -buffer.total_bytes)[:most]
    return ", ".join(
        f"{buffer.name} {format_size(buffer.total_bytes)} "
        f"({100 * buffer.total_bytes / whole_bytes:.0f}%, count {buffer.count})"
        for buffer in largest
    )


def _option(axis: str) -> str:
    return "precision" if axis == "dtype" else axis
