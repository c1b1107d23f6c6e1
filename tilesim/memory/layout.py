"""What a kernel author can turn beside the tile."""

from __future__ import annotations

import dataclasses

from tilesim._checks import one_of, whole_number
from tilesim.dtypes import DType
from tilesim.errors import ConfigError

FRACTAL = 16
"""Rows and columns of the blocks the matrix unit works on (vendor platform configuration: 16 x 16 x 16)."""

STATE_MODES = ("NORMAL", "WITHOUT_BRC")
TEMPORARIES = ("minimum", "maximum")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """What a kernel author can turn beside the tile; the defaults are the reference kernel.

    Attributes
    ----------
    score_buffers, mask_buffers, probability_buffers, partial_buffers : int
        Buffers of each UB queue; 2 is double buffering. The mask queue is allocated whatever the mask, as a
        static allocation does; 0 leaves it out, for kernels that need none or make it another way.
    score_dtype, mask_dtype, probability_dtype, partial_dtype, accumulator_dtype : DType or None
        Element types; None takes the data type of the precision (the mask: that of the scores).
    state_mode : {"NORMAL", "WITHOUT_BRC"}
        Whether a row of sum, max and exp_max is a 32-byte block of equal lanes or a single element.
    temporary : {"minimum", "maximum"}
        Which of the operator's two sizes the softmax temporary gets; never below the minimum.
    shared_temporary : bool
        True: the kernel hands the operator a buffer. False: the framework takes whatever UB is left; counted
        are the minimum it must find and the 64-byte message slot it keeps above it.
    basic_block : bool
        Let softmax run as a basic block where the tile is one: faster, with a larger temporary.
    base_rows, base_columns, base_depth_bytes : int
        Base block of a matrix product: rows of the left operand, columns of the right one, and bytes of the
        common axis. Multiples of 16, 16 and 64.
    l1_buffers, l0_buffers, l0c_buffers : int
        Base blocks held per operand in L1, per operand in L0A and L0B, and of the product in L0C.
    matmul_workspace_bytes : int
        GM that the matmul library asks for; 16 MiB is the figure of the reference kernel.

    Raises
    ------
    ConfigError
        If a field breaks its rule.
    """

    score_buffers: int = 1
    mask_buffers: int = 1
    probability_buffers: int = 1
    partial_buffers: int = 1
    score_dtype: DType | None = None
    mask_dtype: DType | None = None
    probability_dtype: DType | None = None
    partial_dtype: DType | None = None
    accumulator_dtype: DType | None = None
    state_mode: str = "NORMAL"
    temporary: str = "minimum"
    shared_temporary: bool = True
    basic_block: bool = True
    base_rows: int = 128
    base_columns: int = 128
    base_depth_bytes: int = 256
    l1_buffers: int = 2
    l0_buffers: int = 2
    l0c_buffers: int = 1
    matmul_workspace_bytes: int = 16 * 1024**2

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, where = getattr(self, field.name), f"Layout.{field.name}"
            if field.name.endswith("_buffers") or field.name in ("base_rows", "base_columns"):
                least = 0 if field.name == "mask_buffers" else 1
                object.__setattr__(self, field.name, whole_number(where, value, least=least, most=65536))
            elif field.name.endswith("_dtype") and not isinstance(value, DType | None):
                raise ConfigError(where, value, "must be a DType or None")
            elif field.type == "bool" and not isinstance(value, bool):
                raise ConfigError(where, value, "must be True or False")
        for name in ("base_depth_bytes", "matmul_workspace_bytes"):
            object.__setattr__(self, name, whole_number(f"Layout.{name}", getattr(self, name), least=0))
        one_of("Layout.state_mode", self.state_mode, STATE_MODES)
        one_of("Layout.temporary", self.temporary, TEMPORARIES)
        for name, unit in (("base_rows", FRACTAL), ("base_columns", FRACTAL), ("base_depth_bytes", 64)):
            value = getattr(self, name)
            if value == 0 or value % unit:
                raise ConfigError(f"Layout.{name}", value, f"must be a positive multiple of {unit}")


REFERENCE_LAYOUT = Layout()
"""The reference kernel's own choices."""
