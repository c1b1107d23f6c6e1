"""Arithmetic written once and emitted for scalars and for wide vectors.

A `Value` wraps an LLVM value and turns Python operators into instructions, so that a formula such as
`rounding.half_even` reads as mathematics and serves both a single number and a vector of any width. No
instruction carries a fast-math flag: the compiler may neither reorder nor assume away NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from tilesim.kernels._jit import intrinsic
from tilesim.kernels.processor import BLOCK

_FLOAT = ir.FloatType()
_DOUBLE = ir.DoubleType()
_INT = ir.IntType(32)
_INT64 = ir.IntType(64)


def _element(kind: Any) -> Any:
    return getattr(kind, "element", kind)


def _is_float(kind: Any) -> bool:
    return _element(kind) in (_FLOAT, _DOUBLE)


def _like(kind: Any, element: Any) -> Any:
    return ir.VectorType(element, kind.count) if isinstance(kind, ir.VectorType) else element


class Value:
    """A number under construction, or a vector of them: float32, float64, int32, int64 or truth values."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.ir = value

    def _other(self, other: Value | float) -> Any:
        if isinstance(other, Value):
            return other.ir
        kind = self.ir.type
        number = float(other) if _is_float(kind) else int(other)
        return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)

    def _emit(self, for_float: str | None, for_int: str | None, other: Value | float) -> Value:
        name = for_float if _is_float(self.ir.type) else for_int
        assert name is not None
        return Value(self.builder, getattr(self.builder, name)(self.ir, self._other(other)))

    def __add__(self, other: Value | float) -> Value:
        return self._emit("fadd", "add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._emit("fsub", "sub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._emit("fmul", "mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._emit("fdiv", None, other)

    def __and__(self, other: Value | int) -> Value:
        return self._emit(None, "and_", other)

    def __or__(self, other: Value | int) -> Value:
        return self._emit(None, "or_", other)

    def __lshift__(self, other: int) -> Value:
        return self._emit(None, "shl", other)

    def __rshift__(self, other: int) -> Value:
        return self._emit(None, "lshr", other)

    def times_plus(self, factor: Value | float, summand: Value | float) -> Value:
        """Return ``self * factor + summand``, rounded once where the processor can, else twice."""
        if not BLOCK.fused:
            return self * factor + summand
        kind = self.ir.type
        number = "f32" if _element(kind) == _FLOAT else "f64"
        suffix = f"v{kind.count}{number}" if isinstance(kind, ir.VectorType) else number
        module, name = self.builder.module, f"llvm.fma.{suffix}"
        fma = module.globals.get(name) or ir.Function(module, ir.FunctionType(kind, [kind] * 3), name)
        return Value(
            self.builder, self.builder.call(fma, [self.ir, self._other(factor), self._other(summand)])
        )

    def compare(self, relation: str, other: Value | float) -> Value:
        """Return a truth value; comparisons with NaN are false except ``!=``."""
        if not _is_float(self.ir.type):
            return Value(self.builder, self.builder.icmp_signed(relation, self.ir, self._other(other)))
        compare = self.builder.fcmp_unordered if relation == "!=" else self.builder.fcmp_ordered
        return Value(self.builder, compare(relation, self.ir, self._other(other)))

    def unordered(self, other: Value) -> Value:
        """Return whether either float is NaN."""
        return Value(self.builder, self.builder.fcmp_unordered("uno", self.ir, other.ir))

    def any(self) -> Any:
        """Return an LLVM truth value: whether any in a vector of truth values is true."""
        number = ir.IntType(self.ir.type.count)
        return self.builder.icmp_unsigned("!=", self.builder.bitcast(self.ir, number), number(0))

    def bits(self) -> Value:
        """Return the bits of floats as integers of the same size."""
        integer = _INT if _element(self.ir.type) == _FLOAT else _INT64
        return Value(self.builder, self.builder.bitcast(self.ir, _like(self.ir.type, integer)))

    def floats(self) -> Value:
        """Return the floats with these bits."""
        number = _FLOAT if _element(self.ir.type) == _INT else _DOUBLE
        return Value(self.builder, self.builder.bitcast(self.ir, _like(self.ir.type, number)))

    def widened(self) -> Value:
        """Return float32 numbers as float64."""
        return Value(self.builder, self.builder.fpext(self.ir, _like(self.ir.type, _DOUBLE)))

    def narrowed(self) -> Value:
        """Return float64 numbers rounded to float32, ties to even."""
        return Value(self.builder, self.builder.fptrunc(self.ir, _like(self.ir.type, _FLOAT)))

    # The three below need a processor with `RegisterBlock.half`.

    def through_half(self) -> Value:
        """Return float32 numbers rounded to half, ties to even."""
        narrow = self.builder.fptrunc(self.ir, _like(self.ir.type, ir.HalfType()))
        return Value(self.builder, self.builder.fpext(narrow, self.ir.type))

    def half_bits(self) -> Value:
        """Return the bits of float32 numbers rounded to half, ties to even, as int32."""
        narrow = self.builder.fptrunc(self.ir, _like(self.ir.type, ir.HalfType()))
        bits = self.builder.bitcast(narrow, _like(self.ir.type, ir.IntType(16)))
        return Value(self.builder, self.builder.zext(bits, _like(self.ir.type, _INT)))

    def from_half_bits(self) -> Value:
        """Return the float32 numbers whose halves have the low 16 bits of these int32."""
        bits = self.builder.trunc(self.ir, _like(self.ir.type, ir.IntType(16)))
        half = self.builder.bitcast(bits, _like(self.ir.type, ir.HalfType()))
        return Value(self.builder, self.builder.fpext(half, _like(self.ir.type, _FLOAT)))

    def lanes(self, indices: list[int]) -> Value:
        """Return the vector of the given lanes."""
        mask = ir.Constant(ir.VectorType(_INT, len(indices)), indices)
        undefined = ir.Constant(self.ir.type, ir.Undefined)
        return Value(self.builder, self.builder.shuffle_vector(self.ir, undefined, mask))

    def cut(self, count: int) -> list[Value]:
        """Return the vectors of each `count` lanes, of which there is a whole number."""
        return [
            self.lanes(list(range(first, first + count))) for first in range(0, self.ir.type.count, count)
        ]

    def followed_by(self, other: Value) -> Value:
        """Return one vector of the lanes of both, which have equally many."""
        mask = list(range(2 * self.ir.type.count))
        lanes = ir.Constant(ir.VectorType(_INT, len(mask)), mask)
        return Value(self.builder, self.builder.shuffle_vector(self.ir, other.ir, lanes))


def where(condition: Value, yes: Value | float, no: Value) -> Value:
    """Return `yes` where `condition` holds, else `no`."""
    chosen = yes.ir if isinstance(yes, Value) else no._other(yes)
    return Value(no.builder, no.builder.select(condition.ir, chosen, no.ir))


def concatenate(parts: list[Value]) -> Value:
    """Return one vector of all parts, whose number is a power of two."""
    while len(parts) > 1:
        parts = [left.followed_by(right) for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def lookup(table: list[float], index: Value) -> Value:
    """Return ``table[index % len(table)]`` for a vector of integers as wide as the numbers in the table.

    The table holds 16 float64 or 32 float32 numbers. Needs a processor with `RegisterBlock.lookup`.
    """
    lanes = len(table) // 2
    number, suffix = (_FLOAT, "ps") if _element(index.ir.type) == _INT else (_DOUBLE, "pd")
    indices, numbers = ir.VectorType(_element(index.ir.type), lanes), ir.VectorType(number, lanes)
    module, name = index.builder.module, f"llvm.x86.avx512.vpermi2var.{suffix}.512"
    kind = ir.FunctionType(numbers, [numbers, indices, numbers])
    function = module.globals.get(name) or ir.Function(module, kind, name)
    low, high = (ir.Constant(numbers, half) for half in (table[:lanes], table[lanes:]))
    builder = index.builder
    return concatenate(
        [Value(builder, builder.call(function, [low, part.ir, high])) for part in index.cut(lanes)]
    )


def larger_int(x: Value, least: int) -> Value:
    """Return the larger of an int32 value and a constant."""
    return where(x.compare("<", least), least, x)


def scalar_function(formula: Callable[[Value], Value]) -> Any:
    """Return a function for kernels that applies `formula` to one float32 number."""

    def typed(typing_context: Any, x: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return formula(Value(builder, args[0])).ir

        return types.float32(types.float32), codegen

    typed.__doc__ = formula.__doc__
    return intrinsic(typed)
