"""Which keys a query sees: causal, full and window masks as one interval of keys per query row.

Query row i stands at key position ``i + seq_kv - seq_q`` (aligned bottom-right, so that the last query sees
the last key) or at position i (aligned top-left). Bounds of a window are inclusive.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from tilesim._checks import is_whole_number, one_of, whole_number
from tilesim.errors import ConfigError

MASKS = ("causal", "full", "window")
ALIGNMENTS = ("bottom-right", "top-left")

UNBOUNDED = 2**62
"""A window side that never ends; far above any sequence length, far below the end of int64."""

Window = int | tuple[int | None, int | None] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Band:
    """A band of visible keys around each query's own position.

    Attributes
    ----------
    left, right : int
        Keys visible before and after the query's own position; `UNBOUNDED` for no limit.
    top_left : bool
        Whether query row 0 stands at key 0, instead of the last row at the last key.
    """

    left: int
    right: int
    top_left: bool = False

    def shift(self, seq_q: int, seq_kv: int) -> int:
        """Return the key position of query row 0."""
        return 0 if self.top_left else seq_kv - seq_q

    def key_range(
        self, rows: npt.NDArray[np.int64], seq_q: int, seq_kv: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the first visible key and the one after the last, for each query row.

        A row that sees nothing has an empty range (both bounds equal).
        """
        shift = self.shift(seq_q, seq_kv)
        stop = np.minimum(np.maximum(rows + (shift + min(self.right, UNBOUNDED) + 1), 0), seq_kv)
        start = np.maximum(rows + (shift - min(self.left, UNBOUNDED)), 0)
        return np.minimum(start, stop), stop


def normalise_window(window: Window) -> tuple[int | None, int | None] | None:
    """Return a window as (left, right); a single number N stands for (N, 0), None in a pair for no limit.

    Raises
    ------
    ConfigError
        If a bound is no integer >= 0.
    """
    if window is None:
        return None
    pair = (window, 0) if not isinstance(window, tuple | list) else tuple(window)
    if len(pair) != 2:
        raise ConfigError("window", window, "must be N or (left, right)")
    left, right = (None if side is None else whole_number("window", side, least=0) for side in pair)
    return left, right


def band(mask: str, window: Window = None, align: str = "bottom-right") -> Band:
    """Return the band of a named mask.

    Parameters
    ----------
    mask : {"causal", "full", "window"}
        Causal: keys up to the query's own position. Full: all. Window: `window` keys around it.
    window : int or (left, right), optional
        Needed for ``"window"`` and refused otherwise.
    align : {"bottom-right", "top-left"}
        Which corner the diagonal runs through where the lengths differ.

    Raises
    ------
    UnknownNameError
        For another mask or alignment.
    ConfigError
        If `window` is missing, malformed, or given with another mask.
    """
    one_of("mask", mask, MASKS)
    top_left = one_of("align", align, ALIGNMENTS) == "top-left"
    pair = normalise_window(window)
    if (mask == "window") != (pair is not None):
        rule = (
            'is needed with mask="window"' if mask == "window" else f'goes with mask="window", not {mask!r}'
        )
        raise ConfigError("window", window, rule)
    if mask == "full":
        return Band(left=UNBOUNDED, right=UNBOUNDED, top_left=top_left)
    if mask == "causal":
        return Band(left=UNBOUNDED, right=0, top_left=top_left)
    assert pair is not None
    left, right = (UNBOUNDED if side is None else min(side, UNBOUNDED) for side in pair)
    return Band(left=left, right=right, top_left=top_left)


def parse_window(text: str | None) -> Window:
    """Return the window that N or LEFT,RIGHT stands for; ``none`` is a side without limit.

    Raises
    ------
    ConfigError
        If the text is neither.
    """
    if text is None:
        return None
    rule = "must be N or LEFT,RIGHT: integers >= 0, or none for no limit"
    sides = [side.strip() for side in text.split(",")]
    if len(sides) > 2 or not all(side == "none" or is_whole_number(side) for side in sides):
        raise ConfigError("--window", text, rule)
    left, *right = (None if side == "none" else int(side) for side in sides)
    return (left, right[0] if right else 0)


def parse_key_lengths(text: str | None) -> tuple[int, ...] | None:
    """Return the key lengths that N,N,... stands for, one for each batch element.

    Raises
    ------
    ConfigError
        If a part is no integer >= 0.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(is_whole_number(part) for part in parts):
        raise ConfigError(
            "--key-lengths", text, "must be integers >= 0 separated by commas, one a batch element"
        )
    return tuple(int(part) for part in parts)
