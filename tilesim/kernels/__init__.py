"""Everything that Numba compiles. Nothing here validates: callers hand in checked, contiguous float32."""
