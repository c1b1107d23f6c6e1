"""Flash attention of one head in Triton, run by Triton's interpreter on the CPU."""

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl


@triton.jit
def _attention(
    q_ptr, k_ptr, v_ptr, o_ptr, seq_kv, scale, D: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, D)
    q = tl.load(q_ptr + rows[:, None] * D + dims[None, :]) * scale
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for low in range(0, seq_kv, TILE):
        keys = low + tl.arange(0, TILE)
        k = tl.load(k_ptr + keys[None, :] * D + dims[:, None])
        v = tl.load(v_ptr + keys[:, None] * D + dims[None, :])
        scores = tl.dot(q, k)
        new_top = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp(scores - new_top[:, None])
        rescale = tl.exp(top - new_top)
        total = total * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None] + tl.dot(p, v)
        top = new_top
    tl.store(o_ptr + rows[:, None] * D + dims[None, :], acc / total[:, None])


def prepare(tensors):
    q, k, v = (torch.from_numpy(x) for x in tensors)
    heads, seq_q, head_dim = q.shape[1:]
    seq_kv = k.shape[2]
    rows, tile = min(128, seq_q), min(512, seq_kv)
    output = torch.empty_like(q)

    def call():
        for head in range(heads):
            _attention[(seq_q // rows,)](
                q[0, head],
                k[0, head],
                v[0, head],
                output[0, head],
                seq_kv,
                head_dim**-0.5,
                head_dim,
                rows,
                tile,
            )

    return call
