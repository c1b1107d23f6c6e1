"""The real tensors that come with the package; their origin stands in ``data/README.md``."""

from __future__ import annotations

import math
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from tilesim._checks import one_of, whole_number
from tilesim.errors import ConfigError
from tilesim.workload import Workload

_FILES = {"smollm2-layer18": "smollm2_layer18_s1024.npz"}

SAMPLES = tuple(_FILES)
"""Names of the samples."""

MOST_ELEMENTS = 2**36
"""Elements of random tensors; more is taken for a slip of the keyboard."""

DEFAULT_SAMPLE = "smollm2-layer18"


def load_sample(
    name: str = DEFAULT_SAMPLE,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return queries, keys and values captured from a real model.

    Parameters
    ----------
    name : {"smollm2-layer18"}
        Layer 18 of SmolLM2-135M-Instruct reading 1,024 tokens, after rotary embedding.

    Returns
    -------
    q : float16 array (1, 9, 1024, 64)
    k, v : float16 arrays (1, 3, 1024, 64)

    Raises
    ------
    UnknownNameError
        For another name.

    Examples
    --------
    >>> q, k, v = load_sample()
    >>> q.shape, k.shape
    ((1, 9, 1024, 64), (1, 3, 1024, 64))
    """
    one_of("sample", name, SAMPLES)
    path = resources.files("tilesim") / "data" / _FILES[name]
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return arrays["q"], arrays["k"], arrays["v"]


def random_tensors(
    workload: Workload, seed: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return standard normal float16 tensors of the shapes of a workload."""
    rng = np.random.default_rng(whole_number("--seed", seed, least=0))
    query = (workload.batch, workload.heads, workload.seq_q, workload.head_dim)
    key = (workload.batch, workload.kv_heads, workload.seq_kv, workload.head_dim)
    value = (*key[:3], workload.head_dim_v)
    shapes = (query, key, value)
    if sum(math.prod(shape) for shape in shapes) > MOST_ELEMENTS:
        raise ConfigError("sizes", shapes, f"q, k and v must have at most {MOST_ELEMENTS:,} elements in all")
    q, k, v = (rng.standard_normal(shape, np.float32).astype(np.float16) for shape in shapes)
    return q, k, v
