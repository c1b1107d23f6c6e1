"""The softmax_flash_v2 operator: parameters, tiling, checks and the operator itself."""
