"""How kernels are compiled: no fastmath, no allocation, the GIL released, cached on disk where allowed.

With NUMBA_DISABLE_JIT they run in the Python interpreter instead and give the same bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numba.extending
import numpy as np

from tilesim.kernels._cache import KernelCache
from tilesim.kernels._compilers import KernelCompiler, PartCompiler
from tilesim.kernels.interpreter import interpreted

F = TypeVar("F", bound=Callable[..., Any])


# Numba's own annotations describe the decorated function as Python sees it, not as kernels call it.
_njit: Any = numba.njit
DISABLED: bool = numba.config.DISABLE_JIT  # type: ignore[attr-defined]
"""Whether kernels run in the interpreter."""
intrinsic: Any = interpreted if DISABLED else numba.extending.intrinsic


def jit(function: F) -> F:
    """Compile `function` as part of the kernels that call it, always inlined."""
    return _compile_part(function, forceinline=True)


def jit_apart(function: F) -> F:
    """Compile like `jit`, but leave inlining to the compiler."""
    return _compile_part(function)


def jit_within(function: F) -> F:
    """Compile as if written in each caller: for steps of a kernel, which would else be compiled once more."""
    return _compile_part(function, inline="always")


def jit_shared(function: F) -> F:
    """Leave a function of a few numbers to Python, and compile it for the kernels that call it as well."""
    if DISABLED:
        return function
    shared: F = numba.extending.register_jitable(**_part_options(forceinline=True))(function)
    return shared


def jit_entry(function: F) -> F:
    """Compile what is called from Python: on first call, cached on disk with all of its parts."""
    if DISABLED:
        return _quiet(function)
    dispatcher: Any = _njit(**_OPTIONS, pipeline_class=KernelCompiler)(function)
    # Without a directory to keep it in, it is compiled in memory.
    with contextlib.suppress(RuntimeError):
        dispatcher._cache = KernelCache(function)
    kernel: F = dispatcher
    return kernel


# Without reference counts, an atomic operation for every slice: hence kernels allocate nothing.
_OPTIONS = {
    "nogil": True, "error_model": "numpy", "fastmath": False, "_nrt": False, "no_cfunc_wrapper": True,
}  # fmt: skip


def _part_options(**more: Any) -> dict[str, Any]:
    apart = {"pipeline_class": PartCompiler, "no_cpython_wrapper": True}
    return {**_OPTIONS, **apart, **more}


def _compile_part(function: F, **more: Any) -> F:
    if DISABLED:
        return _quiet(function)
    part: F = _njit(**_part_options(**more))(function)
    _forget_constants(part)
    return part


def _forget_constants(dispatcher: Any) -> None:
    """Let a part be compiled for the types of its arguments: Numba would do so for each constant anew."""
    find = dispatcher.get_call_template

    def get_call_template(arguments: Any, keywords: Any) -> Any:
        general = {name: _without_constant(argument) for name, argument in keywords.items()}
        return find([_without_constant(argument) for argument in arguments], general)

    dispatcher.get_call_template = get_call_template


def _without_constant(argument: Any) -> Any:
    return argument.literal_type if isinstance(argument, numba.types.Literal) else argument


def _quiet(function: F) -> F:
    # Kernels divide by zero, overflow and meet NaN on purpose; compiled, they do so without a word.
    quiet: F = np.errstate(all="ignore")(function)
    return quiet
