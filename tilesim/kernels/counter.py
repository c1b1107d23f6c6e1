"""The counter from which worker threads take their tasks."""

from __future__ import annotations

from typing import Any

from numba import types

from tilesim.kernels._jit import intrinsic

NEXT_TASK = 0
DONE_TASKS = 1
NEXT_BLOCK = 2
DONE_BLOCKS = 3
STOPPED = 4
COUNTERS = 5
"""Places in the int64 array that workers share, and how many there are: tasks and blocks of keys to pack,
taken and done, and whether the caller wants all workers to end."""


@intrinsic
def fetch_add(typing_context: Any, counter: Any, place: Any, amount: Any) -> Any:
    """Add atomically to an element of an int64 array and return its value before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [args[1]]), args[2], "monotonic")

    return types.int64(counter, types.intp, types.int64), codegen
