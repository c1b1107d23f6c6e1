"""Budgets against exhaustive search on small chips, and invariants over random configurations."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tilesim as ts
from tilesim.errors import BudgetError, ConfigError, UnknownNameError
from tilesim.memory import Budget, Layout, budget, first_unfit_length, full_row_budget
from tilesim.platform import MEMORIES, Memory

REFERENCE = "half-data-float-state"
CHIP = "ascend910b4"


def chip(
    ub_bytes: int = 196_608, reserved_bytes: int = 256, gm_bytes: int = 2**35, cores: int = 20
) -> ts.Platform:
    sizes = {"L1": 2**19, "L0A": 2**16, "L0B": 2**16, "L0C": 2**17, "GM": gm_bytes}
    memories = {name: Memory(name=name, capacity_bytes=size) for name, size in sizes.items()}
    memories["UB"] = Memory(name="UB", capacity_bytes=ub_bytes, reserved_bytes=reserved_bytes)
    return ts.Platform(
        name="small", title="Small", cube_cores=cores, vector_cores=2 * cores, memories=memories
    )


workloads = st.builds(
    ts.Workload,
    batch=st.integers(1, 3),
    heads=st.sampled_from([2, 4]),
    kv_heads=st.sampled_from([1, 2]),
    seq_q=st.integers(1, 5000),
    seq_kv=st.integers(1, 5000),
    head_dim=st.integers(1, 600),
    head_dim_v=st.integers(1, 600),
    mask=st.sampled_from(["causal", "full"]),
)
tiles = st.builds(
    ts.Tile,
    softmax_rows=st.one_of(st.sampled_from([8, 16, 256]), st.integers(1, 300)),
    kv_tile=st.one_of(st.sampled_from([64, 512, 1024, 2048]), st.integers(1, 5000)),
    query_rows=st.one_of(st.none(), st.integers(1, 600)),
    slots=st.integers(1, 5),
)
policies = st.sampled_from(sorted(ts.PRECISIONS))
layouts = st.builds(
    Layout,
    score_buffers=st.integers(1, 2),
    mask_buffers=st.integers(0, 2),
    probability_buffers=st.integers(1, 2),
    partial_buffers=st.integers(1, 2),
    state_mode=st.sampled_from(["NORMAL", "WITHOUT_BRC"]),
    temporary=st.sampled_from(["minimum", "maximum"]),
    shared_temporary=st.booleans(),
    basic_block=st.booleans(),
    l0c_buffers=st.integers(1, 3),
)
quick = settings(max_examples=100, deadline=None, derandomize=True)


def test_sizes_of_the_reference_configuration() -> None:
    result = budget(ts.Workload(seq_q=4096), ts.Tile(), REFERENCE, CHIP)
    assert (result.used_bytes, result.capacity_bytes, result.reserved_bytes) == (137_472, 196_608, 256)
    assert (result.available_bytes, result.excess_bytes, result.fits) == (196_352, 0, True)
    assert result.tile.query_rows == 256
    assert result.requested_tile.query_rows is None
    # Accumulator, sum, max, exp_max, score, probability and temporary meet in the softmax stage.
    assert result.peak_bytes == 32_768 + 4096 + 4096 + 8192 + 8192 + 8192 + 18_688
    assert result.memories["UB"].peak_stage == "softmax"
    assert result.softmax_tmp_bytes == (18_688, 18_688)
    result.require()


def test_objects_are_taken_as_well_as_names() -> None:
    by_name = budget(ts.Workload(), ts.Tile(), REFERENCE, CHIP)
    by_object = budget(ts.Workload(), ts.Tile(), ts.PRECISIONS[REFERENCE], ts.platform(CHIP))
    assert by_name == by_object


def test_limit_is_capacity_less_reserved_to_the_byte() -> None:
    configuration = (ts.Workload(seq_q=4096), ts.Tile(), REFERENCE)
    exact = budget(*configuration, chip(137_472 + 256))
    assert exact.fits
    assert exact.excess_bytes == 0
    short = budget(*configuration, chip(137_472 + 255))
    assert not short.fits
    assert short.excess_bytes == 1


def test_json_form_keeps_the_promised_keys() -> None:
    document = json.loads(json.dumps(budget(ts.Workload(), ts.Tile(kv_tile=4096), REFERENCE, CHIP).to_dict()))
    assert document["schema"] == 1
    for sizes in (document, *document["memories"].values()):
        assert {"capacity_bytes", "used_bytes", "peak_bytes", "fits", "buffers"} <= sizes.keys()
        keys = {"name", "position", "count", "bytes_each", "total_bytes", "dtype", "shape", "offset_bytes"}
        assert all(keys <= buffer.keys() for buffer in sizes["buffers"])
    assert list(document["memories"]) == list(MEMORIES)
    assert document["capacity_bytes"] == 196_608
    assert document["used_bytes"] == sum(buffer["total_bytes"] for buffer in document["buffers"])
    assert document["fits"] is False
    assert document["overflowing"] == ["UB"]
    assert {suggestion["axis"] for suggestion in document["nearest"]} >= {"kv_tile", "softmax_rows"}


def test_error_says_by_how_much_because_of_what_and_what_would_fit() -> None:
    result = budget(ts.Workload(seq_q=4096), ts.Tile(), "float", CHIP)
    with pytest.raises(BudgetError) as caught:
        result.require()
    assert caught.value.budget is result
    text = str(caught.value)
    assert "\n" not in text
    # Three tiles of 8 x 512 floats, two of 128 x 128, states of 4 + 4 + 8 KiB, 64 bytes a row, 8 x 72 floats.
    required = 3 * 16_384 + 2 * 65_536 + 16_384 + 8192 + 2304
    assert f"{required:,} B" in text
    assert "196,352 B" in text
    assert f"{required - 196_352:,} B" in text
    assert "accumulator 64 KiB (32%, count 1)" in text
    assert "fullest stage: accumulate" in text
    assert "would fit if dead buffers were reused" in text
    for axis in ("kv_tile", "softmax_rows", "query_rows", f"precision {REFERENCE}"):
        assert axis in text


def test_other_memories_are_named_when_they_overflow() -> None:
    result = budget(ts.Workload(batch=2**20, seq_q=4096), ts.Tile(), REFERENCE, CHIP)
    assert [memory.name for memory in result.overflowing] == ["GM"]
    assert result.excess_bytes == result.memories["GM"].excess_bytes > 0
    assert "GM does not fit" in result.explain()
    assert "no change of a single setting fits" in result.explain()
    assert not result.nearest()


def test_deep_l0c_buffers_overflow_the_cube_core() -> None:
    result = budget(ts.Workload(seq_q=4096), ts.Tile(), REFERENCE, CHIP, layout=Layout(l0c_buffers=3))
    assert "L0C does not fit: 196,608 B" in result.explain()


def test_fitting_budget_explains_itself_too() -> None:
    assert budget(ts.Workload(), ts.Tile(), REFERENCE, CHIP).explain().startswith("UB fits: ")


@quick
@given(workload=workloads, tile=tiles, policy=policies, layout=layouts)
def test_every_configuration_fits_or_raises_budget_error(
    workload: ts.Workload, tile: ts.Tile, policy: str, layout: Layout
) -> None:
    result = budget(workload, tile, policy, CHIP, layout=layout)
    for memory in result.memories.values():
        assert memory.fits == (memory.used_bytes <= memory.capacity_bytes - memory.reserved_bytes)
        assert memory.fits == (memory.excess_bytes == 0)
    if all(memory.fits for memory in result.memories.values()):
        result.require()
        assert result.excess_bytes == 0
    else:
        with pytest.raises(BudgetError, match="does not fit"):
            result.require()
        assert result.excess_bytes > 0
    json.dumps(result.to_dict())


@quick
@given(workload=workloads, tile=tiles, policy=policies, layout=layouts)
def test_live_buffers_never_overlap(
    workload: ts.Workload, tile: ts.Tile, policy: str, layout: Layout
) -> None:
    for memory in budget(workload, tile, policy, CHIP, layout=layout).memories.values():
        assert memory.peak_bytes == max(b.offset_bytes + b.total_bytes for b in memory.buffers)
        assert max(memory.live_bytes.values()) <= memory.peak_bytes <= memory.used_bytes
        for stage in memory.stages:
            live = memory.live_buffers(stage)
            assert memory.live_bytes[stage] == sum(b.total_bytes for b in live)
            for a, b in itertools.combinations(live, 2):
                assert (
                    a.offset_bytes + a.total_bytes <= b.offset_bytes
                    or b.offset_bytes + b.total_bytes <= a.offset_bytes
                )


@quick
@given(
    tile=tiles,
    policy=policies,
    layout=layouts,
    lengths=st.tuples(st.integers(0, 10**6), st.integers(0, 10**9)),
)
def test_ub_does_not_depend_on_length_on_the_long_path(
    tile: ts.Tile, policy: str, layout: Layout, lengths: tuple[int, int]
) -> None:
    tile = dataclasses.replace(tile, query_rows=tile.query_rows or 256)
    # Longer than a tile, and at least as long as a task.
    first, second = (
        budget(ts.Workload(seq_q=5001 + length), tile, policy, CHIP, layout=layout) for length in lengths
    )
    assert first.buffers == second.buffers


def named_sizes(result: Budget, *but: str) -> dict[str, int]:
    return {b.name: b.total_bytes for b in result.buffers if b.name not in but}


@quick
@given(
    workload=workloads,
    tile=tiles,
    policy=policies,
    layout=layouts,
    axis=st.sampled_from(["kv_tile", "softmax_rows", "query_rows", "slots"]),
    step=st.integers(1, 400),
)
def test_ub_grows_with_every_size_of_the_tile(
    workload: ts.Workload, tile: ts.Tile, policy: str, layout: Layout, axis: str, step: int
) -> None:
    # A basic block takes a larger temporary than its neighbours, so growth holds among tiles that are none.
    layout = dataclasses.replace(layout, basic_block=False)
    tile = dataclasses.replace(tile, query_rows=tile.query_rows or 256)
    larger = dataclasses.replace(
        tile, **{axis: min(getattr(tile, axis) + step, 64 if axis == "slots" else 10**6)}
    )
    assume(tile.is_short(workload) == larger.is_short(workload))
    small, large = (budget(workload, t, policy, CHIP, layout=layout) for t in (tile, larger))
    assert small.used_bytes <= large.used_bytes
    sizes, larger_sizes = named_sizes(small), named_sizes(large)
    assert sizes.keys() == larger_sizes.keys()
    assert all(sizes[name] <= larger_sizes[name] for name in sizes)


@quick
@given(workload=workloads, tile=tiles, layout=layouts)
def test_tensors_grow_with_the_itemsize(workload: ts.Workload, tile: ts.Tile, layout: Layout) -> None:
    # Scratch does not: half data needs room to be widened to float, float data none.
    half, full = (
        named_sizes(
            budget(workload, tile, policy, CHIP, layout=layout), "softmax temporary", "normalisation scratch"
        )
        for policy in (REFERENCE, "float-data-float-state")
    )
    assert all(half[name] <= full[name] for name in half)
    assert half["partial"] * 2 == full["partial"]


small_chips = st.builds(
    chip,
    ub_bytes=st.integers(1500, 16_000),
    gm_bytes=st.one_of(st.just(2**35), st.integers(2**24, 2**24 + 2**20)),
    cores=st.integers(1, 5),
)
small_workloads = st.builds(
    ts.Workload,
    heads=st.just(1),
    seq_q=st.integers(1, 60),
    seq_kv=st.integers(1, 200),
    head_dim=st.integers(1, 64),
)
small_tiles = st.builds(
    ts.Tile,
    softmax_rows=st.one_of(st.just(8), st.integers(1, 20)),
    kv_tile=st.one_of(st.sampled_from([64, 128, 192]), st.integers(1, 220)),
    query_rows=st.one_of(st.none(), st.integers(1, 60)),
    slots=st.integers(1, 12),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(workload=small_workloads, tile=small_tiles, policy=policies, platform=small_chips, layout=layouts)
def test_suggestions_fit_and_are_the_largest_on_their_axis(
    workload: ts.Workload, tile: ts.Tile, policy: str, platform: ts.Platform, layout: Layout
) -> None:
    present = budget(workload, tile, policy, platform, layout=layout)
    assume(not present.fits)
    found = {suggestion.axis: suggestion for suggestion in present.nearest()}
    for axis in ("kv_tile", "softmax_rows", "query_rows", "slots"):
        expected = None
        for value in range(getattr(present.tile, axis) - 1, 0, -1):
            changed = dataclasses.replace(tile, **{axis: value})
            if budget(workload, changed, policy, platform, layout=layout).fits:
                expected = value
                break
        if expected is None:
            assert axis not in found
            continue
        assert found[axis].value == expected
        suggested = budget(workload, found[axis].tile, found[axis].precision, platform, layout=layout)
        assert suggested.fits
        assert suggested.used_bytes == found[axis].used_bytes
    fitting = [p for p in ts.PRECISIONS if budget(workload, tile, p, platform, layout=layout).fits]
    assert ("dtype" in found) == bool(fitting)
    if fitting:
        widest = max(ts.PRECISIONS[p].data.itemsize for p in fitting)
        assert found["dtype"].value in fitting
        assert found["dtype"].precision.data.itemsize == widest


def suggestion(
    axis: str,
    workload: ts.Workload,
    tile: ts.Tile,
    available_bytes: int,
    policy: str = REFERENCE,
    **sizes: int,
) -> int | str | None:
    result = budget(workload, tile, policy, chip(available_bytes, 0, **sizes))
    assert not result.fits
    return {s.axis: s.value for s in result.nearest()}.get(axis)


def test_suggestion_passes_over_basic_blocks() -> None:
    # 13 rows that are no basic block take 42,304 bytes for tiles and temporary, 8 rows that are one 43,264.
    workload, tile = ts.Workload(seq_q=4096, head_dim=64), ts.Tile(softmax_rows=16, query_rows=256)
    assert suggestion("softmax_rows", workload, tile, 104_704 - 43_264 + 42_500) == 13
    # In the short path 560 keys take 48 * 560 + 4 * (560 + 80), 512 keys 43,264.
    workload, tile = ts.Workload(seq_q=512, head_dim=128), ts.Tile(kv_tile=600)
    assert suggestion("kv_tile", workload, tile, 73_984 - 43_264 + 30_000) == 560


def test_suggestion_when_only_the_short_path_fits() -> None:
    # 128-row tasks: 31,040 bytes and 52 a key; with an accumulator and 256 rows 94,000 whatever the tile.
    largest = (90_000 - 31_040) // 52 // 16 * 16
    assert suggestion("kv_tile", ts.Workload(seq_q=1000), ts.Tile(kv_tile=2500), 90_000) == largest


def test_suggestion_knows_that_smaller_tasks_may_keep_more_cores_busy() -> None:
    # 60 rows: tasks of 21 to 29 rows make 3 and 16 to 19 make 4, more than the 60 rows of 3 tasks of 20.
    workload = ts.Workload(heads=1, seq_q=60, head_dim=16)
    gm_bytes = 2**24 + 4 * 60 * 16 * 2 + 60 * (2 * 512 + 16) * 2
    tile = ts.Tile(query_rows=29, slots=1)
    assert suggestion("query_rows", workload, tile, 196_608, gm_bytes=gm_bytes) == 20


def test_suggested_policy_has_the_widest_types() -> None:
    # 832 bytes; 768 with float state, and 704 with float data, which need not be widened.
    tile = ts.Tile(softmax_rows=1, kv_tile=1, query_rows=1)
    workload = ts.Workload(seq_q=2, head_dim=1)
    assert suggestion("dtype", workload, tile, 800, "half-data-half-state") == "float-data-float-state"
    assert suggestion("dtype", ts.Workload(), ts.Tile(), 196_352, "float") == REFERENCE


def test_suggestion_across_the_border_of_the_short_path() -> None:
    # With 1,000 keys in one tile it is just too large; in more tiles the kernel keeps an accumulator too.
    def at(kv_tile: int) -> Budget:
        return budget(ts.Workload(seq_q=1000, head_dim=64), ts.Tile(kv_tile=kv_tile), REFERENCE, chip(74_000))

    value = {s.axis: s.value for s in at(1200).nearest()}["kv_tile"]
    assert isinstance(value, int)
    assert value < 1000
    assert at(value).fits
    assert not any(at(kv_tile).fits for kv_tile in range(value + 1, 1200))


def test_full_rows_take_linear_room_where_tiles_take_none() -> None:
    def used(length: int) -> int:
        workload = ts.Workload(seq_q=length, head_dim=64)
        return full_row_budget(workload, ts.Tile(), REFERENCE, CHIP).used_bytes

    # Beyond basic blocks each further 16 keys cost three tiles of 8 rows and a widened row.
    assert used(8192) - used(4096) == 4096 * (3 * 8 * 2 + 4)
    assert used(131_072) - used(65_536) == 65_536 * (3 * 8 * 2 + 4)


def test_first_length_that_does_not_fit() -> None:
    # 128-row tasks of head_dim 128: partial 16 KiB, states 2 x 2 + 2 + 2 KiB, normalisation 6 KiB, and
    # 3 tiles of 8 rows plus a widened row and 80 floats: 52 bytes a key.
    fixed = 16_384 + 8192 + 6144 + 4 * 80
    last_padded = (196_352 - fixed) // 52 // 16 * 16
    assert first_unfit_length(ts.Workload(), ts.Tile(), REFERENCE, CHIP) == last_padded + 1


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    ub_bytes=st.integers(1000, 30_000), policy=policies, layout=layouts, query_rows=st.sampled_from([None, 5])
)
def test_first_length_that_does_not_fit_is_the_first(
    ub_bytes: int, policy: str, layout: Layout, query_rows: int | None
) -> None:
    platform, tile = chip(ub_bytes), ts.Tile(query_rows=query_rows)
    first = first_unfit_length(ts.Workload(head_dim=16), tile, policy, platform, layout=layout)
    assert first is not None
    for length in range(max(1, first - 70), first + 1):
        workload = ts.Workload(head_dim=16, seq_q=length)
        assert full_row_budget(workload, tile, policy, platform, layout=layout).fits == (length < first)


def test_full_rows_that_always_fit() -> None:
    assert first_unfit_length(ts.Workload(heads=1), ts.Tile(), REFERENCE, chip(2**40, gm_bytes=2**50)) is None


def test_budget_and_its_error_can_be_sent_to_another_process() -> None:
    result = budget(ts.Workload(), ts.Tile(kv_tile=4096), REFERENCE, CHIP)
    assert pickle.loads(pickle.dumps(result)) == result
    assert str(pickle.loads(pickle.dumps(BudgetError(result)))) == result.explain()


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("x", ts.Tile(), REFERENCE, CHIP), "workload"),
        ((ts.Workload(), None, REFERENCE, CHIP), "tile"),
    ],
)
def test_other_types_are_refused(arguments: tuple[object, ...], where: str) -> None:
    with pytest.raises(ConfigError, match=where):
        budget(*arguments)
    with pytest.raises(ConfigError, match=where):
        full_row_budget(*arguments)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'half-data-float-state'"):
        budget(ts.Workload(), ts.Tile(), "half-data-floatstate", CHIP)
    with pytest.raises(UnknownNameError, match="ascend910b4"):
        budget(ts.Workload(), ts.Tile(), REFERENCE, "ascend910b9")
