"""Hypothesis strategies for problems small enough for the NumPy models."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import strategies as st

from tilesim.masks import Band, band


@dataclasses.dataclass(frozen=True)
class Problem:
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    mask: str
    window: tuple[int, int] | None
    kv_tile: int
    scale: float

    @property
    def band(self) -> Band:
        return band(self.mask, self.window)

    @property
    def visible(self) -> np.ndarray:
        """Bool array (seq_q, seq_kv), from the definition of the masks."""
        seq_q, seq_kv = self.q.shape[2], self.k.shape[2]
        own = np.arange(seq_q)[:, None] + seq_kv - seq_q
        key = np.arange(seq_kv)[None, :]
        if self.mask == "full":
            return np.ones((seq_q, seq_kv), bool)
        if self.mask == "causal":
            return key <= own
        left, right = self.window
        return (key >= own - left) & (key <= own + right)


@st.composite
def problems(draw, max_seq_q=24, max_seq_kv=150, max_dim=33, batches=2):
    batch = draw(st.integers(1, batches))
    kv_heads = draw(st.integers(1, 2))
    heads = kv_heads * draw(st.integers(1, 3))
    seq_q = draw(st.integers(1, max_seq_q))
    seq_kv = draw(st.integers(1, max_seq_kv))
    head_dim = draw(st.integers(1, max_dim))
    head_dim_v = draw(st.sampled_from([head_dim, head_dim, 1, 17]))
    mask = draw(st.sampled_from(["causal", "full", "window"]))
    window = (draw(st.integers(0, 40)), draw(st.integers(0, 40))) if mask == "window" else None
    seed = draw(st.integers(0, 2**32 - 1))
    spread = draw(st.sampled_from([0.1, 1.0, 4.0]))
    rng = np.random.default_rng(seed)
    shapes = ((heads, seq_q, head_dim), (kv_heads, seq_kv, head_dim), (kv_heads, seq_kv, head_dim_v))
    q, k, v = (rng.standard_normal((batch, *shape)).astype(np.float32) * spread for shape in shapes)
    kv_tile = draw(st.sampled_from([1, 5, 16, 31, 64, 100, 512]))
    scale = draw(st.sampled_from([head_dim**-0.5, 1.0, 0.0, -0.3]))
    return Problem(q=q, k=k, v=v, mask=mask, window=window, kv_tile=kv_tile, scale=scale)
