"""Arrays of other libraries as NumPy arrays, in place: through ``__array__``, else through DLPack.

NumPy reads neither a tensor that records gradients nor DLPack's bfloat16. Both are taken here without
importing the library they come from.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilesim.errors import DTypeError, InputError

BFLOAT16_DTYPE = np.dtype(ml_dtypes.bfloat16)

UINT, FLOAT, BFLOAT = 1, 2, 4
"""Type codes of DLPack."""


class DLTensor(ctypes.Structure):
    """The first fields of DLPack's struct of the same name."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class DLManagedTensorVersioned(ctypes.Structure):
    """The first fields of DLPack's struct of the same name."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    )


_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def as_array(name: str, source: Any) -> npt.NDArray[Any]:
    """Return `source` as a NumPy array that shares its memory wherever the source allows it.

    Parameters
    ----------
    name : str
        What to call it in messages.
    source : array_like
        Anything with ``__array__`` or DLPack, or nested sequences of numbers.

    Returns
    -------
    array
        Of any shape and NumPy type; DLPack gives float16, bfloat16, float32 and float64 only.

    Raises
    ------
    InputError
        If it is no array, or lies where the processor cannot read it.
    DTypeError
        If its elements have no NumPy type.
    """
    kind = type(source).__name__
    try:
        if getattr(source, "requires_grad", False):
            source = source.detach()
        return _by_dlpack(name, source) if _only_dlpack(source) else _by_array(name, source)
    except InputError:
        raise
    except (ValueError, TypeError, BufferError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        refusal = DTypeError if isinstance(error, TypeError) else InputError
        raise refusal(name, kind, f"must be an array in the memory of the processor: {reason}") from None


def _only_dlpack(source: Any) -> bool:
    return hasattr(source, "__dlpack__") and not hasattr(source, "__array__")


def _by_array(name: str, source: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(source)
    except TypeError:
        # DLPack comes second, and only for bfloat16: a library may export through it what it refuses to
        # convert, such as a torch tensor that stands for its negative.
        if str(getattr(source, "dtype", "")).split(".")[-1] != "bfloat16" or not hasattr(
            source, "__dlpack__"
        ):
            raise
    return _by_dlpack(name, source)


def _by_dlpack(name: str, source: Any) -> npt.NDArray[Any]:
    exporter = _Exporter(name, source)
    array: npt.NDArray[Any] = np.from_dlpack(exporter)
    return array.view(BFLOAT16_DTYPE) if exporter.is_bfloat16 else array


class _Exporter:
    """Hands a tensor on, declaring bfloat16 as the unsigned integers that NumPy knows."""

    def __init__(self, name: str, source: Any) -> None:
        self.name, self.source = name, source
        self.is_bfloat16 = False

    def __dlpack_device__(self) -> Any:
        return self.source.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.source.__dlpack__(**options)
        tensor = _described(capsule)
        kind = (tensor.code, tensor.bits, tensor.lanes)
        if kind == (BFLOAT, 16, 1):
            self.is_bfloat16 = True
            tensor.code = UINT
        elif kind not in ((FLOAT, 16, 1), (FLOAT, 32, 1), (FLOAT, 64, 1)):
            seen = str(getattr(self.source, "dtype", f"DLPack type {kind}"))
            raise DTypeError(
                f"{self.name}.dtype", seen, "must have dtype float16, bfloat16, float32 or float64"
            )
        return capsule


def _described(capsule: Any) -> DLTensor:
    """Return the description inside a capsule, which its consumer owns: a change reaches nobody else."""
    name = _capsule_name(capsule)
    address = _capsule_pointer(capsule, name)
    if name == b"dltensor_versioned":
        tensor: DLTensor = DLManagedTensorVersioned.from_address(address).dl_tensor
        return tensor
    return DLTensor.from_address(address)
