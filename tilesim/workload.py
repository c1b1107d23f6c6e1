"""The attention problem: how many heads, how long, how wide, and what each query sees."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tilesim._checks import one_of, whole_number
from tilesim.errors import ConfigError
from tilesim.masks import Band, Window, band, normalise_window

MASK_TENSORS = ("bool", "additive")
"""Kinds of mask tensors: True = attend, or numbers added to the scaled scores."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """Shapes, mask and variant of one attention call; holds no tensors.

    Attributes
    ----------
    batch, heads : int
        Batch size and query heads.
    kv_heads : int
        Key and value heads; None means `heads`. Query head h reads key head ``h // (heads // kv_heads)``.
    seq_q, seq_kv : int
        Query rows and keys of each head; `seq_kv` None means `seq_q`.
    head_dim, head_dim_v : int
        Elements of one query or key row, and of one value row; `head_dim_v` None means `head_dim`.
    mask : {"causal", "full", "window"}
        What a query sees.
    window : int or (left, right), optional
        Keys before and after the query's own position, both inclusive; only with ``mask="window"``.
    align : {"bottom-right", "top-left"}
        Where queries stand among the keys: the last query at the last key, or the first at the first.
    key_lengths : tuple of int, optional
        Keys that count in each batch element, at most `seq_kv`; the last query stands at the last of them.
    attn_mask : {"bool", "additive"}, optional
        Kind of the mask tensor that the kernel reads beside `mask`.
    softcap : float
        Scaled scores s become ``softcap * tanh(s / softcap)``; 0 leaves them as they are.
    alibi : bool
        Whether ``-slope * distance`` is added to scores.
    sinks : bool
        Whether each head has a logit that takes part in the sum but has no value.

    Raises
    ------
    ConfigError
        If a size is no integer in its range, `heads` is no multiple of `kv_heads`, mask and window disagree
        or another field breaks its rule.
    """

    batch: int = 1
    heads: int = 32
    kv_heads: int = None  # type: ignore[assignment]
    seq_q: int = 1024
    seq_kv: int = None  # type: ignore[assignment]
    head_dim: int = 128
    head_dim_v: int = None  # type: ignore[assignment]
    mask: str = "causal"
    window: Window = None
    align: str = "bottom-right"
    key_lengths: tuple[int, ...] | None = None
    attn_mask: str | None = None
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False

    def __post_init__(self) -> None:
        defaults = {"kv_heads": self.heads, "seq_kv": self.seq_q, "head_dim_v": self.head_dim}
        for name in ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "head_dim_v"):
            value = getattr(self, name)
            value = defaults.get(name, value) if value is None else value
            least = 1 if name.endswith("heads") else 0
            object.__setattr__(self, name, whole_number(f"Workload.{name}", value, least=least))
        if self.heads % self.kv_heads:
            raise ConfigError(
                "Workload.kv_heads", self.kv_heads, f"must divide heads, which is {self.heads}, without rest"
            )
        object.__setattr__(self, "window", normalise_window(self.window))
        band(self.mask, self.window, self.align)
        object.__setattr__(self, "key_lengths", self._checked_lengths())
        if self.attn_mask is not None:
            one_of("Workload.attn_mask", self.attn_mask, MASK_TENSORS)
        object.__setattr__(self, "softcap", check_softcap("Workload.softcap", self.softcap))
        for name in ("alibi", "sinks"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"Workload.{name}", getattr(self, name), "must be True or False")

    def _checked_lengths(self) -> tuple[int, ...] | None:
        if self.key_lengths is None:
            return None
        where = "Workload.key_lengths"
        if not isinstance(self.key_lengths, Iterable) or isinstance(self.key_lengths, str):
            raise ConfigError(where, self.key_lengths, "must hold one length per batch element")
        lengths = tuple(
            whole_number(f"{where}[{place}]", length, least=0, most=self.seq_kv)
            for place, length in enumerate(self.key_lengths)
        )
        if len(lengths) != self.batch:
            raise ConfigError(
                where, self.key_lengths, f"must hold {self.batch} lengths, one per batch element"
            )
        return lengths

    @property
    def band(self) -> Band:
        """The visible keys around each query's own position."""
        return band(self.mask, self.window, self.align)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Keys that count in each batch element."""
        return (self.seq_kv,) * self.batch if self.key_lengths is None else self.key_lengths

    @property
    def is_plain(self) -> bool:
        """Whether nothing happens to scores but scaling and the mask of `mask`."""
        return self.attn_mask is None and not self.softcap and not self.alibi and not self.sinks

    @property
    def visible_pairs(self) -> int:
        """Query-key pairs that count, over all heads and the batch; a mask tensor may hide more of them."""
        rows = np.arange(self.seq_q, dtype=np.int64)
        pairs = 0
        for length, elements in self.length_counts().items():
            start, stop = self.band.key_range(rows, self.seq_q, length)
            pairs += elements * int((stop - start).sum())
        return self.heads * pairs

    def seen_by_groups(
        self, first_rows: npt.NDArray[np.int64], last_rows: npt.NDArray[np.int64], length: int
    ) -> tuple[npt.NDArray[np.int64], ...]:
        """Return which keys groups of neighbouring rows see, by the named mask, of the first `length` ones.

        Parameters
        ----------
        first_rows, last_rows : int64 arrays
            First and last row of each group.
        length : int

        Returns
        -------
        start, start_of_all, stop_of_all, stop : int64 arrays
            Some row sees a key in ``start ... stop - 1``, and every key there is seen by some row; every row
            sees those in ``start_of_all ... stop_of_all - 1``. Either may be empty.
        """
        # Both bounds of a band never fall from one row to the next, and grow by one where they are not cut.
        start, stop_of_all = self.band.key_range(first_rows, self.seq_q, length)
        start_of_all, stop = self.band.key_range(last_rows, self.seq_q, length)
        return start, start_of_all, stop_of_all, stop

    def length_counts(self) -> dict[int, int]:
        """Return how many batch elements have each number of keys."""
        if self.key_lengths is None:
            return {self.seq_kv: self.batch}
        return {length: self.key_lengths.count(length) for length in dict.fromkeys(self.key_lengths)}

    @property
    def useful_flops(self) -> int:
        """Floating-point operations on visible pairs: 2 * pairs * (head_dim + head_dim_v)."""
        return self.flops(self.visible_pairs)

    def flops(self, pairs: int) -> int:
        """Return the floating-point operations on that many query-key pairs."""
        return 2 * pairs * (self.head_dim + self.head_dim_v)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        fields = dataclasses.asdict(self)
        fields["window"] = None if self.window is None else list(normalise_window(self.window) or ())
        fields["key_lengths"] = None if self.key_lengths is None else list(self.key_lengths)
        return fields


def check_softcap(where: str, softcap: Any) -> float:
    """Return the softcap as a float.

    Raises
    ------
    ConfigError
        If it is no finite number >= 0.
    """
    rule = "must be a finite number >= 0; 0 means none"
    if isinstance(softcap, bool | np.bool_ | str | bytes | None):
        raise ConfigError(where, softcap, rule)
    try:
        value = float(softcap)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(where, type(softcap).__name__, rule) from None
    if not math.isfinite(value) or value < 0:
        raise ConfigError(where, softcap, rule)
    return value
