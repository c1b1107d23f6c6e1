import hashlib
from importlib import resources

import numpy as np
import pytest

from tilesim.errors import UnknownNameError
from tilesim.samples import load_sample


def test_sample_is_the_captured_tensors():
    q, k, v = load_sample()
    assert q.shape == (1, 9, 1024, 64)
    assert k.shape == v.shape == (1, 3, 1024, 64)
    assert {x.dtype for x in (q, k, v)} == {np.dtype(np.float16)}
    digest = hashlib.sha256(b"".join(x.tobytes() for x in (q, k, v))).hexdigest()
    assert digest == "7516f00635aa18b40a722d23b81792b2f64026541adcde9b1760530ba8662c80"


def test_sample_says_where_it_comes_from():
    note = (resources.files("tilesim") / "data" / "README.md").read_text(encoding="utf-8")
    assert "SmolLM2-135M" in note
    assert "Apache-2.0" in note


def test_unknown_sample_is_refused():
    with pytest.raises(UnknownNameError, match="smollm2-layer18"):
        load_sample("smollm2-layer81")
