import numpy as np

from tilesim.kernels import operator
from tilesim.kernels._jit import jit_entry
from tilesim.kernels.rounding import FLOAT_KIND, HALF_KIND

EVERY_HALF = np.arange(2**16, dtype=np.uint16)


@jit_entry
def load_values(stored, first, values, count, kind):
    operator.load_values(stored, first, values, count, kind)


@jit_entry
def store_values(values, stored, first, count, kind):
    operator.store_values(values, stored, first, count, kind)


def test_every_half_is_widened_exactly():
    values = np.empty(2**16, np.float32)
    load_values(EVERY_HALF, 0, values, 2**16, HALF_KIND)
    wanted = EVERY_HALF.view(np.float16).astype(np.float32)
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(values[~nan].view(np.uint32), wanted[~nan].view(np.uint32))
    assert np.isnan(values[nan]).all()


def test_every_half_survives_the_way_back():
    values = EVERY_HALF.view(np.float16).astype(np.float32)
    stored = np.zeros(2**16, np.uint16)
    nan = np.isnan(values)
    store_values(values.copy(), stored, 0, 2**16, HALF_KIND)
    np.testing.assert_array_equal(stored[~nan], EVERY_HALF[~nan])
    assert np.isnan(stored[nan].view(np.float16)).all()


def test_floats_are_copied_from_and_to_any_place():
    source = np.linspace(-3, 3, 50, dtype=np.float32)
    values, stored = np.zeros(8, np.float32), np.zeros(50, np.float32)
    load_values(source, 20, values, 8, FLOAT_KIND)
    np.testing.assert_array_equal(values, source[20:28])
    store_values(values, stored, 30, 8, FLOAT_KIND)
    np.testing.assert_array_equal(stored[30:38], source[20:28])
    assert not stored[:30].any()
    assert not stored[38:].any()
