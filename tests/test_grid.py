import itertools

import pytest

from tilesim.errors import ConfigError, InputError, UnknownNameError
from tilesim.grid import AXES, Grid, load_grid, parse_axis


def test_product_in_the_documented_order():
    grid = Grid(axes={"slots": [1, 2], "softmax_rows": [8, 16], "kv_tile": [128, 256, 512]})
    assert len(grid) == 12
    got = [
        (point["softmax_rows"], point["kv_tile"], point["slots"])
        for point in map(grid.__getitem__, range(12))
    ]
    assert got == list(itertools.product([8, 16], [128, 256, 512], [1, 2]))
    assert list(grid[0]) == list(reversed(AXES))


def test_seq_stands_for_query_rows_and_keys_follow():
    point = Grid(axes={"seq": [64]})[0]
    assert (point["seq_q"], point["seq_kv"]) == (64, None)


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("kv_tile", "128,256", (128, 256)),
        ("kv_tile", "128:1024", (128, 256, 512, 1024)),
        ("kv_tile", "100:1000", (100, 200, 400, 800)),
        ("heads", "1:7:3,32", (1, 4, 7, 32)),
        ("query_rows", "auto, 64", (None, 64)),
        ("precision", "float,half-data-half-state", ("float", "half-data-half-state")),
        ("window", "7;7,3", ("7", "7,3")),
        ("softcap", "0, 30,12.5", (0.0, 30.0, 12.5)),
        ("align", "top-left,bottom-right", ("top-left", "bottom-right")),
        ("kv_splits", "1:8", (1, 2, 4, 8)),
    ],
)
def test_lists_and_ranges(name, text, values):
    assert parse_axis(name, text) == values


@pytest.mark.parametrize("text", ["", "1,,2", "a", "1:2:3:4", "4:2", "1:4:0", "-1", "1.5", "auto"])
def test_malformed_lists_name_the_option(text):
    with pytest.raises(ConfigError, match="--kv-tile"):
        parse_axis("kv_tile", text)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"kv_tiles": [1]}, "did you mean 'kv_tile'"),
        ({"kv_tile": []}, "at least one"),
        ({"kv_tile": [0]}, "kv_tile"),
        ({"kv_tile": ["x"]}, "kv_tile"),
        ({"kv_tile": [None]}, "must have a value"),
        ({"mask": [3]}, "text"),
        ({"softcap": [-1]}, "softcap.*>= 0"),
        ({"softcap": ["x"]}, "softcap.*>= 0"),
        ({"alibi": ["yes"]}, "alibi.*true or false"),
        ({"kv_splits": [0]}, "kv_splits"),
        ({"kv_tile": list(range(1, 5000)), "heads": list(range(1, 5000))}, "at most"),
    ],
)
def test_impossible_grids(axes, words):
    with pytest.raises(ConfigError, match=words):
        Grid(axes=axes)


def test_grid_from_a_file(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text('kv_tile = [128, 256]\nprecision = "float"\nwindow = ["7,3"]\nmask = "window"\n')
    grid = Grid(axes=load_grid(path))
    assert len(grid) == 2
    assert grid[1]["window"] == [7, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("heads = 4\nkv_tiles = [1]\n", r"line 2: key.*kv_tile"),
        ("heads = 4\n\nkv_tile = []\n", r"line 3: kv_tile"),
        ("heads = 4\nkv_tile = [0]\n", r"line 2: kv_tile.*0"),
        ("heads = 4\nkv_tile = [1 2]\n", r"TOML.*line 2"),
    ],
)
def test_malformed_files_name_key_and_line(tmp_path, text, words):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises((ConfigError, InputError, UnknownNameError), match=words):
        load_grid(path)


def test_digest_tells_grids_apart():
    one, two = Grid(axes={"kv_tile": [128]}), Grid(axes={"kv_tile": [256]})
    assert one.digest() != two.digest()
    assert one.digest() == Grid(axes={"kv_tile": (128,)}).digest()
    assert one.digest(1) != one.digest(2)
