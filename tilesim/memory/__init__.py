"""What fills each memory of the chip: buffers, plan and budget."""

from __future__ import annotations

from tilesim.memory.budget import (
    Budget,
    MemoryBudget,
    Suggestion,
    budget,
    first_unfit_length,
    full_row_budget,
)
from tilesim.memory.buffers import REFERENCE_LAYOUT, Buffer, Layout

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
