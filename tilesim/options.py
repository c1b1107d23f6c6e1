"""Command-line options as frozen dataclasses, and the configuration types they stand for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from cyclopts import Parameter, Token

from tilesim._checks import one_of, whole_number
from tilesim.dtypes import BFLOAT16, FLOAT, HALF
from tilesim.errors import ConfigError
from tilesim.input_files import NAMES, load_tensors, load_variant
from tilesim.masks import parse_key_lengths, parse_window
from tilesim.memory.layout import REFERENCE_LAYOUT, Layout
from tilesim.platform import DEFAULT_PLATFORM
from tilesim.precision import DEFAULT_PRECISION, PRECISIONS
from tilesim.samples import load_sample, random_tensors
from tilesim.tensors import DEFAULT_LAYOUT, LAYOUTS, in_layout
from tilesim.tile import Tile
from tilesim.variant import standard_slopes
from tilesim.workload import Workload

Tensor = npt.NDArray[Any]

DTYPES = {dtype.name: dtype for dtype in (HALF, BFLOAT16, FLOAT)}


def _whole(type_: Any, tokens: Sequence[Token]) -> int:
    text = tokens[0].value
    if re.fullmatch("[+-]?[0-9]+", text) is None:
        raise ValueError(f"got {text!r}; must be an integer.")
    return int(text)


Whole = Annotated[int, Parameter(converter=_whole)]
"""An integer option; without this 1.5 would silently count as 2."""


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Where the tensors come from.

    Attributes
    ----------
    input
        An .npz or .safetensors file with arrays q, k and v. Arrays attn_mask, alibi_slopes, sinks and
        key_lengths of an .npz file are used as well.
    q_name
        Name of the queries in that file. [default: q]
    k_name
        Name of the keys. [default: k]
    v_name
        Name of the values. [default: v]
    layout
        Axes of the tensors in that file and of the output: BNSD is (batch, heads, seq, head_dim), BSND is
        (batch, seq, heads, head_dim).
    """

    input: Path | None = None
    q_name: str | None = None
    k_name: str | None = None
    v_name: str | None = None
    layout: str = DEFAULT_LAYOUT

    def load(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return queries, keys and values of the file, None without one."""
        one_of("--layout", self.layout, LAYOUTS)
        if self.input is not None:
            return load_tensors(self.input, self.names)
        for name in NAMES:
            other = getattr(self, f"{name}_name")
            if other is not None:
                raise ConfigError(f"--{name}-name", other, "must be left out without --input")
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of queries, keys and values in the file."""
        given = {name: getattr(self, f"{name}_name") for name in NAMES}
        return tuple(name if other is None else other for name, other in given.items())


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """The attention problem.

    Attributes
    ----------
    batch
        Batch size. [default: 1]
    heads
        Query heads. [default: 32]
    kv_heads
        Key and value heads; must divide the query heads. [default: as many as query heads]
    seq
        Query rows and keys of each head, where not given apart.
    seq_q
        Query rows of each head. [default: 1024]
    seq_kv
        Keys of each head. [default: as many as query rows]
    head_dim
        Elements of one query, key or value row. [default: 128]
    mask
        What a query sees: causal, full or window. [default: causal]
    window
        Keys before and after the query's own position, N or LEFT,RIGHT; with --mask window.
    align
        Where queries stand among the keys if there are more or fewer: bottom-right, the last query at the
        last key, or top-left. [default: bottom-right]
    key_lengths
        Keys that count in each batch element, separated by commas.
    softcap
        Scaled scores s become softcap * tanh(s / softcap). [default: 0, none]
    alibi
        Subtract slope times distance from scores; without slopes in the input 2^(-8(h+1)/heads) for head h.
    sinks
        Give each head a logit that takes part in the sum; without sinks in the input 0.
    """

    batch: Whole | None = None
    heads: Whole | None = None
    kv_heads: Whole | None = None
    seq: Whole | None = None
    seq_q: Whole | None = None
    seq_kv: Whole | None = None
    head_dim: Whole | None = None
    mask: str | None = None
    window: str | None = None
    align: str = Workload.align
    key_lengths: str | None = None
    softcap: float = Workload.softcap
    alibi: bool = False
    sinks: bool = False

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes that were given, by the names of `Workload`."""
        given = {name: getattr(self, name) for name in ("batch", "heads", "kv_heads", "head_dim")}
        for name in ("seq_q", "seq_kv"):
            length = getattr(self, name)
            given[name] = self.seq if length is None else length
        return {name: whole_number(name, size) for name, size in given.items() if size is not None}

    @property
    def sight(self) -> dict[str, Any]:
        """What a query sees and what becomes of scores, by the names of `Workload` and `VariantOptions`."""
        window = parse_window(self.window)
        return {
            "mask": self.mask or ("causal" if window is None else "window"),
            "window": window,
            "align": self.align,
            "key_lengths": parse_key_lengths(self.key_lengths),
            "softcap": self.softcap,
        }

    def workload(self) -> Workload:
        """Return the workload; sizes not given take its defaults."""
        return Workload(**self.sizes, **self.sight, alibi=self.alibi, sinks=self.sinks)


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelOptions:
    """The kernel and the chip.

    Attributes
    ----------
    softmax_rows
        Score rows of one softmax_flash_v2 call (SOFTMAX_ROWS).
    kv_tile
        Keys of one score tile (KV_TILE).
    query_rows
        Query rows of one task. [default: the reference rule]
    slots
        Score, probability and partial slots.
    kv_splits
        Parts of the keys that are tasks of their own, combined at the end; for decoding.
    precision
        Precision policy: half-data-float-state, half-data-half-state, float-data-float-state,
        bfloat16-data-float-state or float.
    platform
        Chip: a name that `tilesim platforms` lists, or a .toml file.
    """

    softmax_rows: Whole = Tile.softmax_rows
    kv_tile: Whole = Tile.kv_tile
    query_rows: Whole | None = None
    slots: Whole = Tile.slots
    kv_splits: Whole = Tile.kv_splits
    precision: str = DEFAULT_PRECISION
    platform: str = DEFAULT_PLATFORM

    def tile(self) -> Tile:
        """Return the tile."""
        return Tile(
            softmax_rows=self.softmax_rows,
            kv_tile=self.kv_tile,
            query_rows=self.query_rows,
            slots=self.slots,
            kv_splits=self.kv_splits,
        )


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutOptions:
    """The other choices of a kernel author.

    Attributes
    ----------
    score_buffers
        Buffers of the score queue; 2 is double buffering.
    mask_buffers
        Buffers of the mask queue; 0 leaves it out.
    probability_buffers
        Buffers of the probability queue.
    partial_buffers
        Buffers of the queue of PV products.
    score_dtype
        Type of the scores: half, bfloat16 or float. [default: the data type of the policy]
    mask_dtype
        Type of the mask. [default: that of the scores]
    probability_dtype
        Type of the probabilities. [default: the data type of the policy]
    partial_dtype
        Type of the PV products. [default: the data type of the policy]
    accumulator_dtype
        Type of the accumulator. [default: the data type of the policy]
    state_mode
        State tensors with a 32-byte block a row (NORMAL) or one element (WITHOUT_BRC).
    temporary
        Size of the softmax temporary: minimum or maximum.
    framework_temporary
        Leave the softmax temporary to the framework instead of passing a shared one.
    generic_softmax
        Take the generic softmax even where the tile is a basic block.
    base_rows
        Rows of a base block of the matrix products.
    base_columns
        Columns of a base block.
    base_depth_bytes
        Bytes of a base block along the common axis.
    l1_buffers
        Base blocks per operand in L1.
    l0_buffers
        Base blocks per operand in L0A and L0B.
    l0c_buffers
        Base blocks of the product in L0C.
    """

    score_buffers: Whole = REFERENCE_LAYOUT.score_buffers
    mask_buffers: Whole = REFERENCE_LAYOUT.mask_buffers
    probability_buffers: Whole = REFERENCE_LAYOUT.probability_buffers
    partial_buffers: Whole = REFERENCE_LAYOUT.partial_buffers
    score_dtype: str | None = None
    mask_dtype: str | None = None
    probability_dtype: str | None = None
    partial_dtype: str | None = None
    accumulator_dtype: str | None = None
    state_mode: str = REFERENCE_LAYOUT.state_mode
    temporary: str = REFERENCE_LAYOUT.temporary
    framework_temporary: bool = False
    generic_softmax: bool = False
    base_rows: Whole = REFERENCE_LAYOUT.base_rows
    base_columns: Whole = REFERENCE_LAYOUT.base_columns
    base_depth_bytes: Whole = REFERENCE_LAYOUT.base_depth_bytes
    l1_buffers: Whole = REFERENCE_LAYOUT.l1_buffers
    l0_buffers: Whole = REFERENCE_LAYOUT.l0_buffers
    l0c_buffers: Whole = REFERENCE_LAYOUT.l0c_buffers

    def layout(self) -> Layout:
        """Return the layout."""
        fields = dataclasses.asdict(self)
        generic, framework = fields.pop("generic_softmax"), fields.pop("framework_temporary")
        for name, value in fields.items():
            if name.endswith("_dtype") and value is not None:
                fields[name] = DTYPES[one_of("--" + name.replace("_", "-"), value, DTYPES)]
        return Layout(**fields, basic_block=not generic, shared_temporary=not framework)


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is printed.

    Attributes
    ----------
    json
        Print one JSON document instead of tables.
    quiet
        No progress and no notes on standard error.
    """

    json: bool = False
    quiet: bool = False


COMPARED = tuple(name for name in PRECISIONS if name.startswith("half-data"))
"""Policies that `tilesim run` always compares: half data with float state and with half state."""


def tensors(
    source: InputOptions, options: WorkloadOptions, seed: int
) -> tuple[tuple[Tensor, Tensor, Tensor], str]:
    """Return queries, keys and values in the layout of `source`, and where they come from.

    From a file if one is given, else random ones if sizes are given, else the bundled sample.

    Raises
    ------
    InputError, DTypeError
        If the file cannot be used.
    ConfigError, UnknownNameError
        If sizes are malformed or contradict the file, or an option of the source is wrong.
    """
    loaded = source.load()
    if loaded is not None:
        _agree(options.sizes, loaded, source)
        return loaded, str(source.input)
    if options.sizes:
        made, origin = random_tensors(options.workload(), seed), f"random normal, seed {seed}"
    else:
        made, origin = load_sample(), "bundled sample: SmolLM2-135M layer 18, 1,024 tokens"
    q, k, v = (in_layout(x, source.layout) for x in made)
    return (q, k, v), origin


def variant(source: InputOptions, options: WorkloadOptions, q: Tensor) -> tuple[dict[str, Any], list[str]]:
    """Return what `simulate` takes beside tensors and sizes, and notes on where it comes from.

    Raises
    ------
    InputError
        If the file cannot be used.
    ConfigError
        If key lengths stand in the file and among the options.
    """
    found = {} if source.input is None else load_variant(source.input, source.names)
    notes = [f"{source.input} holds {', '.join(found)}, used as well"] if found else []
    if "key_lengths" in found and options.key_lengths is not None:
        raise ConfigError("--key-lengths", options.key_lengths, f"must be left out: {source.input} has some")
    heads = in_layout(q, source.layout).shape[1] if q.ndim == 4 else 1
    if options.alibi and "alibi_slopes" not in found:
        found["alibi_slopes"] = standard_slopes(heads)
    if options.sinks and "sinks" not in found:
        found["sinks"] = np.zeros(heads)
    return {**options.sight, **found}, notes


def _agree(sizes: dict[str, int], loaded: tuple[Tensor, Tensor, Tensor], source: InputOptions) -> None:
    if any(x.ndim != 4 for x in loaded):
        return  # refused later, with the better message
    q, k, _ = (in_layout(x, source.layout) for x in loaded)
    seen = dict(zip(("batch", "heads", "seq_q", "head_dim"), q.shape, strict=True))
    seen |= {"kv_heads": k.shape[1], "seq_kv": k.shape[2]}
    for name, size in sizes.items():
        if size != seen[name]:
            option = "--" + name.replace("_", "-")
            raise ConfigError(option, size, f"must be left out or be {seen[name]}, as in {source.input}")
