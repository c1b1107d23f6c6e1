"""The softmax_flash_v2 operator: parameters, tiling, checks and the operator itself."""

from __future__ import annotations

from tilesim.softmax.diagnostics import Diagnostic, check_softmax_flash_v2
from tilesim.softmax.flash_v2 import softmax_flash_v2
from tilesim.softmax.params import SoftmaxConfig, SoftmaxMode, SoftMaxShapeInfo, SoftmaxTiling
from tilesim.softmax.tiling import is_basic_block, softmax_flash_v2_tiling, softmax_flash_v2_tmp_bytes

__all__ = [
    "Diagnostic",
    "SoftMaxShapeInfo",
    "SoftmaxConfig",
    "SoftmaxMode",
    "SoftmaxTiling",
    "check_softmax_flash_v2",
    "is_basic_block",
    "softmax_flash_v2",
    "softmax_flash_v2_tiling",
    "softmax_flash_v2_tmp_bytes",
]
