"""Sizes, ratios and times: aligning, parsing and formatting, always with the unit in the text."""

from __future__ import annotations

import re

from tilesim.errors import ConfigError

_BYTE_UNITS = {"": 1, "B": 1, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}


def ceil_div(a: int, b: int) -> int:
    """Return the integer ceiling of ``a / b``."""
    return -(-a // b)


def align_up(size: int, unit: int) -> int:
    """Round `size` up to a multiple of `unit`."""
    return ceil_div(size, unit) * unit


def format_bytes(size_bytes: int) -> str:
    """Format a size as exact bytes and, from 1 KiB on, in KiB, MiB or GiB.

    Examples
    --------
    >>> format_bytes(18688)
    '18,688 B (18.25 KiB)'
    """
    exact = f"{size_bytes:,} B"
    for suffix, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if abs(size_bytes) >= factor:
            return f"{exact} ({size_bytes / factor:.2f} {suffix})"
    return exact


def format_size(size_bytes: int) -> str:
    """Format a size shortly, in the largest unit that keeps it above one: ``'192 KiB'``."""
    for suffix, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if abs(size_bytes) >= factor:
            return f"{size_bytes / factor:.2f}".rstrip("0").rstrip(".") + f" {suffix}"
    return f"{size_bytes} B"


def parse_bytes(text: str | int) -> int:
    """Return the number of bytes in a text such as ``'192 KiB'``, ``'196608'`` or ``'0.5 MiB'``.

    Raises
    ------
    ConfigError
        For a unit other than B, KiB, MiB and GiB (KB is refused: it is read as 1,000 by some and 1,024
        by others), a negative size or one that is no whole number of bytes.
    """
    if isinstance(text, int):
        return text
    rule = "must be a size in B, KiB, MiB or GiB, such as 192KiB"
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match.group(2).upper() not in _BYTE_UNITS:
        raise ConfigError("size", text, rule)
    size = float(match.group(1)) * _BYTE_UNITS[match.group(2).upper()]
    if size != int(size):
        raise ConfigError("size", text, "must be a whole number of bytes")
    return int(size)


def format_seconds(seconds: float) -> str:
    """Format a duration in the unit that reads best: ``'3.2 ms'``."""
    for suffix, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {suffix}"
    return f"{seconds / 1e-9:.3g} ns"
