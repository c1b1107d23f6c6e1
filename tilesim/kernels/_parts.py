"""Compiling what is only ever part of a kernel: without machine code of its own, optimised within the kernel.

Numba would optimise every function in full, again within each caller, and generate code for each: half
the time that compiling a kernel takes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from numba._dynfunc import make_function
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class _PartLibrary(JITCodeLibrary):
    """Code as it was lowered: for kernels to link, inline and optimise."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class PartCompiler(Compiler):
    """Numba's compiler, for functions without an entry from Python: calling one there is a SystemError."""

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Compile `function` up to what callers link."""
        state = self.state
        state.library = _PartLibrary(state.targetctx.codegen(), function.__qualname__)
        state.flags.no_compile = True
        result = super().compile_extra(function)
        # Callers look a function up by what Python would call.
        place, address = result.fndesc.lookup_module(), ctypes.cast(_refuse_call, ctypes.c_void_p).value
        name, environment = function.__name__, result.environment
        entry = make_function(place, name, "", address, environment, (_refuse_call,))
        result.target_context.insert_user_function(entry, result.fndesc, [result.library])
        return result._replace(entry_point=entry)


@ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
def _refuse_call(function: Any, arguments: Any, keywords: Any) -> None:
    """Return NULL, which the interpreter reports as a SystemError that names the function called."""
