"""The errors a user can meet; each names what, where, the value seen and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilesim.memory.budget import Budget


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"did you mean 'x'?"`` for the closest known name, or the whole list when none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(names)


class TilesimError(ValueError):
    """Base of every error tilesim raises on purpose.

    Attributes
    ----------
    where : str
        The field, operand, option or file that is wrong.
    value : object
        The value that was seen.
    rule : str
        What would be right.
    hint : str
        What to try next; may be empty.
    """

    def __init__(self, where: str, value: Any, rule: str, hint: str = "") -> None:
        super().__init__(where, value, rule, hint)
        self.where = where
        self.value = value
        self.rule = rule
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: got {self.value!r}; {self.rule}"
        return f"{text} ({self.hint})" if self.hint else text


class ConfigError(TilesimError):
    """A field of a workload, tile, precision or platform breaks its rule."""


class UnknownNameError(ConfigError):
    """A policy, platform, key or option that does not exist."""


class InputError(TilesimError):
    """Tensors or files handed in cannot be used."""


class DTypeError(InputError, TypeError):
    """A tensor has an element type that the operation does not accept."""


class OutputError(TilesimError):
    """A result cannot be written where the user asked for it."""


class BudgetError(TilesimError):
    """A configuration does not fit a memory of the chip.

    Attributes
    ----------
    budget : Budget
        The whole budget: buffers, required, available and excess bytes.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        super().__init__("budget", budget.used_bytes, "")
        self.args = (budget,)

    def __str__(self) -> str:
        return self.budget.explain()
