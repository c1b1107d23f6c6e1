"""Buffer tables against the published table of the reference kernel and formulas written anew here."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilesim as ts
from tilesim.dtypes import FLOAT, HALF
from tilesim.errors import ConfigError, UnknownNameError
from tilesim.memory import Budget, Buffer, Layout, budget

REFERENCE = "half-data-float-state"


def make(
    seq: int = 1024,
    head_dim: int = 128,
    query_rows: int | None = 256,
    policy: str = REFERENCE,
    layout: Layout | None = None,
    tile: dict[str, int] | None = None,
    **workload: object,
) -> Budget:
    return budget(
        ts.Workload(seq_q=seq, head_dim=head_dim, **workload),
        ts.Tile(query_rows=query_rows, **(tile or {})),
        policy,
        "ascend910b4",
        layout=layout or Layout(),
    )


def table(result: Budget, memory: str = "UB") -> dict[str, Buffer]:
    return {buffer.name: buffer for buffer in result.memories[memory].buffers}


@pytest.mark.parametrize(
    ("seq", "query_rows", "head_dim", "expected"),
    [
        (1024, 256, 128, 137_472),
        (65536, 256, 128, 137_472),
        (1024, 256, 64, 104_704),
        (512, 128, 128, 73_984),
    ],
)
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_known_totals(seq: int, query_rows: int, head_dim: int, expected: int, mask: str) -> None:
    assert make(seq, head_dim, query_rows, mask=mask).used_bytes == expected


def test_reference_rule_gives_the_known_totals_too() -> None:
    assert make(4096, 128, None).used_bytes == 137_472
    assert make(512, 128, None).used_bytes == 73_984


def test_long_path_table() -> None:
    rows = [
        ("score", "VECIN", 8 * 512 * 2, "half"),
        ("mask", "VECIN", 8 * 512 * 2, "half"),
        ("partial", "VECIN", 128 * 128 * 2, "half"),
        ("probability", "VECOUT", 8 * 512 * 2, "half"),
        ("sum", "VECCALC", 128 * 8 * 4, "float"),
        ("max", "VECCALC", 128 * 8 * 4, "float"),
        ("exp_max", "VECCALC", 2 * 128 * 16 * 2, "half"),
        ("accumulator", "VECCALC", 128 * 128 * 2, "half"),
        ("normalisation scratch", "VECCALC", 128 * 96, "byte"),
        ("softmax temporary", "VECCALC", 18_688, "float"),
    ]
    buffers = make().buffers
    assert [(b.name, b.position, b.bytes_each, b.dtype) for b in buffers] == rows
    assert all(b.count == 1 and b.total_bytes == b.bytes_each for b in buffers)


def test_short_path_keeps_no_accumulator_and_a_sum_per_slot() -> None:
    buffers = table(make(512, 128, 128))
    assert "accumulator" not in buffers
    assert buffers["sum"].total_bytes == 2 * 64 * 8 * 4
    assert buffers["max"].total_bytes == 64 * 8 * 4
    assert buffers["exp_max"].total_bytes == 64 * 16 * 2


def test_smallest_configuration_by_hand() -> None:
    result = make(2, 1, 1, tile={"softmax_rows": 1, "kv_tile": 1, "slots": 2})
    sizes = {b.name: b.total_bytes for b in result.buffers}
    assert sizes == {
        "score": 32,
        "mask": 32,
        "partial": 32,
        "probability": 32,
        "sum": 32,
        "max": 32,
        "exp_max": 64,
        "accumulator": 32,
        "normalisation scratch": 96,
        "softmax temporary": 4 * (2 * 8 + 16 + 64),
    }
    assert table(result)["score"].logical_shape == (1, 1)
    assert table(result)["score"].shape == (1, 16)


def up(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit


def expected_ub_bytes(workload: ts.Workload, tile: ts.Tile, policy: str, rows: int) -> int:
    """Sum of section 3 of the kernel's description, for any shape."""
    data, state = {
        "half-data-float-state": (2, 4),
        "half-data-half-state": (2, 2),
        "bfloat16-data-float-state": (2, 4),
        "float-data-float-state": (4, 4),
        "float": (4, 4),
    }[policy]
    m, k, r = tile.softmax_rows, up(tile.kv_tile, 32 // data), up(rows, 2) // 2
    short = workload.seq_kv <= tile.kv_tile
    e = 32 // state
    basic = k == tile.kv_tile and m % 8 == 0 and k % 64 == 0 and 256 // data <= k < 2048
    if basic:
        temporary = 32 * (e + (k if data == 2 else 0) + (128 if k == 1024 else 64))
    else:
        temporary = 4 * (2 * e + k + 64 if data == 2 else e + 64)
    wide = r * up(workload.head_dim_v, 16) * data
    total = 3 * m * k * data + wide * (1 if short else 2) + temporary + r * (96 if data == 2 else 64)
    states = r * 32
    return total + states + states * tile.slots + states


workloads = st.builds(
    ts.Workload,
    batch=st.integers(1, 3),
    heads=st.sampled_from([2, 4]),
    kv_heads=st.sampled_from([1, 2]),
    seq_q=st.integers(1, 3000),
    seq_kv=st.integers(1, 3000),
    head_dim=st.integers(1, 300),
    head_dim_v=st.integers(1, 300),
    mask=st.sampled_from(["causal", "full"]),
)
tiles = st.builds(
    ts.Tile,
    softmax_rows=st.one_of(st.sampled_from([1, 8, 16, 256]), st.integers(1, 300)),
    kv_tile=st.one_of(st.sampled_from([1, 64, 128, 512, 1024, 1984, 2048]), st.integers(1, 3000)),
    query_rows=st.integers(1, 600),
    slots=st.integers(1, 5),
)
policies = st.sampled_from(sorted(ts.PRECISIONS))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(workload=workloads, tile=tiles, policy=policies)
def test_total_follows_the_published_formulas(workload: ts.Workload, tile: ts.Tile, policy: str) -> None:
    result = budget(workload, tile, policy, "ascend910b4")
    rows = min(tile.query_rows or 0, workload.seq_q)
    assert result.used_bytes == expected_ub_bytes(workload, tile, policy, rows)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(workload=workloads, tile=tiles, policy=policies)
def test_sizes_are_aligned_python_ints_and_hold_their_elements(
    workload: ts.Workload, tile: ts.Tile, policy: str
) -> None:
    itemsizes = {"half": 2, "bfloat16": 2, "float": 4, "byte": 1}
    for name, memory in budget(workload, tile, policy, "ascend910b4").memories.items():
        alignment_bytes = {"L0A": 512, "L0B": 512, "L0C": 64}.get(name, 32)
        for buffer in memory.buffers:
            assert type(buffer.bytes_each) is int
            assert buffer.bytes_each % alignment_bytes == 0
            elements = int(np.prod([int(n) for n in buffer.shape], dtype=object))
            assert buffer.bytes_each == up(elements * itemsizes[buffer.dtype], alignment_bytes)
            if len(buffer.shape) == len(buffer.logical_shape):
                assert all(a >= b for a, b in zip(buffer.shape, buffer.logical_shape, strict=True))


def test_padded_tile_is_no_basic_block() -> None:
    assert table(make(tile={"kv_tile": 512}))["softmax temporary"].total_bytes == 18_688
    assert table(make(tile={"kv_tile": 511}))["softmax temporary"].total_bytes == 2_368
    assert table(make(layout=Layout(basic_block=False)))["softmax temporary"].total_bytes == 2_368


def test_bfloat16_takes_what_half_takes() -> None:
    assert make(policy="bfloat16-data-float-state").used_bytes == 137_472


def test_value_rows_set_partial_and_accumulator() -> None:
    buffers = table(make(head_dim=128, head_dim_v=17))
    assert buffers["partial"].shape == buffers["accumulator"].shape == (128, 32)
    assert buffers["partial"].logical_shape == (128, 17)


def test_queue_counts_are_in_the_total() -> None:
    doubled = make(layout=Layout(score_buffers=2, partial_buffers=3))
    assert table(doubled)["score"].count == 2
    assert table(doubled)["score"].total_bytes == 2 * 8192
    assert doubled.used_bytes == 137_472 + 8192 + 2 * 32_768


def test_second_queue_buffer_lives_through_the_loop() -> None:
    doubled = table(make(layout=Layout(score_buffers=2)))["score"]
    assert (doubled.first_stage, doubled.last_stage) == ("copy_in", "accumulate")


def test_mask_queue_can_be_left_out() -> None:
    result = make(layout=Layout(mask_buffers=0))
    assert "mask" not in table(result)
    assert result.used_bytes == 137_472 - 8192


def test_state_without_broadcast_is_one_element_a_row() -> None:
    buffers = table(make(query_rows=200, layout=Layout(state_mode="WITHOUT_BRC")))
    assert buffers["sum"].total_bytes == up(100 * 4, 32) == 416
    assert buffers["exp_max"].total_bytes == 2 * up(100 * 2, 32) == 448
    assert buffers["exp_max"].logical_shape == (2, 100)


def test_types_can_be_set_tensor_by_tensor() -> None:
    result = make(layout=Layout(accumulator_dtype=FLOAT, score_dtype=FLOAT))
    buffers = table(result)
    assert buffers["accumulator"].total_bytes == 128 * 128 * 4
    assert buffers["score"].total_bytes == buffers["mask"].total_bytes == 8 * 512 * 4
    assert buffers["probability"].total_bytes == 8 * 512 * 2
    assert buffers["normalisation scratch"].total_bytes == 128 * 64
    assert table(result, "GM")["score"].total_bytes == 20 * 2 * 256 * 512 * 4


def test_temporary_by_the_framework_needs_its_message_slot() -> None:
    assert make(layout=Layout(shared_temporary=False)).used_bytes == 137_472 + 64


def test_largest_temporary_is_never_below_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = Layout(basic_block=False, temporary="maximum")
    assert table(make(layout=largest))["softmax temporary"].total_bytes == 18_944
    # What the operator reports for 24 rows of 1,984 halves as a basic block.
    monkeypatch.setattr(
        "tilesim.memory.buffers.softmax_flash_v2_tmp_bytes", lambda *args, **kwargs: (65_792, 49_344)
    )
    assert table(make(layout=largest))["softmax temporary"].total_bytes == 65_792


def test_scratch_in_global_memory() -> None:
    buffers = table(make(4096, 128, 256, heads=32, kv_heads=8), "GM")
    sizes = {name: buffer.total_bytes for name, buffer in buffers.items()}
    assert sizes == {
        "q": 32 * 4096 * 128 * 2,
        "k": 8 * 4096 * 128 * 2,
        "v": 8 * 4096 * 128 * 2,
        "output": 32 * 4096 * 128 * 2,
        "score": 20 * 2 * 256 * 512 * 2,
        "probability": 20 * 2 * 256 * 512 * 2,
        "partial": 20 * 2 * 256 * 128 * 2,
        "matmul workspace": 16 * 1024 * 1024,
    }


def test_idle_cores_need_no_slots() -> None:
    # 3 heads of 2 blocks of at most 256 query rows: 6 tasks for 20 cores.
    buffers = table(make(500, 64, 256, heads=3, tile={"kv_tile": 256}), "GM")
    assert buffers["score"].total_bytes == 6 * 2 * 256 * 256 * 2
    assert buffers["score"].logical_shape == (6, 2, 256, 256)


def test_base_blocks_of_the_matrix_products() -> None:
    result = make(4096, 128, 256)
    kib = 1024
    assert {name: m.used_bytes for name, m in result.memories.items() if name.startswith("L")} == {
        "L1": 4 * 2 * 32 * kib,
        "L0A": 2 * 128 * 128 * 2,
        "L0B": 2 * 128 * 128 * 2,
        "L0C": 128 * 128 * 4,
    }
    small = make(4096, 1, 3, tile={"kv_tile": 17})
    left = table(small, "L0A")["left operand"]
    assert (left.logical_shape, left.shape, left.total_bytes) == ((3, 17), (16, 32), 2 * 16 * 32 * 2)
    narrow = table(make(4096, 128, 256, head_dim_v=20), "L1")["value"]
    assert (narrow.logical_shape, narrow.shape) == ((128, 20), (128, 32))


@pytest.mark.parametrize("policy", sorted(ts.PRECISIONS))
@pytest.mark.parametrize("head_dim", [1, 64, 200, 1000])
def test_default_base_blocks_fit_the_chip_for_every_policy(policy: str, head_dim: int) -> None:
    result = make(4096, head_dim, 256, policy)
    assert all(result.memories[name].fits for name in ("L1", "L0A", "L0B", "L0C"))


def test_numpy_integers_do_not_wrap() -> None:
    huge = np.int32(2**30)
    result = budget(
        ts.Workload(batch=huge, heads=1, seq_q=huge, head_dim=huge), ts.Tile(), REFERENCE, "ascend910b4"
    )
    assert table(result, "GM")["q"].total_bytes == 2**91


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"score_buffers": 0}, "score_buffers"),
        ({"mask_buffers": -1}, "mask_buffers"),
        ({"base_rows": 100}, "base_rows"),
        ({"base_depth_bytes": 0}, "base_depth_bytes"),
        ({"base_depth_bytes": 96}, "base_depth_bytes"),
        ({"score_dtype": "half"}, "score_dtype"),
        ({"basic_block": 1}, "basic_block"),
        ({"matmul_workspace_bytes": -1}, "matmul_workspace_bytes"),
    ],
)
def test_impossible_layouts_are_refused(fields: dict[str, object], where: str) -> None:
    with pytest.raises(ConfigError, match=f"Layout.{where}"):
        Layout(**fields)


def test_unknown_modes_get_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'WITHOUT_BRC'"):
        Layout(state_mode="WITHOUT_BRK")
    with pytest.raises(UnknownNameError, match="temporary"):
        Layout(temporary="none")


def test_layout_accepts_every_type() -> None:
    assert Layout(partial_dtype=HALF).partial_dtype is HALF
