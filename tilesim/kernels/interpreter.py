"""What intrinsics do where Numba may not compile (NUMBA_DISABLE_JIT): their LLVM code, run by NumPy.

An intrinsic emits its code as always; each instruction then becomes a NumPy operation on a number or a
vector, with the same bits as result. Addresses are pairs of a flat array and an offset. That is thousands of
times slower than compiled code: good for looking into a kernel, and for tiny shapes.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.datamodel.registry import default_manager

from tilesim.kernels.fused import fused_multiply_add

_DTYPES = {
    "i1": np.bool_, "i4": np.int8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "half": np.float16, "float": np.float32, "double": np.float64,
}  # fmt: skip
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_COMPARISONS = {
    "slt": operator.lt, "sle": operator.le, "sgt": operator.gt, "sge": operator.ge,
    "eq": operator.eq, "ne": operator.ne,
    "olt": operator.lt, "ole": operator.le, "ogt": operator.gt, "oge": operator.ge,
    "oeq": operator.eq, "une": operator.ne, "uno": lambda x, y: np.isnan(x) | np.isnan(y),
}  # fmt: skip
_atomic = threading.Lock()


def interpreted(typed: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does what ``numba.extending.intrinsic(typed)`` compiles to."""
    programs: dict[Any, _Program] = {}

    @functools.wraps(typed)
    def call(*arguments: Any) -> Any:
        key = tuple(getattr(argument, "dtype", None) for argument in arguments)
        if key not in programs:
            programs[key] = _Program(typed, [numba.typeof(argument) for argument in arguments])
        return programs[key].run(arguments)

    return call


class _Context:
    """As much of Numba's code generation as intrinsics ask for: an array is the address of its data."""

    def make_array(self, kind: Any) -> Callable[..., Any]:
        return lambda context, builder, address: SimpleNamespace(data=address)

    def get_dummy_value(self) -> None:
        return None


class _Block(NamedTuple):
    """A basic block. Values are known by their places in the list of all values.

    Attributes
    ----------
    joins : list
        Place of a phi, and the place it copies by the block before.
    steps : list
        Place of the result, operation, places of the operands.
    condition : int, optional
        Place of what decides between two blocks to go to.
    targets : list
        Blocks to go to; none ends the program.
    """

    joins: list[tuple[int, dict[int, int]]]
    steps: list[tuple[int, Callable[..., Any], list[int]]]
    condition: int | None
    targets: list[int]


class _Program:
    """The code of an intrinsic for one combination of argument types."""

    def __init__(self, typed: Callable[..., Any], kinds: list[Any]) -> None:
        signature, emit = typed(None, *kinds)
        form = ir.FunctionType(ir.VoidType(), [_ir_type(kind) for kind in signature.args])
        function = ir.Function(ir.Module(), form, "intrinsic")
        builder = ir.IRBuilder(function.append_basic_block())
        result = emit(_Context(), builder, signature, function.args)
        builder.ret_void()
        self.places: dict[int, int] = {}
        self.constants: list[Any] = []
        self.convert = [_converter(kind) for kind in signature.args]
        for argument in function.args:
            self.place(argument)
        self.blocks = {id(block): self.block(block) for block in function.blocks}
        self.entry = id(function.entry_basic_block)
        self.result = None if result is None else self.place(result)
        kind = signature.return_type
        self.unsigned = str(kind).startswith("uint")

    def place(self, value: Any) -> int:
        """Return where a value stands among all values."""
        if id(value) not in self.places:
            self.places[id(value)] = len(self.constants)
            self.constants.append(_constant(value) if isinstance(value, ir.Constant) else None)
        return self.places[id(value)]

    def block(self, block: Any) -> _Block:
        """Turn the instructions of a block into operations on places."""
        *body, last = block.instructions
        joins, steps = [], []
        for instruction in body:
            place = self.place(instruction)
            if instruction.opname == "phi":
                joins.append((place, {id(origin): self.place(x) for x, origin in instruction.incomings}))
            else:
                values = instruction.args if instruction.opname == "call" else instruction.operands
                operation = _OPERATIONS[instruction.opname](instruction)
                steps.append((place, operation, [self.place(value) for value in values]))
        targets = [id(operand) for operand in last.operands if isinstance(operand, ir.Block)]
        return _Block(joins, steps, self.place(last.operands[0]) if len(targets) == 2 else None, targets)

    def run(self, arguments: Any) -> Any:
        """Run the code on arguments as a kernel passes them."""
        values = list(self.constants)
        for place, (convert, argument) in enumerate(zip(self.convert, arguments, strict=True)):
            values[place] = convert(argument)
        before, at = 0, self.entry
        while True:
            block = self.blocks[at]
            joined = [values[origins[before]] for _, origins in block.joins]
            for (place, _), value in zip(block.joins, joined, strict=True):
                values[place] = value
            for place, operation, operands in block.steps:
                values[place] = operation(*[values[operand] for operand in operands])
            if not block.targets:
                return self.returned(values)
            before, at = at, block.targets[0 if block.condition is None or values[block.condition] else 1]

    def returned(self, values: list[Any]) -> Any:
        """Return the result in the sign that its type has: LLVM's integers have none."""
        if self.result is None:
            return None
        value = values[self.result]
        return value.view(_UNSIGNED[value.itemsize]) if self.unsigned else value


def _ir_type(kind: Any) -> Any:
    if isinstance(kind, types.Array):
        return default_manager[kind.dtype].get_value_type().as_pointer()
    return default_manager[kind].get_value_type()


def _converter(kind: Any) -> Callable[[Any], Any]:
    """Return what turns an argument of a Numba type into a value of the program."""
    if isinstance(kind, types.Array):
        return lambda array: (array.reshape(-1), 0)
    if isinstance(kind, types.UniTuple):
        element = _converter(kind.dtype)
        return lambda numbers: tuple(map(element, numbers))
    number: Callable[[Any], Any] = _dtype(_ir_type(kind))
    return number


def _dtype(kind: Any) -> Any:
    """Return the NumPy type of a number, or of the elements of a vector."""
    return _DTYPES[str(getattr(kind, "element", kind))]


def _constant(value: Any) -> Any:
    number, dtype, count = value.constant, _dtype(value.type), getattr(value.type, "count", None)
    if isinstance(number, (list, tuple)):
        return np.array([_constant(element) for element in number], dtype)
    if number in (None, ir.Undefined):
        number = 0
    return dtype(number) if count is None else np.full(count, number, dtype)


def _bitcast(instruction: Any) -> Callable[..., Any]:
    if instruction.type.is_pointer:
        return lambda address: address
    dtype, count = _dtype(instruction.type), getattr(instruction.type, "count", None)
    if _dtype(instruction.operands[0].type) is np.bool_:
        return lambda truths: np.packbits(truths, bitorder="little").view(dtype)[0]
    shape = () if count is None else (count,)
    return lambda value: np.asarray(value).view(dtype).reshape(shape)[()]


def _convert(instruction: Any) -> Callable[..., Any]:
    dtype = _dtype(instruction.type)
    return lambda value: value.astype(dtype)


def _extend_unsigned(instruction: Any) -> Callable[..., Any]:
    dtype = _dtype(instruction.type)
    return lambda value: value.view(_UNSIGNED[value.itemsize]).astype(dtype)


def _shift_right(value: Any, count: Any) -> Any:
    unsigned = _UNSIGNED[value.itemsize]
    return (value.view(unsigned) >> count.view(unsigned)).view(value.dtype)


def _select(condition: Any, yes: Any, no: Any) -> Any:
    return np.where(condition, yes, no)[()]


def _insert(vector: Any, element: Any, lane: Any) -> Any:
    changed = vector.copy()
    changed[lane] = element
    return changed


def _allocate(instruction: Any) -> Callable[..., Any]:
    dtype, count = _dtype(instruction.allocated_type), getattr(instruction.allocated_type, "count", 1)
    return lambda: (np.empty(count, dtype), 0)


def _load(instruction: Any) -> Callable[..., Any]:
    count = getattr(instruction.type, "count", None)
    if count is None:
        return lambda address: address[0][address[1]]
    return lambda address: address[0][address[1] : address[1] + count].copy()


def _memory(instruction: Any) -> Callable[..., Any]:
    """Return what makes a number, the address of one element of the process's memory, an address here."""
    dtype = np.dtype(_dtype(instruction.type.pointee))
    element = ctypes.c_char * dtype.itemsize
    return lambda number: (np.frombuffer(element.from_address(int(number)), dtype), 0)


def _store(vector: Any, address: Any) -> None:
    array, at = address
    array[at : at + vector.size] = vector


def _add_atomically(address: Any, amount: Any) -> Any:
    array, at = address
    with _atomic:
        before = array[at]
        array[at] += amount
    return before


def _intrinsic(instruction: Any) -> Callable[..., Any]:
    """Return what an intrinsic of LLVM does, by how its name begins."""
    name = instruction.callee.name
    return next(function for start, function in _INTRINSICS.items() if name.startswith(start))


_INTRINSICS: dict[str, Callable[..., Any]] = {
    "llvm.fma.": fused_multiply_add,
    "llvm.fmuladd.": lambda a, b, c: a * b + c,
    "llvm.prefetch": lambda *place: None,
    "llvm.x86.avx512.vpermi2var": lambda low, index, high: np.concatenate([low, high])[
        index & (2 * low.size - 1)
    ],
}
_OPERATIONS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "fadd": lambda _: operator.add,
    "add": lambda _: operator.add,
    "fsub": lambda _: operator.sub,
    "sub": lambda _: operator.sub,
    "fmul": lambda _: operator.mul,
    "mul": lambda _: operator.mul,
    "fdiv": lambda _: operator.truediv,
    "inttoptr": _memory,
    "and": lambda _: operator.and_,
    "or": lambda _: operator.or_,
    "xor": lambda _: operator.xor,
    "shl": lambda _: operator.lshift,
    "lshr": lambda _: _shift_right,
    "icmp": lambda instruction: _COMPARISONS[instruction.op],
    "fcmp": lambda instruction: _COMPARISONS[instruction.op],
    "select": lambda _: _select,
    "bitcast": _bitcast,
    "fpext": _convert,
    "fptrunc": _convert,
    "trunc": _convert,
    "zext": _extend_unsigned,
    "extractvalue": lambda instruction: lambda numbers: numbers[instruction.indices[0]],
    "extractelement": lambda _: lambda vector, lane: vector[lane],
    "insertelement": lambda _: _insert,
    "shufflevector": lambda _: lambda low, high, lanes: np.concatenate([low, high])[lanes],
    "alloca": _allocate,
    "getelementptr": lambda _: lambda address, index: (address[0], address[1] + index),
    "load": _load,
    "store": lambda _: _store,
    "atomicrmw": lambda _: _add_atomically,
    "call": _intrinsic,
}
"""By LLVM's name of an instruction: what returns the operation for it. Atomic updates are additions only."""
