import ml_dtypes
import numpy as np
import pytest

import tilesim as ts
from tilesim.dtypes import FLOAT, HALF
from tilesim.errors import InputError
from tilesim.tensors import as_float32, as_tensor, check_scale


class OnlyDlpack:
    """A foreign tensor that speaks DLPack and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_native_arrays_are_not_copied():
    for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16):
        array = np.zeros((1, 1, 2, 3), dtype)
        assert np.shares_memory(as_tensor("q", array), array)
    single = np.zeros((1, 1, 2, 3), np.float32)
    assert np.shares_memory(as_float32(single, HALF), single)


def test_kernels_cannot_write_into_inputs():
    array = np.zeros((1, 1, 2, 3), np.float32)
    assert not as_float32(array, HALF).flags.writeable
    assert array.flags.writeable


def test_dlpack_and_lists():
    array = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    np.testing.assert_array_equal(as_tensor("q", OnlyDlpack(array)), array)
    np.testing.assert_array_equal(as_tensor("q", [[[[1.5, 2.5]]]]), [[[[1.5, 2.5]]]])


def test_ragged_lists_are_refused():
    with pytest.raises(InputError, match="q: got 'list'"):
        as_tensor("q", [[1.0], [1.0, 2.0]])


def test_float64_beyond_the_data_type_becomes_infinite_without_a_warning():
    array = np.full((1, 1, 1, 1), 1e300)
    assert np.isinf(as_float32(array, HALF)).all()
    assert np.isinf(as_float32(array, FLOAT)).all()


def test_scale():
    assert check_scale(None, 64) == 0.125
    assert check_scale(0, 64) == 0.0
    assert check_scale(np.float32(-0.5), 64) == -0.5


def test_what_was_checked_before_lets_nothing_else_pass():
    x = np.ones((1, 2, 4, 8), np.float32)
    windowed = ts.attention(x, x, x, mask="window", window=1)
    with pytest.raises(ts.ConfigError, match="window"):
        ts.attention(x, x, x, mask="window", window=True)
    with pytest.raises(ts.ConfigError, match="window"):
        ts.attention(x, x, x, mask="window", window=(True, 0))
    np.testing.assert_array_equal(ts.attention(x, x, x, mask="window", window=[1, 0]), windowed)
    for _ in range(2):
        with pytest.raises(ts.TilesimError, match="mask"):
            ts.attention(x, x, x, mask=["causal"])
        with pytest.raises(ts.InputError, match=r"k\.shape"):
            ts.attention(x, x[:, :, :, :4], x)
    # The same sizes mean other things in another order of axes.
    np.testing.assert_array_equal(
        ts.attention(x, x, x, layout="BSND"), ts.attention(*[x.swapaxes(1, 2)] * 3).swapaxes(1, 2)
    )
