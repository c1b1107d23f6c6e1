"""Instruction programs against the counts published with the operator's source."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesim.timing.program import (
    SoftmaxTile,
    accumulate_program,
    around_softmax,
    normalise_program,
    softmax_program,
)

TYPES = {"hh": (True, True), "hf": (True, False), "ff": (False, False)}


def program(types, *, rows=8, columns=512, update=False, basic=True, **options):
    half_data, half_state = TYPES[types]
    tile = SoftmaxTile(
        rows=rows, columns=columns, half_data=half_data, half_state=half_state, update=update, basic=basic,
        **options,
    )  # fmt: skip
    return softmax_program(tile)


def counts(instructions):
    return len(instructions), sum(repeats for _, repeats in instructions)


@pytest.mark.parametrize(
    ("types", "basic", "first", "update"),
    [
        ("hf", True, (19, 404), (28, 414)),
        ("hh", True, (23, 410), (31, 426)),
        ("ff", True, (17, 276), (23, 282)),
        ("hf", False, (35, 406), (43, 416)),
    ],
)
def test_published_counts(types, basic, first, update):
    assert counts(program(types, basic=basic)) == first
    assert counts(program(types, basic=basic, update=True)) == update


def test_reference_tile_instruction_by_instruction():
    # 8 x 512: 64 repeats over the tile, one over a state of 8 rows of 8 lanes.
    top = [("BlockReduceMax", 64), ("BlockReduceMax", 8), ("BlockReduceMax", 1)]
    total = [("BlockReduceSum", 64), ("BlockReduceSum", 8), ("BlockReduceSum", 1)]
    assert list(program("hf")) == [
        ("CastUp", 64), *top, ("Brcb", 1), *[("Sub", 8)] * 8, ("Exp", 64), ("CastDown", 64), *total,
        ("Brcb", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "columns", "reduction"),
    [
        (8, 64, [("P", 8), ("P", 1)]),
        (8, 128, [("X", 8), ("P", 8), ("P", 1)]),
        (8, 448, [("X", 8)] * 6 + [("P", 8), ("P", 1)]),
        (6, 448, [("X", 6)] + [("X", 5)] * 6 + [("P", 6), ("P", 1)]),
        (16, 512, [("P", 128), ("P", 16), ("P", 2)]),
        (8, 576, [("P", 8)] * 8 + [("X", 1)] * 8 + [("P", 8), ("P", 1)]),
        (8, 1024, [("P", 128), ("P", 16), ("X", 1), ("P", 1)]),
    ],
)
def test_basic_reductions(rows, columns, reduction):
    names = {"P": "BlockReduceMax", "X": "Max"}
    wanted = [(names[kind], repeats) for kind, repeats in reduction]
    assert list(program("ff", rows=rows, columns=columns))[: len(wanted)] == wanted


@pytest.mark.parametrize(
    ("rows", "columns", "reduction"),
    [
        # Fewer than 64 columns: one whole reduction, then the broadcast and its copy.
        (8, 56, [("WholeReduceMax", 8), ("Brcb", 1), ("Copy", 1)]),
        (8, 64, [("Copy", 8), ("BlockReduceMax", 8), ("BlockReduceMax", 1), ("Brcb", 1), ("Copy", 1)]),
        (
            8,
            72,
            [("Copy", 8), ("Max", 8), ("BlockReduceMax", 8), ("BlockReduceMax", 1), ("Brcb", 1), ("Copy", 1)],
        ),
        (3, 200, [("Max", 3), ("Max", 1), ("Max", 1), ("Max", 1), ("Max", 3)]),
        (1, 128, [("Max", 1), ("Max", 0), ("WholeReduceMax", 8)]),
    ],
)
def test_generic_reductions(rows, columns, reduction):
    got = list(program("ff", rows=rows, columns=columns, basic=False))
    assert got[: len(reduction)] == reduction


def test_programs_of_states_without_broadcast():
    # hf, basic, update, 8 x 512: cast, maximum, keep, three state steps, broadcast, then the tile.
    names = [name for name, _ in program("hf", update=True, broadcast=False)]
    assert names[:8] == ["CastUp", *["BlockReduceMax"] * 3, "Copy", "Max", "Sub", "Exp"]
    assert names[8] == "Brcb"
    assert names[-4:] == ["Mul", "Add", "CastDown", "CastDown"]


@given(st.sampled_from(list(TYPES)), st.integers(1, 300), st.integers(1, 300), st.booleans(), st.booleans())
def test_every_tile_has_a_program_that_covers_it(types, rows, blocks, update, broadcast):
    columns = blocks * (16 if types[0] == "h" else 8)
    got = program(types, rows=rows, columns=columns, update=update, basic=False, broadcast=broadcast)
    whole = -(-rows * columns // 64)
    assert ("Exp", whole) in got
    assert all(repeats >= 0 for _, repeats in got)


def test_what_the_kernel_issues_around():
    assert around_softmax(8, 512, 2, masked=False) == (("Muls", 32),)
    assert around_softmax(8, 512, 2, masked=True) == (("Muls", 32), ("Add", 32))
    # 128 half lanes fill one repeat: a head dimension of 128 takes one multiplication of 128 rows.
    assert accumulate_program(128, 128, 2) == (("Mul", 128), ("Add", 128))
    assert accumulate_program(128, 128, 4) == (("Mul", 128), ("Mul", 128), ("Add", 256))
    assert normalise_program(64, 64, 2) == (("Copy", 8), ("CastDown", 8), ("Div", 64))
