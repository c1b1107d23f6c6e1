"""One attention kernel per contender, each run in a process of its own: ``python contenders.py NAME``.

The process reads one JSON problem from standard input, makes the tensors, warms up, then answers every
further line with the seconds of one call that follows another. Contenders whose package is missing say so.
"""

import json
import sys
import time

import numpy as np

THREADS = 2


def tensors(problem):
    rng = np.random.default_rng(0)
    batch, heads, kv_heads = problem["batch"], problem["heads"], problem["kv_heads"]
    q = rng.standard_normal((batch, heads, problem["seq_q"], problem["head_dim"]), np.float32)
    k, v = (
        rng.standard_normal((batch, kv_heads, problem["seq_kv"], problem["head_dim"]), np.float32)
        for _ in range(2)
    )
    return q, k, v


def tilesim(precision, **tile_options):
    def prepare(problem):
        import tilesim as ts

        q, k, v = tensors(problem)
        tile = ts.Tile(**tile_options)
        mask = "causal" if problem["causal"] else "full"
        return lambda: ts.attention(q, k, v, mask=mask, precision=precision, tile=tile, threads=THREADS)

    return prepare


def torch_sdpa(problem):
    import torch

    torch.set_num_threads(THREADS)
    q, k, v = (torch.from_numpy(x) for x in tensors(problem))
    options = {"is_causal": problem["causal"]}
    if problem["kv_heads"] != problem["heads"]:
        options["enable_gqa"] = True
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def onnxruntime_mha(problem):
    import onnxruntime
    from onnx import TensorProto, helper

    if problem["kv_heads"] != problem["heads"]:
        raise ImportError("MultiHeadAttention has no grouped queries")
    heads = problem["heads"]
    node = helper.make_node(
        "MultiHeadAttention",
        ["q", "k", "v"],
        ["o"],
        domain="com.microsoft",
        num_heads=heads,
        unidirectional=int(problem["causal"]),
    )
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3) for name in "qkvo"]
    graph = helper.make_graph([node], "attention", ports[:3], ports[3:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 9
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    # The operator takes (batch, seq, heads * head_dim); the transposition is not timed.
    feeds = {
        name: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(x.shape[0], x.shape[2], -1)
        for name, x in zip("qkv", tensors(problem), strict=True)
    }
    return lambda: session.run(None, feeds)


def numpy_attention(problem):
    q, k, v = tensors(problem)
    group = problem["heads"] // problem["kv_heads"]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    keys = np.ascontiguousarray(k.swapaxes(2, 3))
    seq_q, seq_kv = problem["seq_q"], problem["seq_kv"]
    scale = np.float32(problem["head_dim"] ** -0.5)
    mask = np.zeros((seq_q, seq_kv), np.float32)
    if problem["causal"]:
        mask[np.arange(seq_kv)[None] > np.arange(seq_q)[:, None] + seq_kv - seq_q] = -np.inf
    scores = np.empty((*q.shape[:3], seq_kv), np.float32)
    output = np.empty_like(q)

    def call():
        np.matmul(q, keys, out=scores)
        np.multiply(scores, scale, out=scores)
        if problem["causal"]:
            np.add(scores, mask, out=scores)
        np.subtract(scores, scores.max(axis=-1, keepdims=True), out=scores)
        np.exp(scores, out=scores)
        np.matmul(scores, v, out=output)
        np.divide(output, scores.sum(axis=-1, keepdims=True), out=output)

    return call


def jax_attention(problem):
    import jax

    q, k, v = (jax.numpy.asarray(x.transpose(0, 2, 1, 3)) for x in tensors(problem))
    causal = problem["causal"]
    run = jax.jit(lambda *x: jax.nn.dot_product_attention(*x, is_causal=causal))
    return lambda: run(q, k, v).block_until_ready()


def _pallas_kernel(problem, interpret):
    """Flash attention of one head as a Pallas kernel: a grid over query blocks, a loop over key tiles."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    q, k, v = (jnp.asarray(x[0]) for x in tensors(problem))
    seq_q, seq_kv, head_dim = problem["seq_q"], problem["seq_kv"], problem["head_dim"]
    rows, tile, scale = min(128, seq_q), min(512, seq_kv), head_dim**-0.5

    def kernel(q_ref, k_ref, v_ref, o_ref):
        queries = q_ref[0] * scale

        def body(index, carry):
            top, total, acc = carry
            keys, values = (ref[0, pl.ds(index * tile, tile), :] for ref in (k_ref, v_ref))
            scores = queries @ keys.T
            new_top = jnp.maximum(top, scores.max(axis=1))
            p = jnp.exp(scores - new_top[:, None])
            rescale = jnp.exp(top - new_top)
            return new_top, total * rescale + p.sum(axis=1), acc * rescale[:, None] + p @ values

        start = (jnp.full(rows, -jnp.inf), jnp.zeros(rows), jnp.zeros((rows, head_dim)))
        _, total, acc = jax.lax.fori_loop(0, seq_kv // tile, body, start)
        o_ref[0] = acc / total[:, None]

    whole = pl.BlockSpec((1, seq_kv, head_dim), lambda head, block: (head, 0, 0))
    part = pl.BlockSpec((1, rows, head_dim), lambda head, block: (head, block, 0))
    run = pl.pallas_call(
        kernel,
        grid=(problem["heads"], seq_q // rows),
        in_specs=[part, whole, whole],
        out_specs=part,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        interpret=interpret,
    )
    run = jax.jit(run)
    return lambda: run(q, k, v).block_until_ready()


def pallas_interpret(problem):
    return _pallas_kernel(problem, True)


def pallas_tpu_interpret(problem):
    from jax.experimental.pallas import tpu as pltpu

    return _pallas_kernel(problem, pltpu.InterpretParams())


def triton_interpreter(problem):
    import triton_attention

    return triton_attention.prepare(tensors(problem))


def fma_peak(problem):
    import machine

    return machine.fma_peak(THREADS)


def read_bandwidth(problem):
    import machine

    return machine.read_bandwidth(THREADS)


CONTENDERS = {
    "tilesim float": tilesim("float"),
    "tilesim half-data-float-state": tilesim("half-data-float-state"),
    "tilesim half-data-half-state": tilesim("half-data-half-state"),
    "tilesim bfloat16-data-float-state": tilesim("bfloat16-data-float-state"),
    "PyTorch SDPA": torch_sdpa,
    "PyTorch SDPA, AVX-512 forced": torch_sdpa,
    "ONNX Runtime MHA": onnxruntime_mha,
    "NumPy": numpy_attention,
    "JAX": jax_attention,
    "Pallas interpret": pallas_interpret,
    "Pallas TPU interpret": pallas_tpu_interpret,
    "Triton interpreter": triton_interpreter,
    "FMA peak": fma_peak,
    "read bandwidth": read_bandwidth,
}


def main():
    problem = json.loads(sys.stdin.readline())
    answers, sys.stdout = sys.stdout, sys.stderr
    try:
        call = CONTENDERS[sys.argv[1]](problem)
        call()
        call()
    except Exception as error:
        print(json.dumps({"missing": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        return
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for _ in sys.stdin:
        # The pause between contenders lets the processor fall asleep: wake it and its caches first.
        call()
        start = time.perf_counter()
        call()
        print(json.dumps({"seconds": time.perf_counter() - start}), file=answers, flush=True)


if __name__ == "__main__":
    main()
