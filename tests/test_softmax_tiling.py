import csv
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesim.errors import ConfigError
from tilesim.softmax.params import SoftmaxTiling
from tilesim.softmax.tiling import (
    basic_block_fault,
    has_aligned_steps,
    is_basic_block,
    recomputed_tiling,
    softmax_flash_v2_tiling,
    softmax_flash_v2_tmp_bytes,
)

TABLE = Path(__file__).parent / "data" / "softmax_flash_v2_tiling.csv.gz"
FIELDS = tuple(SoftmaxTiling.__dataclass_fields__)


def rows_of_the_original():
    with gzip.open(TABLE, "rt") as file:
        return [{name: int(value) for name, value in row.items()} for row in csv.DictReader(file)]


def test_every_row_and_column_of_the_original_host_functions():
    rows = rows_of_the_original()
    assert len(rows) == 2507
    columns_checked = set()
    for row in rows:
        shape, sizes = (row["m"], row["k"]), (row["data_itemsize"], row["state_itemsize"])
        flags = {name: bool(row[name]) for name in ("is_update", "is_basic_block", "is_flash_output_brc")}
        tiling = softmax_flash_v2_tiling(shape, *sizes, row["workspace_bytes"], **flags)
        low, high = softmax_flash_v2_tmp_bytes(shape, *sizes, **flags)
        seen = {name: getattr(tiling, name) for name in FIELDS}
        seen |= {"min_tmp_bytes": low, "max_tmp_bytes": high}
        seen["is_basic_block_ok"] = is_basic_block(tiling, row["data_itemsize"])
        misaligned = not has_aligned_steps(tiling, row["data_itemsize"])
        seen["host_check_failed"] = bool(row["is_flash_output_brc"]) and misaligned
        assert seen == {name: row[name] for name in seen}, row
        columns_checked |= set(seen)
    inputs = {"m", "k", "data_itemsize", "state_itemsize", "workspace_bytes"} | set(flags)
    assert columns_checked == set(rows[0]) - inputs


@pytest.mark.parametrize(
    ("shape", "sizes", "basic", "expected"),
    [
        ((8, 512), (2, 4), True, (18688, 18688)),
        ((8, 512), (2, 2), True, (18944, 18944)),
        ((8, 512), (2, 4), False, (2368, 18944)),
        ((8, 512), (2, 2), False, (2432, 19456)),
        ((8, 512), (4, 4), False, (288, 2304)),
        ((8, 512), (4, 4), True, (2304, 2304)),
        ((24, 1984), (2, 4), True, (65792, 49344)),
        ((8, 1024), (2, 4), True, (37120, 37120)),
    ],
)
def test_published_sizes(shape, sizes, basic, expected):
    assert softmax_flash_v2_tmp_bytes(shape, *sizes, is_basic_block=basic) == expected


def test_kernel_counts_less_space_than_the_host_at_1024_columns():
    assert softmax_flash_v2_tiling((16, 1024), 2, 4, 36000, is_basic_block=True).split_m == 7
    assert recomputed_tiling((16, 1024), 2, 4, 36000, is_basic_block=True).split_m == 8
    assert recomputed_tiling((16, 512), 2, 4, 18688, True) == softmax_flash_v2_tiling(
        (16, 512), 2, 4, 18688, is_basic_block=True
    )


def test_large_workspace_can_break_a_legal_basic_block():
    tiling = softmax_flash_v2_tiling((40, 512), 2, 4, 196608, is_basic_block=True)
    assert (tiling.split_m, tiling.tail_m) == (16, 8)
    assert is_basic_block((40, 512), 2)
    assert not is_basic_block(tiling, 2)


@given(
    rows=st.integers(1, 40),
    columns=st.sampled_from([16, 64, 128, 500, 512, 576, 1024, 1408, 1984]),
    sizes=st.sampled_from([(2, 2), (2, 4), (4, 4)]),
    basic=st.booleans(),
    brc=st.booleans(),
    extra=st.integers(0, 65536),
)
def test_tiling_covers_all_rows_within_the_workspace(rows, columns, sizes, basic, brc, extra):
    flags = {"is_basic_block": basic and rows % 8 == 0, "is_flash_output_brc": brc}
    low, _ = softmax_flash_v2_tmp_bytes((rows, columns), *sizes, **flags)
    tiling = softmax_flash_v2_tiling((rows, columns), *sizes, low + extra, **flags)
    assert 1 <= tiling.split_m <= rows
    assert tiling.range_m * tiling.split_m + tiling.tail_m == rows
    widened = columns if sizes[0] == 2 else 0
    assert tiling.split_m * (32 // sizes[1] + widened + 64) * 4 <= low + extra


@given(
    rows=st.integers(1, 8).map(lambda n: 8 * n),
    columns=st.integers(2, 31).map(lambda n: 64 * n),
    state=st.sampled_from([2, 4]),
)
def test_smallest_workspace_gives_a_sound_basic_block(rows, columns, state):
    low, _ = softmax_flash_v2_tmp_bytes((rows, columns), 2, state, is_basic_block=True)
    tiling = softmax_flash_v2_tiling((rows, columns), 2, state, low, is_basic_block=True)
    assert tiling.split_m == 8
    assert basic_block_fault(tiling.split_m, columns, 2, tail_rows=tiling.tail_m) == ""


@pytest.mark.parametrize(
    ("arguments", "extra", "part"),
    [
        ((8, 64, 2), {}, "from 128 to below 2048, not 64"),
        ((8, 2048, 4), {}, "not 2048"),
        ((8, 500, 2), {}, "not 500"),
        ((8, 512, 2), {"counted_columns": 500}, "500 count"),
        ((16, 512, 2), {"tail_rows": 8}, "tail_m must be 0, not 8"),
        ((7, 512, 2), {}, "multiple of 8, not 7"),
        ((0, 512, 2), {}, "multiple of 8, not 0"),
        ((16, 1024, 2), {}, "exactly 8, not 16"),
        ((32, 512, 2), {}, "below 16384, not 32 * 512 = 16384"),
    ],
)
def test_each_need_of_the_basic_block_kernel(arguments, extra, part):
    assert part in basic_block_fault(*arguments, **extra)


@pytest.mark.parametrize("arguments", [(8, 64, 4), (8, 128, 2), (24, 512, 2), (8, 1024, 2), (8, 1984, 2)])
def test_sound_basic_blocks(arguments):
    assert basic_block_fault(*arguments) == ""
    assert is_basic_block(*arguments)


def test_a_shape_is_given_in_three_ways():
    assert is_basic_block((2, 4, 512), 2) is is_basic_block(8, 512, 2) is is_basic_block((8, 512)) is True
    assert is_basic_block((2, 3, 512), 2) is is_basic_block(6, 512, 2) is False


def test_leading_axes_collapse():
    assert softmax_flash_v2_tiling((2, 4, 512), 2, 4, 18688) == softmax_flash_v2_tiling((8, 512), 2, 4, 18688)


@pytest.mark.parametrize(
    ("shape", "sizes", "where"),
    [
        ((), (2, 4), "shape"),
        ((8, 0), (2, 4), r"shape\[1\]"),
        ((0, 64), (2, 4), r"shape\[0\]"),
        ((8, 64.5), (2, 4), r"shape\[1\]"),
        ((8, 64), (1, 4), "data_itemsize"),
        ((8, 64), (2, 8), "state_itemsize"),
    ],
)
def test_bad_sizes_are_named(shape, sizes, where):
    with pytest.raises(ConfigError, match=where):
        softmax_flash_v2_tmp_bytes(shape, *sizes)
    with pytest.raises(ConfigError, match=where):
        softmax_flash_v2_tiling(shape, *sizes, 4096)


def test_negative_workspace():
    with pytest.raises(ConfigError, match="workspace_bytes: got -1"):
        softmax_flash_v2_tiling((8, 64), 2, 4, -1)
