"""Rules of the code base that no single module can keep by itself."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tilesim

PACKAGE = Path(tilesim.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_and_functions_stay_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            length = node.end_lineno - node.lineno + 1 - docstring.count("\n")
            assert length <= 60, f"{node.name} has {length} lines without its docstring"


LOADED_BY_CALLS = ("engine", "plan")
"""Modules that load the kernels, and that others load when a call needs them."""


def test_numba_and_matplotlib_load_when_a_call_needs_them():
    loads_numba = ("numba", "llvmlite", "tilesim.kernels", *(f"tilesim.{name}" for name in LOADED_BY_CALLS))
    for path in MODULES:
        if path.parent.name == "kernels":
            continue
        banned = ("matplotlib",) if path.stem in LOADED_BY_CALLS else ("matplotlib", *loads_numba)
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            heavy = [name for name in names if f"{name}.".startswith(tuple(f"{one}." for one in banned))]
            assert not heavy, f"{path.name} imports {heavy} when it is loaded"


def test_no_fastmath_and_no_reassociation():
    for path in (PACKAGE / "kernels").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "fastmath":
                assert isinstance(node.value, ast.Constant)
                assert node.value.value is False
        assert "reassoc" not in path.read_text()


def test_kernels_build_on_numba_and_numpy_alone():
    allowed = {"numba", "llvmlite", "numpy", "tilesim"} | sys.stdlib_module_names
    for path in (PACKAGE / "kernels").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, path.name


def test_kernels_raise_nothing():
    for path in (PACKAGE / "kernels").glob("*.py"):
        raises = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)]
        assert not raises, f"{path.name} validates"


def test_import_loads_neither_numba_nor_matplotlib():
    code = (
        "import sys, tilesim; "
        "print([m for m in ('numba', 'llvmlite', 'matplotlib', 'rich', 'cyclopts') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_exist_and_have_docstrings():
    for name in tilesim.__all__:
        value = getattr(tilesim, name)
        if callable(value):
            assert value.__doc__, name
