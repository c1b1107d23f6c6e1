"""The attention problem: how many heads, how long, how wide, and what each query sees."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tilesim._checks import whole_number
from tilesim.errors import ConfigError
from tilesim.masks import Band, Window, band, normalise_window


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """Shapes and mask of one attention call; holds no tensors.

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
        What a query sees, aligned so that the last query sees the last key.
    window : int or (left, right), optional
        Keys before and after the query's own position, both inclusive; only with ``mask="window"``.

    Raises
    ------
    ConfigError
        If a size is no integer >= 1, `heads` is no multiple of `kv_heads`, or mask and window disagree.
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

    def __post_init__(self) -> None:
        defaults = {"kv_heads": self.heads, "seq_kv": self.seq_q, "head_dim_v": self.head_dim}
        for name in ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "head_dim_v"):
            value = getattr(self, name)
            value = defaults.get(name, value) if value is None else value
            object.__setattr__(self, name, whole_number(f"Workload.{name}", value))
        if self.heads % self.kv_heads:
            raise ConfigError(
                "Workload.kv_heads", self.kv_heads, f"must divide heads, which is {self.heads}, without rest"
            )
        object.__setattr__(self, "window", normalise_window(self.window))
        band(self.mask, self.window)

    @property
    def band(self) -> Band:
        """The visible keys around each query's own position."""
        return band(self.mask, self.window)

    @property
    def visible_pairs(self) -> int:
        """Query-key pairs that count, over all heads and the batch."""
        start, stop = self.band.key_range(np.arange(self.seq_q, dtype=np.int64), self.seq_q, self.seq_kv)
        return self.batch * self.heads * int((stop - start).sum())

    @property
    def useful_flops(self) -> int:
        """Floating-point operations on visible pairs: 2 * pairs * (head_dim + head_dim_v)."""
        return 2 * self.visible_pairs * (self.head_dim + self.head_dim_v)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        fields = dataclasses.asdict(self)
        fields["window"] = None if self.window is None else list(normalise_window(self.window) or ())
        return fields
