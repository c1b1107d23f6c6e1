"""Storage at planned offsets: what is caught, what is counted, what is poisoned."""

import dataclasses

import numpy as np
import pytest

import tilesim as ts
from tilesim.memory.tracker import MemoryUseError, Tracker

PLAN = ts.budget(ts.Workload(seq_q=1024), ts.Tile(), "half-data-float-state", "ascend910b4")


@pytest.fixture
def ub():
    return Tracker(PLAN, poison=True)["UB"]


def test_running_peak_is_what_was_open_together(ub):
    ub.open("score")
    ub.open("max")
    ub.close("score")
    ub.open("probability")
    assert ub.live_bytes == 4096 + 8192
    ub.open("softmax temporary")
    assert ub.peak_bytes == 4096 + 8192 + 18688
    assert set(ub.peak_buffers) == {"max", "probability", "softmax temporary"}
    ub.close("softmax temporary")
    ub.close("probability")
    assert ub.live_bytes == 4096
    assert ub.peak_bytes == 4096 + 8192 + 18688


def test_storage_is_a_view_at_the_planned_offset(ub):
    score = ub.open("score")[0]
    assert score.shape == (8, 512)
    assert score.dtype == np.float16
    base = score.__array_interface__["data"][0]
    maximum = ub.open("max")[0]
    distance = maximum.__array_interface__["data"][0] - base
    offsets = {buffer.name: buffer.offset_bytes for buffer in PLAN.buffers}
    assert distance == offsets["max"] - offsets["score"]


def test_less_than_planned_counts_as_what_it_takes(ub):
    score = ub.open("score", (3, 40))[0]
    assert score.shape == (3, 40)
    assert ub.peak_bytes == 256  # 3 * 40 * 2 = 240, in 32-byte units


def test_every_copy_of_a_buffer_counts():
    layout = dataclasses.replace(PLAN.layout, score_buffers=2)
    plan = ts.budget(
        PLAN.workload, PLAN.requested_tile, "half-data-float-state", "ascend910b4", layout=layout
    )
    ub = Tracker(plan)["UB"]
    first, second = ub.open("score")
    first[...], second[...] = 1.0, 2.0
    assert (first == 1.0).all()
    assert ub.peak_bytes == 2 * 8192


def test_unfilled_and_freed_storage_is_nan(ub):
    score = ub.open("score")[0]
    assert np.isnan(score).all()
    score[...] = 1.0
    ub.close("score")
    assert np.isnan(score).all()
    assert np.isnan(ub.open("max")[0]).all()


def test_without_poison_storage_is_left_alone():
    ub = Tracker(PLAN)["UB"]
    score = ub.open("score")[0]
    score[...] = 1.0
    ub.close("score")
    assert (score == 1.0).all()


def test_misuse_is_named(ub):
    ub.open("score")
    with pytest.raises(MemoryUseError, match=r"score.*opened twice"):
        ub.open("score")
    with pytest.raises(MemoryUseError, match=r"'sum'.*must be open"):
        ub.close("sum")
    with pytest.raises(MemoryUseError, match=r"'max'.*at most the planned 4096 bytes"):
        ub.open("max", (1, 129, 8))
    ub.close("score")
    with pytest.raises(ts.TilesimError, match="memory"):
        Tracker(PLAN)["L9"]


def test_buffers_that_share_room_cannot_be_open_together(ub):
    # The plan gives the softmax temporary and the PV products the same room: they are never live together.
    ub.open("softmax temporary")
    with pytest.raises(MemoryUseError, match=r"'partial'.*'softmax temporary'"):
        ub.open("partial")
