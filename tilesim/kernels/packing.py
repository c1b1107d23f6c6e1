"""Keys and values laid out as the micro-kernels read them, rounded to the data kind once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types

from tilesim.kernels._jit import intrinsic, jit, jit_apart
from tilesim.kernels.counter import DONE_BLOCKS, NEXT_BLOCK, STOPPED, fetch_add
from tilesim.kernels.elementwise import round_array
from tilesim.kernels.expression import Value
from tilesim.kernels.rounding import (
    EVEN_FORMULAS,
    EXPONENT_MASK,
    FLOAT_KIND,
    for_each_kind,
    round_even,
)
from tilesim.kernels.rows import INDEX, LANES, load, store
from tilesim.kernels.vector import CACHE_LINE, PANEL_COLUMNS, element_pointer, padded_columns, prefetch_far


class Packed(NamedTuple):
    """Packed keys and values, of all key heads or of one (then without the first axis).

    Attributes
    ----------
    keys : float32 array (kv_heads, panels * head_dim * PANEL_COLUMNS)
        Panel p holds keys ``p * PANEL_COLUMNS ...`` transposed: one row per element of head_dim.
    values : float32 array (kv_heads, panels * seq_kv * PANEL_COLUMNS)
        Panel p holds value columns ``p * PANEL_COLUMNS ...``: one row per key.
    finite : bool array (kv_heads, blocks)
        Whether all values of a block of keys are finite after rounding.
    block : int
        Keys of one block, a multiple of PANEL_COLUMNS.
    """

    keys: Any
    values: Any
    finite: Any
    block: Any


def _exchange(rows: list[Value], distance: int) -> list[Value]:
    """Swap the off-diagonal squares of `distance` rows of each 2 x 2: one step of a transposition."""
    swapped = list(rows)
    lanes = range(len(rows))
    for upper in (row for row in lanes if not row & distance):
        both = rows[upper].followed_by(rows[upper + distance])
        swapped[upper] = both.lanes(
            [lane if not lane & distance else lane - distance + len(rows) for lane in lanes]
        )
        swapped[upper + distance] = both.lanes(
            [lane + distance if not lane & distance else lane + len(rows) for lane in lanes]
        )
    return swapped


@intrinsic
def _transpose(
    typing_context: Any, source: Any, source_at: Any, source_stride: Any, target: Any, target_at: Any,
    kind: Any,
) -> Any:  # fmt: skip
    """Write LANES x LANES numbers, rounded to a kind, transposed.

    The numbers come from a C-contiguous array; the target has the row pitch PANEL_COLUMNS.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, at, stride, panel, panel_at, to_kind = args
        read = element_pointer(context, builder, signature.args[0], array, at)
        write = element_pointer(context, builder, signature.args[3], panel, panel_at)
        places = [builder.gep(read, [builder.mul(stride, INDEX(row))]) for row in range(LANES)]

        def emit(rounded: Callable[[Value], Value]) -> None:
            rows = [rounded(load(builder, place)) for place in places]
            distance = LANES // 2
            while distance:
                rows = _exchange(rows, distance)
                distance //= 2
            for row, value in enumerate(rows):
                store(value, write, row * PANEL_COLUMNS)

        for_each_kind(builder, to_kind, EVEN_FORMULAS, emit)
        return context.get_dummy_value()

    number = types.intp
    return types.void(source, number, number, target, number, number), codegen


@intrinsic
def copy_panel_row(typing_context: Any, source: Any, source_at: Any, target: Any, target_at: Any) -> Any:
    """Copy PANEL_COLUMNS numbers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        read = element_pointer(context, builder, signature.args[0], args[0], args[1])
        write = element_pointer(context, builder, signature.args[2], args[2], args[3])
        for part in range(0, PANEL_COLUMNS, LANES):
            store(load(builder, read, part), write, part)
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp), codegen


AHEAD = 16 * 1024
"""Numbers between what is read and what is asked for: enough that memory has answered by then."""


@jit
def _prefetch_keys(keys: Any, first: Any, d: Any) -> None:
    """Ask for as much as the block of LANES keys from `first` on, at `d`, holds, from memory further on.

    Blocks are read across rows, which the processor does not foresee.
    """
    begin = first * keys.shape[1] + d * LANES + AHEAD
    for at in range(0, LANES * LANES, CACHE_LINE):
        prefetch_far(keys, begin + at)


@jit_apart
def pack_keys(keys: Any, first: Any, packed: Any, kind: Any) -> None:
    """Transpose up to PANEL_COLUMNS keys into one panel, rounded, zeros in the columns left over."""
    depth = keys.shape[1]
    count = min(PANEL_COLUMNS, keys.shape[0] - first)
    whole_keys, whole_depth = count // LANES * LANES, depth // LANES * LANES
    if count < PANEL_COLUMNS:
        packed[:] = 0.0
    for column in range(0, whole_keys, LANES):
        row = first + column
        for d in range(0, whole_depth, LANES):
            _prefetch_keys(keys, row, d)
            _transpose(keys, row * depth + d, depth, packed, d * PANEL_COLUMNS + column, kind)
    for column in range(count):
        for d in range(whole_depth if column < whole_keys else 0, depth):
            packed[d * PANEL_COLUMNS + column] = round_even(keys[first + column, d], kind)


@jit
def _largest_exponent(bits: Any) -> Any:
    """Return the largest exponent field of float32 numbers given by their int32 bits."""
    largest = 0
    for i in range(bits.size):
        largest = max(largest, bits[i] & EXPONENT_MASK)
    return largest


@jit_apart
def _pack_values(values: Any, first: Any, count: Any, packed: Any, kind: Any) -> Any:
    """Copy value rows into their panels; return whether all of them are finite."""
    keys, width = values.shape
    panels = padded_columns(width) // PANEL_COLUMNS
    # Row by row, as memory lies; a row goes to all panels.
    for key in range(count):
        source = values[first + key]
        for panel in range(panels):
            left = panel * PANEL_COLUMNS
            base = (panel * keys + first + key) * PANEL_COLUMNS
            target = packed[base : base + PANEL_COLUMNS]
            columns = min(PANEL_COLUMNS, width - left)
            if columns == PANEL_COLUMNS:
                copy_panel_row(source, left, target, 0)
            else:
                target[:] = 0.0
                for column in range(columns):
                    target[column] = source[left + column]
    finite = True
    for panel in range(panels):
        base = (panel * keys + first) * PANEL_COLUMNS
        rows = packed[base : base + count * PANEL_COLUMNS]
        if kind != FLOAT_KIND:
            round_array(rows, rows, kind)
        finite &= _largest_exponent(rows.view(np.int32)) < EXPONENT_MASK
    return finite


@jit_apart
def pack_head(k: Any, v: Any, packed: Packed, first: Any, count: Any, kind: Any) -> None:
    """Pack keys ``first ... first + count - 1`` of one head.

    Parameters
    ----------
    k, v : float32 arrays (seq_kv, head_dim) and (seq_kv, head_dim_v)
    packed : Packed
        Of one head.
    first, count : int
        One block; `first` is a multiple of ``packed.block``.
    kind : int
        Data kind of `rounding.py`.
    """
    panel_size = k.shape[1] * PANEL_COLUMNS
    for panel in range(first // PANEL_COLUMNS, (first + count + PANEL_COLUMNS - 1) // PANEL_COLUMNS):
        place = packed.keys[panel * panel_size : (panel + 1) * panel_size]
        pack_keys(k, panel * PANEL_COLUMNS, place, kind)
    packed.finite[first // packed.block] = _pack_values(v, first, count, packed.values, kind)


@jit_apart
def pack_worker(k: Any, v: Any, packed: Packed, kind: Any, counter: Any) -> None:
    """Take blocks of keys from the shared counter and pack them; return when all of them are packed.

    Parameters
    ----------
    k, v : float32 arrays (kv_heads, seq_kv, head_dim) and (kv_heads, seq_kv, head_dim_v)
    packed : Packed
        Of all heads.
    kind : int
        Data kind of `rounding.py`.
    counter : int64 array
        Shared by all workers, see `counter.py`.
    """
    heads, keys = k.shape[0], k.shape[1]
    blocks = packed.finite.shape[1]
    while True:
        task = fetch_add(counter, NEXT_BLOCK, 1)
        if task >= heads * blocks:
            break
        head, first = task // blocks, task % blocks * packed.block
        own = Packed(packed.keys[head], packed.values[head], packed.finite[head], packed.block)
        pack_head(k[head], v[head], own, first, min(packed.block, keys - first), kind)
        fetch_add(counter, DONE_BLOCKS, 1)
    # The last blocks are in other workers' hands.
    while fetch_add(counter, DONE_BLOCKS, 0) < heads * blocks:
        if fetch_add(counter, STOPPED, 0):
            break
