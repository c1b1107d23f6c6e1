import pickle
from importlib import resources

import pytest

import tilesim as ts
from tilesim.platform import MEMORIES

KIB = 1024


def packaged_text():
    return (resources.files("tilesim") / "platforms" / "ascend910b4.toml").read_text()


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "own.toml"
        path.write_text(text)
        return str(path)

    return write


def test_ascend910b4():
    chip = ts.platform("ascend910b4")
    sizes = {name: chip.memories[name].capacity_bytes for name in MEMORIES}
    assert sizes == {
        "UB": 192 * KIB,
        "L1": 512 * KIB,
        "L0A": 64 * KIB,
        "L0B": 64 * KIB,
        "L0C": 128 * KIB,
        "GM": 32 * KIB**3,
    }
    assert (chip.cube_cores, chip.vector_cores, chip.vector_cores_per_cube) == (20, 40, 2)
    assert chip.memories["UB"].available_bytes == 196352


@pytest.mark.parametrize("name", ts.platforms())
def test_every_figure_has_a_source(name):
    chip = ts.platform(name)
    assert chip.name == name
    assert len(chip.figures) >= 2 + len(MEMORIES)
    assert all(figure.source for figure in chip.figures.values())


def test_an_own_chip(write):
    path = write(packaged_text().replace("196608", "131072").replace('"ascend910b4"', '"mine"'))
    chip = ts.platform(path)
    assert chip.name == "mine"
    assert chip.memories["UB"].capacity_bytes == 131072


def test_platforms_pickle_and_cannot_be_changed():
    chip = ts.platform("ascend910b4")
    assert pickle.loads(pickle.dumps(chip)) == chip
    with pytest.raises(TypeError):
        chip.memories["UB"] = None


def test_unknown_name_comes_with_a_suggestion():
    with pytest.raises(ts.UnknownNameError, match=r"did you mean 'ascend910b4'\?"):
        ts.platform("ascend910b")
    with pytest.raises(ts.UnknownNameError):
        ts.platform("gpu")
    with pytest.raises(ts.UnknownNameError):
        ts.platform(None)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("capacity_bytes", "capacity_byte", ["capacity_byte", "did you mean 'capacity_bytes'"]),
        ("[memory.L0A]", "[memory.L0X]", ["L0X"]),
        ("value = 196608", "value = -1", ["memory.UB.capacity_bytes", "-1"]),
        ("value = 196608", "value = 1.5", ["memory.UB.capacity_bytes", "1.5"]),
        ("value = 256", "value = 999999", ["reserved_bytes", "999999"]),
        ("value = 40", "value = 41", ["vector_cores", "41", "20"]),
        ("[cores]", "[core]", ["core", "did you mean 'cores'"]),
        ('name = "ascend910b4"', "", ["name"]),
        ("value = 20,", "", ["cores.cube"]),
        ("[cores]", "[cores", ["TOML"]),
    ],
)
def test_broken_files_name_file_and_key(write, old, new, words):
    path = write(packaged_text().replace(old, new, 1))
    with pytest.raises(ts.TilesimError) as error:
        ts.platform(path)
    for word in (path, *words):
        assert word in str(error.value) or word == path


def test_a_missing_memory_or_source(write):
    text = packaged_text()
    with pytest.raises(ts.ConfigError, match="lacks GM"):
        ts.platform(write(text[: text.index("[memory.GM]")]))
    start = text.index(", source")
    with pytest.raises(ts.ConfigError, match="source"):
        ts.platform(write(text[:start] + text[text.index(" }", start) :]))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ts.InputError, match="No such file"):
        ts.platform(str(tmp_path / "none.toml"))
    (tmp_path / "dir.toml").mkdir()
    with pytest.raises(ts.InputError, match="platform file"):
        ts.platform(tmp_path / "dir.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ts.InputError, match="platform file"):
        ts.platform(tmp_path / "binary.toml")
