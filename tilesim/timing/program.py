"""The vector instructions that one softmax_flash_v2 tile issues, and the kernel's own around it.

A program is a list of (instruction, repeats); one repeat handles 256 bytes, that is 64 float lanes (casts: 64
elements). Read off the operator's published source for this generation of vector cores.
"""

from __future__ import annotations

import dataclasses
import functools

from tilesim.units import ceil_div

Program = tuple[tuple[str, int], ...]

LANES = 64
"""float lanes of one repeat."""
MOST_REPEATS = 255
"""Of one instruction."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftmaxTile:
    """One call of the operator, as far as its instructions depend on it.

    Attributes
    ----------
    rows, columns : int
        Rows M and columns K of the tile; columns fill whole 32-byte blocks.
    half_data, half_state : bool
        Types of data and state: half or float.
    update : bool
        Whether a state is carried in.
    basic : bool
        Basic-block path.
    broadcast : bool
        States with a 32-byte block a row (NORMAL) instead of one element (WITHOUT_BRC).
    reduced : int
        Columns that are reduced; the generic path only.
    """

    rows: int
    columns: int
    half_data: bool
    half_state: bool
    update: bool
    basic: bool
    broadcast: bool = True
    reduced: int = 0

    @property
    def state_lanes(self) -> int:
        """State elements of one 32-byte block."""
        return 16 if self.half_state else 8


@functools.lru_cache(maxsize=4096)
def softmax_program(tile: SoftmaxTile) -> Program:
    """Return the instructions of one operator call."""
    if not tile.broadcast:
        return tuple(_without_broadcast(tile))
    return tuple(_basic(tile) if tile.basic else _generic(tile))


def _sizes(tile: SoftmaxTile) -> tuple[int, int, int, int]:
    """Return repeats over the tile, over a broadcast state, over a dense state, and blocks of 8 rows."""
    rows = tile.rows
    return (
        ceil_div(rows * tile.columns, LANES),
        ceil_div(rows * tile.state_lanes, LANES),
        ceil_div(rows, LANES),
        ceil_div(rows, 8),
    )


def _reduce(tile: SoftmaxTile, kind: str) -> list[tuple[str, int]]:
    """Return a row reduction to one number (basic) or with its broadcast (generic); kind is Max or Sum."""
    combine = "Max" if kind == "Max" else "Add"
    block = f"BlockReduce{kind}"
    return _reduce_basic(tile, block, combine) if tile.basic else _reduce_generic(tile, block, combine, kind)


def _fold(rows: int, chunks: int, combine: str) -> list[tuple[str, int]]:
    if rows > chunks:
        return [(combine, rows)] * (chunks - 1)
    return [(combine, rows)] + [(combine, chunks - 2)] * rows


def _reduce_basic(tile: SoftmaxTile, block: str, combine: str) -> list[tuple[str, int]]:
    rows, chunks = tile.rows, tile.columns // LANES
    ends = [(block, rows), (block, ceil_div(rows, 8))]
    if chunks == 1:
        return ends
    if chunks < 8:
        return _fold(rows, chunks, combine) + ends
    if chunks == 8:
        return [(block, 8 * rows), *ends]
    if chunks == 16:
        return [(block, 128), (block, 16), (combine, 1), (block, 1)]
    return [(block, 8)] * rows + [(combine, chunks - 8)] * rows + ends


def _reduce_generic(tile: SoftmaxTile, block: str, combine: str, kind: str) -> list[tuple[str, int]]:
    rows, columns = tile.rows, tile.reduced or tile.columns
    chunks, tail = columns // LANES, columns % LANES
    pieces = [MOST_REPEATS] * (rows // MOST_REPEATS) + [rows % MOST_REPEATS] * (rows % MOST_REPEATS > 0)
    if chunks == 0:
        program = [(f"WholeReduce{kind}", piece) for piece in pieces]
    else:
        if chunks == 1:
            program = [("Copy", piece) for piece in pieces]
        elif chunks < 8:
            program = [(combine, rows)]
            program += [(combine, rows)] * (chunks - 2) if rows > chunks else [(combine, chunks - 2)] * rows
        else:
            program = [(block, 8)] * rows + ([(combine, chunks - 8)] * rows if chunks > 8 else [])
        if tail:
            wide = tile.columns > 2040
            program += [(combine, 1)] * rows if wide else [(combine, piece) for piece in pieces]
        if rows > 1:
            program += [(block, rows), (block, ceil_div(8 * rows, LANES))]
        else:
            program += [(f"WholeReduce{kind}", 8)] + [("Copy", 1)] * (tile.state_lanes == 16)
    if tile.broadcast and not (rows == 1 and columns > LANES):
        _, state, _, eights = _sizes(tile)
        double = tile.state_lanes == 16
        if double and rows == 1:
            program += [("Brcb", 1), ("Copy", 1)]
        else:
            program += [("Brcb", eights)] * (2 if double else 1)
        program.append(("Copy", state))
    return program


def _subtract(tile: SoftmaxTile) -> list[tuple[str, int]]:
    rows, columns = tile.rows, tile.columns
    if tile.basic:
        return [("Sub", rows)] * (columns // LANES)
    if columns < 192:
        return [("Sub", ceil_div(rows, 8))] * (columns // 8)
    return [("Sub", ceil_div(columns, LANES))] * rows


def _basic(tile: SoftmaxTile) -> list[tuple[str, int]]:
    whole, state, _, eights = _sizes(tile)
    up, down = [("CastUp", whole)] * tile.half_data, [("CastDown", whole)] * tile.half_data
    spread = [("Brcb", eights)] * (2 if tile.half_state else 1)
    top, total, less = _reduce(tile, "Max"), _reduce(tile, "Sum"), _subtract(tile)
    exp, s_up, s_down = [("Exp", whole)], [("CastUp", state)], [("CastDown", state)]
    if not tile.update:
        rounded = s_down if tile.half_state else []
        return up + top + spread + rounded + less + exp + down + total + spread + rounded
    sums = [("Mul", state), ("Add", state)]
    if tile.half_state:
        shift = [*s_up, ("Max", state), *s_down, ("Sub", state), ("Exp", state), *s_down]
        return up + top + spread + shift + less + exp + down + total + spread + s_up + sums + s_down
    shift = [("Copy", state), ("Max", state)]
    rescale = [("Sub", state), ("Exp", state)]
    if tile.half_data:
        rescale += [("Copy", state), ("Copy", state), ("CastDown", 2 * state)]
    return up + top + spread + shift + less + rescale + exp + down + total + spread + sums


def _generic(tile: SoftmaxTile) -> list[tuple[str, int]]:
    whole, state, _, _ = _sizes(tile)
    up, down = [("CastUp", whole)] * tile.half_data, [("CastDown", whole)] * tile.half_data
    top, total, less, exp = _reduce(tile, "Max"), _reduce(tile, "Sum"), _subtract(tile), [("Exp", whole)]
    s_up, s_down = [("CastUp", state)], [("CastDown", state)]
    sums = [("Mul", state), ("Add", state)]
    if not tile.update:
        rounded = s_down if tile.half_state else []
        return up + top + less + rounded + exp + down + total + rounded
    if not tile.half_data:
        shift = [("Max", state), ("Sub", state), ("Exp", state)]
        return top + shift + less + exp + [("Copy", state)] + total + sums
    if tile.half_state:
        shift = [("Max", state), ("Sub", state), *s_down]
        ends = [("Exp", state), *s_down, *s_up, *sums, *s_down]
        return s_up + up + top + shift + less + exp + down + total + ends
    blocks = ceil_div(8 * tile.rows, LANES)
    rescale = [
        ("Sub", state), ("Exp", state), ("Copy", 2 * blocks), ("CastDown", ceil_div(16 * tile.rows, LANES)),
    ]  # fmt: skip
    return [("Copy", state), *up, *top, ("Max", state), *less, *exp, *down, *total, *rescale, *sums]


def _without_broadcast(tile: SoftmaxTile) -> list[tuple[str, int]]:
    whole, _, dense, eights = _sizes(tile)
    up, down = [("CastUp", whole)] * tile.half_data, [("CastDown", whole)] * tile.half_data
    top, total, less, exp = _reduce(tile, "Max"), _reduce(tile, "Sum"), _subtract(tile), [("Exp", whole)]
    spread, rounds = [("Brcb", eights)], [("CastDown", dense)]
    if not tile.update:
        return up + top + spread + less + exp + total + down + rounds * (2 if tile.half_state else 0)
    wide = [("CastUp", dense)] * (2 if tile.half_state else 0)
    keep = [("Copy", dense)]
    shift = [("Max", dense), ("Sub", dense), ("Exp", dense), *spread]
    before, after = (keep, []) if tile.basic else ([], keep)
    narrow = rounds * (3 if tile.half_state else 1 if tile.half_data else 0)
    sums = [("Mul", dense), ("Add", dense)]
    return up + wide + top + before + shift + less + exp + after + total + sums + down + narrow


def around_softmax(rows: int, columns: int, itemsize: int, *, masked: bool) -> Program:
    """Return what the kernel issues before the operator: the scaling, and the mask where a tile needs one."""
    repeats = ceil_div(rows * columns * itemsize, 256)
    return (("Muls", repeats), ("Add", repeats)) if masked else (("Muls", repeats),)


def softcap_program(rows: int, columns: int, itemsize: int) -> Program:
    """Return ``c * tanh(s / c)`` as ``c - 2c / (exp(2s / c) + 1)``, in float.

    An assumption: no instruction for tanh is published, and additions of a scalar count as additions. Muls,
    Exp, Add of 1, Copy of the numerator, Div and Add of c, with casts around for 2-byte data.
    """
    repeats = ceil_div(rows * columns, LANES)
    up, down = (("CastUp",), ("CastDown",)) if itemsize == 2 else ((), ())
    return tuple((name, repeats) for name in (*up, "Muls", "Exp", "Add", "Copy", "Div", "Add", *down))


def alibi_program(rows: int, columns: int, itemsize: int, *, both_sides: bool) -> Program:
    """Return the addition of the slope times the distance.

    An assumption, as no such kernel is published: distances are float, kept for one tile and moved to the
    tile at hand (Add); with keys on both sides of a query made positive (Muls, Max); then multiplied with the
    slope (Muls), rounded for 2-byte data, and added.
    """
    repeats = ceil_div(rows * columns, LANES)
    sides = ("Muls", "Max") if both_sides else ()
    rounded = ("CastDown",) if itemsize == 2 else ()
    program = tuple((name, repeats) for name in ("Add", *sides, "Muls", *rounded))
    return (*program, ("Add", ceil_div(rows * columns * itemsize, 256)))


def sink_program(rows: int) -> Program:
    """Return how sum and maximum begin with a sink: one Duplicate each, counted as copies of the state."""
    return (("Copy", ceil_div(8 * rows, LANES)),) * 2


def keep_program(rows: int, head_dim: int, itemsize: int) -> Program:
    """Return how a split ends, of which accumulator and state are stored in float: a cast of 2-byte data."""
    return (("CastUp", ceil_div(rows * head_dim, LANES)),) if itemsize == 2 else ()


def combine_program(rows: int, head_dim: int) -> Program:
    """Return the addition of one split to the output, in float.

    An assumption: the factor from the maxima (Max, Sub, Exp), then accumulator and sum times it, added.
    """
    state, lanes = ceil_div(8 * rows, LANES), ceil_div(head_dim, LANES)
    factor = tuple((name, state) for name in ("Max", "Sub", "Exp", "Mul", "Add"))
    return (*factor, *((("Mul", rows),) * lanes), ("Add", ceil_div(rows * head_dim, LANES)))


def divide_program(rows: int, head_dim: int, itemsize: int) -> Program:
    """Return the division of combined splits by their sum, in float, rounded for 2-byte data."""
    rounded = (("CastDown", ceil_div(rows * head_dim, LANES)),) if itemsize == 2 else ()
    return (*((("Div", rows),) * ceil_div(head_dim, LANES)), *rounded)


def take_program(rows: int, head_dim: int, itemsize: int) -> Program:
    """Return the copy of the first tile's product into the accumulator."""
    return (("Copy", ceil_div(rows * head_dim * itemsize, 256)),)


def accumulate_program(rows: int, head_dim: int, itemsize: int) -> Program:
    """Return the rescaling of the accumulator, one instruction for each block of lanes, and the addition."""
    lanes = 256 // itemsize
    whole = ceil_div(rows * head_dim * itemsize, 256)
    return ((("Mul", rows),) * ceil_div(head_dim, lanes)) + (("Add", whole),)


def normalise_program(rows: int, head_dim: int, itemsize: int) -> Program:
    """Return the division by the row sum: its cast and broadcast, and one instruction per block of lanes."""
    lanes = 256 // itemsize
    casts = (("CastDown", ceil_div(8 * rows, LANES)),) if itemsize == 2 else ()
    return (("Copy", ceil_div(8 * rows, LANES)), *casts, *((("Div", rows),) * ceil_div(head_dim, lanes)))
