"""Packed constants: equal arrays once, aligned, in memory that is used as it is."""

from __future__ import annotations

import gc
import weakref

import numpy as np
from msgspec.structs import replace

from penstock import hal
from penstock.drivers.llvm.compiling import compile_model
from penstock.drivers.llvm.emit.constants import ALIGNMENT, Constants
from penstock.drivers.llvm.isa import RECORDS
from penstock.ir import ConstantPool, DType, ModelBuilder, NDArray
from tests.support_llvm import needs_llvm


def test_each_array_lies_aligned_once_with_zeros_between() -> None:
    constants = Constants()
    arrays: list[NDArray] = [
        np.arange(7, dtype=np.uint8) + 1,
        np.ones((3, 5), np.float32).T,
        np.zeros(0, np.int32),
        np.arange(7, dtype=np.uint8) + 1,
        np.full(200, 9, np.int64),
    ]
    offsets = [constants.add(array) for array in arrays]
    assert offsets[3] == offsets[0]
    size = constants.size
    joined = constants.joined()
    assert joined.readonly
    assert joined.nbytes == size == offsets[4] + 1600
    content = np.frombuffer(joined, np.uint8)
    assert content.ctypes.data % ALIGNMENT == 0
    expected = np.zeros(size, np.uint8)
    for offset, array in zip(offsets, arrays, strict=True):
        assert offset % ALIGNMENT == 0
        flat = np.frombuffer(array.tobytes(), np.uint8)
        expected[offset : offset + flat.size] = flat
    np.testing.assert_array_equal(content, expected)


def test_arrays_that_were_copied_are_let_go() -> None:
    constants = Constants()
    array = np.arange(1000)
    alive = weakref.ref(array)
    constants.add(array)
    del array
    gc.collect()
    assert alive() is not None
    assert len(constants.joined()) == 8000
    gc.collect()
    assert alive() is None


def test_no_arrays_make_no_bytes() -> None:
    assert bytes(Constants().joined()) == b""


@needs_llvm
def test_weights_of_the_model_are_unloaded_once_they_are_packed() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 64), "x")
    w = builder.constant(np.ones((8, 64), np.float32), "w")
    (y,) = builder.operation("FULLY_CONNECTED", [x, w], [(DType.FLOAT32, (1, 8))])
    model = builder.build([y])
    unloads: list[None] = []

    class Owner:
        def unload(self) -> None:
            unloads.append(None)

    pools = (ConstantPool(model.pools[0].view, Owner()),)
    config = hal.PrepareConfig(num_threads=1)
    made = compile_model(replace(model, pools=pools), RECORDS["avx2"], "0", config)
    assert made.constants.nbytes >= 8 * 64 * 4
    assert len(unloads) == 1
