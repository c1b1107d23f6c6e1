"""Inputs that broke real kernels, part two: lengths, alignment, heads, dtypes, and the compiled code."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from hostile import FLOATS, HALVES, attend, explicit, four_axes, hostile, state
from test_kernels_rounding import rounded

import tilesim as ts
from tilesim.dtypes import HALF
from tilesim.engine import run_kernel
from tilesim.problem import read_problem
from tilesim.tensors import to_data_type

EVERY = list(ts.PRECISIONS)


@hostile("TS18")
def test_rounding_to_half(case):
    x, expected = case.recipe(), case.expected
    if "table" in case.name:
        values = np.array([*x.x, -0.0, np.inf, np.nan], np.float32)
        bits = rounded(values, "half").astype(np.float16).view(np.uint16)
        table = [int(row["half_bits"][:6], 16) for row in expected["table"]]
        assert len(values) == len(table)
        np.testing.assert_array_equal(bits[:-1], table[:-1])
        assert bits[-1] & 0x7FFF > 0x7C00
    elif "double" in case.name:
        assert to_data_type(np.array(x.x_double), HALF) == expected["direct"]
        assert np.float16(np.float32(x.x_double)) == expected["through_float32"]
    else:
        values = np.arange(65536, dtype=np.uint16).view(np.float16)
        with np.errstate(invalid="ignore"):
            same = rounded(values.astype(np.float32), "half").astype(np.float16)
        number = ~np.isnan(values)
        np.testing.assert_array_equal(same.view(np.uint16)[number], values.view(np.uint16)[number])
        assert np.isnan(same[~number]).all()


@hostile("TS19")
@pytest.mark.parametrize("name", EVERY)
def test_padding_gets_no_weight(case, name):
    q, k, v, scale = case.recipe().inputs(**case.params)
    # Sums of these values are beyond half, whose accumulator is not normalised.
    unit = 16.0 if name in HALVES else 1.0
    output, lse = attend(q, k, v / unit, name, scale=scale)
    rtol = 1e-6 if name in FLOATS else 2e-2 if "bfloat" in name else 2e-3
    np.testing.assert_allclose(output * unit, case.expected["out"], rtol=rtol)
    np.testing.assert_allclose(lse, case.expected["lse"], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.exp(lse + 3.0), case.expected["l"], rtol=1e-5)


@hostile("TS20")
@pytest.mark.parametrize("name", FLOATS)
def test_query_rows_that_are_no_multiple_of_eight(case, name):
    inputs = case.recipe().inputs
    q, k, v, scale = inputs(**case.params)
    output, lse = attend(q, k, v, name, scale=scale)
    assert list(output.shape) == case.expected["shape"]
    np.testing.assert_allclose(output[-1, :4], case.expected["last_row_0to3"], atol=2e-5)
    assert lse[-1] == pytest.approx(case.expected["lse_last"], abs=2e-5)
    np.testing.assert_array_equal(output, attend(*inputs(16)[:3], name, scale=scale)[0][: len(q)])


@hostile("TS21")
def test_columns_behind_the_real_width_do_not_count(case):
    x = case.recipe()
    expected = hostile_operator(x, x.src, True)
    if case.name == "pad = 1e4":
        for key, name in (("max", "out_max"), ("sum", "out_sum"), ("exp_max", "exp_max")):
            np.testing.assert_allclose(expected[key], case.expected[name], rtol=1e-5)
        np.testing.assert_allclose(expected["dst"][0, :3], case.expected["dst_0_0to2"], rtol=1e-5)
    elif case.name == "pad = NaN":
        x.src[:, 41:48] = np.nan
        got = hostile_operator(x, x.src, True)
        for key in ("max", "sum", "exp_max"):
            np.testing.assert_array_equal(got[key], expected[key])
    elif case.name.startswith("row 3"):
        assert x.src[3, :41].max() == pytest.approx(case.expected["row_max_of_tile"], rel=1e-5)
        assert expected["max"][3] == case.expected["out_max"]
        assert expected["exp_max"][3] == case.expected["exp_max"]
    else:
        first = hostile_operator(x, x.src, False)
        assert first["sum"][1] == pytest.approx(case.expected["out_sum_row1"], rel=1e-5)
        assert first["max"][1] == pytest.approx(case.expected["out_max_row1"], rel=1e-5)


def hostile_operator(x, src, update):
    """Run softmax_flash_v2 on the first `col_count` columns of which `actual_col` count."""
    tile = np.ascontiguousarray(src[:, : x.col_count])
    row_sum, row_max = (np.repeat(start[:, None], 8, axis=1) for start in (x.in_sum, x.in_max))
    exp_max = np.full((8, 8), np.nan, np.float32)
    tmp_bytes, _ = ts.softmax_flash_v2_tmp_bytes(tile.shape, 4, 4)
    tiling = ts.softmax_flash_v2_tiling(tile.shape, 4, 4, 8 * tmp_bytes)
    info = ts.SoftMaxShapeInfo(8, x.col_count, 8, x.actual_col)
    ts.softmax_flash_v2(
        tile, row_sum, row_max, tile, exp_max, row_sum, row_max, tiling, info, is_update=update
    )
    return {"dst": tile, "sum": row_sum[:, 0], "max": row_max[:, 0], "exp_max": exp_max[:, 0]}


@hostile("TS23")
@pytest.mark.parametrize("name", FLOATS)
def test_causal_alignment(case, name):
    params = dict(case.params)
    align = params.pop("align").replace("_", "-")
    q, k, v = case.recipe().inputs(**params)
    output, _ = attend(q, k, v, name, mask="causal", align=align)
    expected = case.expected["out"]
    rows = expected["rows"] if isinstance(expected, dict) else range(len(expected))
    values = expected["first"] if isinstance(expected, dict) else expected
    np.testing.assert_allclose(output[list(rows), 0], values, rtol=1e-6)


@hostile("TS26", *(f"Sq={q},Skv={k},causal={c}" for q, k, c in ((2, 4, True), (2, 4, False), (4, 4, True))))
@pytest.mark.parametrize("name", FLOATS)
def test_alibi(case, name):
    seq_q, seq_kv, causal = (part.split("=")[1] for part in case.name.split(","))
    x = case.recipe()
    q, k, v, bias = x.inputs(int(seq_q), int(seq_kv))
    mask = "causal" if causal == "True" else "full"
    for options in ({"alibi_slopes": 0.5}, {"attn_mask": bias}):
        output, lse = attend(q, k, v, name, mask=mask, **options)
        np.testing.assert_allclose(output[:, 0], case.expected["out"], rtol=1e-6)
        np.testing.assert_allclose(lse, case.expected["lse"], rtol=1e-6, atol=1e-7)


@hostile("TS26", "causal: bias slope*j instead of -slope*(i-j)")
def test_alibi_up_to_a_constant_of_the_row(case):
    q, k, v, _ = case.recipe().inputs(4, 4)
    output, lse = attend(q, k, v, mask="causal", alibi_slopes=0.5)
    other, other_lse = attend(q, k, v, mask="causal", attn_mask=0.5 * np.arange(4.0))
    np.testing.assert_allclose(other, output, rtol=1e-6)
    np.testing.assert_allclose(other_lse - lse, 0.5 * np.arange(4), atol=1e-6)


@hostile("TS28")
@pytest.mark.parametrize("name", FLOATS)
def test_scales(case, name):
    x = case.recipe()
    if case.name == "scale=NaN or inf":
        for scale in (np.nan, np.inf, -np.inf):
            with pytest.raises(ValueError, match="scale"):
                attend(x.q, x.k, x.v, name, scale=scale)
        return
    scale = case.params.get("scale", 0.0 if "given" in case.name else None)
    output, lse = attend(x.q, x.k, x.v, name, scale=scale)
    if "out_0_0to3" in case.expected:
        np.testing.assert_allclose(output[0, :4], case.expected["out_0_0to3"], atol=2e-5)
        assert lse[0] == pytest.approx(case.expected["lse_0"], abs=2e-5)
    elif scale is None:
        np.testing.assert_array_equal(output, attend(x.q, x.k, x.v, name, scale=0.25)[0])
    else:
        np.testing.assert_allclose(output, np.tile(x.v.mean(axis=0), (8, 1)), atol=2e-5)


@hostile("TS30", "H=6,Hkv=2", "H=12,Hkv=4", "H=4,Hkv=1", "H=5,Hkv=5")
@pytest.mark.parametrize("name", EVERY)
def test_grouped_heads(case, name):
    heads, kv_heads = (int(part.split("=")[1]) for part in case.name.split(","))
    output, _ = attend(*case.recipe().inputs(heads, kv_heads), name)
    np.testing.assert_array_equal(output[:, 0, 0], case.expected["out_per_head"])


@hostile("TS30", "H=6,Hkv=4 / H=2,Hkv=4 / Hkv=0")
def test_heads_that_do_not_divide(case):
    for heads, kv_heads in ((6, 4), (2, 4), (6, 0)):
        with pytest.raises(ValueError, match="head"):
            attend(*case.recipe().inputs(heads, kv_heads))


@hostile("TS31", "B=0", "Sq=0", "Skv=0, Sq=4", "D=0, Skv=5, Dv=8, scale=1.0", "Dv=0")
@pytest.mark.parametrize("name", [*EVERY, "reference"])
def test_zero_lengths(case, name):
    params = {part.split("=")[0].strip(): part.split("=")[1] for part in case.name.split(",")}
    scale = float(params.pop("scale", 1.0))
    q, k, v = case.recipe().inputs(**{key: int(value) for key, value in params.items()})
    options = {"mask": "full", "scale": scale, "return_lse": True}
    if name == "reference":
        output, lse = ts.attention_reference(q, k, v, **options)
    else:
        output, lse = ts.attention(q, k, v, precision=name, **options)
    assert output.shape == (*q.shape[:3], v.shape[3])
    assert lse.shape == q.shape[:3]
    if "out_shape" in case.expected:
        assert list(output.shape) == case.expected["out_shape"]
    elif "Skv=0" in case.name:
        assert not output.any()
        assert np.isneginf(lse).all()
    else:
        np.testing.assert_array_equal(output, 3.0)
        np.testing.assert_allclose(lse, case.expected["lse"], rtol=1e-6)


@hostile("TS31", "D=0, scale=None")
def test_no_scale_for_queries_without_elements(case):
    with pytest.raises(ValueError, match="scale"):
        ts.attention(*case.recipe().inputs(D=0))


@hostile("TS31", "throughput/UB report for any of these")
@pytest.mark.parametrize("params", [{"B": 0}, {"Sq": 0}, {"Skv": 0}, {"D": 0}, {"Dv": 0}])
def test_reports_of_zero_lengths(case, params):
    r = ts.simulate(*case.recipe().inputs(**params), scale=1.0)
    assert np.isfinite([r.throughput.gflops, r.throughput.score_tiles_per_s]).all()
    assert all(stats.max_abs == 0 for stats in r.errors.values())
    if params == {"Skv": 0}:
        assert (r.throughput.gflops, r.throughput.score_tiles) == (0, 0)


class TestDtypes:
    """TS41."""

    @hostile("TS41", "q.astype('>f4') (also k, v)", "float64 q,k,v")
    def test_same_values_same_answer(self, case):
        x = case.recipe()
        dtype = np.float64 if "float64" in case.name else np.dtype(">f4")
        native, _ = attend(x.q, x.k, x.v)
        output, _ = attend(*(t.astype(dtype) for t in (x.q, x.k, x.v)))
        np.testing.assert_array_equal(output, native)
        np.testing.assert_allclose(output[0, :4], case.expected["out_0_0to3"], atol=2e-5)

    @hostile("TS41", "setflags(write=False), np.load(mmap_mode='r')")
    def test_read_only(self, case, tmp_path):
        x = case.recipe()
        expected, _ = attend(x.q, x.k, x.v)
        mapped = []
        for name in "qkv":
            np.save(tmp_path / f"{name}.npy", getattr(x, name))
            mapped.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
            getattr(x, name).setflags(write=False)
        np.testing.assert_array_equal(attend(*mapped)[0], expected)
        np.testing.assert_array_equal(attend(x.q, x.k, x.v)[0], expected)

    @hostile("TS41", "scale as np.array(0.25) (0-d) or np.float32(0.25)")
    def test_scales_of_numpy(self, case):
        x = case.recipe()
        for scale in (np.array(0.25), np.float32(0.25)):
            np.testing.assert_array_equal(
                attend(x.q, x.k, x.v, scale=scale)[0], attend(x.q, x.k, x.v, scale=0.25)[0]
            )

    @hostile("TS41", "q 0-d or 1-d", "int32 / bool / complex64 / object q")
    def test_refusals(self, case):
        x = case.recipe()
        k, v = four_axes(x.k), four_axes(x.v)
        if "0-d" in case.name:
            for q in (np.float32(1.0), x.q[0]):
                with pytest.raises(ValueError, match=r"q\.shape"):
                    ts.attention(q, k, v)
        else:
            for dtype in (np.int32, bool, np.complex64, object):
                with pytest.raises(TypeError, match=r"q\.dtype"):
                    ts.attention(four_axes(x.q.astype(dtype)), k, v)

    @hostile("TS41", "q half, k and v float32")
    @pytest.mark.parametrize("name", EVERY)
    def test_mixed_types_are_each_rounded_to_the_policy(self, case, name):
        x = case.recipe()
        q = x.q.astype(np.float16)
        output, _ = attend(q, x.k, x.v, name)
        wide, _ = attend(q.astype(np.float32), x.k, x.v, name)
        assert output.dtype == np.float16
        np.testing.assert_array_equal(output, wide.astype(np.float16))

    @hostile("TS41", "mask dtype: bool; uint8 0/1; float 0/-inf", "NaN in the mask, or -1 entries")
    def test_masks(self, case):
        x = case.recipe()
        keep = np.arange(40) % 3 > 0
        if "NaN" in case.name:
            for bad in (np.nan, np.inf):
                with pytest.raises(ValueError, match="attn_mask"):
                    attend(x.q, x.k, x.v, mask=np.where(keep, 0.0, bad))
            refused = np.where(keep, 1, -1)
        else:
            output, _ = attend(x.q, x.k, x.v, mask=keep)
            same, _ = attend(x.q, x.k, x.v, mask=np.where(keep, 0.0, -np.inf))
            np.testing.assert_array_equal(output, same)
            refused = keep.astype(np.uint8)
        with pytest.raises(TypeError, match="True = attend"):
            attend(x.q, x.k, x.v, mask=refused)


@hostile("TS42", "row a", "row b", "row c")
@pytest.mark.parametrize("name", [*FLOATS, *HALVES])
def test_guards_survive_compilation(case, name):
    row = case.recipe().rows[case.name[-1]]
    row_max, row_sum = state(row[None], np.ones((len(row), 1)), name)
    if case.name == "row a":
        assert (row_max, row_sum) == (-np.inf, 0)
    elif case.name == "row b":
        assert row_max == 2
        assert row_sum == pytest.approx(case.expected["sum"], rel=1e-6 if "half-state" not in name else 1e-3)
    else:
        assert np.isnan(row_sum)
        assert np.isnan(explicit(row[None], np.ones((len(row), 1)), name)[0]).all()


@hostile("TS42", "TS01, TS02, TS05, TS06 run through the compiled path")
@pytest.mark.parametrize("name", EVERY)
def test_the_compiled_path_and_numpy_agree_on_what_is_no_number(case, name, rng):
    q, k, v = (rng.standard_normal((1, 1, n, 16)).astype(np.float32) for n in (16, 1024, 1024))
    keep = rng.random((16, 1024)) < 0.5
    keep[[3, 12]], keep[:, :512] = False, False
    q[0, 0, 2, 0], k[0, 0, 1020, 0], v[0, 0, 700, 3], k[0, 0, 5], v[0, 0, 6] = (
        np.nan,
        np.nan,
        np.nan,
        np.inf,
        np.inf,
    )
    output, lse = ts.attention(q, k, v, mask=keep, precision=name, return_lse=True)
    expected, expected_lse = ts.attention_reference(q, k, v, mask=keep, return_lse=True)
    np.testing.assert_array_equal(np.isnan(output), np.isnan(expected))
    np.testing.assert_array_equal(np.isnan(lse), np.isnan(expected_lse))
    assert (output[0, 0, [3, 12]] == 0).all()


@hostile("TS44", "a")
def test_no_sum_is_lost_between_threads(case):
    x = case.recipe().x
    k = np.zeros((1, 1, len(x), 1), np.float32)
    for splits in (1, 4):
        output, lse = ts.attention(
            k[:, :, :8], k, x[None, None], mask="full", precision="float", threads=2, return_lse=True,
            tile=ts.Tile(kv_splits=splits),
        )  # fmt: skip
        sums = output[0, 0].astype(float) * np.exp(lse[0, 0].astype(float))[:, None]
        np.testing.assert_allclose(sums, np.tile(case.expected["sums"], (8, 1)), rtol=1e-5)


def many_heads(heads):
    from hostile import CASES

    names = {"np": np}
    exec(CASES["TS02"]["input_recipe"], names)
    tensors = [np.broadcast_to(names[name], (1, heads, *names[name].shape)) for name in "qkv"]
    return tensors, names["keep"]


@hostile("TS44", "b")
def test_threads_and_repeats_change_no_bit(case):
    x = case.recipe()
    (q, k, v), keep = many_heads(x.heads)
    problem = read_problem(q, k, v, mask=keep, window=None, scale=None, options={})
    policy = ts.PRECISIONS["half-data-half-state"]
    results = {
        run_kernel(problem, tile=ts.Tile(), policy=policy, threads=threads).output.tobytes()
        for threads in x.threads
        for _ in range(x.repeats // 4)
    }
    assert len(results) == 1


@hostile("TS44", "c")
def test_concurrent_callers(case):
    x = case.recipe()
    (q, k, v), keep = many_heads(4)
    results = []

    def work():
        for _ in range(x.calls):
            results.append(ts.attention(q, k, v, mask=keep, precision="float", threads=2).tobytes())

    callers = [threading.Thread(target=work) for _ in range(x.callers)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == 200
    assert len(set(results)) == 1


@hostile("TS44", "d: run under 8 worker processes on 2 cores")
def test_the_number_of_threads_can_be_limited(case, monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    program = (
        "import numpy as np, tilesim as ts; x = np.ones((1, 4, 300, 64), np.float32);"
        "print(ts.simulate(x, x, x, compare=()).throughput.threads)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
