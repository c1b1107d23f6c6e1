"""Compiled kernels on disk: Numba's cache, renewed by an edit of any kernel, never in the way of a call."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache


def _package_stamp() -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


STAMP = _package_stamp()
"""Digest of all kernel sources. Numba's own cache looks only at the file that defines a function, so that an
edited helper in another module would be silently stale; with this stamp any edit of a kernel recompiles."""


class KernelCache(FunctionCache):
    """Numba's cache of one function: what it cannot read is compiled again, what it cannot write is not kept.

    Raises
    ------
    RuntimeError
        If neither the package's directory nor the user's cache directory can be written.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = STAMP

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return compiled code, None if there is none that can be used."""
        try:
            # Not Numba's own `load_overload`: it first has the compiler learn all that NumPy can do, which
            # takes longer than loading the kernels and is needed only to compile.
            return self._load_overload(sig, target_context)
        except OSError:
            return None
        except Exception:  # whatever unpickling a damaged file ends in
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep compiled code, unless that fails, as on a full disk: it is there to be called all the same."""
        with contextlib.suppress(Exception):  # reads the index, too
            super().save_overload(sig, data)

    def is_empty(self) -> bool:
        """Return whether there is nothing that a call could load."""
        try:
            return not self._cache_file._load_index()
        except Exception:  # as above
            return True


def awaits_compilation(kernel: Any) -> bool:
    """Return whether an entry will be compiled and then kept on disk, where nothing of it is yet."""
    cache = getattr(kernel, "_cache", None)
    return isinstance(cache, KernelCache) and not kernel.overloads and cache.is_empty()
