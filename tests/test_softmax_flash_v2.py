import doctest
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from softmax_calls import (
    COMBINATIONS,
    FLOAT,
    HALF,
    NORMAL,
    OUTPUTS,
    WITHOUT_BRC,
    assert_gives,
    bits,
    call,
    expected,
    spread,
    ulps_apart,
)
from softmax_model import row_sum, softmax_flash_v2_model

from tilesim.softmax import (
    SoftmaxConfig,
    SoftmaxMode,
    SoftMaxShapeInfo,
    SoftmaxTiling,
    flash_v2,
    softmax_flash_v2,
    softmax_flash_v2_tiling,
    tiling,
)

GOLDEN = np.load(Path(__file__).parent / "data" / "softmax_flash_v2_golden.npz")
CASES = json.loads(bytes(GOLDEN["meta_json"]))["cases"]
GOLDEN_NAMES = {
    "dst": "dst",
    "sum": "sum",
    "max": "max",
    "exp_max": "exp_max",
    "out_reduce_max": "reduce_max",
}


def golden_call(case):
    def stored(name):
        return GOLDEN.get(f"c{case['id']:03d}_{name}")

    src, mode = stored("src"), SoftmaxMode[case["mode"]]
    arguments = call(
        src.shape,
        src.dtype,
        np.dtype(case["state"]),
        mode=mode,
        update=case["is_update"],
        basic=case["is_basic_block"],
        reduce_max=case["out_reduce_max"],
        workspace=case["workspace"],
        space=True,
    )
    arguments["src_tensor"] = src
    arguments["tiling"] = SoftmaxTiling(*case["tiling"])
    shape = (case[name] for name in ("src_m", "src_k", "ori_src_m", "ori_src_k"))
    arguments["softmax_shape_info"] = SoftMaxShapeInfo(*shape)
    if case["is_update"]:
        arguments["in_exp_sum_tensor"] = spread(stored("in_sum"), case["state"], mode)
        arguments["in_max_tensor"] = spread(stored("in_max"), case["state"], mode)
    outputs = {ours: stored(theirs) for theirs, ours in GOLDEN_NAMES.items()}
    return arguments, {name: values for name, values in outputs.items() if values is not None}


def test_golden_calls_cover_all_combinations():
    assert len(CASES) == 100
    assert {(case["data"], case["state"]) for case in CASES} == {
        ("float16", "float16"),
        ("float16", "float32"),
        ("float32", "float32"),
    }
    assert {case["mode"] for case in CASES} == {mode.name for mode in SoftmaxMode}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_model_reproduces_golden_call(case):
    arguments, outputs = golden_call(case)
    result = expected(arguments)
    assert set(outputs) <= set(result)
    for name, wanted in outputs.items():
        lanes = wanted.reshape(len(result[name]), -1)
        seen = result[name].reshape(len(lanes), -1)
        np.testing.assert_array_equal(bits(np.broadcast_to(seen, lanes.shape)), bits(lanes), err_msg=name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_golden_call_is_reproduced_bit_for_bit(case):
    arguments, outputs = golden_call(case)
    softmax_flash_v2(**arguments)
    for name, wanted in outputs.items():
        seen = arguments[OUTPUTS[name]].reshape(wanted.shape)
        np.testing.assert_array_equal(bits(seen), bits(wanted), err_msg=name)


# The six overloads: temporary space by the framework or passed in; same types, same types with the tile's
# own maximum, mixed types.


def check_overload(arguments):
    result = expected(arguments)
    softmax_flash_v2(**arguments)
    assert_gives(arguments, result)


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("update", [False, True])
def test_overload_same_types_framework_space(dtype, update):
    check_overload(call(data=dtype, state=dtype, update=update))


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("update", [False, True])
def test_overload_same_types_passed_space(dtype, update):
    check_overload(call(data=dtype, state=dtype, update=update, space=True))


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_overload_same_types_reduce_max_framework_space(dtype):
    check_overload(call(data=dtype, state=dtype, mode=WITHOUT_BRC, reduce_max=True))


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_overload_same_types_reduce_max_passed_space(dtype):
    check_overload(call(data=dtype, state=dtype, mode=WITHOUT_BRC, reduce_max=True, space=True))


@pytest.mark.parametrize("update", [False, True])
def test_overload_mixed_types_framework_space(update):
    check_overload(call(data=HALF, state=FLOAT, update=update))


@pytest.mark.parametrize("update", [False, True])
def test_overload_mixed_types_passed_space(update):
    check_overload(call(data=HALF, state=FLOAT, update=update, space=True))


# Properties


@st.composite
def calls(draw, **fixed):
    data, state = draw(st.sampled_from(COMBINATIONS))
    basic = draw(st.booleans())
    if basic:
        rows = 8 * draw(st.integers(1, 3))
        columns = draw(st.sampled_from([128, 192, 448, 512, 576, 1024, 1088, 1984]))
    else:
        rows = draw(st.integers(1, 21))
        columns = 16 * draw(st.one_of(st.integers(1, 40), st.sampled_from([64, 68, 96, 130])))
    mode = draw(st.sampled_from([NORMAL, WITHOUT_BRC]))
    options = {
        "shape": (rows, columns),
        "data": data,
        "state": state,
        "mode": mode,
        "update": draw(st.booleans()),
        "basic": basic,
        "counted": None if basic else draw(st.one_of(st.none(), st.integers(1, columns))),
        "reduce_max": mode == WITHOUT_BRC and draw(st.booleans()),
        "space": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }
    return call(**options | fixed)


@settings(max_examples=120)
@given(arguments=calls())
def test_any_call_equals_the_model(arguments):
    untouched = {
        name: arguments[name].copy() for name in ("src_tensor", "in_exp_sum_tensor", "in_max_tensor")
    }
    idle = arguments["exp_max_tensor"].copy()
    result = expected(arguments)
    softmax_flash_v2(**arguments)
    assert_gives(arguments, result)
    for name, before in untouched.items():
        np.testing.assert_array_equal(bits(arguments[name]), bits(before), err_msg=name)
    if not arguments["is_update"]:
        np.testing.assert_array_equal(arguments["exp_max_tensor"], idle)
        assert np.all(arguments.get("out_reduce_max", np.array(7)) == 7)


@settings(max_examples=60)
@given(
    arguments=calls(),
    shared=st.sets(st.sampled_from(["src", "max", "sum"]), min_size=1),
    viewed=st.booleans(),
)
def test_operands_may_share_memory_with_their_outputs(arguments, shared, viewed):
    result = expected(arguments)
    pairs = {"src": ("dst_tensor", "src_tensor"), "max": ("max_tensor", "in_max_tensor")}
    pairs["sum"] = ("exp_sum_tensor", "in_exp_sum_tensor")
    for name in shared:
        output, given_too = pairs[name]
        arguments[output] = arguments[given_too][:] if viewed else arguments[given_too]
    softmax_flash_v2(**arguments)
    assert_gives(arguments, result)


@settings(max_examples=60)
@given(
    rows=st.integers(1, 40),
    columns=st.sampled_from([32, 128, 528, 1024]),
    types=st.sampled_from(COMBINATIONS),
    mode=st.sampled_from([NORMAL, WITHOUT_BRC]),
    steps=st.integers(1, 6),
    tail=st.integers(0, 7),
    update=st.booleans(),
)
def test_steps_and_tails_of_the_tiling_do_not_change_results(rows, columns, types, mode, steps, tail, update):
    data, state = types
    split = max(1, (rows - tail) // steps)
    arguments = call((rows, columns), data, state, mode=mode, update=update)
    lanes = 32 // np.dtype(state).itemsize
    arguments["tiling"] = tiling.filled_tiling(rows, columns, np.dtype(state).itemsize, split)
    assert arguments["tiling"].reduce_k == lanes
    assume(arguments["tiling"].range_m > 1 or arguments["tiling"].tail_m > 0 or steps == 1)
    result = expected(arguments)
    softmax_flash_v2(**arguments)
    assert_gives(arguments, result)


def test_several_reduce_chunks_of_the_official_tiling():
    arguments = call((43, 512), workspace=19000)
    assert (arguments["tiling"].range_m, arguments["tiling"].tail_m) == (5, 3)
    result = expected(arguments)
    softmax_flash_v2(**arguments)
    assert_gives(arguments, result)


@settings(max_examples=25)
@given(arguments=calls(update=True))
def test_an_update_with_an_empty_state_is_a_first_tile(arguments):
    rows = arguments["src_tensor"].shape[0]
    arguments["in_max_tensor"][:] = -np.inf
    arguments["in_exp_sum_tensor"][:] = 0
    first = expected(arguments | {"is_update": False})
    softmax_flash_v2(**arguments)
    assert_gives(arguments, first)
    assert not arguments["exp_max_tensor"].any()
    assert arguments["exp_max_tensor"].shape[0] == rows


# Values that the published rules state


def test_worked_example_in_bits():
    x = "0.5 -1.25 2 0 -0.75 1.5 -3 0.25 1 -0.5 1.75 -2.25 0.125 0.875 -1 1.125"
    arguments = call((1, 16))
    arguments["src_tensor"][:] = [float(value) for value in x.split()]
    arguments["in_max_tensor"][:] = 1.25
    arguments["in_exp_sum_tensor"][:] = 3.5
    softmax_flash_v2(**arguments)
    assert set(arguments["exp_sum_tensor"].view(np.uint32).flat) == {0x40C2DA8E}
    assert set(arguments["exp_max_tensor"].view(np.uint16).flat) == {0x378F}
    dst = "3324 28f7 3c00 3055 2c17 38da 1ee6 3190 35e3 2d41 3a3b 234e 30e8 3532 2a5f 36ab"
    assert [f"{value:04x}" for value in arguments["dst_tensor"].view(np.uint16)[0]] == dst.split()


ORDERED_SUMS = [
    (16, 16, False, 0x40661C31),
    (48, 48, False, 0x410695CF),
    (64, 64, False, 0x412CBA7A),
    (128, 128, True, 0x41AD2814),
    (192, 192, True, 0x41FC229A),
    (448, 448, True, 0x42931278),
    (512, 512, True, 0x42A8BAFD),
    (576, 576, True, 0x42BB93E7),
    (640, 640, False, 0x42D1DB66),
    (1024, 1024, True, 0x4327DC4D),
    (1024, 1024, False, 0x4327DC4C),
    (1984, 1984, True, 0x43A1F162),
    (144, 130, False, 0x41AEC2BE),
    (80, 70, False, 0x41365314),
    (576, 570, False, 0x42BA76C4),
]


@pytest.mark.parametrize(("columns", "counted", "basic", "bits_of_sum"), ORDERED_SUMS)
def test_published_sums_that_depend_on_the_order(columns, counted, basic, bits_of_sum):
    x = -((37 * np.arange(columns)) % 101) / 16.0
    arguments = call((8, columns), update=False, basic=basic, counted=counted)
    arguments["src_tensor"][:] = x
    softmax_flash_v2(**arguments)
    assert set(arguments["exp_sum_tensor"].view(np.uint32).flat) == {bits_of_sum}


def test_the_order_matters_in_the_model_too():
    y = np.exp(-((37 * np.arange(1024)) % 101) / 16.0).astype(np.float32)[None]
    assert row_sum(y, basic=True) != row_sum(y, basic=False)


def test_published_example_first_rows_and_padding():
    src = np.linspace(-10, 10, 320 * 64).astype(HALF).reshape(320, 64)
    arguments = call((320, 64), HALF, HALF, update=False, src_tensor=src)
    softmax_flash_v2(**arguments)
    assert [f"{value:.4g}" for value in arguments["max_tensor"][:3, 0]] == ["-9.938", "-9.875", "-9.812"]
    assert [f"{arguments['exp_sum_tensor'][row, 0]:.2f}" for row in (0, -1)] == ["62.03", "62.03"]
    arguments = call((320, 64), HALF, HALF, update=False, counted=63)
    arguments["src_tensor"][:, :63] = np.linspace(-10, 10, 320 * 63).astype(HALF).reshape(320, 63)
    arguments["src_tensor"][:, 63] = 0
    softmax_flash_v2(**arguments)
    assert [f"{arguments['exp_sum_tensor'][row, 0]:.2f}" for row in (0, -1)] == ["61.03", "61.09"]
    # exp(0 - max) with max about -9.94
    assert arguments["dst_tensor"][0, 63] > 2e4


def test_ties_round_away_from_zero():
    # Arguments whose exponential, once float32, lies half way between two halves, the lower one even.
    x = np.linspace(-9, 0, 200_000).astype(np.float32)
    y = np.exp(x.astype(np.float64)).astype(np.float32)
    ties = x[(y.view(np.uint32) & 0x3FFF) == 0x1000][:15]
    rows = ties.size
    assert rows >= 8
    # With scores of 0 the maximum carried in is all that enters exp_max.
    arguments = call((rows, 16), HALF, FLOAT, src_tensor=np.zeros((rows, 16), HALF))
    arguments["in_max_tensor"][:] = ties[:, None]
    softmax_flash_v2(**arguments)
    exact = np.exp(ties.astype(np.float64)).astype(np.float32)
    assert np.all(arguments["exp_max_tensor"][:, 0].astype(np.float32) > exact)
    assert np.all(exact.astype(HALF).astype(np.float32) < exact)


def test_sum_adds_unrounded_exponentials_and_rounds_twice():
    for seed in range(5):
        arguments = call((8, 128), HALF, FLOAT, seed=seed)
        softmax_flash_v2(**arguments)
        rounded = row_sum(arguments["dst_tensor"].astype(np.float32), basic=False)
        rescaled = np.exp(
            arguments["in_max_tensor"][:, 0].astype(np.float64) - arguments["max_tensor"][:, 0]
        ).astype(np.float32)
        from_rounded = rescaled * arguments["in_exp_sum_tensor"][:, 0] + rounded
        assert np.any(from_rounded != arguments["exp_sum_tensor"][:, 0])


def test_half_state_overflows_to_infinity():
    arguments = call((1, 128), HALF, HALF)
    arguments["src_tensor"][:] = 1
    arguments["in_max_tensor"][:] = 1
    arguments["in_exp_sum_tensor"][:] = 65472
    softmax_flash_v2(**arguments)
    assert np.isinf(arguments["exp_sum_tensor"]).all()


@pytest.mark.parametrize(("data", "state"), COMBINATIONS)
@pytest.mark.parametrize("update", [False, True])
def test_special_values(data, state, update):
    arguments = call((8, 192), data, state, update=update, counted=150)
    src = arguments["src_tensor"]
    src[0] = -np.inf
    src[1, 7] = np.nan
    src[2, 7] = np.inf
    src[3, 151] = np.nan
    src[4] = np.finfo(data).min
    src[5] = [0.0, -0.0] * 96
    arguments["in_max_tensor"][5:7] = [[-0.0], [-np.inf]]
    arguments["in_max_tensor"][7] = np.nan
    result = expected(arguments)
    softmax_flash_v2(**arguments)
    # The sign of a zero maximum is not stated for rows that hold both zeros.
    assert (arguments["max_tensor"][5] == 0).all()
    arguments["max_tensor"][5] = result["max"][5]
    assert_gives(arguments, result)
    dst = arguments["dst_tensor"].copy()
    softmax_flash_v2(**arguments)
    assert ulps_apart(arguments["dst_tensor"], dst).max() <= 1


# Shapes and operands


def test_leading_axes_collapse():
    flat = call((12, 128))
    softmax_flash_v2(**flat)
    deep = call((2, 3, 2, 128), src_tensor=flat["src_tensor"].reshape(2, 3, 2, 128))
    for name in ("exp_sum_tensor", "max_tensor", "in_exp_sum_tensor", "in_max_tensor", "exp_max_tensor"):
        deep[name] = deep[name].reshape(2, 3, 2, -1)
    softmax_flash_v2(**deep)
    for name in OUTPUTS.values():
        if name in flat:
            np.testing.assert_array_equal(deep[name].ravel(), flat[name].ravel())


def test_states_without_lanes_may_be_one_dimensional():
    columns = call((5, 64), mode=WITHOUT_BRC, reduce_max=True)
    rows = {name: value.copy() for name, value in columns.items() if isinstance(value, np.ndarray)}
    rows = columns | rows
    for name in ("exp_sum_tensor", "max_tensor", "in_exp_sum_tensor", "in_max_tensor", "exp_max_tensor"):
        rows[name] = rows[name].ravel()
    rows["out_reduce_max"] = rows["out_reduce_max"].ravel()
    softmax_flash_v2(**columns)
    softmax_flash_v2(**rows)
    for name in OUTPUTS.values():
        np.testing.assert_array_equal(rows[name].ravel(), columns[name].ravel())


def test_a_single_row_needs_no_leading_axis():
    arguments = call((1, 64))
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            arguments[name] = value[0]
    result = expected(arguments)
    softmax_flash_v2(**arguments)
    assert_gives(arguments, result)


def test_rows_beyond_the_shape_stay_untouched():
    arguments = call((8, 128))
    arguments["softmax_shape_info"] = SoftMaxShapeInfo(5, 128, 5, 128)
    arguments["tiling"] = softmax_flash_v2_tiling((5, 128), 2, 4, 65536)
    result = {name: values[:5] for name, values in expected(arguments).items()}
    softmax_flash_v2(**arguments)
    assert_gives({name: arguments[name][:5] for name in OUTPUTS.values() if name in arguments}, result)
    for name in ("dst_tensor", "exp_sum_tensor", "max_tensor", "exp_max_tensor"):
        assert (arguments[name][5:] == 7).all()


def test_a_first_tile_needs_no_carried_state():
    arguments = call(update=False, exp_max_tensor=None, in_exp_sum_tensor=None, in_max_tensor=None)
    result = expected(arguments)
    softmax_flash_v2(**arguments)
    assert_gives(arguments, result)


def test_read_only_inputs_are_fine():
    arguments = call((8, 128))
    for name in ("src_tensor", "in_exp_sum_tensor", "in_max_tensor"):
        arguments[name].flags.writeable = False
    result = expected(arguments)
    softmax_flash_v2(**arguments)
    assert_gives(arguments, result)


def test_shape_info_with_a_zero_takes_the_shape_of_the_source():
    arguments = call((8, 128), softmax_shape_info=SoftMaxShapeInfo(0, 128, 8, 100))
    result = expected(arguments | {"softmax_shape_info": None})
    softmax_flash_v2(**arguments)
    assert_gives(arguments, result)


def test_mismatched_tiling_is_recomputed_when_the_operator_checks_it():
    arguments = call((16, 512), tiling=SoftmaxTiling(8, 512, 4096))
    result = expected(arguments)
    softmax_flash_v2(**arguments)
    assert_gives(arguments, result)


def test_constant_shape_decides_on_basic_block_and_columns():
    shape = (8, 1024)
    arguments = call(shape, update=False, config=SoftmaxConfig(True, *shape))
    arguments["tiling"] = softmax_flash_v2_tiling(shape, 2, 4, 37120, is_basic_block=True)
    arguments["src_tensor"][:] = -((37 * np.arange(1024)) % 101) / 16.0
    softmax_flash_v2(**arguments)
    assert set(arguments["exp_sum_tensor"].view(np.uint32).flat) == {0x4327DC4D}
    arguments = call((8, 144), config=SoftmaxConfig(True, 8, 130))
    result = expected(arguments | {"softmax_shape_info": SoftMaxShapeInfo(8, 144, 8, 130)})
    softmax_flash_v2(**arguments)
    assert_gives(arguments, result)


@pytest.mark.parametrize(("data", "state"), COMBINATIONS)
def test_tiles_normalised_at_the_end_are_a_softmax(data, state):
    rng = np.random.default_rng(3)
    scores = rng.normal(0, 2, (8, 5, 128)).astype(data)
    arguments = call((8, 128), data, state)
    arguments |= {
        "in_exp_sum_tensor": arguments["exp_sum_tensor"],
        "in_max_tensor": arguments["max_tensor"],
        "src_tensor": arguments["dst_tensor"],
    }
    parts = []
    for tile in range(5):
        first = tile == 0
        arguments["src_tensor"][:] = scores[:, tile]
        softmax_flash_v2(**arguments | {"is_update": not first})
        if not first:
            parts = [part * arguments["exp_max_tensor"][:, :1].astype(np.float64) for part in parts]
        parts.append(arguments["dst_tensor"].astype(np.float64))
    joined = np.concatenate(parts, axis=1) / arguments["exp_sum_tensor"][:, :1].astype(np.float64)
    wide = scores.reshape(8, -1).astype(np.float64)
    softmax = np.exp(wide - wide.max(axis=1, keepdims=True))
    softmax /= softmax.sum(axis=1, keepdims=True)
    eps = np.finfo(data).eps
    np.testing.assert_allclose(joined, softmax, rtol=6 * eps, atol=2 * np.finfo(data).smallest_subnormal)


def test_model_rounds_as_numpy_does_except_for_ties():
    x = np.float32([1 + 2**-11, -1 - 2**-11, 65519, 65520, 2**-25, 3 * 2**-26, np.inf, -0.0])
    wanted = [1 + 2**-10, -1 - 2**-10, 65504, np.inf, 2**-24, 2**-24, np.inf, -0.0]
    half = softmax_flash_v2_model.__globals__["round_half_away"](x)
    np.testing.assert_array_equal(bits(half), bits(np.float16(wanted)))


@pytest.mark.parametrize("module", [flash_v2, tiling])
def test_docstring_examples(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
