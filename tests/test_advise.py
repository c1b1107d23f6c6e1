import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilesim as ts
from tilesim.advise import OBJECTIVES, TILE_AXES, advise, pareto_front
from tilesim.errors import ConfigError
from tilesim.sweep import COLUMNS


def row(index, time_us, ub, error=None, status="fits", **axes):
    base = dict.fromkeys(COLUMNS) | {"softmax_rows": 8, "kv_tile": 512, "query_rows": 128, "slots": 2}
    base |= {"precision": "float", "bound": "AIV0.VECTOR", "reason": "UB over by 5 bytes"}
    measures = {"index": index, "time_us": time_us, "ub_used_bytes": ub, "sample_rms_error": error}
    return base | measures | {"status": status} | axes


@given(st.lists(st.tuples(*[st.integers(1, 6)] * 3), min_size=1, max_size=40))
def test_front_is_what_no_other_row_beats(points):
    rows = [row(index, *point) for index, point in enumerate(points)]
    front = {one["index"] for one in pareto_front(rows)}

    def costs(one):
        return [one[name] for name in OBJECTIVES]

    for one in rows:
        better = [
            other
            for other in rows
            if all(a <= b for a, b in zip(costs(other), costs(one), strict=True))
            and (costs(other) != costs(one) or other["index"] < one["index"])
        ]
        assert (one["index"] in front) == (not better)


def test_recommendation_is_the_fastest_within_limits():
    rows = [
        row(0, 10.0, 300, 1e-4, kv_tile=1024),
        row(1, 20.0, 200, 1e-4),
        row(2, 30.0, 100, 1e-5, kv_tile=256),
    ]
    assert advise(rows).best["index"] == 0
    assert advise(rows, max_ub_bytes=250).best["index"] == 1
    assert advise(rows, max_error=5e-5).best["index"] == 2
    with pytest.raises(ConfigError, match="no configuration"):
        advise(rows, max_ub_bytes=50)


def test_neighbours_say_why_they_lose():
    rows = [
        row(0, 12.0, 150, kv_tile=256),
        row(1, 10.0, 200),
        row(2, None, 400, status="over budget", kv_tile=1024),
        row(3, 10.0, 260, softmax_rows=16),
        row(4, 15.0, 100, precision="half-data-float-state"),
    ]
    advice = advise(rows)
    assert advice.best["index"] == 1
    reasons = {(n.axis, n.value): n.reason for n in advice.neighbours}
    assert "20.0% slower" in reasons["kv_tile", 256]
    assert "over budget" in reasons["kv_tile", 1024]
    assert "60 B more of UB" in reasons["softmax_rows", 16]
    assert "50.0% slower" in reasons["precision", "half-data-float-state"]
    assert advice.to_dict()["best"]["index"] == 1


def test_a_real_sweep_has_a_reason_for_every_neighbour():
    table = ts.sweep(softmax_rows=[4, 8, 16, 32], kv_tile=[128, 256, 512, 1024], query_rows=[64, 128, 256])
    advice = ts.advise(table)
    fitting = [one for one in table if one["status"] == "fits"]
    assert advice.best["time_us"] == min(one["time_us"] for one in fitting)
    assert advice.neighbours
    assert {neighbour.axis for neighbour in advice.neighbours} <= set(TILE_AXES)
    assert all(neighbour.reason for neighbour in advice.neighbours)


def test_what_cannot_be_advised_on():
    with pytest.raises(ConfigError, match="problems"):
        ts.advise(ts.sweep(heads=[1, 2]))
    with pytest.raises(ConfigError, match="errors"):
        ts.advise(ts.sweep(), max_error=1.0)
    with pytest.raises(ConfigError, match="no configuration"):
        ts.advise([])
