import dataclasses

import numpy as np
import pytest

from tilesim.errors import ConfigError
from tilesim.softmax.params import SoftmaxConfig, SoftmaxMode, SoftMaxShapeInfo, SoftmaxTiling


def test_fields_stand_in_the_order_of_the_operator():
    tiling = SoftmaxTiling(*range(16))
    assert (tiling.src_m, tiling.out_max_m, tiling.split_m, tiling.reduce_m) == (0, 3, 6, 9)
    assert (tiling.range_m, tiling.tail_m) == (12, 13)
    assert (tiling.tail_split_size, tiling.tail_reduce_size) == (14, 15)
    shape = SoftMaxShapeInfo(1, 2, 3, 4)
    assert (shape.src_m, shape.src_k, shape.ori_src_m, shape.ori_src_k) == (1, 2, 3, 4)
    config = SoftmaxConfig(False, 8, 512, SoftmaxMode.SOFTMAX_OUTPUT_WITHOUT_BRC)
    assert (config.check_tiling, config.src_m, config.src_k, int(config.mode)) == (False, 8, 512, 1)


def test_defaults():
    assert SoftmaxConfig() == SoftmaxConfig(True, 0, 0, SoftmaxMode.SOFTMAX_NORMAL)
    assert SoftmaxTiling(8, 512, 4096).split_m == 0
    assert dataclasses.astuple(SoftMaxShapeInfo()) == (0, 0, 0, 0)


def test_sizes_become_python_ints():
    tiling = SoftmaxTiling(np.uint32(2**31), np.uint32(4))
    assert tiling.src_m * tiling.src_k == 2**33
    assert type(SoftMaxShapeInfo(np.int64(3)).src_m) is int


def test_mode_may_be_its_number():
    assert SoftmaxConfig(mode=1).mode is SoftmaxMode.SOFTMAX_OUTPUT_WITHOUT_BRC


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SoftmaxTiling().split_m = 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SoftmaxTiling(src_m=-1), "SoftmaxTiling.src_m: got -1"),
        (lambda: SoftmaxTiling(8, 512, 4096.0), "SoftmaxTiling.src_size: got 4096.0"),
        (lambda: SoftMaxShapeInfo(ori_src_k="64"), "SoftMaxShapeInfo.ori_src_k: got '64'"),
        (lambda: SoftMaxShapeInfo(True), "SoftMaxShapeInfo.src_m: got True"),
        (lambda: SoftmaxConfig(src_k=-64), "SoftmaxConfig.src_k: got -64"),
        (lambda: SoftmaxConfig(mode=2), "SoftmaxConfig.mode: got 2"),
        (lambda: SoftmaxConfig(check_tiling=0), "SoftmaxConfig.check_tiling: got 0"),
    ],
)
def test_bad_fields_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
