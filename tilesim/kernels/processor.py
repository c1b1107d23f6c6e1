"""The processor Numba compiles for, and how many numbers its vector registers hold."""

from __future__ import annotations

import dataclasses
from typing import Any

from llvmlite import binding
from numba import config


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegisterBlock:
    """How the sums of one matrix micro-kernel lie in vector registers.

    Attributes
    ----------
    lanes : int
        float32 elements of one vector register.
    rows, sums : int
        Rows, and vectors a row, of the block of sums.
    vectors : int
        Vectors a row of a packed panel.
    fused : bool
        Whether the processor multiplies and adds in one instruction; without it a fused operation is a slow
        library call, so product and sum are then rounded apart.
    half : bool
        Whether instructions convert float32 to half and back; without them that is a slow library call.
    lookup : bool
        Whether one instruction looks up a vector of float64 in a table of 16, or of float32 in one of 32.
    """

    lanes: int
    rows: int
    sums: int
    vectors: int
    fused: bool
    half: bool = False
    lookup: bool = False


def _target_features() -> set[str]:
    """Return the features Numba compiles for: its CPU_NAME and CPU_FEATURES settings win over the host."""
    settings: Any = config
    if settings.CPU_FEATURES is not None:
        names = str(settings.CPU_FEATURES).split(",")
        return {name[1:] for name in names if name.startswith("+")}
    if settings.CPU_NAME not in (None, "", "host", binding.get_host_cpu_name()):
        return set()
    return {name for name, present in binding.get_host_cpu_features().items() if present}


def _register_block() -> RegisterBlock:
    features = _target_features()
    if "avx512f" in features:
        return RegisterBlock(lanes=16, rows=8, sums=2, vectors=2, fused=True, half=True, lookup=True)
    if "avx2" in features and "fma" in features:
        return RegisterBlock(lanes=8, rows=4, sums=3, vectors=2, fused=True, half="f16c" in features)
    if "neon" in features:
        return RegisterBlock(lanes=4, rows=4, sums=4, vectors=4, fused=True)
    return RegisterBlock(lanes=4, rows=2, sums=2, vectors=2, fused=False)


BLOCK = _register_block()
