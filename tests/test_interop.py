"""Arrays of other libraries: they arrive where they lie, in every type, and leave as NumPy arrays."""

import ml_dtypes
import numpy as np
import pytest

import tilesim as ts
from tilesim.errors import DTypeError, InputError, UnknownNameError
from tilesim.interop import BFLOAT, UINT, _described, as_array
from tilesim.kernels import attention
from tilesim.tensors import as_tensor

SHAPE = (1, 2, 24, 8)
TYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


class OnlyDlpack:
    """A foreign tensor that speaks DLPack and nothing else, bfloat16 included, of the old or the new form."""

    def __init__(self, array, *, versioned=True, code=None):
        self.array = array if array.dtype != ml_dtypes.bfloat16 else array.view(np.uint16)
        self.code = BFLOAT if array.dtype == ml_dtypes.bfloat16 else code
        self.versioned = versioned

    def __dlpack__(self, **options):
        if not self.versioned and options:
            raise TypeError("unexpected keyword arguments")
        capsule = self.array.__dlpack__(**options)
        if self.code is not None:
            _described(capsule).code = self.code
        return capsule

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnlyArray:
    """A foreign tensor that speaks ``__array__`` and nothing else."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class Recording(OnlyDlpack):
    """As a tensor of torch: NumPy is refused bfloat16 and gradients."""

    def __init__(self, array, *, requires_grad=False):
        super().__init__(array)
        self.original, self.requires_grad = array, requires_grad
        self.dtype = f"library.{array.dtype}"

    def __array__(self, dtype=None, copy=None):
        if self.requires_grad:
            raise RuntimeError("cannot convert\nwhile gradients are recorded")
        if self.code is not None:
            raise TypeError("unsupported bfloat16")
        return self.original

    def detach(self):
        return Recording(self.original)


def tensors(rng, dtype=np.float32, shape=SHAPE):
    return [rng.standard_normal(shape).astype(dtype) for _ in range(3)]


@pytest.fixture
def seen_by_kernel(monkeypatch):
    """Collect the tensors of every launch."""
    seen = []

    def worker(*arguments, run=attention.attention_worker):
        seen.append(arguments[:3])
        run(*arguments)

    monkeypatch.setattr(attention, "attention_worker", worker)
    return seen


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("wrap", [OnlyDlpack, OnlyArray, Recording])
def test_foreign_tensors_arrive_in_place_and_give_the_same_bits(rng, wrap, dtype):
    q, k, v = tensors(rng, dtype)
    assert np.shares_memory(as_tensor("q", wrap(q)), q)
    assert as_tensor("q", wrap(q)).dtype == dtype
    output, lse = ts.attention(wrap(q), wrap(k), wrap(v), return_lse=True)
    expected, expected_lse = ts.attention(q, k, v, return_lse=True)
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(lse, expected_lse)
    assert type(output) is np.ndarray
    assert output.dtype == dtype
    assert output.flags.writeable
    assert not np.shares_memory(output, q)


@pytest.mark.parametrize("dtype", TYPES)
def test_dlpack_of_the_old_form(rng, dtype):
    array = tensors(rng, dtype)[0]
    got = as_array("q", OnlyDlpack(array, versioned=False))
    np.testing.assert_array_equal(got, array)
    assert np.shares_memory(got, array)


@pytest.mark.parametrize("dtype", TYPES)
def test_strides_survive_dlpack(rng, dtype):
    array = tensors(rng, dtype)[0]
    for view in (array[:, ::-1, ::2], np.broadcast_to(array[:, :1], SHAPE).copy().transpose(0, 2, 1, 3)):
        got = as_array("q", OnlyDlpack(view))
        np.testing.assert_array_equal(got, view)
        assert np.shares_memory(got, view)


def test_tensors_with_gradients_are_detached(rng):
    for dtype in (np.float32, ml_dtypes.bfloat16):
        q = tensors(rng, dtype)[0]
        assert np.shares_memory(as_tensor("q", Recording(q, requires_grad=True)), q)


def test_single_precision_reaches_the_kernel_uncopied(rng, seen_by_kernel):
    q, k, v = tensors(rng)
    for sources in ((q, k, v), [OnlyDlpack(x) for x in (q, k, v)], [OnlyArray(x) for x in (q, k, v)]):
        ts.attention(*sources)
        for source, got in zip((q, k, v), seen_by_kernel[-1], strict=True):
            assert np.shares_memory(source, got)


def test_memory_maps_reach_the_kernel_uncopied_and_unaligned_ones_aligned(rng, tmp_path, seen_by_kernel):
    q, k, v = tensors(rng)
    expected = ts.attention(q, k, v)
    (tmp_path / "q.bin").write_bytes(b"123" + q.tobytes() + b"4" + q.tobytes())
    for offset in (3, 4 + q.nbytes):
        mapped = np.memmap(tmp_path / "q.bin", np.float32, "r", offset, SHAPE)
        np.testing.assert_array_equal(ts.attention(mapped, k, v), expected)
        got = seen_by_kernel[-1][0]
        assert np.shares_memory(got, mapped) is mapped.flags.aligned
        assert got.flags.aligned


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8"])
def test_foreign_byte_order_is_read_in_place_and_leaves_native(rng, dtype):
    q, k, v = tensors(rng, dtype)
    assert np.shares_memory(as_tensor("q", q), q)
    output = ts.attention(q, k, v, precision="float")
    assert output.dtype == np.dtype(dtype).newbyteorder("=")
    native = (x.astype(output.dtype) for x in (q, k, v))
    np.testing.assert_array_equal(output, ts.attention(*native, precision="float"))


@pytest.mark.parametrize(
    "source",
    [
        OnlyDlpack(np.ones(SHAPE, np.int32)),
        OnlyDlpack(np.ones(SHAPE, np.complex64)),
        OnlyDlpack(np.ones(SHAPE, bool)),
        OnlyDlpack(np.ones(SHAPE, np.uint8), code=BFLOAT),
        OnlyDlpack(np.ones(SHAPE, np.float16), code=UINT),
        OnlyArray(np.ones(SHAPE, np.int64)),
        OnlyArray(np.full(SHAPE, None)),
        np.ones(SHAPE, ml_dtypes.float8_e4m3fn),
        np.full(SHAPE, "1"),
        None,
    ],
    ids=lambda source: type(source).__name__,
)
def test_other_types_are_refused_as_type_errors(source):
    q = np.ones(SHAPE, np.float16)
    for call in (ts.attention, ts.attention_reference, ts.simulate):
        with pytest.raises(
            DTypeError, match=r"^k\.dtype: got '.*'; must have dtype float16, bfloat16"
        ) as error:
            call(q, source, q)
        assert isinstance(error.value, TypeError)
        assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("error", [ValueError, RuntimeError, BufferError, TypeError])
def test_what_a_library_refuses_is_one_line(error):
    class Elsewhere:
        def __dlpack__(self, **options):
            raise error("cannot convert\n  device tensor")

        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(InputError) as caught:
        ts.attention(Elsewhere(), None, None)
    rule = "must be an array in the memory of the processor: cannot convert device tensor"
    assert str(caught.value) == f"q: got 'Elsewhere'; {rule}"
    assert isinstance(caught.value, TypeError) is (error is TypeError)


@pytest.mark.parametrize("dtype", TYPES)
def test_layouts_differ_by_the_order_of_axes_only(rng, dtype):
    q = tensors(rng, dtype, (2, 4, 20, 8))[0]
    _, k, v = tensors(rng, dtype, (2, 2, 33, 8))
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    options = {"mask": "window", "window": (9, 2)}
    for call in (ts.attention, ts.attention_reference):
        expected, expected_lse = call(q, k, v, return_lse=True, **options)
        for layout, sources in (("BNSD", (q, k, v)), ("BSND", swapped)):
            output, lse = call(*sources, return_lse=True, layout=layout, **options)
            assert output.shape == sources[0].shape
            assert output.dtype == expected.dtype
            np.testing.assert_array_equal(output, expected.swapaxes(1, 2) if layout == "BSND" else expected)
            np.testing.assert_array_equal(lse, expected_lse)


def test_simulate_in_either_layout(rng):
    q, k, v = tensors(rng)
    expected = ts.simulate(q, k, v)
    result = ts.simulate(*(x.swapaxes(1, 2) for x in (q, k, v)), layout="BSND")
    np.testing.assert_array_equal(result.output.swapaxes(1, 2), expected.output)
    np.testing.assert_array_equal(result.lse, expected.lse)
    assert result.workload == expected.workload
    assert result.errors == expected.errors


def test_a_view_in_the_other_layout_reaches_the_kernel_uncopied(rng, seen_by_kernel):
    q, k, v = tensors(rng)
    ts.attention(*(x.swapaxes(1, 2) for x in (q, k, v)), layout="BSND")
    for source, got in zip((q, k, v), seen_by_kernel[-1], strict=True):
        assert np.shares_memory(source, got)


def test_other_layouts_are_refused_with_the_choices():
    q = np.ones(SHAPE, np.float16)
    for call in (ts.attention, ts.attention_reference, ts.simulate):
        for layout in ("BNDS", "bsnd", "", None):
            with pytest.raises(UnknownNameError, match=r"layout: got .*; must be one of BNSD, BSND"):
                call(q, q, q, layout=layout)


def test_messages_about_shapes_keep_the_order_of_the_axes(rng):
    q, k, v = (np.ones((1, seq, heads, 8), np.float16) for seq, heads in ((20, 6), (30, 4), (30, 4)))
    with pytest.raises(InputError, match=r"k\.shape: got \(1, 30, 4, 8\); its 4 heads must divide the 6"):
        ts.attention(q, k, v, layout="BSND")
    with pytest.raises(InputError, match=r"v\.shape: got \(1, 20, 6, 8\);.* those of k, \(1, 30, 4, 8\)"):
        ts.attention(q, k, q, layout="BSND")
    with pytest.raises(InputError, match=r"must have the 4 axes \(batch, seq, heads, head_dim\)"):
        ts.attention(q[0], k, v, layout="BSND")


def torch_tensors(torch, rng, dtype):
    return [torch.from_numpy(x).to(dtype) for x in tensors(rng)]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_torch(rng, name):
    torch = pytest.importorskip("torch")
    sources = torch_tensors(torch, rng, getattr(torch, name))
    arrays = [x.double().numpy().astype(name) for x in sources]
    expected = ts.attention(*arrays)
    assert expected.dtype == name
    padded = [torch.cat([x, x], dim=-1)[..., :8] for x in sources]
    recording = [x.clone().requires_grad_() for x in sources]
    for same in (sources, padded, recording, [torch.nn.Parameter(x) for x in sources]):
        for tensor in same:
            got = as_tensor("q", tensor)
            assert got.__array_interface__["data"][0] == tensor.data_ptr()
            assert got.dtype == name
        np.testing.assert_array_equal(ts.attention(*same), expected)
    expanded = sources[1][:, :1].expand(-1, 2, -1, -1)
    assert as_tensor("k", expanded).strides[1] == 0
    np.testing.assert_array_equal(
        ts.attention(sources[0], expanded, expanded),
        ts.attention(arrays[0], arrays[1][:, :1], arrays[1][:, :1]),
    )
    empty = as_array("q", sources[0][:, :, :0])
    assert (empty.shape, empty.dtype) == ((1, 2, 0, 8), name)


def test_torch_reaches_the_kernel_uncopied(rng, seen_by_kernel):
    torch = pytest.importorskip("torch")
    sources = torch_tensors(torch, rng, torch.float32)
    ts.attention(*sources)
    for source, got in zip(sources, seen_by_kernel[-1], strict=True):
        assert np.shares_memory(source.numpy(), got)


def test_torch_tensors_that_cannot_be_read(rng):
    torch = pytest.importorskip("torch")
    good = torch.ones(SHAPE)
    negative = torch.complex(good, good).conj().imag
    assert negative.is_neg()
    for bad in (
        good.to("meta"),
        good.bfloat16().to("meta"),
        good.to_sparse(),
        good.to(torch.float8_e4m3fn),
        good.to(torch.complex64),
        good.to(torch.int32),
        good.bool(),
        negative,
    ):
        with pytest.raises(InputError, match=r"^k.*got.*must") as error:
            ts.attention(good, bad, good)
        assert "\n" not in str(error.value)
        if not (bad.is_meta or bad.is_sparse or bad.is_neg()):
            assert isinstance(error.value, DTypeError)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_jax(rng, name):
    jax = pytest.importorskip("jax")
    arrays = tensors(rng, name)
    sources = [jax.numpy.asarray(x) for x in arrays]
    output = ts.attention(*sources)
    np.testing.assert_array_equal(output, ts.attention(*arrays))
    assert output.dtype == name
    for source in sources:
        got = as_tensor("q", source)
        assert got.__array_interface__["data"][0] == source.unsafe_buffer_pointer()
    with pytest.raises(DTypeError, match=r"v\.dtype: got 'int32'"):
        ts.attention(*sources[:2], jax.numpy.ones(SHAPE, "int32"))
