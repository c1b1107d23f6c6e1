"""The real tensors that come with the package; their origin stands in ``data/README.md``."""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from tilesim._checks import one_of

_FILES = {"smollm2-layer18": "smollm2_layer18_s1024.npz"}

SAMPLES = tuple(_FILES)
"""Names of the samples."""

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
