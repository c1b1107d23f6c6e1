"""Temporary space and tiling of softmax_flash_v2: closed forms, in Python ints that never wrap.

The rules are those of the vendor's public host functions for the vector core generation of Ascend 910B. All
sizes inside are counted in float elements of the temporary buffer; one row of a tile costs `_row_cost`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import overload

from tilesim._checks import whole_number
from tilesim.dtypes import BLOCK_BYTES
from tilesim.errors import ConfigError
from tilesim.softmax.params import SoftmaxTiling

FLOAT_BYTES = 4
REPEAT_LANES = 64  # float lanes of one vector instruction, and columns of one chunk of a row
BASIC_ROWS = 8
BASIC_MIN_ROW_BYTES = 256
BASIC_MAX_COLUMNS = 2048  # excluded: strides between rows are 8-bit numbers of 32-byte blocks
BASIC_MAX_ELEMENTS = 64 * 256  # excluded: repeat counts are 8-bit
WIDE_BASIC_COLUMNS = 1024  # the one width whose reduction is written for exactly BASIC_ROWS rows


def collapse_shape(where: str, shape: Sequence[int]) -> tuple[int, int]:
    """Return (rows, columns) of a shape: the product of all leading axes, and the last axis.

    Raises
    ------
    ConfigError
        If the shape has no axes or one of them is no integer >= 1.
    """
    axes = tuple(shape)
    if not axes:
        raise ConfigError(where, axes, "must have at least one axis")
    sizes = [whole_number(f"{where}[{axis}]", size) for axis, size in enumerate(axes)]
    return math.prod(sizes[:-1]), sizes[-1]


def _check_itemsizes(data_itemsize: int, state_itemsize: int = 2) -> None:
    for where, itemsize in (("data_itemsize", data_itemsize), ("state_itemsize", state_itemsize)):
        if itemsize not in (2, 4):
            raise ConfigError(where, itemsize, "must be 2 (half) or 4 (float)")


def _row_cost(
    columns: int, data_itemsize: int, state_itemsize: int, basic: bool, in_kernel: bool = False
) -> int:
    """Return the float elements of temporary space that one row takes."""
    state_lanes = BLOCK_BYTES // state_itemsize
    widened = columns if data_itemsize == 2 else 0
    if not basic:
        return state_lanes * (2 if data_itemsize == 2 else 1) + widened + REPEAT_LANES
    wide = columns == WIDE_BASIC_COLUMNS and not in_kernel
    return state_lanes + widened + (2 * REPEAT_LANES if wide else REPEAT_LANES)


def softmax_flash_v2_tmp_bytes(
    shape: Sequence[int],
    data_itemsize: int,
    state_itemsize: int,
    is_update: bool = False,
    is_basic_block: bool = False,
    is_flash_output_brc: bool = False,
) -> tuple[int, int]:
    """Return the smallest and the largest useful temporary buffer of softmax_flash_v2, in bytes.

    Parameters
    ----------
    shape : sequence of int
        Shape of the source; leading axes collapse into rows.
    data_itemsize, state_itemsize : int
        Bytes of one element of source and state: 2 or 4.
    is_update : bool
        Changes nothing; the operator's signature has it.
    is_basic_block : bool
        Whether the operator will be told that the tile is a basic block.
    is_flash_output_brc : bool
        Whether the states are written **without** a block per row; the vendor's name says the opposite.

    Returns
    -------
    min_bytes, max_bytes : int
        For some wide basic blocks the maximum comes out below the minimum, as it does on the host.

    Raises
    ------
    ConfigError
        If the shape is empty or an item size is neither 2 nor 4.

    Examples
    --------
    >>> softmax_flash_v2_tmp_bytes((8, 512), 2, 4, is_basic_block=True)
    (18688, 18688)
    """
    rows, columns = collapse_shape("shape", shape)
    _check_itemsizes(data_itemsize, state_itemsize)
    basic_min = bool(is_basic_block) and columns % REPEAT_LANES == 0
    basic_max = basic_min and rows % BASIC_ROWS == 0
    min_rows = BASIC_ROWS if basic_min else 1
    if is_flash_output_brc:
        min_rows = min(BLOCK_BYTES // data_itemsize, rows)
    max_rows = rows
    while basic_max and max_rows * columns >= BASIC_MAX_ELEMENTS:
        max_rows //= 2
    min_cost = min_rows * _row_cost(columns, data_itemsize, state_itemsize, basic_min)
    max_cost = max_rows * _row_cost(columns, data_itemsize, state_itemsize, basic_max)
    return min_cost * FLOAT_BYTES, max_cost * FLOAT_BYTES


def softmax_flash_v2_tiling(
    shape: Sequence[int],
    data_itemsize: int,
    state_itemsize: int,
    workspace_bytes: int,
    is_update: bool = False,
    is_basic_block: bool = False,
    is_flash_output_brc: bool = False,
) -> SoftmaxTiling:
    """Return the tiling of softmax_flash_v2 for a temporary buffer of `workspace_bytes`.

    Parameters
    ----------
    shape, data_itemsize, state_itemsize, is_update, is_basic_block, is_flash_output_brc
        As in `softmax_flash_v2_tmp_bytes`.
    workspace_bytes : int
        Size of the temporary buffer. One too small for a single row gives ``split_m == 0``, which the
        operator refuses.

    Returns
    -------
    SoftmaxTiling
        As the host function fills it, also where a large workspace gives a tiling that a basic block cannot
        run (see `basic_block_fault`) or that misaligns states (see `has_aligned_steps`).

    Raises
    ------
    ConfigError
        If the shape is empty, an item size neither 2 nor 4 or the workspace no integer >= 0.

    Examples
    --------
    >>> tiling = softmax_flash_v2_tiling((64, 512), 2, 4, 18688, is_basic_block=True)
    >>> tiling.split_m, tiling.range_m, tiling.tail_m
    (8, 8, 0)
    """
    rows, columns = collapse_shape("shape", shape)
    _check_itemsizes(data_itemsize, state_itemsize)
    basic = bool(is_basic_block) and columns % REPEAT_LANES == 0 and rows % BASIC_ROWS == 0
    cost = _row_cost(columns, data_itemsize, state_itemsize, basic)
    workspace = whole_number("workspace_bytes", workspace_bytes, least=0) // FLOAT_BYTES
    split = _split_rows(rows, columns, workspace // cost, basic, is_flash_output_brc and data_itemsize == 2)
    return filled_tiling(rows, columns, state_itemsize, split)


def recomputed_tiling(
    shape: Sequence[int],
    data_itemsize: int,
    state_itemsize: int,
    workspace_bytes: int,
    is_basic_block: bool = False,
    without_brc: bool = False,
) -> SoftmaxTiling:
    """Return the tiling that the operator itself computes when it checks and rejects the one passed in.

    It is `softmax_flash_v2_tiling` except for 1,024 columns, where the kernel counts less space per row.
    """
    rows, columns = collapse_shape("shape", shape)
    basic = bool(is_basic_block) and columns % REPEAT_LANES == 0 and rows % BASIC_ROWS == 0
    cost = _row_cost(columns, data_itemsize, state_itemsize, basic, in_kernel=True)
    rows_that_fit = workspace_bytes // FLOAT_BYTES // cost
    split = _split_rows(rows, columns, rows_that_fit, basic, without_brc and data_itemsize == 2)
    return filled_tiling(rows, columns, state_itemsize, split)


def _split_rows(rows: int, columns: int, rows_that_fit: int, basic: bool, half_without_brc: bool) -> int:
    """Return the rows of one step: what fits, rounded to what the vector core can address."""
    split = min(rows_that_fit, rows)
    if basic and split > BASIC_ROWS:
        split -= split % BASIC_ROWS
        while rows % split != 0:
            split -= BASIC_ROWS
        while split * columns >= BASIC_MAX_ELEMENTS:
            split //= 2
    step = 16 if half_without_brc else 8
    if step < split < rows:
        split -= split % step
    return split


def filled_tiling(rows: int, columns: int, state_itemsize: int, split_rows: int) -> SoftmaxTiling:
    """Return the tiling all of whose fields follow from the rows of one step; 0 rows give no steps."""
    lanes = BLOCK_BYTES // state_itemsize
    steps, tail = divmod(rows, split_rows) if split_rows else (0, 0)
    return SoftmaxTiling(
        src_m=rows,
        src_k=columns,
        src_size=rows * columns,
        out_max_m=rows,
        out_max_k=lanes,
        out_max_size=rows * lanes,
        split_m=split_rows,
        split_k=columns,
        split_size=split_rows * columns,
        reduce_m=split_rows,
        reduce_k=lanes,
        reduce_size=split_rows * lanes,
        range_m=steps,
        tail_m=tail,
        tail_split_size=tail * columns,
        tail_reduce_size=tail * lanes,
    )


def step_tmp_bytes(tiling: SoftmaxTiling, data_itemsize: int, state_itemsize: int, basic: bool) -> int:
    """Return the temporary bytes that one step of the tiling takes by the host's count."""
    cost = _row_cost(tiling.src_k, data_itemsize, state_itemsize, basic, in_kernel=True)
    return tiling.split_m * cost * FLOAT_BYTES


def has_aligned_steps(tiling: SoftmaxTiling, data_itemsize: int) -> bool:
    """Return whether states of one element per row start every step on a 32-byte block.

    The host reports an error where they do not (and still fills the tiling).
    """
    single = tiling.range_m <= 1 and tiling.tail_m == 0
    return single or tiling.split_m % (BLOCK_BYTES // data_itemsize) == 0


@overload
def is_basic_block(tile: SoftmaxTiling | Sequence[int], data_itemsize: int = 2, /) -> bool: ...


@overload
def is_basic_block(tile: int, columns: int, data_itemsize: int, /) -> bool: ...


def is_basic_block(tile: SoftmaxTiling | Sequence[int] | int, *sizes: int) -> bool:
    """Return whether a tile is a basic block by the published rule.

    The columns must be a multiple of 64, below 2,048, and fill at least 256 bytes. Of a tiling the host
    helper further asks that it has no tail; of a shape, the rows must be a multiple of 8. What the kernel
    needs is stronger: see `basic_block_fault`.

    Parameters
    ----------
    tile : SoftmaxTiling, shape or int
        A tiling, a shape whose leading axes collapse into rows, or the rows themselves.
    *sizes : int
        The columns, if `tile` is a number of rows; then the bytes of one source element (2 unless given).

    Examples
    --------
    >>> is_basic_block((8, 512), 2), is_basic_block(8, 64, 2), is_basic_block(8, 64, 4)
    (True, False, True)
    """
    if isinstance(tile, SoftmaxTiling):
        whole, columns, rest = tile.tail_m == 0, tile.src_k, sizes
    elif isinstance(tile, Sequence):
        rows, columns = collapse_shape("shape", tile)
        whole, rest = rows % BASIC_ROWS == 0, sizes
    else:
        rows, columns = collapse_shape("shape", (tile, *sizes[:1]))
        whole, rest = rows % BASIC_ROWS == 0, sizes[1:]
    data_itemsize = rest[0] if rest else 2
    _check_itemsizes(data_itemsize)
    return whole and _has_basic_columns(columns, data_itemsize)


def _has_basic_columns(columns: int, data_itemsize: int) -> bool:
    least = BASIC_MIN_ROW_BYTES // data_itemsize
    return columns % REPEAT_LANES == 0 and least <= columns < BASIC_MAX_COLUMNS


def basic_block_fault(
    step_rows: int,
    columns: int,
    data_itemsize: int,
    counted_columns: int | None = None,
    tail_rows: int = 0,
) -> str:
    """Return the first need of the basic-block kernel that a step breaks, or an empty text for a sound one.

    Parameters
    ----------
    step_rows, columns : int
        Rows and columns of one step of the tiling (``split_m``, ``split_k``).
    data_itemsize : int
        Bytes of one source element.
    counted_columns : int or None
        Columns that are no padding; None for all.
    tail_rows : int
        Rows of a last, shorter step (``tail_m``).

    Returns
    -------
    str
        The rule with the value that breaks it.
    """
    least = BASIC_MIN_ROW_BYTES // data_itemsize
    counted = columns if counted_columns is None else counted_columns
    if not _has_basic_columns(columns, data_itemsize):
        return f"columns must be a multiple of 64 from {least} to below {BASIC_MAX_COLUMNS}, not {columns}"
    if counted != columns:
        return f"all {columns} columns enter maximum and sum, so none may be padding, but {counted} count"
    if tail_rows:
        return f"tail rows are never computed, so tail_m must be 0, not {tail_rows}"
    if step_rows == 0 or step_rows % BASIC_ROWS:
        return f"split_m must be a multiple of {BASIC_ROWS}, not {step_rows}"
    if columns == WIDE_BASIC_COLUMNS and step_rows != BASIC_ROWS:
        return f"at {columns} columns split_m must be exactly {BASIC_ROWS}, not {step_rows}"
    if step_rows * columns >= BASIC_MAX_ELEMENTS:
        size = step_rows * columns
        return f"split_m * split_k must be below {BASIC_MAX_ELEMENTS}, not {step_rows} * {columns} = {size}"
    return ""
