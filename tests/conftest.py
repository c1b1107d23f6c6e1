import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tilesim import cli

settings.register_profile("tilesim", deadline=None, derandomize=True, print_blob=True, max_examples=100)
settings.register_profile(
    "fuzz", deadline=None, derandomize=False, print_blob=True, max_examples=20_000,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
settings.load_profile("tilesim")


def pytest_addoption(parser):
    parser.addoption(
        "--fuzz", action="store_true", help="draw examples for about ten minutes, new ones each time"
    )
    parser.addoption("--portability", action="store_true", help="run tests again as on other processors")


def pytest_configure(config):
    if config.getoption("--fuzz"):
        settings.load_profile("fuzz")


@pytest.fixture
def rng():
    return np.random.default_rng(20240)


@pytest.fixture
def tilesim_cli(capsys):
    """Run a command line in this process: status, standard output, standard error."""

    def run(*arguments):
        status = cli.call([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run
