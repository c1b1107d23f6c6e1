"""Products of row groups with panels: each element is one chain of multiply-adds, wherever strips begin."""

import numpy as np
import pytest
from tile_model import multiply_add

from tilesim.kernels._jit import jit_entry
from tilesim.kernels.processor import BLOCK
from tilesim.kernels.products import multiply_strips
from tilesim.kernels.softmax import TILE_ROWS
from tilesim.kernels.vector import PANEL_COLUMNS, STRIP_COLUMNS

PANELS, DEPTH = 6, 9


@jit_entry
def multiply(c, c_stride, a, a_stride, b, b_panel, first, last, depth):
    multiply_strips(c, c_stride, a, a_stride, b, b_panel, first, last, depth)


def chain(a, b):
    """Return ``a @ b`` with the products of ascending indices added one after the other."""
    sums = np.zeros((len(a), b.shape[1]), np.float32)
    for step in range(len(b)):
        sums = multiply_add(sums, a[:, step : step + 1], b[step], BLOCK.fused)
    return sums


@pytest.mark.parametrize("first", [0, 1, 2, 3])
@pytest.mark.parametrize("strips", range(9))
def test_any_range_of_strips_is_multiplied_and_nothing_else_is_touched(first, strips):
    rng = np.random.default_rng(strips)
    columns = PANELS * PANEL_COLUMNS
    a = rng.standard_normal((TILE_ROWS, DEPTH + 2), np.float32)
    b = rng.standard_normal((PANELS, DEPTH + 1, PANEL_COLUMNS), np.float32)
    c = np.full((TILE_ROWS, columns + 3), np.float32(-7))
    expected = c.copy()
    seen = slice(first * STRIP_COLUMNS, (first + strips) * STRIP_COLUMNS)
    flat = b[:, :DEPTH].transpose(1, 0, 2).reshape(DEPTH, columns)
    expected[:, seen] = chain(a[:, :DEPTH], flat[:, seen])

    multiply(
        c.reshape(-1), c.shape[1], a.reshape(-1), a.shape[1], b.reshape(-1), b[0].size, first, first + strips,
        DEPTH,
    )  # fmt: skip

    np.testing.assert_array_equal(c, expected)
