"""The attention kernel: what one worker thread does, task by task and tile by tile.

Workers share nothing but a counter from which they take tasks, so that any number of them gives the
same bits: every row is computed by one worker, in the order of its keys.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tilesim.kernels._jit import jit, jit_apart, jit_entry, jit_shared, jit_within
from tilesim.kernels.counter import DONE_TASKS, NEXT_TASK, STOPPED, fetch_add
from tilesim.kernels.elementwise import add_rescaled, divide_array, multiply_array, round_array
from tilesim.kernels.few_rows import MOST_ROWS, VALUE_COLUMNS, multiply_keys, multiply_values
from tilesim.kernels.packing import Packed, pack_head, pack_worker
from tilesim.kernels.plain_softmax import plain_softmax_tile
from tilesim.kernels.products import multiply_strips
from tilesim.kernels.rounding import FLOAT_KIND, round_away
from tilesim.kernels.rows import CHUNK
from tilesim.kernels.sight import Bounds, Launch, Sight, see, seen_by_any, sees_tile
from tilesim.kernels.softmax import (
    BASIC_SUM,
    PLAIN_SUM,
    TILE_ROWS,
    WORK_SIZE,
    Numerics,
    RowState,
    TileShape,
    cut_work,
    softmax_tile,
)
from tilesim.kernels.variant import NO_MASK, ScoreVariant, alter_scores, hides, mask_row
from tilesim.kernels.vector import (
    CACHE_LINE,
    PANEL_COLUMNS,
    STRIP_COLUMNS,
    multiply_add,
    padded_strips,
    prefetch,
)

GROUP_ROWS = TILE_ROWS
"""Query rows whose scores are computed, turned into probabilities and multiplied with V together."""
NEAR_ROWS = 128
"""Query rows taken together through all tiles that are packed: few enough to stay in cache."""


class Place(NamedTuple):
    """Where a tile lies among all keys and in the packed storage.

    Attributes
    ----------
    low : int
        First key of the tile.
    packed_low, packed_keys : int
        The same counted from the first packed key, and how many keys are packed together.
    """

    low: Any
    packed_low: Any
    packed_keys: Any


class Group(NamedTuple):
    """Storage of the rows a worker handles together; float32 unless said otherwise.

    Attributes
    ----------
    strip, stride : array (1-D), int
        Scores, then probabilities, of one group at row pitch `stride`.
    partial, width : array (1-D), int
        PV product of one tile at row pitch `width`, head_dim_v padded to whole strips.
    bounds : Bounds
        Columns of the current tile that each row sees.
    exp_max, tile_max : arrays
        As in `RowState`.
    work : Work
        Scratch of the softmax.
    """

    strip: Any
    stride: Any
    partial: Any
    width: Any
    bounds: Any
    exp_max: Any
    tile_max: Any
    work: Any


class Block(NamedTuple):
    """Storage of one task's rows; float32.

    Attributes
    ----------
    q, depth : array (1-D), int
        Queries rounded to the data kind at row pitch `depth`, zero rows behind up to a whole group.
    accumulator : array (1-D)
        Unnormalised output at row pitch ``Group.width``.
    row_max, row_sum : arrays
        State of each row.
    """

    q: Any
    depth: Any
    accumulator: Any
    row_max: Any
    row_sum: Any


@jit_apart
def _multiply_visible(
    group: Group, scores: Any, first_row: Any, rows: Any, values: Any, place: Place, sight: Sight,
    variant: ScoreVariant | None, data_kind: Any,
) -> None:  # fmt: skip
    """Multiply probabilities with the visible values only, so that no 0 * inf or 0 * NaN arises."""
    group.partial[:] = 0.0
    for row in range(rows):
        head, position = sight.first_head + (first_row + row) // sight.seq_q, (first_row + row) % sight.seq_q
        for column in range(group.bounds.start[row], group.bounds.stop[row]):
            if variant is not None and variant.mask.kind != NO_MASK:
                address = mask_row(variant.mask, head, position)
                if hides(variant.mask, address, place.low + column, data_kind):
                    continue
            p = scores[row * group.stride + column]
            for d in range(group.width):
                panel, lane = d // PANEL_COLUMNS, d % PANEL_COLUMNS
                key = panel * place.packed_keys + place.packed_low + column
                at = row * group.width + d
                group.partial[at] = multiply_add(p, values[key * PANEL_COLUMNS + lane], group.partial[at])


@jit_apart
def _alter_scores(
    scores: Any, first_row: Any, rows: Any, group: Group, low: Any, sight: Sight,
    variant: ScoreVariant | None,
) -> None:  # fmt: skip
    """Apply a variant to the visible scores of a group, in the tile that begins with key `low`."""
    if variant is not None and variant.active:
        for row in range(rows):
            start, stop = group.bounds.start[row], group.bounds.stop[row]
            own = scores[row * group.stride + start : row * group.stride + stop]
            task_row, first_key = first_row + row, low + start
            head, position = sight.first_head + task_row // sight.seq_q, task_row % sight.seq_q
            alter_scores(own, variant, head, position, position + sight.shift - first_key, first_key)


@jit
def _accumulate(block: Block, first_row: Any, rows: Any, group: Group, update: Any, kind: Any) -> None:
    """Add the tile's PV product, rounded, to the rescaled accumulator."""
    width = group.width
    for row in range(rows):
        accumulated = block.accumulator[(first_row + row) * width : (first_row + row + 1) * width]
        partial = group.partial[row * width : (row + 1) * width]
        if update:
            add_rescaled(accumulated, group.exp_max[row], partial, kind)
        else:
            round_array(partial, accumulated, kind)


@jit
def _fetch(block: Block, first_row: Any, rows: Any, width: Any) -> None:
    """Bring the accumulator of this group and the queries of the next near before they are needed."""
    for at in range(first_row * width, (first_row + rows) * width, CACHE_LINE):
        prefetch(block.accumulator, at)
    begin = (first_row + GROUP_ROWS) * block.depth
    for at in range(begin, min(begin + GROUP_ROWS * block.depth, block.q.size), CACHE_LINE):
        prefetch(block.q, at)


@jit_within
def _softmax(
    scores: Any, first_row: Any, rows: Any, columns: Any, update: Any, block: Block, group: Group,
    numerics: Numerics,
) -> None:  # fmt: skip
    """Turn the scores of a group into probabilities and update its state."""
    # A basic block counts whole chunks: the columns behind the last key are masked, not left out.
    counted = padded_chunks(columns) if numerics.sum_form == BASIC_SUM else columns
    shape = TileShape(group.stride, rows, counted, counted)
    row_max = block.row_max[first_row : first_row + rows]
    row_sum = block.row_sum[first_row : first_row + rows]
    state = RowState(row_max, row_sum, group.exp_max, group.tile_max)
    bounds = group.bounds
    if numerics.sum_form == PLAIN_SUM:
        plain_softmax_tile(scores, shape, bounds.start, bounds.stop, update, state, group.work)
    else:
        carried = row_max, row_sum
        softmax_tile(
            scores, shape, bounds.start, bounds.stop, update, numerics, carried, state, group.work
        )  # fmt: skip


@jit_apart
def _group_tile(
    top: Any, first_row: Any, rows: Any, columns: Any, update: Any, block: Block, packed: Packed,
    values_finite: Any, group: Group, place: Place, sight: Sight, numerics: Numerics,
    variant: ScoreVariant | None,
) -> None:  # fmt: skip
    """Take one row group through one score tile: QK, scaling, softmax, PV, accumulation."""
    low, seq_kv = place.packed_low, place.packed_keys
    least, most = seen_by_any(group.bounds, rows)
    # Panels are cut at multiples of their width over all keys: a tile may begin inside one.
    tile_panel = low // PANEL_COLUMNS
    inside = low - tile_panel * PANEL_COLUMNS
    first, last = (inside + least) // STRIP_COLUMNS, (inside + most + STRIP_COLUMNS - 1) // STRIP_COLUMNS
    queries = block.q[first_row * block.depth :]
    keys = packed.keys[tile_panel * block.depth * PANEL_COLUMNS :]
    _fetch(block, first_row, rows, group.width)
    panel, depth = block.depth * PANEL_COLUMNS, block.depth
    multiply_strips(group.strip, group.stride, queries, depth, keys, panel, first, last, depth)

    scores = group.strip[inside:]
    _alter_scores(scores, top + first_row, rows, group, place.low, sight, variant)
    _softmax(scores, first_row, rows, columns, update, block, group, numerics)
    if values_finite:
        values = packed.values[(low + least) * PANEL_COLUMNS :]
        strips, panel = group.width // STRIP_COLUMNS, seq_kv * PANEL_COLUMNS
        multiply_strips(
            group.partial, group.width, scores[least:], group.stride, values, panel, 0, strips, most - least
        )  # fmt: skip
    else:
        _multiply_visible(
            group, scores, top + first_row, rows, packed.values, place, sight, variant, numerics.data_kind
        )  # fmt: skip
    _accumulate(block, first_row, rows, group, update, numerics.data_kind)


@jit
def _takes_few_rows(rows: Any, v: Any, bounds: Bounds, variant: ScoreVariant | None) -> Any:
    """Return whether a tile can be read as it lies: few rows, all of which see the same keys."""
    if rows > MOST_ROWS or v.shape[2] % VALUE_COLUMNS:
        return False
    if variant is not None and variant.mask.kind != NO_MASK:
        return False
    same = True
    for row in range(1, rows):
        same &= bounds.start[row] == bounds.start[0] and bounds.stop[row] == bounds.stop[0]
    return same


@jit_within
def _few_rows_tile(
    keys: Any, values: Any, top: Any, low: Any, columns: Any, block: Block, panel: Any, group: Group,
    sight: Sight, numerics: Numerics, variant: ScoreVariant | None,
) -> None:  # fmt: skip
    """Do what `_group_tile` does, for few rows that see the same keys, from tensors that are not packed.

    No value of a hidden key is met, so that none needs to be finite.
    """
    rows, kind, update = block.row_max.size, numerics.data_kind, _has_state(block, 0, block.row_max.size)
    least, most = group.bounds.start[0], group.bounds.stop[0]
    seen = most - least
    multiply_keys(group.strip[least:], group.stride, block.q, rows, keys, low + least, seen, panel, kind)
    _alter_scores(group.strip, top, rows, group, low, sight, variant)
    _softmax(group.strip, 0, rows, columns, update, block, group, numerics)
    multiply_values(
        group.partial, group.width, group.strip[least:], group.stride, rows, values, low + least, seen, kind
    )
    _accumulate(block, 0, rows, group, update, kind)


@jit
def _has_state(block: Block, first_row: Any, rows: Any) -> Any:
    """Return whether an earlier tile, or a sink, left a state in any row of a group.

    A row without one beside a row that has: for its state and an accumulator of 0, an update gives the first
    tile's result. A tile whose scores are all -inf does leave a state: its values may have made the
    accumulator NaN.
    """
    for row in range(first_row, first_row + rows):
        if block.row_max[row] != -np.inf or math.copysign(1.0, block.row_sum[row]) > 0:
            return True
    return False


@jit_apart
def _all_finite(packed: Packed, low: Any, columns: Any) -> Any:
    finite = packed.finite[low // packed.block]
    for part in range(low // packed.block + 1, (low + columns - 1) // packed.block + 1):
        finite &= packed.finite[part]
    return finite


@jit_apart
def _load_block(
    q: Any, depth: Any, width: Any, row_max: Any, row_sum: Any, storage: Any, numerics: Numerics
) -> Any:
    """Round the queries of one task into scratch and begin its empty state and accumulator.

    No sum is ever -0: it marks rows that no tile has met.

    The plain softmax takes scores that are scaled already: its queries are.
    """
    rows = row_max.size
    padded_rows = (rows + GROUP_ROWS - 1) // GROUP_ROWS * GROUP_ROWS
    queries = storage[: padded_rows * depth]
    queries[rows * depth :] = 0.0
    for row in range(rows):
        own = queries[row * depth : (row + 1) * depth]
        if numerics.sum_form == PLAIN_SUM:
            multiply_array(q[row], numerics.scale, own, FLOAT_KIND)
        else:
            round_array(q[row], own, numerics.data_kind)
    accumulator = storage[padded_rows * depth : padded_rows * (depth + width)]
    accumulator[:] = 0.0
    row_max[:] = -np.inf
    row_sum[:] = -0.0
    return Block(queries, depth, accumulator, row_max, row_sum)


@jit_apart
def _begin_with_sinks(block: Block, top: Any, sight: Sight, sinks: Any, kind: Any) -> None:
    """Begin the state of each row with its head's sink: a score without a value."""
    for row in range(block.row_max.size):
        sink = round_away(sinks[sight.first_head + (top + row) // sight.seq_q], kind)
        if sink != -np.inf:
            block.row_max[row] = sink
            block.row_sum[row] = 1.0


@jit_apart
def _keep_partial(out: Any, block: Block, width: Any) -> None:
    """Hand out the accumulator of one split of the keys."""
    for row in range(out.shape[0]):
        own = out[row]
        round_array(block.accumulator[row * width : row * width + own.size], own, FLOAT_KIND)


@jit_apart
def _finish(out: Any, block: Block, width: Any, kind: Any) -> None:
    """Divide by the row sum, itself rounded with ties away from zero.

    A sum of 0 means that no key took part (none was visible, or all scores are -inf): the output is 0.
    """
    for row in range(out.shape[0]):
        total = block.row_sum[row]
        own = out[row]
        if total == 0.0:
            own[:] = 0.0
        else:
            accumulated = block.accumulator[row * width : row * width + own.size]
            divide_array(accumulated, round_away(total, kind), own, kind)


@jit_shared
def padded_chunks(columns: Any) -> Any:
    """Round a number of columns up to whole chunks of 64."""
    return (columns + CHUNK - 1) // CHUNK * CHUNK


@jit_shared
def strip_stride(kv_tile: Any, seq_kv: Any) -> Any:
    """Return the row pitch of a score strip: a tile may begin inside a panel and so touch one more."""
    return padded_chunks(min(kv_tile, seq_kv)) + PANEL_COLUMNS


@jit_shared
def scratch_size(kv_tile: Any, seq_kv: Any, block_rows: Any, depth: Any, head_dim_v: Any) -> Any:
    """Return the float32 elements of scratch one worker needs for tasks of up to `block_rows` rows."""
    padded_rows = (block_rows + GROUP_ROWS - 1) // GROUP_ROWS * GROUP_ROWS
    width = padded_strips(head_dim_v)
    rows_size = GROUP_ROWS * (strip_stride(kv_tile, seq_kv) + width) + padded_rows * (depth + width)
    return rows_size + CHUNK + WORK_SIZE


@jit_within
def _run_tiles(
    top: Any, rows: Any, keys: Any, block: Block, packed: Packed, first_packed: Any, packed_keys: Any,
    group: Group, kv_tile: Any, sight: Sight, numerics: Numerics, variant: ScoreVariant | None,
) -> None:  # fmt: skip
    """Take rows ``rows[0] ... rows[1] - 1`` of a task through the tiles of ``keys[0] ... keys[1] - 1``."""
    for low in range(keys[0], keys[1], kv_tile):
        columns = min(kv_tile, keys[1] - low)
        place = Place(low, low - first_packed, packed_keys)
        finite = _all_finite(packed, place.packed_low, columns)
        for first_row in range(rows[0], rows[1], GROUP_ROWS):
            count = min(GROUP_ROWS, rows[1] - first_row)
            if see(top + first_row, count, low, columns, sight, variant, numerics.data_kind, group.bounds):
                update = _has_state(block, first_row, count)
                _group_tile(
                    top, first_row, count, columns, update, block, packed, finite, group, place, sight,
                    numerics, variant,
                )  # fmt: skip


@jit_within
def _run_task(
    k: Any, v: Any, kv_head: Any, top: Any, keys: Any, block: Block, packed: Packed, local: Packed,
    group: Group, kv_tile: Any, sight: Sight, numerics: Numerics, variant: ScoreVariant | None,
) -> None:  # fmt: skip
    """Take the rows of one task through the tiles of ``keys[0] ... keys[1] - 1``."""
    rows, kind = block.row_max.size, numerics.data_kind
    end = min(keys[1], sight.length)
    if not local.block:
        own = Packed(packed.keys[kv_head], packed.values[kv_head], packed.finite[kv_head], packed.block)
        _run_tiles(
            top, (0, rows), (keys[0], end), block, own, 0, k.shape[1], group, kv_tile, sight, numerics,
            variant,
        )  # fmt: skip
        return
    step = kv_tile if rows <= MOST_ROWS else local.block
    for low in range(keys[0], end, step):
        columns = min(step, end - low)
        few = rows <= MOST_ROWS and see(top, rows, low, columns, sight, variant, kind, group.bounds)
        if few and _takes_few_rows(rows, v, group.bounds, variant):
            _few_rows_tile(
                k[kv_head], v[kv_head], top, low, columns, block, local.keys, group, sight, numerics, variant
            )
            continue
        if not sees_tile(top, rows, low, columns, sight, variant, kind, group.bounds):
            continue
        part = slice(low, low + columns)
        pack_head(k[kv_head, part], v[kv_head, part], local, 0, columns, kind)
        for first_row in range(0, rows, NEAR_ROWS):
            last_row = min(first_row + NEAR_ROWS, rows)
            _run_tiles(
                top, (first_row, last_row), (low, low + columns), block, local, low, columns, group, kv_tile,
                sight, numerics, variant,
            )  # fmt: skip


@jit_entry
def attention_worker(
    q: Any, k: Any, v: Any, out: Any, row_max: Any, row_sum: Any, packed: Packed, local: Packed,
    tasks: Any, splits: Any, counter: Any, scratch: Any, bounds: Any, kv_tile: Any, launch: Launch,
    numerics: Numerics, variant: ScoreVariant | None,
) -> None:  # fmt: skip
    """Help to pack keys and values, then take tasks from the shared counter until none is left.

    Query heads that share keys may lie one behind the other as rows of one "row of heads"; else a row of
    heads is one query head.

    Parameters
    ----------
    q : float32 array (rows of heads, rows, head_dim)
    k, v : float32 arrays (kv_heads, seq_kv, head_dim) and (kv_heads, seq_kv, head_dim_v)
    out : float32 array (splits, rows of heads, rows, head_dim_v)
        The output, or the accumulator of each split if there are several.
    row_max, row_sum : float32 arrays (splits, rows of heads, rows)
        State of each row after its last tile.
    packed : Packed
        Storage for the keys and values of all heads, empty with `local`.
    local : Packed
        This worker's own storage for those of one block, whole tiles. If its `block` is not 0, workers pack
        blocks as they come to them, which pays where a head has a single task.
    tasks : int64 array (tasks, 4)
        Row of heads, first row, number of rows, and split of the keys.
    splits : int64 array (splits + 1)
        First key of each split and end of the last.
    counter : int64 array
        Shared by all workers, see `counter.py`.
    scratch : float32 array (1-D)
        This worker's own, of `scratch_size` elements.
    bounds : int64 array (1-D)
        This worker's own, of ``2 * GROUP_ROWS`` elements.
    kv_tile : int
    launch : Launch
    numerics : Numerics
    variant : ScoreVariant, optional
        Without one, the kernel is compiled without the code for it.
    """
    if not local.block:
        pack_worker(k, v, packed, numerics.data_kind, counter)
    depth, width = q.shape[2], padded_strips(out.shape[3])
    stride = strip_stride(kv_tile, k.shape[1])
    strip, rest = scratch[: GROUP_ROWS * stride], scratch[GROUP_ROWS * stride :]
    partial, storage = rest[: GROUP_ROWS * width], rest[GROUP_ROWS * width :]
    work, exp_max, tile_max = cut_work(scratch[scratch.size - WORK_SIZE :])
    seen = Bounds(bounds[:GROUP_ROWS], bounds[GROUP_ROWS:])
    group = Group(strip, stride, partial, width, seen, exp_max, tile_max, work)
    while True:
        task = fetch_add(counter, NEXT_TASK, 1)
        if task >= tasks.shape[0] or fetch_add(counter, STOPPED, 0):
            return
        head, top, split = tasks[task, 0], tasks[task, 1], tasks[task, 3]
        end = top + tasks[task, 2]
        sight = Sight(
            launch.shifts[head], launch.left, launch.right, launch.lengths[head], launch.seq_q,
            head * launch.group,
        )  # fmt: skip
        block = _load_block(
            q[head, top:end], depth, width, row_max[split, head, top:end], row_sum[split, head, top:end],
            storage, numerics,
        )  # fmt: skip
        if variant is not None and variant.sinks.size and split == 0:
            _begin_with_sinks(block, top, sight, variant.sinks, numerics.state_kind)
        keys = splits[split], splits[split + 1]
        _run_task(
            k, v, launch.kv_head_of[head], top, keys, block, packed, local, group, kv_tile, sight, numerics,
            variant,
        )  # fmt: skip
        if splits.size > 2:
            _keep_partial(out[split, head, top:end], block, width)
        else:
            _finish(out[0, head, top:end], block, width, numerics.data_kind)
        fetch_add(counter, DONE_TASKS, 1)
