"""Precision policies: which type each tensor of the kernel has, hence where values are rounded."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

from tilesim.dtypes import BFLOAT16, FLOAT, HALF, DType
from tilesim.errors import ConfigError, UnknownNameError, did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """The element types of one attention kernel.

    A value is rounded to the type of the tensor that stores it, and nowhere else; sums of products and
    all arithmetic inside the softmax are float.

    Attributes
    ----------
    name : str
        Stable name of the policy.
    data : DType
        Queries, keys, values, scores, probabilities, the rescale factor ``exp_max``, partial products,
        accumulator and output.
    state : DType
        Running row maximum and row sum.
    description : str
        One line for people.

    Raises
    ------
    ConfigError
        If the two types are not a pair the operator knows: (half, half), (half, float),
        (float, float) and, in tilesim only, (bfloat16, float).
    """

    name: str
    data: DType
    state: DType
    description: str = ""

    def __post_init__(self) -> None:
        pair = (getattr(self.data, "name", self.data), getattr(self.state, "name", self.state))
        known = (("half", "half"), ("half", "float"), ("float", "float"), ("bfloat16", "float"))
        if pair not in known:
            rule = "(data, state) must be one of " + ", ".join(f"({d}, {s})" for d, s in known)
            raise ConfigError("Precision.data, Precision.state", pair, rule)

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as JSON types."""
        return {"name": self.name, "data": self.data.name, "state": self.state.name}


def _policies(*policies: Precision) -> MappingProxyType[str, Precision]:
    return MappingProxyType({policy.name: policy for policy in policies})


PRECISIONS = _policies(
    Precision(
        name="half-data-float-state",
        data=HALF,
        state=FLOAT,
        description="the reference kernel: half tensors, float running max and sum",
    ),
    Precision(
        name="half-data-half-state",
        data=HALF,
        state=HALF,
        description="half everywhere, running max and sum included",
    ),
    Precision(
        name="float-data-float-state",
        data=FLOAT,
        state=FLOAT,
        description="the same kernel with float tensors: no rounding below binary32",
    ),
    Precision(
        name="bfloat16-data-float-state",
        data=BFLOAT16,
        state=FLOAT,
        description="bfloat16 tensors, float running max and sum",
    ),
    Precision(
        name="float",
        data=FLOAT,
        state=FLOAT,
        description="plain FlashAttention-2 in binary32, rounded nowhere else",
    ),
)
"""Policy name -> `Precision`, in the order in which tables list them."""

DEFAULT_PRECISION = "half-data-float-state"


def precision(policy: str | Precision) -> Precision:
    """Return the policy of that name; a `Precision` passes through.

    Raises
    ------
    UnknownNameError
        If there is no such policy; the message holds the closest name.
    """
    if isinstance(policy, Precision):
        return policy
    if not isinstance(policy, str) or policy not in PRECISIONS:
        hint = did_you_mean(policy, PRECISIONS) if isinstance(policy, str) else ""
        raise UnknownNameError("precision", policy, "must be one of " + ", ".join(PRECISIONS), hint)
    return PRECISIONS[policy]
