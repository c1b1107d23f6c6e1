"""tilesim: tiled FlashAttention-2 attention on an Ascend-like AI core, simulated on a CPU.

Plan what fills the Unified Buffer, run the tiled kernel on real tensors with the chip's rounding, and
compare precision policies against a float64 reference.
"""

from __future__ import annotations

from tilesim.advise import Advice, advise, pareto_front
from tilesim.attention import attention
from tilesim.compare import ErrorStats
from tilesim.effects import Effects
from tilesim.errors import (
    BudgetError,
    ConfigError,
    DTypeError,
    InputError,
    OutputError,
    TilesimError,
    UnknownNameError,
)
from tilesim.grid import Grid
from tilesim.memory import (
    Budget,
    Footprint,
    Layout,
    MeasuredLaunch,
    budget,
    first_unfit_length,
    footprint,
    full_row_budget,
    measure_memory,
)
from tilesim.platform import Platform, platform, platforms
from tilesim.precision import PRECISIONS, Precision
from tilesim.reference import attention_reference
from tilesim.result import SimulationResult, Throughput
from tilesim.simulate import simulate
from tilesim.softmax import (
    Diagnostic,
    SoftmaxConfig,
    SoftmaxMode,
    SoftMaxShapeInfo,
    SoftmaxTiling,
    check_softmax_flash_v2,
    is_basic_block,
    softmax_flash_v2,
    softmax_flash_v2_tiling,
    softmax_flash_v2_tmp_bytes,
)
from tilesim.sweep import SweepTable, sweep
from tilesim.tile import Tile, TileCounts
from tilesim.timing import DeviceTime, Timeline, estimate, timeline
from tilesim.variant import VariantOptions
from tilesim.workload import Workload

__version__ = "0.1.0"

__all__ = [
    "PRECISIONS",
    "Advice",
    "Budget",
    "BudgetError",
    "ConfigError",
    "DTypeError",
    "DeviceTime",
    "Diagnostic",
    "Effects",
    "ErrorStats",
    "Footprint",
    "Grid",
    "InputError",
    "Layout",
    "MeasuredLaunch",
    "OutputError",
    "Platform",
    "Precision",
    "SimulationResult",
    "SoftMaxShapeInfo",
    "SoftmaxConfig",
    "SoftmaxMode",
    "SoftmaxTiling",
    "SweepTable",
    "Throughput",
    "Tile",
    "TileCounts",
    "TilesimError",
    "Timeline",
    "UnknownNameError",
    "VariantOptions",
    "Workload",
    "advise",
    "attention",
    "attention_reference",
    "budget",
    "check_softmax_flash_v2",
    "estimate",
    "first_unfit_length",
    "footprint",
    "full_row_budget",
    "is_basic_block",
    "measure_memory",
    "pareto_front",
    "platform",
    "platforms",
    "simulate",
    "softmax_flash_v2",
    "softmax_flash_v2_tiling",
    "softmax_flash_v2_tmp_bytes",
    "sweep",
    "timeline",
]
