import ml_dtypes
import numpy as np
import pytest

from tilesim.dtypes import BFLOAT16, FLOAT, HALF


@pytest.mark.parametrize(
    ("dtype", "info"),
    [(HALF, np.finfo(np.float16)), (FLOAT, np.finfo(np.float32)), (BFLOAT16, ml_dtypes.finfo("bfloat16"))],
)
def test_figures_agree_with_finfo(dtype, info):
    assert dtype.max_value == float(info.max)
    assert dtype.eps == float(info.eps)
    assert dtype.smallest_normal == float(info.smallest_normal)
    assert dtype.smallest_subnormal == float(info.smallest_subnormal)
    assert dtype.lanes * dtype.itemsize == 32


def test_ulp_of_half_is_the_spacing_of_numpy():
    values = np.arange(0, 0x7BFF, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(HALF.ulp(values), np.spacing(values).astype(np.float64))
    np.testing.assert_array_equal(HALF.ulp(-values), HALF.ulp(values))


def test_ulp_beyond_the_range():
    assert HALF.ulp([65504.0, 1e30]).tolist() == [32.0, 32.0]
    assert np.isnan(HALF.ulp([np.nan, np.inf, -np.inf])).all()
    assert HALF.ulp([0.0, 1e-30]).tolist() == [2.0**-24] * 2
