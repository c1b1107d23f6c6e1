import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("tilesim", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tilesim")


@pytest.fixture
def rng():
    return np.random.default_rng(20240)
