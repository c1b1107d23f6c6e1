import dataclasses

import numpy as np
import pytest
from softmax_calls import FLOAT, HALF, NORMAL, WITHOUT_BRC, call

from tilesim.errors import ConfigError, DTypeError, InputError, TilesimError
from tilesim.softmax import (
    Diagnostic,
    SoftmaxConfig,
    SoftMaxShapeInfo,
    SoftmaxTiling,
    check_softmax_flash_v2,
    softmax_flash_v2,
    softmax_flash_v2_tiling,
)
from tilesim.softmax.tiling import filled_tiling

OPERANDS = ("dst_tensor", "exp_sum_tensor", "max_tensor", "src_tensor", "exp_max_tensor")
OPERANDS += ("in_exp_sum_tensor", "in_max_tensor")


def snapshot(arguments):
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    return {name: (value.tobytes(), value.shape, value.dtype) for name, value in arrays.items()}


def assert_refused(arguments, error, *parts):
    """The call raises `error`, says all of `parts` and leaves every operand as it was."""
    before = snapshot(arguments)
    with pytest.raises(error) as caught:
        softmax_flash_v2(**arguments)
    assert isinstance(caught.value, TilesimError)
    for part in parts:
        assert part in str(caught.value)
    assert snapshot(arguments) == before
    (refused, *_) = check_softmax_flash_v2(**arguments)
    assert (refused.id, refused.severity, refused.message) == ("refused", "error", str(caught.value))
    assert snapshot(arguments) == before


# Types and shapes


def test_row_that_fills_no_whole_blocks():
    arguments = call((8, 64))
    for name in ("dst_tensor", "src_tensor"):
        arguments[name] = np.zeros((8, 60), HALF)
    assert_refused(arguments, InputError, "src_tensor", "120 bytes", "multiple of 32")


@pytest.mark.parametrize("name", ["exp_sum_tensor", "max_tensor", "in_exp_sum_tensor", "in_max_tensor"])
def test_state_without_32_byte_rows_in_normal_mode(name):
    arguments = call(**{name: np.zeros((8, 16), FLOAT)})
    assert_refused(arguments, InputError, name, "(8, 16)", "SOFTMAX_NORMAL", "(8, 8)")


def test_exp_max_of_half_data_has_sixteen_lanes():
    arguments = call(exp_max_tensor=np.zeros((8, 8), HALF))
    assert_refused(arguments, InputError, "exp_max_tensor", "(8, 8)", "(8, 16)")


@pytest.mark.parametrize("name", ["exp_sum_tensor", "max_tensor", "exp_max_tensor", "out_reduce_max"])
def test_state_with_lanes_in_mode_without_brc(name):
    arguments = call(mode=WITHOUT_BRC, reduce_max=True)
    arguments[name] = np.zeros((8, 8), arguments[name].dtype)
    assert_refused(arguments, InputError, name, "(8, 8)", "SOFTMAX_OUTPUT_WITHOUT_BRC", "(8, 1)")


@pytest.mark.parametrize("name", ["exp_sum_tensor", "in_max_tensor", "exp_max_tensor"])
@pytest.mark.parametrize("mode", [NORMAL, WITHOUT_BRC])
def test_leading_axes_that_differ_from_those_of_dst(name, mode):
    arguments = call(mode=mode)
    before = arguments[name]
    arguments[name] = np.zeros((9, before.shape[1]), before.dtype)
    assert_refused(arguments, InputError, name, f"(9, {before.shape[1]})", "dst_tensor (8, 512)")


def test_leading_axes_in_another_order():
    arguments = call((2, 4, 64))
    arguments["max_tensor"] = np.zeros((4, 2, 8), FLOAT)
    assert_refused(arguments, InputError, "max_tensor", "(4, 2, 8)", "(2, 4, 64)")


def test_source_of_another_shape():
    arguments = call(src_tensor=np.zeros((8, 256), HALF))
    assert_refused(arguments, InputError, "src_tensor", "(8, 256)", "(8, 512)")


def test_empty_source():
    arguments = call((8, 64))
    for name in ("dst_tensor", "src_tensor"):
        arguments[name] = np.zeros((0, 64), HALF)
    assert_refused(arguments, InputError, "dst_tensor[0]: got 0")


@pytest.mark.parametrize(
    ("data", "state"), [(FLOAT, HALF), (np.float64, np.float64), (np.int16, FLOAT), (">f4", FLOAT)]
)
def test_types_outside_the_three_combinations(data, state):
    arguments = call()
    for name in ("dst_tensor", "src_tensor", "exp_max_tensor"):
        arguments[name] = arguments[name].astype(data)
    for name in ("exp_sum_tensor", "max_tensor", "in_exp_sum_tensor", "in_max_tensor"):
        arguments[name] = arguments[name].astype(state)
    seen = f"({np.dtype(data)}, {np.dtype(state)})"
    assert_refused(arguments, DTypeError, "src_tensor", seen, "(float16, float32)")


def test_bfloat16_is_no_type_of_the_operator():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    arguments = call()
    for name in ("dst_tensor", "src_tensor", "exp_max_tensor"):
        arguments[name] = arguments[name].astype(bfloat16)
    assert_refused(arguments, DTypeError, "bfloat16", "(float16, float32)")


def test_exp_max_of_the_state_type():
    arguments = call(exp_max_tensor=np.zeros((8, 8), FLOAT))
    assert_refused(
        arguments, DTypeError, "exp_max_tensor", "float32", "must be float16, the type of src_tensor"
    )


@pytest.mark.parametrize("name", ["max_tensor", "in_exp_sum_tensor", "in_max_tensor"])
def test_state_of_another_type_than_the_sum(name):
    arguments = call(**{name: np.zeros((8, 16), HALF)})
    assert_refused(arguments, DTypeError, name, "float16", "must be float32, the type of exp_sum_tensor")


def test_destination_of_another_type_than_the_source():
    assert_refused(call(dst_tensor=np.zeros((8, 512), FLOAT)), DTypeError, "dst_tensor", "float32", "float16")


@pytest.mark.parametrize("name", OPERANDS)
def test_missing_operand(name):
    assert_refused(call(**{name: None}), InputError, name, "None", "must be a NumPy array")


@pytest.mark.parametrize("value", [[[1.0]], np.ma.zeros((8, 512), HALF)])
def test_operand_that_is_no_plain_array(value):
    arguments = call()
    arguments["src_tensor"] = value
    assert_refused(arguments, InputError, "src_tensor", type(value).__name__)


# Memory


@pytest.mark.parametrize("name", OPERANDS)
def test_operand_that_is_not_contiguous(name):
    arguments = call((8, 64))
    array = arguments[name]
    arguments[name] = np.repeat(array, 2, axis=1)[:, ::2]
    assert_refused(arguments, InputError, name, "strides", "C-contiguous")


@pytest.mark.parametrize("name", OPERANDS[:3] + OPERANDS[4:5])
def test_output_that_is_read_only(name):
    arguments = call((8, 64))
    arguments[name].flags.writeable = False
    assert_refused(arguments, InputError, name, "read-only", "must be writable")


def test_reduce_max_that_is_read_only():
    arguments = call((8, 64), mode=WITHOUT_BRC, reduce_max=True)
    arguments["out_reduce_max"].flags.writeable = False
    assert_refused(arguments, InputError, "out_reduce_max", "read-only")


def test_operand_inside_an_element():
    arguments = call((8, 64))
    storage = np.zeros(8 * 8 * 4 + 1, np.uint8)
    arguments["in_max_tensor"] = storage[1:].view(FLOAT).reshape(8, 8)
    assert_refused(arguments, InputError, "in_max_tensor", "address", "multiple of the 4 bytes")


def test_sum_and_maximum_in_one_array():
    arguments = call((8, 64))
    arguments["max_tensor"] = arguments["exp_sum_tensor"]
    assert_refused(arguments, InputError, "exp_sum_tensor, max_tensor", "must not overlap", "bytes")


@pytest.mark.parametrize("pair", [("max_tensor", "in_exp_sum_tensor"), ("exp_sum_tensor", "in_max_tensor")])
def test_state_written_over_the_other_input(pair):
    arguments = call((8, 64))
    arguments[pair[1]] = arguments[pair[0]]
    assert_refused(arguments, InputError, *pair, "must not overlap")


def test_source_that_overlaps_dst_in_part():
    arguments = call((8, 64))
    storage = np.zeros(8 * 64 + 16, HALF)
    arguments["src_tensor"] = storage[: 8 * 64].reshape(8, 64)
    arguments["dst_tensor"] = storage[16:].reshape(8, 64)
    assert_refused(arguments, InputError, "dst_tensor, src_tensor", "only as a whole")


def test_views_of_one_buffer_object_are_seen_to_overlap():
    arguments = call((8, 64))
    storage = bytearray(8 * 8 * 4)
    arguments["max_tensor"] = np.frombuffer(storage, FLOAT).reshape(8, 8)
    arguments["exp_sum_tensor"] = np.frombuffer(storage, FLOAT).reshape(8, 8)
    assert_refused(arguments, InputError, "exp_sum_tensor, max_tensor", "must not overlap")


def test_arrays_straight_from_one_buffer_object_are_seen_to_overlap():
    arguments = call((8, 64), mode=WITHOUT_BRC)
    storage = bytearray(8 * 4)
    arguments["max_tensor"] = np.frombuffer(storage, FLOAT)
    arguments["exp_sum_tensor"] = np.frombuffer(storage, FLOAT)
    assert_refused(arguments, InputError, "exp_sum_tensor, max_tensor", "must not overlap")


def test_adjacent_views_of_one_array_do_not_overlap():
    storage = np.zeros((4, 8, 8), FLOAT)
    names = ("exp_sum_tensor", "max_tensor", "in_exp_sum_tensor", "in_max_tensor")
    arguments = call((8, 64), **dict(zip(names, storage, strict=True)))
    softmax_flash_v2(**arguments)
    assert storage[:2].all()


def test_reduce_max_over_the_maximum():
    arguments = call((8, 64), mode=WITHOUT_BRC)
    arguments["out_reduce_max"] = arguments["in_max_tensor"]
    assert_refused(arguments, InputError, "in_max_tensor, out_reduce_max", "must not overlap")


# Temporary buffer


def test_temporary_buffer_of_another_type():
    arguments = call(shared_tmp_buffer=np.zeros(18688, np.int8))
    assert_refused(arguments, DTypeError, "shared_tmp_buffer", "int8", "must be uint8")


def test_temporary_buffer_below_the_minimum():
    arguments = call(basic=True, shared_tmp_buffer=np.zeros(18687, np.uint8))
    assert_refused(arguments, InputError, "shared_tmp_buffer", "18687 bytes", "at least 18688 bytes")


@pytest.mark.parametrize("offset", [1, 4, 8])
def test_temporary_buffer_that_is_not_aligned(offset):
    storage = np.zeros(32768, np.uint8)
    arguments = call(shared_tmp_buffer=storage[offset : offset + 20000])
    assert_refused(arguments, InputError, "shared_tmp_buffer", "address", "multiple of 32")


@pytest.mark.parametrize("offset", [0, 32, 64])
def test_temporary_buffer_at_a_block_of_its_allocation(offset):
    softmax_flash_v2(**call(shared_tmp_buffer=np.zeros(32768, np.uint8)[offset:]))


@pytest.mark.parametrize("name", OPERANDS)
def test_temporary_buffer_over_an_operand(name):
    arguments = call((8, 64))
    array = arguments[name]
    storage = np.zeros(4096 + array.nbytes, np.uint8)
    arguments[name] = storage[4064 : 4064 + array.nbytes].view(array.dtype).reshape(array.shape)
    arguments["shared_tmp_buffer"] = storage[:4096]
    assert_refused(arguments, InputError, name, "shared_tmp_buffer", "must not overlap")


# Options


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        ((7, 512), "rows must be a multiple of 8, not 7"),
        ((8, 48), "multiple of 64 from 128 to below 2048, not 48"),
        ((8, 64), "multiple of 64 from 128 to below 2048, not 64"),
        ((8, 2048), "multiple of 64 from 128 to below 2048, not 2048"),
    ],
)
def test_basic_block_on_a_shape_that_is_none(shape, part):
    arguments = call(shape, is_basic_block=True)
    assert_refused(arguments, ConfigError, "is_basic_block", str(shape), part)


@pytest.mark.parametrize(
    ("shape", "split", "part"),
    [
        ((40, 512), 16, "tail_m must be 0, not 8"),
        ((24, 512), 6, "split_m must be a multiple of 8, not 6"),
        ((16, 1024), 16, "exactly 8, not 16"),
        ((32, 512), 32, "below 16384, not 32 * 512"),
    ],
)
def test_basic_block_with_a_tiling_the_kernel_cannot_run(shape, split, part):
    arguments = call(shape, is_basic_block=True, tiling=filled_tiling(*shape, 4, split))
    assert_refused(arguments, ConfigError, "is_basic_block", str(shape), part, "silently wrong")


def test_basic_block_with_padding():
    arguments = call(basic=True, counted=500)
    assert_refused(arguments, ConfigError, "is_basic_block", "512", "500 count")


def test_constant_shape_that_makes_an_unsound_basic_block():
    arguments = call((8, 512), counted=512, config=SoftmaxConfig(True, 8, 448))
    assert_refused(arguments, ConfigError, "config.src_m, config.src_k", "448 count")


@pytest.mark.parametrize("counted", [0, 513])
def test_original_columns_beyond_the_padded_ones(counted):
    arguments = call(counted=counted)
    assert_refused(arguments, InputError, "softmax_shape_info.ori_src_k", str(counted), "512")


def test_original_rows_beyond_the_padded_ones():
    arguments = call(softmax_shape_info=SoftMaxShapeInfo(8, 512, 9, 512))
    assert_refused(arguments, InputError, "softmax_shape_info.ori_src_m", "9", "at most src_m, 8")


def test_shape_info_that_exceeds_the_source():
    arguments = call(softmax_shape_info=SoftMaxShapeInfo(9, 512, 9, 512))
    assert_refused(arguments, InputError, "softmax_shape_info.src_m", "9", "8 rows", "(8, 512)")


def test_shape_info_with_other_columns():
    arguments = call(softmax_shape_info=SoftMaxShapeInfo(8, 256, 8, 256))
    assert_refused(arguments, InputError, "softmax_shape_info.src_k", "256", "512")


def test_constant_columns_beyond_those_of_the_source():
    arguments = call((8, 144), config=SoftmaxConfig(True, 8, 152))
    assert_refused(arguments, InputError, "config.src_k", "152", "144")


def test_tiling_of_another_shape_without_check_tiling():
    other = softmax_flash_v2_tiling((16, 512), 2, 4, 18688)
    arguments = call(tiling=other, config=SoftmaxConfig(check_tiling=False))
    assert_refused(arguments, ConfigError, "tiling.src_m", "(16, 512)", "(8, 512)")


def test_tiling_of_another_shape_with_reduce_max_is_never_recomputed():
    arguments = call(mode=WITHOUT_BRC, reduce_max=True)
    arguments["tiling"] = softmax_flash_v2_tiling((16, 512), 2, 4, 18688)
    assert_refused(arguments, ConfigError, "tiling.src_m", "(16, 512)", "(8, 512)")


@pytest.mark.parametrize("check_tiling", [False, True])
def test_tiling_of_the_shape_alone(check_tiling):
    arguments = call(tiling=SoftmaxTiling(8, 512, 4096), config=SoftmaxConfig(check_tiling))
    assert_refused(arguments, ConfigError, "tiling.split_m: got 0", "8 rows", "workspace")


def test_workspace_too_small_for_one_row():
    arguments = call(tiling=softmax_flash_v2_tiling((8, 512), 2, 4, 2000))
    assert_refused(arguments, ConfigError, "tiling.split_m: got 0", "workspace")


@pytest.mark.parametrize(
    "change", [{"split_k": 256}, {"reduce_m": 4}, {"range_m": 2}, {"tail_m": 1}, {"reduce_k": 16}]
)
def test_tiling_whose_fields_contradict_each_other(change):
    ((field, value),) = change.items()
    arguments = call()
    right = getattr(arguments["tiling"], field)
    arguments["tiling"] = dataclasses.replace(arguments["tiling"], **change)
    assert_refused(arguments, ConfigError, f"tiling.{field}: got {value}", f"must be {right}")


def test_reduce_max_in_normal_mode():
    arguments = call(out_reduce_max=np.zeros((8, 1), FLOAT))
    assert_refused(arguments, ConfigError, "out_reduce_max", "SOFTMAX_NORMAL", "WITHOUT_BRC")


@pytest.mark.parametrize("reduce_max", [False, True])
def test_nz_layout(reduce_max):
    arguments = call(mode=WITHOUT_BRC, reduce_max=reduce_max, is_data_format_nz=True)
    assert_refused(arguments, ConfigError, "is_data_format_nz", "True", "must be False")


@pytest.mark.parametrize("name", ["tiling", "softmax_shape_info", "config"])
def test_records_of_another_kind(name):
    assert_refused(call(**{name: (8, 512)}), ConfigError, name, "(8, 512)", "must be a Soft")


# Diagnostics


def diagnostics(arguments):
    """Diagnostics of a call by name; the call itself stays untouched."""
    before = snapshot(arguments)
    found = check_softmax_flash_v2(**arguments)
    assert snapshot(arguments) == before
    severities = [diagnostic.severity for diagnostic in found]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    return {diagnostic.id: diagnostic for diagnostic in found}


def only(arguments, name, severity, *parts, runs=True):
    found = diagnostics(arguments)
    assert name in found, list(found)
    assert found[name].severity == severity
    for part in parts:
        assert part in found[name].message
    assert ("refused" in found) is not runs
    if runs:
        softmax_flash_v2(**arguments)


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize("basic", [False, True])
def test_a_sound_call_has_no_diagnostics(update, basic):
    assert check_softmax_flash_v2(**call(update=update, basic=basic, space=True)) == ()


def test_diagnostics_are_records_that_print():
    diagnostic = Diagnostic(id="D1", severity="error", message="wrong")
    assert str(diagnostic) == "error D1: wrong"


def test_d1_scratch_over_the_data():
    only(call(mode=WITHOUT_BRC, update=False), "D1", "error", "8 rows")
    for change in ({"update": True}, {"basic": True}, {"mode": NORMAL}, {"state": HALF}, {"data": FLOAT}):
        assert "D1" not in diagnostics(call(**{"mode": WITHOUT_BRC, "update": False} | change))


def test_d2_maximum_holds_the_sum():
    fixed = {"shape": (1, 128), "data": HALF, "state": HALF, "mode": WITHOUT_BRC, "update": False}
    only(call(**fixed), "D2", "error", "max_tensor")
    for change in (
        {"shape": (2, 128)},
        {"shape": (1, 48)},
        {"update": True},
        {"mode": NORMAL},
        {"state": FLOAT},
    ):
        assert "D2" not in diagnostics(call(**fixed | change))


def test_d3_steps_of_no_eight_rows():
    arguments = call((24, 512), is_basic_block=True, tiling=filled_tiling(24, 512, 4, 6))
    only(arguments, "D3", "error", "split_m 6", "2 rows", runs=False)


def test_d4_tail_rows_never_computed():
    arguments = call((40, 512), is_basic_block=True, tiling=filled_tiling(40, 512, 4, 16))
    only(arguments, "D4", "error", "8 tail rows", runs=False)
    constant = call((5, 48), config=SoftmaxConfig(True, 5, 48), tiling=filled_tiling(5, 48, 4, 4))
    only(constant, "D4", "error", "1 tail rows", "constant shape")


def test_d5_constant_columns_off_the_row_pitch():
    only(call((8, 80), config=SoftmaxConfig(True, 8, 72)), "D5", "error", "config.src_k 72", "instead of 80")
    assert "D5" not in diagnostics(call((8, 80), config=SoftmaxConfig(True, 8, 76)))
    floats = call((8, 80), FLOAT, FLOAT, config=SoftmaxConfig(True, 8, 72))
    assert "D5" not in diagnostics(floats)


def test_d6_scratch_overrun_of_a_basic_block():
    arguments = call(mode=WITHOUT_BRC, basic=True)
    only(arguments, "D6", "error", "32 bytes beyond the 18688")
    arguments["shared_tmp_buffer"] = np.zeros(18720, np.uint8)
    only(arguments, "D6", "warning", "has room")
    assert "D6" not in diagnostics(call((8, 1024), mode=WITHOUT_BRC, basic=True))
    assert "D6" not in diagnostics(call(basic=True))


def test_d6_scratch_overrun_of_one_row():
    arguments = call((1, 128), HALF, HALF, mode=WITHOUT_BRC)
    only(arguments, "D6", "error", "32 bytes beyond")
    assert "D6" not in diagnostics(call((2, 128), HALF, HALF, mode=WITHOUT_BRC))


def test_d7_padding_in_a_basic_block():
    only(call(basic=True, counted=500), "D7", "error", "12 padded columns", "500 of 512", runs=False)


def test_d10_one_row_writes_eight_lanes():
    fixed = {"shape": (1, 128), "data": FLOAT, "state": FLOAT, "mode": WITHOUT_BRC, "update": False}
    only(call(**fixed), "D10", "error", "8 lanes", "32 bytes")
    for change in ({"shape": (2, 128)}, {"shape": (1, 48)}, {"update": True}, {"mode": NORMAL}):
        assert "D10" not in diagnostics(call(**fixed | change))


@pytest.mark.parametrize("mode", [NORMAL, WITHOUT_BRC])
def test_basic_block_leaves_the_source_overwritten(mode):
    arguments = call(data=FLOAT, mode=mode, basic=True, update=False)
    only(arguments, "overwritten-input", "warning", "src_tensor", "src - max")
    arguments["dst_tensor"] = arguments["src_tensor"]
    assert "overwritten-input" not in diagnostics(arguments)


@pytest.mark.parametrize(("data", "mode"), [(FLOAT, NORMAL), (FLOAT, WITHOUT_BRC), (HALF, WITHOUT_BRC)])
def test_basic_block_leaves_the_sum_carried_in_overwritten(data, mode):
    arguments = call(data=data, mode=mode, basic=True)
    only(arguments, "overwritten-input", "warning", "in_exp_sum_tensor")
    arguments["exp_sum_tensor"] = arguments["in_exp_sum_tensor"]
    assert "overwritten-input" not in diagnostics(arguments)


def test_steps_that_start_inside_a_block():
    arguments = call((12, 64), HALF, HALF, mode=WITHOUT_BRC, tiling=filled_tiling(12, 64, 2, 8))
    only(arguments, "unaligned-steps", "error", "split_m 8", "multiple of 16")


def test_operand_off_the_block_grid():
    storage = np.zeros(12, FLOAT)
    arguments = call((8, 64), mode=WITHOUT_BRC, in_max_tensor=storage[1:9])
    only(arguments, "unaligned-operand", "error", "in_max_tensor")


def test_step_of_more_rows_than_repeats():
    arguments = call((256, 128))
    assert arguments["tiling"].split_m == 256
    only(arguments, "repeat-overflow", "error", "split_m 256", "255")
    assert "repeat-overflow" not in diagnostics(call((248, 128)))


def test_workspace_smaller_than_the_steps_of_the_tiling():
    arguments = call((8, 512), shared_tmp_buffer=np.zeros(2368, np.uint8))
    only(arguments, "workspace-overrun", "error", "8 rows", "2368")


def test_padded_columns_of_dst():
    only(call(counted=500), "padding", "warning", "last 12 columns")


def test_lanes_that_differ():
    arguments = call((8, 64))
    arguments["in_max_tensor"][3, 2] += 1
    only(arguments, "unequal-lanes", "error", "1 rows of in_max_tensor")
    assert "unequal-lanes" not in diagnostics(arguments | {"is_update": False})


def test_reduce_max_hazards():
    shape_info = SoftMaxShapeInfo(8, 64, 8, 64)
    arguments = call((8, 64), mode=WITHOUT_BRC, reduce_max=True)
    only(arguments, "reduce-max-without-shape", "error", "softmax_shape_info")
    arguments["softmax_shape_info"] = shape_info
    assert "reduce-max-without-shape" not in diagnostics(arguments)
    only(arguments, "reduce-max-types", "warning", "float16 data and float32 state")
    only(arguments, "check-tiling-idle", "note", "check_tiling")
    only(arguments | {"is_update": False}, "reduce-max-idle", "note", "update")


def test_arguments_without_effect():
    only(call(is_reuse_source=True), "reuse-source-idle", "note")
    constant = call((8, 512), config=SoftmaxConfig(True, 8, 512), tiling=call((8, 512), basic=True)["tiling"])
    only(constant, "basic-block-idle", "note", "is a basic block")
    only(call(config=SoftmaxConfig(True, 8, 0)), "constant-shape-idle", "note")
    only(call(softmax_shape_info=SoftMaxShapeInfo(0, 512)), "shape-info-idle", "note", "src_m 0")
    padded = call((8, 144), counted=140, config=SoftmaxConfig(True, 8, 130))
    only(padded, "shape-info-idle", "note", "ori_src_k 140", "130")
    only(
        call(softmax_shape_info=SoftMaxShapeInfo(8, 512, 5, 512)), "original-rows-idle", "note", "ori_src_m 5"
    )
    only(call(tiling=SoftmaxTiling(16, 512)), "tiling-recomputed", "note", "split_m 1")
