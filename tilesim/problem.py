"""One attention problem as a caller states it: tensors, what queries see, and the variant, all checked."""

from __future__ import annotations

import dataclasses
from typing import Any

from tilesim.masks import Window
from tilesim.tensors import DEFAULT_LAYOUT, Tensors, check_scale, check_tensors
from tilesim.variant import Variant, VariantOptions, check_variant, require_no_variant
from tilesim.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Checked input of `attention`, `simulate` and `attention_reference`.

    Attributes
    ----------
    tensors : Tensors
    workload : Workload
        All sizes and options that need no tensors.
    variant : Variant
        The other tensors.
    scale : float
        Factor of the scores.
    """

    tensors: Tensors
    workload: Workload
    variant: Variant
    scale: float


def read_problem(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any,
    window: Window,
    scale: float | None,
    layout: str = DEFAULT_LAYOUT,
    options: VariantOptions,
) -> Problem:
    """Check all that a caller hands in.

    Parameters
    ----------
    q, k, v : array_like
    mask : str or array_like
        An array stands for ``mask="full"`` with that `attn_mask`.
    window : int or (left, right), optional
    scale : float, optional
    layout : str
        Order of the axes of `q`, `k` and `v`; a problem holds (batch, heads, seq, head_dim).
    options : VariantOptions

    Raises
    ------
    InputError, DTypeError
        For tensors that are malformed or do not belong together.
    ConfigError, UnknownNameError
        For a bad mask, window or other option.
    """
    tensors = check_tensors(q, k, v, layout)
    if not isinstance(mask, str) and hasattr(mask, "shape"):
        require_no_variant("attn_mask", options.get("attn_mask"))
        mask, options = "full", {**options, "attn_mask": mask}
    workload, variant = check_variant(tensors.workload(mask, window), options)
    return Problem(
        tensors=tensors,
        workload=workload,
        variant=variant,
        scale=check_scale(scale, workload.head_dim),
    )
