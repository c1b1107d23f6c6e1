"""Inputs that broke real tools, part three: schedules, memory, sweeps, counts; and no case is left out."""

import numpy as np
import pytest
import test_hostile_cases
import test_hostile_shapes
from hostile import CASES, COVERED, attend, hostile

import tilesim as ts
from tilesim.memory.budget import MemoryBudget
from tilesim.memory.buffers import Buffer
from tilesim.units import parse_bytes

OTHER_TESTS = {"TS39"}
"""Cases about comparing benchmarks, which stand beside the code that compares them."""


def visits(seq_q, seq_kv, align, rows, kv_tile, mask="causal"):
    """Score tiles of one head that are visited."""
    workload = ts.Workload(heads=1, seq_q=seq_q, seq_kv=seq_kv, mask=mask, align=align)
    return ts.Tile(softmax_rows=rows, kv_tile=kv_tile).score_tiles(workload)


@hostile("TS24")
def test_tiles_visited_under_a_causal_mask(case):
    x, expected = case.recipe(), case.expected
    place = next(i for i, variant in enumerate(CASES["TS24"]["variants"]) if variant["name"] == case.name)
    config = x.configs[place]
    seq_q, seq_kv, rows, kv_tile = (config[name] for name in ("Sq", "Skv", "tile_m", "tile_n"))
    align = config["align"].replace("_", "-")
    total = visits(seq_q, seq_kv, align, rows, kv_tile)
    if "total_visits" not in expected:
        assert total == sum(expected["visits"])
    else:
        assert total == expected["total_visits"]
        assert visits(seq_q, seq_kv, align, rows, kv_tile, "full") == expected["without_skip"]
        upto = [visits(end, seq_kv, align, rows, kv_tile) for end in range(rows, seq_q + 1, rows)]
        runs = np.repeat(*np.array(expected["visits_run_length"]).T)
        np.testing.assert_array_equal(np.diff([0, *upto]), runs)
    output, _ = attend(*x.inputs(seq_q, seq_kv), mask="causal", align=align)
    if seq_q == seq_kv:
        np.testing.assert_allclose(output[:, 0], (np.arange(seq_q) + 2) / 2, rtol=1e-6)
    if "rule" in expected:
        assert not output[:16].any()


def ub(capacity_bytes, size_bytes, copies=1):
    """A memory with one buffer in it."""
    buffer = Buffer(
        name="score", position="VECIN", count=copies, bytes_each=size_bytes, dtype="float",
        logical_shape=(size_bytes // 4,), shape=(size_bytes // 4,),
        first_stage="copy_in", last_stage="copy_in",
    )  # fmt: skip
    return MemoryBudget(
        name="UB", capacity_bytes=capacity_bytes, reserved_bytes=0, peak_bytes=copies * size_bytes,
        live_bytes={}, buffers=(buffer,),
    )  # fmt: skip


@hostile("TS33")
def test_sizes_are_bytes_and_capacity_is_the_chip_s(case):
    x, expected = case.recipe(), case.expected
    if "buffer" in case.name:
        memory = ub(x.capacity_bytes, 4 * x.elements, copies=x.copies["double" in case.name])
        assert memory.used_bytes == expected["bytes"] == expected["bits"] // 8
        assert memory.fits == expected["fits"]
        assert memory.excess_bytes == expected.get("overflow_bytes", 0)
    elif "bits" in case.name:
        for size in (64, 192, 248, 256):
            assert ub(parse_bytes(f"{size} KiB"), expected["bytes"]).fits == expected[f"fits_{size}KiB"]
    elif "boundary" in case.name:
        assert [ub(196608, size).fits for size in (196608, 196640)] == expected["fits"]
    else:
        with pytest.raises(ts.UnknownNameError, match="ascend910b4"):
            ts.platform("ascend910b5")


@hostile("TS36")
def test_only_certain_shapes_are_basic_blocks(case):
    x = case.recipe()
    if case.name == "eligibility table":
        table = case.expected["table"]
        assert [(row["M"], row["K"], row["src_bytes"]) for row in table] == x.grid
        for row in table:
            assert ts.is_basic_block(row["M"], row["K"], row["src_bytes"]) == row["basic"]
        return
    rows = list(ts.sweep(kv_tile=[512, 8192, 65536], head_dim=[128]))
    assert [row["status"] for row in rows] == ["fits", "over budget", "over budget"]
    if case.name == "infeasible points":
        assert "UB over by" in rows[1]["reason"]
        assert rows[1]["ub_used_bytes"] > rows[1]["ub_available_bytes"]
        assert [row["kv_tile"] for row in ts.pareto_front(rows)] == [512]
        with pytest.raises(ts.ConfigError, match=f"smallest needs {rows[1]['ub_used_bytes']:,} B"):
            ts.advise(rows[1:])
    else:
        table = [
            rows[0] | {"index": index, "kv_tile": kv_tile, "time_us": time}
            for index, (kv_tile, time) in enumerate(x.cost.items())
        ]
        for order in (table, table[::-1]):
            assert ts.advise(order).best["kv_tile"] == case.expected["best"]


@hostile("TS37", "counts", "shape fields given as np.int32 (from a config file)")
def test_counts_beyond_32_bits(case):
    cfg = case.recipe().cfg
    number = np.int32 if "int32" in case.name else int
    expected = CASES["TS37"]["variants"][0]["expected"]
    workload = ts.Workload(
        batch=number(cfg["B"]), heads=number(cfg["H"]), seq_q=number(cfg["Sq"]), seq_kv=number(cfg["Skv"]),
        head_dim=number(cfg["D"]), mask="full",
    )  # fmt: skip
    tile = ts.Tile(softmax_rows=number(cfg["tile_m"]), kv_tile=number(cfg["tile_n"]))
    assert workload.useful_flops == expected["flops"]
    assert tile.score_tiles(workload) == expected["tile_pairs"]
    per_row_tile = workload.seq_kv // tile.kv_tile
    assert tile.score_tiles(workload) // per_row_tile == expected["row_tiles"]
    elements = workload.batch * workload.heads * workload.seq_q * workload.head_dim
    assert (elements, 2 * elements) == (expected["q_elements"], expected["q_bytes"])
    memories = ts.budget(workload, tile, "half-data-float-state", "ascend910b4").memories
    queries = next(buffer for buffer in memories["GM"].buffers if buffer.name.startswith("q"))
    assert queries.total_bytes == expected["q_bytes"]


@hostile("TS37", "B=1,H=56,S=99866,D=128, fused QKV row stride 3*56*128")
def test_offsets_beyond_32_bits(case, tmp_path, rng):
    shape = (1, 99866, 3, 56, 128)
    fused = np.memmap(tmp_path / "qkv", np.float16, "w+", shape=shape)
    fused[0, -8:, :, -1] = rng.standard_normal((8, 3, 128))
    q, k, v = (fused[:, -8:, part, -1:].transpose(0, 2, 1, 3) for part in range(3))
    largest = (shape[1] - 1) * 3 * 56 * 128 + 56 * 128 - 1
    assert largest == case.expected["largest_offset"] > 2**31 - 1
    expected = ts.attention(*(np.ascontiguousarray(x) for x in (q, k, v)))
    np.testing.assert_array_equal(ts.attention(q, k, v), expected)
    # A mask is read in place, by address: rows more than 2 GiB apart.
    mask = np.memmap(tmp_path / "mask", np.bool_, "w+", shape=(2, 2**31 + 64))[:, -8:]
    mask[1, 3:] = True
    output = ts.attention(q[:, :, :2], k, v, mask=mask)
    assert not output[0, 0, 0].any()
    np.testing.assert_array_equal(output[:, :, 1:], ts.attention(q[:, :, 1:2], k, v, mask=mask[1:].copy()))


@hostile("TS38")
def test_useful_and_executed_work(case):
    expected = case.expected

    def work(seq_q=1024, seq_kv=1024, mask="causal", **sizes):
        return ts.Workload(**({"heads": 1} | sizes), seq_q=seq_q, seq_kv=seq_kv, mask=mask)

    if case.name == "full 1024x1024":
        workload = work(mask="full")
        assert (workload.visible_pairs, workload.useful_flops) == (expected["pairs"], expected["flops"])
    elif case.name == "causal":
        for text, counts in expected.items():
            seq_q, seq_kv, align = (part.split("=")[-1] for part in text.split(","))
            workload = work(int(seq_q), int(seq_kv), align=align.replace("_", "-"))
            assert workload.visible_pairs == counts["pairs"]
            assert workload.useful_flops == counts["flops_D128"]
    elif "half" in case.name:
        assert work().useful_flops == expected["exact"]
    elif "executed" in case.name:
        tiles = ts.Tile().score_tiles(work())
        assert (tiles, tiles * 8 * 512) == (expected["tile_visits"], expected["pairs_executed"])
        assert work().visible_pairs / (tiles * 8 * 512) == pytest.approx(expected["useful_fraction"])
    elif "D=192" in case.name:
        assert work(mask="full", head_dim=192, head_dim_v=128).useful_flops == expected["flops"]
    else:
        assert work(heads=32, kv_heads=8).useful_flops == 32 * work().useful_flops


def test_no_case_and_no_variant_is_left_out():
    assert test_hostile_cases
    assert test_hostile_shapes
    every = {(name, variant["name"]) for name, case in CASES.items() for variant in case["variants"]}
    assert {name for name, _ in every - COVERED} == OTHER_TESTS
    assert every >= COVERED
