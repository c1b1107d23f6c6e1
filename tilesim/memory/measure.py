"""One launch run inside its planned memory: every tile passes through the buffers of the budget.

The modelled cores run one after the other, in NumPy, so this is slow: it is for checking a plan and for
looking at what a small problem really holds, not for throughput. The softmax is the operator's own compiled
kernel. For the half and bfloat16 policies the output is that of `tilesim.attention`, bit for bit; for the
float ones sums of products may differ in the last bit, as NumPy does not fuse multiply and add.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from tilesim.errors import ConfigError
from tilesim.masks import Window
from tilesim.memory.budget import Budget, budget
from tilesim.memory.layout import FRACTAL, REFERENCE_LAYOUT, Layout
from tilesim.memory.tracker import NUMPY_TYPES, Arena, Tracker
from tilesim.platform import Platform
from tilesim.precision import DEFAULT_PRECISION, Precision
from tilesim.precision import precision as find_precision
from tilesim.problem import read_problem
from tilesim.softmax.flash_v2 import update_tile
from tilesim.softmax.tiling import is_basic_block
from tilesim.tensors import Tensors, to_data_type
from tilesim.tile import Tile
from tilesim.units import align_up, ceil_div
from tilesim.variant import VariantOptions

Array = npt.NDArray[Any]

CHUNK_COLUMNS = 64
"""Columns of one repeat of the vector core; a basic block counts whole ones."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredLaunch:
    """What a launch held while it ran, beside what was projected.

    Attributes
    ----------
    budget : Budget
        The plan.
    measured_bytes : mapping of str to int
        Memory name -> most bytes that were open at the same time; at most ``projected_bytes``.
    output : array (batch, heads, seq_q, head_dim_v) of the data type of the policy
    lse : float32 array (batch, heads, seq_q)
    """

    budget: Budget
    measured_bytes: Mapping[str, int]
    output: Array
    lse: npt.NDArray[np.float32]

    @property
    def projected_bytes(self) -> dict[str, int]:
        """Memory name -> peak of the plan."""
        return {name: memory.peak_bytes for name, memory in self.budget.memories.items()}


def measure_memory(
    q: Any,
    k: Any,
    v: Any,
    *,
    tile: Tile | None = None,
    precision: str | Precision = DEFAULT_PRECISION,
    mask: Any = "causal",
    window: Window = None,
    scale: float | None = None,
    platform: str | Path | Platform = "ascend910b4",
    layout: Layout = REFERENCE_LAYOUT,
    allow_over_budget: bool = False,
    poison: bool = False,
    **options: Unpack[VariantOptions],
) -> MeasuredLaunch:
    """Run one launch inside its planned memory and return what it held.

    Parameters
    ----------
    q, k, v, tile, precision, mask, window, scale, platform, allow_over_budget
        As for `tilesim.simulate`.
    layout : Layout
        The other choices of the kernel, types excepted: tensors have the types of the policy.
    poison : bool
        Debug option: fill storage with NaN before it is first used and after it is given back, so that a
        kernel that reads what it must not gives NaN.
    **options
        align and key_lengths of `tilesim.VariantOptions`; the others are refused.

    Raises
    ------
    BudgetError
        If the configuration does not fit, unless `allow_over_budget`.
    ConfigError
        As `tilesim.simulate`, if `layout` sets the type of a tensor, and for mask tensors, softcap, ALiBi,
        sinks and split keys, which are planned but not run here.
    InputError, DTypeError
        For tensors that are malformed or do not belong together.
    """
    problem = read_problem(q, k, v, mask=mask, window=window, scale=scale, options=options)
    policy = find_precision(precision)
    for field in dataclasses.fields(layout):
        chosen = getattr(layout, field.name)
        if field.name.endswith("_dtype") and chosen is not None:
            rule = "must be None: a measured launch runs with the types of the policy"
            raise ConfigError(f"Layout.{field.name}", chosen.name, rule)
    plan = budget(problem.workload, Tile.given(tile), policy, platform, layout=layout)
    _refuse_variants(plan)
    if not allow_over_budget:
        plan.require()
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        return _Launch(plan, problem.tensors, problem.scale, Tracker(plan, poison=poison)).run()


def _refuse_variants(plan: Budget) -> None:
    """Refuse what needs buffers that a measured launch does not fill."""
    asked = {name: getattr(plan.workload, name) for name in ("attn_mask", "softcap", "alibi", "sinks")}
    if plan.tile.kv_splits > 1:
        asked["kv_splits"] = plan.tile.kv_splits
    for name, value in asked.items():
        if value:
            raise ConfigError(name, value, "must be left out where memory is measured: it is only planned")


@dataclasses.dataclass(frozen=True)
class _Task:
    """Query rows ``top ... top + rows - 1`` of one head, and the KV tiles they see."""

    batch: int
    head: int
    top: int
    rows: int
    tiles: range


class _Launch:
    """The launch at work: tasks one after the other on one modelled cube core and its vector cores."""

    def __init__(self, plan: Budget, tensors: Tensors, scale: float, tracker: Tracker) -> None:
        self.plan, self.tracker = plan, tracker
        self.workload, self.tile, self.layout = plan.workload, plan.tile, plan.layout
        self.data = NUMPY_TYPES[plan.precision.data.name]
        self.query_rows = plan.tile.query_rows or 1
        self.short = self.tile.is_short(self.workload)
        self.scale = np.asarray(scale, self.data)
        self.cube = _Cube(tracker, plan)
        self.gm = {buffer.name: tracker["GM"].open(buffer.name)[0] for buffer in plan.memories["GM"].buffers}
        for name in ("q", "k", "v"):
            self.gm[name][...] = to_data_type(getattr(tensors, name), plan.precision.data)
        self.lse = np.empty((self.workload.batch, self.workload.heads, self.workload.seq_q), np.float32)

    def run(self) -> MeasuredLaunch:
        for task in self.tasks():
            self.run_task(task)
        return MeasuredLaunch(
            budget=self.plan,
            measured_bytes=self.tracker.peak_bytes,
            output=self.gm["output"].copy(),
            lse=self.lse,
        )

    def tasks(self) -> Iterator[_Task]:
        workload, kv_tile = self.workload, self.tile.kv_tile
        for batch, head in np.ndindex(workload.batch, workload.heads):
            for top in range(0, workload.seq_q, self.query_rows):
                rows = min(self.query_rows, workload.seq_q - top)
                starts, stops = self.visible(batch, top, rows)
                seen = range(int(starts.min()) // kv_tile, ceil_div(int(stops.max()), kv_tile))
                yield _Task(batch, head, top, rows, seen if (stops > starts).any() else range(0))

    def visible(self, batch: int, top: int, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the first visible key and the one after the last of each query row."""
        workload = self.workload
        own = np.arange(top, top + rows, dtype=np.int64)
        return workload.band.key_range(own, workload.seq_q, workload.lengths[batch])

    def run_task(self, task: _Task) -> None:
        cores = self.plan.platform.vector_cores_per_cube
        share = ceil_div(task.rows, cores)
        # The vector cores run one after the other in the same arena: each has a UB of its own, all alike.
        for first in range(0, task.rows, share):
            core = _VectorCore(self, task, first, min(share, task.rows - first))
            lag = 1 if self.tile.slots > 1 else 0
            for turn in range(len(task.tiles) + lag):
                if turn < len(task.tiles):
                    self.cube.scores(self, task, turn)
                    core.softmax(turn)
                if 0 <= turn - lag < len(task.tiles):
                    self.cube.partial(self, task, turn - lag)
                    core.accumulate(turn - lag)
            core.finish()

    def keys(self, task: _Task, turn: int) -> slice:
        """Return the keys of a task's tile."""
        low = task.tiles[turn] * self.tile.kv_tile
        return slice(low, min(low + self.tile.kv_tile, self.workload.lengths[task.batch]))

    def slot(self, tensor: str, turn: int) -> Array:
        """Return the exchange slot of the first core for a tile: (query_rows, columns)."""
        slot: Array = self.gm[tensor][0, turn % self.tile.slots]
        return slot


class _Cube:
    """The cube core: products in base blocks that stream from GM through L1 and L0."""

    def __init__(self, tracker: Tracker, plan: Budget) -> None:
        self.tracker = tracker
        self.base_rows, self.base_columns = plan.layout.base_rows, plan.layout.base_columns
        self.base_depth = plan.layout.base_depth_bytes // plan.precision.data.itemsize

    def scores(self, launch: _Launch, task: _Task, turn: int) -> None:
        """Multiply the queries of a task with the keys of one tile into the score slot."""
        keys = launch.keys(task, turn)
        group = launch.workload.heads // launch.workload.kv_heads
        query = launch.gm["q"][task.batch, task.head, task.top : task.top + task.rows]
        key = launch.gm["k"][task.batch, task.head // group, keys]
        target = launch.slot("score", turn)[: task.rows, : key.shape[0]]
        self.product("qk", ("query", "key"), query, key.T, target)

    def partial(self, launch: _Launch, task: _Task, turn: int) -> None:
        """Multiply the probabilities of one tile with its values into the partial slot."""
        keys = launch.keys(task, turn)
        group = launch.workload.heads // launch.workload.kv_heads
        value = launch.gm["v"][task.batch, task.head // group, keys]
        # A key that no row of the tile sees has probability 0, but 0 * inf is NaN: leave such values out.
        starts, stops = launch.visible(task.batch, task.top, task.rows)
        probability = launch.slot("probability", turn)[: task.rows, : value.shape[0]]
        target = launch.slot("partial", turn)[: task.rows]
        if np.isfinite(value).all():
            self.product("pv", ("probability", "value"), probability, value, target)
            return
        for row, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            seen = slice(max(int(start) - keys.start, 0), max(int(stop) - keys.start, 0))
            own, values = probability[row : row + 1, seen], value[seen]
            self.product("pv", ("probability", "value"), own, values, target[row : row + 1])

    def product(self, stage: str, names: tuple[str, str], left: Array, right: Array, target: Array) -> None:
        """Put ``left @ right`` into `target`, sums in float in ascending order of the common axis."""
        for top in range(0, left.shape[0], self.base_rows):
            rows = slice(top, top + self.base_rows)
            for low in range(0, right.shape[1], self.base_columns):
                columns = slice(low, low + self.base_columns)
                self.block(names, left[rows], right[:, columns], target[rows, columns])

    def block(self, names: tuple[str, str], left: Array, right: Array, target: Array) -> None:
        rows, columns = target.shape
        l0c = self.tracker["L0C"].open("product", _fractals(rows, columns))[0]
        l0c[...] = 0.0
        for first in range(0, left.shape[1], self.base_depth):
            depth = slice(first, first + self.base_depth)
            a, b = left[:, depth], right[depth]
            staged = [
                _copy_in(self.tracker["L1"], name, block) for name, block in zip(names, (a, b), strict=True)
            ]
            operands = [
                _copy_in(self.tracker[memory], name, block)
                for (memory, name), block in zip(
                    (("L0A", "left operand"), ("L0B", "right operand")), staged, strict=True
                )
            ]
            for index in range(a.shape[1]):
                column = operands[0][:, index : index + 1].astype(np.float32)
                l0c[:rows, :columns] += column * operands[1][index].astype(np.float32)
            for memory, name in (("L0A", "left operand"), ("L0B", "right operand")):
                self.tracker[memory].close(name)
            for name in names:
                self.tracker["L1"].close(name)
        target[...] = l0c[:rows, :columns].astype(target.dtype)
        self.tracker["L0C"].close("product")


def _fractals(rows: int, columns: int) -> tuple[int, int]:
    return align_up(rows, FRACTAL), align_up(columns, FRACTAL)


def _copy_in(arena: Arena, name: str, block: Array) -> Array:
    rows, columns = block.shape
    padded = arena.open(name, _fractals(rows, columns))[0]
    padded[...] = 0
    padded[:rows, :columns] = block
    return padded[:rows, :columns]


class _VectorCore:
    """One vector core with its rows of a task; all its storage lies in the tracked UB."""

    def __init__(self, launch: _Launch, task: _Task, first: int, rows: int) -> None:
        self.launch, self.task, self.first, self.rows = launch, task, first, rows
        self.ub = launch.tracker["UB"]
        plan, tile = launch.plan, launch.tile
        sum_slots, exp_max_slots = (tile.slots, 1) if launch.short else (1, tile.slots)
        self.shapes = {
            "sum": (sum_slots, plan.precision.state.lanes),
            "max": (1, plan.precision.state.lanes),
            "exp_max": (exp_max_slots, plan.precision.data.lanes),
        }
        self.top = np.full(rows, -np.inf, np.float32)
        self.sum = self.state("sum")
        self.sum[0, :rows] = 0.0
        if not launch.short:
            self.open_tile_states()
            width = align_up(launch.workload.head_dim_v, FRACTAL)
            self.accumulator = self.ub.open("accumulator", (rows, width))[0]
            self.accumulator[...] = 0

    def open_tile_states(self) -> None:
        self.max, self.exp_max = self.state("max"), self.state("exp_max")
        self.max[0, : self.rows] = -np.inf

    def state(self, name: str) -> Array:
        """Open a state tensor: one 32-byte block a row, or one element in mode WITHOUT_BRC."""
        slots, lanes = self.shapes[name]
        if self.launch.layout.state_mode == "NORMAL":
            return self.ub.open(name, (slots, self.rows, lanes))[0]
        return self.ub.open(name, (slots, align_up(self.rows, lanes)))[0][:, :, None]

    def softmax(self, turn: int) -> None:
        """Take the own rows of one score tile through the softmax, group by group."""
        for top in range(0, self.rows, self.launch.tile.softmax_rows):
            self.group(turn, slice(top, min(top + self.launch.tile.softmax_rows, self.rows)))

    def group(self, turn: int, group: slice) -> None:
        launch, ub, task = self.launch, self.ub, self.task
        keys = launch.keys(task, turn)
        rows, columns = group.stop - group.start, keys.stop - keys.start
        basic = self.is_basic()
        counted = align_up(columns, CHUNK_COLUMNS) if basic else columns
        shape = (rows, align_up(counted, launch.plan.precision.data.lanes))
        own = slice(self.first + group.start, self.first + group.stop)
        score = ub.open("score", shape)[0]
        score[...] = -np.inf
        score[:, :columns] = launch.slot("score", turn)[own, :columns] * launch.scale
        self.mask(score[:, :columns], task.top + own.start, keys)
        probability = ub.open("probability", shape)[0]
        ub.open("softmax temporary")
        if launch.short:
            # With a single tile nothing reads maximum or exp_max after the call that writes them.
            self.open_tile_states()
        exp_max = self.exp_max[turn % len(self.exp_max)]
        update_tile(
            (probability, self.sum[0, group], self.max[0, group], exp_max[group]),
            score,
            counted=counted,
            update=turn > 0,
            basic=basic,
        )
        self.top[group] = self.max[0, group, 0]
        if launch.short:
            ub.close("max")
            ub.close("exp_max")
        ub.close("softmax temporary")
        ub.close("score")
        launch.slot("probability", turn)[own, :columns] = probability[:, :columns]
        ub.close("probability")

    def is_basic(self) -> bool:
        """Return whether a full tile of this launch is a basic block; tails then count whole chunks too."""
        tile, itemsize = self.launch.tile, self.launch.plan.precision.data.itemsize
        return self.launch.layout.basic_block and is_basic_block(tile.softmax_rows, tile.kv_tile, itemsize)

    def mask(self, score: Array, top: int, keys: slice) -> None:
        """Put -inf where a row does not see a key, by way of the mask buffer where there is one."""
        starts, stops = self.launch.visible(self.task.batch, top, score.shape[0])
        key = np.arange(keys.start, keys.stop)
        hidden = (key < starts[:, None]) | (key >= stops[:, None])
        if not self.launch.layout.mask_buffers:
            score[hidden] = -np.inf
            return
        shape = (score.shape[0], align_up(score.shape[1], self.launch.plan.precision.data.lanes))
        mask = self.ub.open("mask", shape)[0][:, : score.shape[1]]
        mask[...] = np.where(hidden, -np.inf, 0.0)
        # Not a sum: a hidden score of NaN or +inf must become -inf too.
        score[mask != 0] = -np.inf
        self.ub.close("mask")

    def accumulate(self, turn: int) -> None:
        """Add the PV product of one tile to the rescaled accumulator; the short path normalises it later."""
        if self.launch.short:
            return
        width = self.launch.workload.head_dim_v
        partial = self.load_partial(turn)
        accumulator = self.accumulator[:, :width]
        if turn == 0:
            accumulator[...] = partial
        else:
            exp_max = self.exp_max[turn % len(self.exp_max), : self.rows, :1]
            accumulator[...] = exp_max * accumulator + partial
        self.ub.close("partial")

    def load_partial(self, turn: int) -> Array:
        width = self.launch.workload.head_dim_v
        own = slice(self.first, self.first + self.rows)
        partial = self.ub.open("partial", (self.rows, align_up(width, FRACTAL)))[0][:, :width]
        partial[...] = self.launch.slot("partial", turn)[own]
        return partial

    def finish(self) -> None:
        """Divide by the row sum, itself rounded with ties away from zero, and store."""
        launch, task = self.launch, self.task
        total = self.sum[0, : self.rows, 0].astype(np.float32)
        seen = len(task.tiles) > 0
        if not launch.short:
            self.ub.close("max")
            self.ub.close("exp_max")
            numerator = self.accumulator[:, : launch.workload.head_dim_v]
        elif seen:
            numerator = self.load_partial(0)
        else:
            numerator = np.zeros((self.rows, launch.workload.head_dim_v), launch.data)
        scratch_bytes = self.ub.planned("normalisation scratch").shape[1]
        self.ub.open("normalisation scratch", (self.rows, scratch_bytes))
        data = launch.plan.precision.data
        denominator = data.round_away(total).astype(np.float32)[:, None]
        quotient = numerator.astype(np.float32) / denominator
        rows = slice(task.top + self.first, task.top + self.first + self.rows)
        launch.gm["output"][task.batch, task.head, rows] = np.where(
            total[:, None] == 0.0, np.float32(0.0), quotient
        ).astype(launch.data)
        launch.lse[task.batch, task.head, rows] = self.top + np.log(total.astype(np.float64))
        self.ub.close("normalisation scratch")
        if launch.short and seen:
            self.ub.close("partial")
        for name in ("sum",) if launch.short else ("sum", "accumulator"):
            self.ub.close(name)
