import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilesim as ts
from tilesim.memory import footprint, full_row_budget
from tilesim.memory.footprint import parse_lengths

CASE = (ts.Workload(), ts.Tile(), "half-data-float-state", "ascend910b4")


def test_tiles_are_flat_and_rows_grow():
    curves = footprint(*CASE, (1024, 2048, 65536))
    used = [row["tiled_used_bytes"] for row in curves.rows()]
    assert used == [137472] * 3
    whole = [row["full_row_used_bytes"] for row in curves.rows()]
    assert whole[0] < whole[1] < whole[2]
    # Score, mask and probability rows and the generic softmax temporary: bytes a key, by hand.
    assert whole[2] - whole[1] == (65536 - 2048) * (3 * 8 * 2 + 4)


def test_full_rows_stop_fitting_where_it_says():
    curves = footprint(*CASE, (1024,))
    first = curves.first_unfit_length
    fits = [full_row_budget(ts.Workload(seq_q=length), *CASE[1:]).fits for length in (first - 1, first)]
    assert fits == [True, False]


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_doubling_ranges_end_with_their_last_length(first, more):
    lengths = parse_lengths(f"{first}:{first + more}")
    assert lengths[0] == first
    assert lengths[-1] == first + more
    assert list(lengths[:-1]) == [first * 2**n for n in range(len(lengths) - 1)]


def test_ranges_with_a_step():
    assert parse_lengths("10:21:5") == (10, 15, 20)
    assert parse_lengths("7:7") == (7,)


@pytest.mark.parametrize("text", ["", "5", "9:3", "0:4", "1:4:0", "a:b", "1:2:3:4", "-1:4", "1:9999999:1"])
def test_malformed_ranges(text):
    with pytest.raises(ts.TilesimError, match="sequence range"):
        parse_lengths(text)


@pytest.mark.parametrize("lengths", [(), tuple(range(1, 10_002)), (0,), (1.5,)])
def test_impossible_lengths(lengths):
    with pytest.raises(ts.TilesimError, match="lengths"):
        footprint(*CASE, lengths)
