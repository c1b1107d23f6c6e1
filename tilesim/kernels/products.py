"""Products of a group of rows with panels of packed keys or values."""

from __future__ import annotations

from typing import Any

from tilesim.kernels._jit import jit, jit_apart
from tilesim.kernels.softmax import TILE_ROWS
from tilesim.kernels.vector import (
    HALF_COLUMNS,
    MICRO_ROWS,
    PANEL_COLUMNS,
    multiply_block,
    multiply_half_block,
)


@jit_apart
def multiply_panels(
    c: Any, c_stride: Any, a: Any, a_stride: Any, b: Any, b_panel: Any, panels: Any, depth: Any
) -> None:
    """Multiply a group of rows of A with panels of B that lie `b_panel` elements apart."""
    for panel in range(panels):
        for row in range(0, TILE_ROWS, MICRO_ROWS):
            place = row * c_stride + panel * PANEL_COLUMNS
            multiply_block(c, place, c_stride, a, row * a_stride, a_stride, b, panel * b_panel, depth)


@jit_apart
def _multiply_half(c: Any, c_stride: Any, a: Any, a_stride: Any, b: Any, half: Any, depth: Any) -> None:
    """Multiply a group of rows of A with half a panel of keys."""
    panel, column = half // 2, half % 2 * HALF_COLUMNS
    for row in range(0, TILE_ROWS, MICRO_ROWS):
        place = row * c_stride + panel * PANEL_COLUMNS + column
        keys = panel * depth * PANEL_COLUMNS + column
        multiply_half_block(c, place, c_stride, a, row * a_stride, a_stride, b, keys, depth)


@jit
def multiply_key_panels(
    c: Any, c_stride: Any, a: Any, a_stride: Any, b: Any, first: Any, last: Any, depth: Any
) -> None:
    """Multiply a group of rows of A with the half panels ``first ... last - 1`` of keys."""
    whole = (first + 1) // 2
    if first % 2:
        _multiply_half(c, c_stride, a, a_stride, b, first, depth)
    size = depth * PANEL_COLUMNS
    products, keys = c[whole * PANEL_COLUMNS :], b[whole * size :]
    multiply_panels(products, c_stride, a, a_stride, keys, size, last // 2 - whole, depth)
    if last % 2:
        _multiply_half(c, c_stride, a, a_stride, b, last - 1, depth)
