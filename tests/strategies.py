"""Hypothesis strategies for problems small enough for the NumPy models."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from tilesim.masks import Band, band
from tilesim.tile import Tile


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


LAYOUTS = ("C", "Fortran", "sliced", "reversed", "read-only", "big-endian", "broadcast")
MASK_DTYPES = ("bool", "float16", "bfloat16", "float32", "float64")


def laid_out(array, layout):
    """Return the same numbers in another layout of memory."""
    if layout == "Fortran":
        return np.asfortranarray(array)
    if layout == "sliced":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
        wide[..., 1::2] = array
        return wide[..., 1::2]
    if layout == "reversed":
        return array[..., ::-1].copy()[..., ::-1]
    if layout == "broadcast":
        return np.broadcast_to(array, (2, *array.shape))[1]
    if layout == "big-endian" and array.dtype.name in ("float16", "float32", "float64"):
        return array.astype(array.dtype.newbyteorder(">"))
    array = array.copy()
    array.flags.writeable = layout != "read-only"
    return array


@dataclasses.dataclass(frozen=True)
class VariantProblem:
    """A problem with any options beside; `options` are keyword arguments of `attention`."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    options: dict
    kv_tile: int = 512
    kv_splits: int = 1

    @property
    def tensors(self):
        return self.q, self.k, self.v

    @property
    def arguments(self):
        return {"scale": self.scale, **self.options}

    @property
    def tile(self):
        return Tile(kv_tile=self.kv_tile, kv_splits=self.kv_splits)

    def head(self, batch, head):
        """Return what one head takes: keys, values, own positions, visible keys, bias, slope and sink.

        From the definitions: bias is float64 (seq_q, seq_kv), visible a bool array of that shape.
        """
        options, (seq_q, seq_kv) = self.options, (self.q.shape[2], self.k.shape[2])
        group = self.q.shape[1] // self.k.shape[1]
        lengths = options.get("key_lengths")
        length = seq_kv if lengths is None else lengths[batch]
        own = np.arange(seq_q)[:, None]
        if options.get("align", "bottom-right") == "bottom-right":
            own = own + length - seq_q
        key = np.arange(seq_kv)[None, :]
        left, right = options.get("window") or (10**6, 10**6)
        if options.get("mask", "full") == "causal":
            right = 0
        visible = (key >= own - left) & (key <= own + right) & (key < length)
        bias = np.zeros(visible.shape)
        mask = options.get("attn_mask")
        if mask is not None:
            mask = np.broadcast_to(mask, (*self.q.shape[:3], seq_kv))[batch, head]
            if mask.dtype == bool:
                visible = visible & mask
            else:
                bias = mask.astype(np.float64)
                visible = visible & ~np.isneginf(bias)
        slopes, sinks = options.get("alibi_slopes"), options.get("sinks")
        return HeadOfProblem(
            q=self.q[batch, head], k=self.k[batch, head // group], v=self.v[batch, head // group],
            distance=np.abs(own - key), visible=visible, bias=bias, scale=self.scale,
            softcap=options.get("softcap", 0.0),
            slope=0.0 if slopes is None else float(np.broadcast_to(slopes, self.q.shape[:2])[batch, head]),
            sink=-np.inf if sinks is None else float(np.broadcast_to(sinks, self.q.shape[1])[head]),
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class HeadOfProblem:
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    distance: np.ndarray
    visible: np.ndarray
    bias: np.ndarray
    scale: float
    softcap: float
    slope: float
    sink: float


@st.composite
def attention_masks(draw, rng, shape):
    """Draw a mask tensor: any kind, shape that broadcasts, dtype and layout; some rows hidden as a whole."""
    dtype = draw(st.sampled_from(MASK_DTYPES))
    kept = [draw(st.booleans()) for _ in range(3)]
    shape = tuple(size if keep else 1 for size, keep in zip(shape, [*kept, True], strict=True))
    hidden = rng.random(shape) < draw(st.sampled_from([0.1, 0.5, 0.95]))
    hidden |= rng.random((*shape[:-1], 1)) < 0.2
    if draw(st.booleans()):
        hidden[..., : draw(st.integers(0, shape[-1]))] = True
    if dtype == "bool":
        mask = ~hidden
    else:
        numbers = np.where(hidden, -np.inf, rng.standard_normal(shape) * 3)
        mask = numbers.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    if not kept[0] and draw(st.booleans()):
        mask = mask[0]
    return laid_out(mask, draw(st.sampled_from(LAYOUTS)))


@st.composite
def variant_options(draw, rng, batch, heads, seq_q, seq_kv):
    """Draw keyword arguments of `attention` beside tensors and scale."""
    options = {"mask": draw(st.sampled_from(["causal", "full", "window"]))}
    if options["mask"] == "window":
        options["window"] = (draw(st.integers(0, 40)), draw(st.integers(0, 40)))
    if draw(st.booleans()):
        options["align"] = draw(st.sampled_from(["top-left", "bottom-right"]))
    if draw(st.booleans()):
        options["key_lengths"] = [draw(st.integers(0, seq_kv)) for _ in range(batch)]
    if draw(st.booleans()):
        options["attn_mask"] = draw(attention_masks(rng, (batch, heads, seq_q, seq_kv)))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([0.0, 0.5, 4.0, 30.0]))
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(), (heads,), (batch, heads)]))
        options["alibi_slopes"] = rng.random(shape) * draw(st.sampled_from([0.1, 1.0]))
    if draw(st.booleans()):
        options["sinks"] = np.where(rng.random(heads) < 0.2, -np.inf, rng.standard_normal(heads) * 3)
    return options


@st.composite
def variant_problems(draw, max_seq_q=20, max_seq_kv=130, max_dim=20, batches=2, least=0):
    """Draw problems with all variants; axes may be empty if `least` is 0."""
    batch = draw(st.integers(least, batches))
    kv_heads = draw(st.integers(1, 2))
    heads = kv_heads * draw(st.integers(1, 3))
    seq_q, seq_kv = draw(st.integers(least, max_seq_q)), draw(st.integers(least, max_seq_kv))
    head_dim = draw(st.integers(least, max_dim))
    head_dim_v = draw(st.sampled_from([head_dim, least, 1, 17]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.1, 1.0, 3.0]))
    shapes = ((heads, seq_q, head_dim), (kv_heads, seq_kv, head_dim), (kv_heads, seq_kv, head_dim_v))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64, ml_dtypes.bfloat16]))
    q, k, v = ((rng.standard_normal((batch, *shape)) * spread).astype(dtype) for shape in shapes)
    return VariantProblem(
        q=q, k=k, v=v,
        scale=draw(st.sampled_from([max(head_dim, 1) ** -0.5, 1.0, 0.0, -0.3])),
        options=draw(variant_options(rng, batch, heads, seq_q, seq_kv)),
        kv_tile=draw(st.sampled_from([1, 5, 16, 31, 64, 100, 512])),
        kv_splits=draw(st.sampled_from([1, 1, 2, 3, 50])),
    )  # fmt: skip
