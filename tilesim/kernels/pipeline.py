"""The pipeline of one AI core: a cube core and its vector cores, each lane in program order, joined by flags.

Times are cycles from the start of the first task. An operation starts when its lane is free, the scalar unit
has issued it and what it needs is there; the gap before it is a stall, charged to what came last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tilesim.kernels._jit import jit, jit_entry
from tilesim.kernels.mask_tiles import PARTIAL, SKIPPED

# Lanes of the cube core, then those of each vector core.
CUBE_SCALAR, CUBE_MTE2, CUBE_MTE1, CUBE, CUBE_FIXP = range(5)
SCALAR, MTE2, VECTOR, MTE3 = range(4)
CUBE_LANES, VECTOR_LANES = 5, 4
VECTOR_CORES = 2
LANES = CUBE_LANES + VECTOR_CORES * VECTOR_LANES

# The products of a tile.
QK, PV = range(2)

# What an operation waited for.
(
    ISSUE, DATA, BUFFER, QK_READY, PROB_READY, PV_READY, PV_DONE, TASK, SPLITS_DONE,
) = range(9)  # fmt: skip
REASONS = 9

# Names of operations, for the timeline.
(
    LOAD_QUERY, LOAD_KEY, LOAD_PROB, LOAD_VALUE, MOVE_LEFT, MOVE_RIGHT, MULTIPLY_QK, MULTIPLY_PV, STORE_SCORE,
    STORE_PARTIAL, COPY_SCORE, COPY_MASK, SOFTMAX, COPY_PROB, COPY_PARTIAL, ACCUMULATE, NORMALISE,
    STORE_OUTPUT, QUEUE, MATMUL_CALL, LOAD_SPLIT, COMBINE_SPLIT,
) = range(22)  # fmt: skip
OPERATIONS = 22

# Columns of a recorded event.
EVENT_LANE, EVENT_NAME, EVENT_START, EVENT_END, EVENT_TASK, EVENT_TILE, EVENT_GROUP = range(7)
EVENT_COLUMNS = 7

# Columns of a task and of a tile.
TASK_FIRST_TILE, TASK_TILES, TASK_ROWS = range(3)
(
    TILE_COLUMNS, TILE_VECTOR, TILE_TAIL_VECTOR, TILE_MASKED_VECTOR, TILE_MASKED_TAIL_VECTOR,
) = range(5)  # fmt: skip
TILE_FIELDS = 5


class Rates(NamedTuple):
    """Cycles of everything but the vector programs; all float64 unless said otherwise.

    Attributes
    ----------
    l1_start, l1_rate : GM to L1: cycles of a transfer before its bytes, bytes a cycle
    ub_start, ub_rate : GM to UB
    out_start, out_rate : UB to GM
    fixp_start, fixp_rate : L0C to GM
    l0_start, l0a_rate, l0b_rate : L1 to L0A and L0B
    cube_start, cube_blocks : cycles before a product, blocks of 16 x 16 x 16 halves a cycle
    queue : scalar cycles of one queue operation, and cycles until what it hands over is there
    matmul : scalar cycles of one call of the matmul library
    flag : cycles from setting a cross-core flag to the end of the wait
    """

    l1_start: Any
    l1_rate: Any
    ub_start: Any
    ub_rate: Any
    out_start: Any
    out_rate: Any
    fixp_start: Any
    fixp_rate: Any
    l0_start: Any
    l0a_rate: Any
    l0b_rate: Any
    cube_start: Any
    cube_blocks: Any
    queue: Any
    matmul: Any
    flag: Any


class Shape(NamedTuple):
    """Sizes of the kernel, int64.

    Attributes
    ----------
    head_dim, head_dim_v, itemsize, partial_itemsize, mask_itemsize : elements and bytes
    output_bytes : of one row that a task leaves in GM
    softmax_rows, slots : as in the tile
    score_buffers, mask_buffers, prob_buffers : buffers of the queues; at least 1 where used
    base_rows, base_columns, base_depth : base block of a product, in elements
    short : whether every task has a single tile and tasks overlap
    """

    head_dim: Any
    head_dim_v: Any
    itemsize: Any
    partial_itemsize: Any
    mask_itemsize: Any
    output_bytes: Any
    softmax_rows: Any
    slots: Any
    score_buffers: Any
    mask_buffers: Any
    prob_buffers: Any
    base_rows: Any
    base_columns: Any
    base_depth: Any
    short: Any


class Ending(NamedTuple):
    """Cycles of the vector programs that end tiles and tasks, for the rows of one vector core.

    Attributes
    ----------
    take, accumulate, normalise : float64 arrays
        By number of rows; `take` for the first tile, which only moves the product.
    """

    take: Any
    accumulate: Any
    normalise: Any


class Combine(NamedTuple):
    """How the splits of the keys become one output.

    Attributes
    ----------
    rows : int
        Output rows of one vector core.
    block : int
        Rows it takes at a time.
    splits : int
    split_bytes, output_bytes : int
        Of one row of one split, and of one row of the output.
    add, divide : float64 arrays
        Cycles by number of rows, of each split and at the end.
    """

    rows: Any
    block: Any
    splits: Any
    split_bytes: Any
    output_bytes: Any
    add: Any
    divide: Any


class Core(NamedTuple):
    """State of the core.

    Attributes
    ----------
    free, busy : float64 arrays (LANES)
        When each lane is free again, and how long it worked.
    stall : float64 array (LANES, REASONS)
    work : float64 array (OPERATIONS, 2)
        How often each kind of operation ran, and its cycles.
    events : float64 array (n, EVENT_COLUMNS)
        Recorded operations; n = 0 to record none.
    used : int64 array (1)
        Events written.
    where : int64 array (3)
        Task, tile and group at work.
    flags : float64 array (5, 64)
        Per slot: when QK_READY, PROB_READY, PV_READY, PV_DONE were set.
    queues : float64 array (VECTOR_CORES, 3, 8)
        When the buffers of the score, mask and probability queues become free.
    """

    free: Any
    busy: Any
    stall: Any
    work: Any
    events: Any
    used: Any
    where: Any
    flags: Any
    queues: Any


@jit
def _run(core: Core, lane: Any, name: Any, cycles: Any, ready: Any, reason: Any) -> Any:
    """Run one operation on a lane that cannot start before `ready`; return its end."""
    start = max(core.free[lane], ready)
    core.stall[lane, reason] += start - core.free[lane]
    end = start + cycles
    core.free[lane] = end
    core.busy[lane] += cycles
    core.work[name, 0] += 1.0
    core.work[name, 1] += cycles
    if core.used[0] < core.events.shape[0]:
        event = core.events[core.used[0]]
        event[EVENT_LANE], event[EVENT_NAME], event[EVENT_START], event[EVENT_END] = lane, name, start, end
        event[EVENT_TASK], event[EVENT_TILE], event[EVENT_GROUP] = core.where[0], core.where[1], core.where[2]
        core.used[0] += 1
    return end


@jit
def _end(core: Core) -> Any:
    """Return when the last lane is free."""
    end = 0.0
    for lane in range(LANES):
        end = max(end, core.free[lane])
    return end


@jit
def _later(a: Any, reason_a: Any, b: Any, reason_b: Any) -> Any:
    return (a, reason_a) if a >= b else (b, reason_b)


@jit
def _ceil(a: Any, b: Any) -> Any:
    return (a + b - 1) // b


@jit
def _product(
    core: Core, rates: Rates, shape: Shape, rows: Any, columns: Any, depth: Any, ready: Any, reason: Any,
    product: Any,
) -> Any:  # fmt: skip
    """Run a product, QK or PV, (rows x depth) @ (depth x columns) in base blocks; return when it is in GM.

    The right operand stays in L1 for all row blocks, the left one for all column blocks of its rows. Loads of
    the next base block overlap with the product of this one.
    """
    size = shape.itemsize
    load_left, load_right = (LOAD_PROB, LOAD_VALUE) if product == PV else (LOAD_QUERY, LOAD_KEY)
    multiply, store = (MULTIPLY_PV, STORE_PARTIAL) if product == PV else (MULTIPLY_QK, STORE_SCORE)
    start = _run(core, CUBE_SCALAR, MATMUL_CALL, rates.matmul, ready, reason)
    end = start
    before_last = start
    last = start
    for top in range(0, rows, shape.base_rows):
        block_rows = min(shape.base_rows, rows - top)
        for low in range(0, columns, shape.base_columns):
            block_columns = min(shape.base_columns, columns - low)
            for first in range(0, depth, shape.base_depth):
                block_depth = min(shape.base_depth, depth - first)
                loaded = start
                if low == 0:
                    cycles = rates.l1_start + block_rows * block_depth * size / rates.l1_rate
                    loaded = _run(core, CUBE_MTE2, load_left, cycles, start, ISSUE)
                if top == 0:
                    cycles = rates.l1_start + block_columns * block_depth * size / rates.l1_rate
                    loaded = _run(core, CUBE_MTE2, load_right, cycles, start, ISSUE)
                # Two buffers in L0: this block's operands go where those of the block before the last were.
                movable, why = _later(loaded, DATA, before_last, BUFFER)
                cycles = rates.l0_start + block_rows * block_depth * size / rates.l0a_rate
                _run(core, CUBE_MTE1, MOVE_LEFT, cycles, movable, why)
                cycles = rates.l0_start + block_columns * block_depth * size / rates.l0b_rate
                moved = _run(core, CUBE_MTE1, MOVE_RIGHT, cycles, movable, why)
                blocks = _ceil(block_rows, 16) * _ceil(block_columns, 16) * _ceil(block_depth, 16)
                cycles = rates.cube_start + blocks / rates.cube_blocks
                before_last = last
                last = _run(core, CUBE, multiply, cycles, moved, DATA)
            cycles = rates.fixp_start + block_rows * block_columns * shape.partial_itemsize / rates.fixp_rate
            end = _run(core, CUBE_FIXP, store, cycles, last, DATA)
    return end


@jit
def _vector_rows(rows: Any, core_index: Any) -> Any:
    """Return the rows of a task that one of its vector cores takes: the first takes the larger half."""
    half = (rows + VECTOR_CORES - 1) // VECTOR_CORES
    return min(half, rows) if core_index == 0 else rows - min(half, rows)


@jit
def _softmax(
    core: Core, rates: Rates, shape: Shape, unit: Any, rows: Any, tile: Any, kinds: Any, ready: Any
) -> Any:
    """Take the rows of one vector core through the softmax of a tile; return when the last are in GM."""
    lane = CUBE_LANES + unit * VECTOR_LANES
    columns = int(tile[TILE_COLUMNS])
    end = ready
    turn = -1
    for group in range(_ceil(rows, shape.softmax_rows)):
        if kinds[unit, group] == SKIPPED:
            continue
        turn += 1
        masked = kinds[unit, group] == PARTIAL
        top = group * shape.softmax_rows
        group_rows = min(shape.softmax_rows, rows - top)
        core.where[2] = group
        score_free = core.queues[unit, 0, turn % shape.score_buffers]
        prob_free = core.queues[unit, 2, turn % shape.prob_buffers]
        # The wait for a cross-core flag blocks the scalar unit; flags between lanes of a core do not: a
        # buffer or tensor that is handed over is there `queue` cycles later.
        issued = _run(core, lane + SCALAR, QUEUE, rates.queue, ready, QK_READY)
        startable, why = _later(issued, ISSUE, score_free + rates.queue, BUFFER)
        cycles = rates.ub_start + group_rows * columns * shape.itemsize / rates.ub_rate
        arrived = _run(core, lane + MTE2, COPY_SCORE, cycles, startable, why)
        if masked and shape.mask_buffers > 0:
            mask_free = core.queues[unit, 1, turn % shape.mask_buffers]
            issued = _run(core, lane + SCALAR, QUEUE, rates.queue, 0.0, ISSUE)
            startable, why = _later(issued, ISSUE, mask_free + rates.queue, BUFFER)
            cycles = rates.ub_start + group_rows * columns * shape.mask_itemsize / rates.ub_rate
            arrived = _run(core, lane + MTE2, COPY_MASK, cycles, startable, why)
        issued = _run(core, lane + SCALAR, QUEUE, rates.queue, 0.0, ISSUE)
        startable, why = _later(arrived + rates.queue, DATA, prob_free + rates.queue, BUFFER)
        startable, why = _later(startable, why, issued, ISSUE)
        field = TILE_MASKED_VECTOR if masked else TILE_VECTOR
        cycles = tile[field] if group_rows == shape.softmax_rows else tile[field + 1]
        done = _run(core, lane + VECTOR, SOFTMAX, cycles, startable, why)
        core.queues[unit, 0, turn % shape.score_buffers] = done
        if masked and shape.mask_buffers > 0:
            core.queues[unit, 1, turn % shape.mask_buffers] = done
        issued = _run(core, lane + SCALAR, QUEUE, rates.queue, 0.0, ISSUE)
        startable, why = _later(done + rates.queue, DATA, issued, ISSUE)
        cycles = rates.out_start + group_rows * columns * shape.itemsize / rates.out_rate
        end = _run(core, lane + MTE3, COPY_PROB, cycles, startable, why)
        core.queues[unit, 2, turn % shape.prob_buffers] = end
    core.where[2] = 0
    return end


@jit
def _take_partial(
    core: Core, rates: Rates, shape: Shape, unit: Any, rows: Any, ready: Any, name: Any, cycles: Any
) -> Any:
    """Copy the PV product of one vector core in and work on it; return when it is done with."""
    lane = CUBE_LANES + unit * VECTOR_LANES
    # The partial queue has one buffer, free once the vector lane is.
    issued = _run(core, lane + SCALAR, QUEUE, rates.queue, ready, PV_READY)
    startable, why = _later(issued, ISSUE, core.free[lane + VECTOR] + rates.queue, BUFFER)
    load = rates.ub_start + rows * shape.head_dim_v * shape.partial_itemsize / rates.ub_rate
    arrived = _run(core, lane + MTE2, COPY_PARTIAL, load, startable, why)
    issued = _run(core, lane + SCALAR, QUEUE, rates.queue, 0.0, ISSUE)
    startable, why = _later(arrived + rates.queue, DATA, issued, ISSUE)
    return _run(core, lane + VECTOR, name, cycles, startable, why)


@jit
def _store_output(core: Core, rates: Rates, shape: Shape, unit: Any, rows: Any) -> Any:
    lane = CUBE_LANES + unit * VECTOR_LANES
    cycles = rates.out_start + rows * shape.output_bytes / rates.out_rate
    return _run(core, lane + MTE3, STORE_OUTPUT, cycles, core.free[lane + VECTOR] + rates.queue, DATA)


@jit
def _scores(core: Core, rates: Rates, shape: Shape, rows: Any, tile: Any, kinds: Any, turn: Any) -> None:
    """QK of one tile into its slot, then the softmax of both vector cores."""
    slot = turn % shape.slots
    free, why = core.flags[PV_DONE - QK_READY, slot], PV_DONE
    if turn < shape.slots:
        free, why = 0.0, TASK
    stored = _product(core, rates, shape, rows, int(tile[TILE_COLUMNS]), shape.head_dim, free, why, QK)
    core.flags[0, slot] = stored + rates.flag
    probabilities = 0.0
    for unit in range(VECTOR_CORES):
        own = _vector_rows(rows, unit)
        if own > 0:
            ready = core.flags[0, slot]
            probabilities = max(probabilities, _softmax(core, rates, shape, unit, own, tile, kinds, ready))
    core.flags[PROB_READY - QK_READY, slot] = probabilities + rates.flag


@jit
def _values(
    core: Core, rates: Rates, shape: Shape, rows: Any, tile: Any, turn: Any, last: Any, first: Any,
    ending: Ending,
) -> None:  # fmt: skip
    """PV of one tile, then accumulation; after the last tile of a task normalisation and store."""
    slot = turn % shape.slots
    ready = core.flags[PROB_READY - QK_READY, slot]
    stored = _product(
        core, rates, shape, rows, shape.head_dim_v, int(tile[TILE_COLUMNS]), ready, PROB_READY, PV
    )
    core.flags[PV_READY - QK_READY, slot] = stored + rates.flag
    done = 0.0
    for unit in range(VECTOR_CORES):
        own = _vector_rows(rows, unit)
        if own == 0:
            continue
        cycles = ending.take[own] if first else ending.accumulate[own]
        ready = core.flags[PV_READY - QK_READY, slot]
        done = max(done, _take_partial(core, rates, shape, unit, own, ready, ACCUMULATE, cycles))
        if last:
            lane = CUBE_LANES + unit * VECTOR_LANES
            _run(core, lane + VECTOR, NORMALISE, ending.normalise[own], 0.0, ISSUE)
            _store_output(core, rates, shape, unit, own)
    core.flags[PV_DONE - QK_READY, slot] = done + rates.flag


@jit
def _place(step: Any, chain: Any, shape: Shape) -> Any:
    """Return the task of a step of a chain, and its tile within the task."""
    return (step, 0) if shape.short else (chain, step)


@jit
def _run_chain(
    tasks: Any, steps: Any, chain: Any, turn: Any, tiles: Any, kinds: Any, rates: Rates, shape: Shape,
    ending: Ending, core: Core,
) -> None:  # fmt: skip
    """Run steps that overlap: the PV product of the one before runs beside the softmax of each.

    A step is a task of one tile if all tasks are short, else a tile of task `chain`.
    """
    lag = 1 if shape.slots > 1 else 0
    for step in range(steps + lag):
        task, index = _place(step, chain, shape)
        if step < steps and tasks[task, TASK_TILES] > 0:
            core.where[0], core.where[1] = task, index
            tile = tasks[task, TASK_FIRST_TILE] + index
            _scores(core, rates, shape, tasks[task, TASK_ROWS], tiles[tile], kinds[tile], turn + step)
        before = step - lag
        task, index = _place(before, chain, shape)
        if before >= 0 and before < steps and tasks[task, TASK_TILES] > 0:
            core.where[0], core.where[1] = task, index
            last, tile = index == tasks[task, TASK_TILES] - 1, tasks[task, TASK_FIRST_TILE] + index
            _values(
                core, rates, shape, tasks[task, TASK_ROWS], tiles[tile], turn + before, last, index == 0,
                ending,
            )  # fmt: skip


@jit_entry
def run_core(
    tasks: Any, tiles: Any, kinds: Any, rates: Rates, shape: Shape, ending: Ending, core: Core
) -> Any:
    """Run the tasks of one core and return the cycle at which the last output is in GM.

    Parameters
    ----------
    tasks : int64 array (tasks, 3)
        First tile, tiles and query rows of each.
    tiles : float64 array (tiles, TILE_FIELDS)
        Columns, and cycles of the vector program of a whole and of a last row group: without mask, and with.
    kinds : uint8 array (tiles, VECTOR_CORES, groups)
        What each row group has in each tile, see `mask_tiles`.
    rates : Rates
    shape : Shape
    ending : Ending
    core : Core
        Fresh state; afterwards what happened.
    """
    turn = 0
    for chain in range(1 if shape.short else tasks.shape[0]):
        steps = tasks.shape[0] if shape.short else tasks[chain, TASK_TILES]
        _run_chain(tasks, steps, chain, turn, tiles, kinds, rates, shape, ending, core)
        turn += steps
    return _end(core)


@jit_entry
def run_combine(combine: Combine, rates: Rates, core: Core, task: Any) -> Any:
    """Combine the splits of the rows of one core's vector cores; return when the last output is in GM.

    Parameters
    ----------
    combine : Combine
    rates : Rates
    core : Core
        As `run_core` left it; no core begins before the slowest one has ended.
    task : int
        Number of this step, for the record.
    """
    begin = _end(core) + rates.flag
    core.where[0], core.where[2] = task, 0
    for unit in range(VECTOR_CORES):
        lane = CUBE_LANES + unit * VECTOR_LANES
        for top in range(0, combine.rows, combine.block):
            rows = min(combine.block, combine.rows - top)
            for split in range(combine.splits):
                core.where[1] = split
                issued = _run(core, lane + SCALAR, QUEUE, rates.queue, begin, SPLITS_DONE)
                startable, why = _later(issued, ISSUE, core.free[lane + VECTOR] + rates.queue, BUFFER)
                cycles = rates.ub_start + rows * combine.split_bytes / rates.ub_rate
                loaded = _run(core, lane + MTE2, LOAD_SPLIT, cycles, startable, why)
                _run(core, lane + VECTOR, COMBINE_SPLIT, combine.add[rows], loaded + rates.queue, DATA)
            done = _run(core, lane + VECTOR, NORMALISE, combine.divide[rows], 0.0, ISSUE)
            cycles = rates.out_start + rows * combine.output_bytes / rates.out_rate
            _run(core, lane + MTE3, STORE_OUTPUT, cycles, done + rates.queue, DATA)
    return _end(core)
