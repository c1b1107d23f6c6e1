import dataclasses
import pickle

import pytest

import tilesim as ts
from tilesim.dtypes import BFLOAT16, FLOAT, HALF
from tilesim.precision import precision


def test_the_five_policies():
    types = {name: (p.data, p.state) for name, p in ts.PRECISIONS.items()}
    assert types == {
        "half-data-float-state": (HALF, FLOAT),
        "half-data-half-state": (HALF, HALF),
        "float-data-float-state": (FLOAT, FLOAT),
        "bfloat16-data-float-state": (BFLOAT16, FLOAT),
        "float": (FLOAT, FLOAT),
    }
    assert all(p.name == name for name, p in ts.PRECISIONS.items())


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        ts.PRECISIONS["other"] = ts.PRECISIONS["float"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        ts.PRECISIONS["float"].data = HALF


@pytest.mark.parametrize("pair", [(FLOAT, HALF), (BFLOAT16, BFLOAT16), (HALF, BFLOAT16)])
def test_pairs_the_operator_does_not_know(pair):
    with pytest.raises(ts.ConfigError, match=pair[0].name):
        ts.Precision(name="own", data=pair[0], state=pair[1])


def test_lookup():
    own = ts.Precision(name="own", data=HALF, state=FLOAT)
    assert precision(own) is own
    assert precision("float") is ts.PRECISIONS["float"]
    with pytest.raises(ts.UnknownNameError, match=r"did you mean 'half-data-half-state'\?"):
        precision("half-data-half-stat")
    with pytest.raises(ts.UnknownNameError, match="must be one of"):
        precision(3)


def test_policies_pickle():
    for policy in ts.PRECISIONS.values():
        assert pickle.loads(pickle.dumps(policy)) == policy
