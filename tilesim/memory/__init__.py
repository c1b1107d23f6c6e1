"""What fills each memory of the chip: buffers, plan and budget."""

from __future__ import annotations

from tilesim.memory.budget import Budget, MemoryBudget, Suggestion, budget
from tilesim.memory.buffers import Buffer
from tilesim.memory.footprint import Footprint, footprint
from tilesim.memory.full_row import first_unfit_length, full_row_budget
from tilesim.memory.layout import REFERENCE_LAYOUT, Layout
from tilesim.memory.measure import MeasuredLaunch, measure_memory

__all__ = [
    "REFERENCE_LAYOUT",
    "Budget",
    "Buffer",
    "Footprint",
    "Layout",
    "MeasuredLaunch",
    "MemoryBudget",
    "Suggestion",
    "budget",
    "first_unfit_length",
    "footprint",
    "full_row_budget",
    "measure_memory",
]
