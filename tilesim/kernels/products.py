"""Products of a group of rows with panels of packed keys or values."""

from __future__ import annotations

from typing import Any

from tilesim.kernels._jit import jit_apart
from tilesim.kernels.softmax import TILE_ROWS
from tilesim.kernels.vector import MICRO_ROWS, MICRO_STRIPS, multiply_block


@jit_apart
def multiply_strips(
    c: Any, c_stride: Any, a: Any, a_stride: Any, b: Any, b_panel: Any, first: Any, last: Any, depth: Any
) -> None:
    """Multiply a group of rows of A with strips ``first ... last - 1`` of B.

    Panels of B lie `b_panel` elements apart.
    """
    strip = first
    while strip < last:
        left = last - strip
        # A single strip would not keep the processor busy: take two and two rather than three and one.
        count = 2 if left == 4 else min(left, MICRO_STRIPS)
        for row in range(0, TILE_ROWS, MICRO_ROWS):
            multiply_block(
                c, row * c_stride, c_stride, a, row * a_stride, a_stride, b, b_panel, strip, count, depth
            )
        strip += count
