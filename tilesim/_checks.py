"""Checks of single configuration values, shared by all that takes some."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any

from tilesim.errors import ConfigError, UnknownNameError, did_you_mean


def whole_number(where: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """Return `value` as a Python int, so that products of sizes never wrap as NumPy integers do.

    Raises
    ------
    ConfigError
        If `value` is no integer (booleans count as none) or lies outside ``[least, most]``.
    """
    rule = f"must be an integer >= {least}" if most is None else f"must be an integer from {least} to {most}"
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        raise ConfigError(where, value, rule)
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(where, value, rule) from None
    if number < least or (most is not None and number > most):
        raise ConfigError(where, value, rule)
    return number


def is_whole_number(text: str) -> bool:
    """Return whether `text` writes an integer >= 0 that any size can have: at most 18 digits."""
    return text.isascii() and text.isdigit() and len(text.lstrip("0")) <= 18


def one_of(where: str, value: Any, allowed: Iterable[str]) -> str:
    """Return `value` if it is one of `allowed`.

    Raises
    ------
    UnknownNameError
        With the closest allowed name.
    """
    names = tuple(allowed)
    if not isinstance(value, str) or value not in names:
        rule = "must be one of " + ", ".join(names)
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        raise UnknownNameError(where, value, rule, "" if hint.startswith("known") else hint)
    return value


def check_numba_threads() -> None:
    """Refuse a setting with which Numba cannot be imported: it would say so with a bare ValueError.

    Raises
    ------
    ConfigError
        If the environment variable NUMBA_NUM_THREADS is below 1.
    """
    threads = os.environ.get("NUMBA_NUM_THREADS", "1").strip()
    try:
        number = int(threads)
    except ValueError:  # what is no number at all Numba passes over
        return
    if number < 1:
        raise ConfigError("NUMBA_NUM_THREADS", threads, "must be an integer >= 1")
