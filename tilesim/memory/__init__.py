"""What fills each memory of the chip: buffers, plan and budget."""

from __future__ import annotations

from tilesim.memory.budget import Budget, MemoryBudget, Suggestion, budget
from tilesim.memory.buffers import REFERENCE_LAYOUT, Buffer, Layout
from tilesim.memory.full_row import first_unfit_length, full_row_budget

__all__ = [
    "REFERENCE_LAYOUT",
    "Budget",
    "Buffer",
    "Layout",
    "MemoryBudget",
    "Suggestion",
    "budget",
    "first_unfit_length",
    "full_row_budget",
]
