"""Numba's compiler without the work that kernels do not need: what they need takes seconds enough.

Numba would optimise every function in full, again within each caller, and generate code for each. Here a
part of a kernel stays as it was lowered, and all is optimised once, as one, where the kernel is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from numba._dynfunc import make_function
from numba.core import typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags

_NEEDLESS_PASSES = {
    typed_passes.InlineOverloads,
    typed_passes.NopythonRewrites,
    untyped_passes.FindLiterallyCalls,
    untyped_passes.InlineClosureLikes,
    untyped_passes.LiteralPropagationSubPipelinePass,
    untyped_passes.LiteralUnroll,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.WithLifting,
}
"""Passes for what no kernel has: closures, `with`, `literal_unroll`, operations on whole arrays."""


class _KernelFlags(Flags):
    """Flags that are equal if the same ones are set: types are looked up by them, ten thousands of times."""

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _KernelFlags) and self._values == other._values)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values)))


class _KernelLibrary(JITCodeLibrary):
    """Code of a kernel, optimised once and as a whole."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        # Numba's cheap round before this one is there for reference counts.
        manager, builder = self._codegen._module_pass_manager()
        manager.run(self._final_module, builder)


class _PartLibrary(_KernelLibrary):
    """Code as it was lowered: for kernels to link, inline and optimise."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class KernelCompiler(Compiler):
    """Compiles what Python calls."""

    library: type[JITCodeLibrary] = _KernelLibrary

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Compile `function`."""
        state = self.state
        state.flags = _KernelFlags(state.flags)
        state.library = self.library(state.targetctx.codegen(), function.__qualname__)
        state.library.enable_object_caching()
        return super().compile_extra(function)

    def define_pipelines(self) -> Any:
        """Return Numba's passes, but for those without use."""
        (pipeline,) = super().define_pipelines()
        pipeline.passes = [entry for entry in pipeline.passes if entry[0] not in _NEEDLESS_PASSES]
        pipeline.finalize()
        return [pipeline]


class PartCompiler(KernelCompiler):
    """Compiles functions without an entry from Python: calling one there is a SystemError."""

    library = _PartLibrary

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Compile `function` up to what callers link."""
        self.state.flags.no_compile = True
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
