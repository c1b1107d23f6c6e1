"""Every notebook runs from top to bottom, and none carries outputs."""

import json
from pathlib import Path

import matplotlib
import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    source = "\n".join("".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code")
    exec(compile(source, str(path), "exec"), {"__name__": "notebook"})
    assert len(plt.get_fignums()) == 1, "a notebook answers one question with one picture"
    plt.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path):
    for cell in cells(path):
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    last = cells(path)[-1]
    assert last["cell_type"] == "markdown"
    assert "".join(last["source"]).startswith("Try next")
