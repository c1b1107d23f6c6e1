"""Everything that Numba compiles. Nothing here validates: callers hand in checked, contiguous float32."""

from tilesim._checks import check_numba_threads

check_numba_threads()
