"""Keys and values laid out as the micro-kernels read them, rounded to the data kind once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilesim.kernels._jit import jit_apart
from tilesim.kernels.counter import DONE_TASKS, NEXT_TASK, fetch_add
from tilesim.kernels.rounding import round_array
from tilesim.kernels.vector import PANEL_COLUMNS, padded_columns


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


@jit_apart
def _pack_keys(keys: Any, first: Any, packed: Any, kind: Any) -> None:
    """Transpose up to PANEL_COLUMNS keys into one panel, zeros in the columns left over."""
    depth = keys.shape[1]
    count = min(PANEL_COLUMNS, keys.shape[0] - first)
    if count < PANEL_COLUMNS:
        packed[:] = 0.0
    for column in range(count):
        for d in range(depth):
            packed[d * PANEL_COLUMNS + column] = keys[first + column, d]
    round_array(packed, packed, kind)


@jit_apart
def _pack_values(values: Any, first: Any, count: Any, packed: Any, kind: Any) -> Any:
    """Copy value rows into their panels; return whether all of them are finite."""
    keys, width = values.shape
    finite = True
    for panel in range(padded_columns(width) // PANEL_COLUMNS):
        left = panel * PANEL_COLUMNS
        columns = min(PANEL_COLUMNS, width - left)
        base = (panel * keys + first) * PANEL_COLUMNS
        rows = packed[base : base + count * PANEL_COLUMNS]
        if columns < PANEL_COLUMNS:
            rows[:] = 0.0
        for key in range(count):
            for column in range(columns):
                rows[key * PANEL_COLUMNS + column] = values[first + key, left + column]
        round_array(rows, rows, kind)
        for i in range(rows.size):
            finite &= np.isfinite(rows[i])
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
        _pack_keys(k, panel * PANEL_COLUMNS, place, kind)
    packed.finite[first // packed.block] = _pack_values(v, first, count, packed.values, kind)


@jit_apart
def pack_worker(k: Any, v: Any, packed: Packed, kind: Any, counter: Any) -> None:
    """Take blocks of keys from the shared counter and pack them until none is left.

    Parameters
    ----------
    k, v : float32 arrays (kv_heads, seq_kv, head_dim) and (kv_heads, seq_kv, head_dim_v)
    packed : Packed
        Of all heads.
    kind : int
        Data kind of `rounding.py`.
    counter : int64 array (2)
        Next block and blocks done, shared by all workers.
    """
    heads, keys = k.shape[0], k.shape[1]
    blocks = packed.finite.shape[1]
    while True:
        task = fetch_add(counter, NEXT_TASK, 1)
        if task >= heads * blocks:
            return
        head, first = task // blocks, task % blocks * packed.block
        own = Packed(packed.keys[head], packed.values[head], packed.finite[head], packed.block)
        pack_head(k[head], v[head], own, first, min(packed.block, keys - first), kind)
        fetch_add(counter, DONE_TASKS, 1)
