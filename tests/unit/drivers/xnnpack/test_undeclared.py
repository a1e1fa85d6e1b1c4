"""Files that leave out the shapes of computed values: some operations LiteRT by default then keeps
from XNNPACK, and of 8 bits so does `faithful`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from penstock import loaders
from penstock.drivers.xnnpack.engine import make_interpreter
from penstock.drivers.xnnpack.segments import make_segments
from penstock.drivers.xnnpack.support import classify
from penstock.export.tflite import write
from penstock.hal import AccuracyClass
from penstock.ir import DType, Model, ModelBuilder, NDArray, infer_shapes
from penstock.partitioning.split import Cutter
from tests.support_xnnpack import F32, device, drawn, needs_litert, q, run_on

pytestmark = needs_litert

U8, I8 = DType.UINT8, DType.INT8
SHAPE: Final = (1, 12, 12, 8)
WINDOW: Final[Mapping[str, Any]] = {"stride_w": 1, "stride_h": 1, "padding": "SAME"}
WEIGHTS: Final = {
    "CONV_2D": (8, 3, 3, 8),
    "DEPTHWISE_CONV_2D": (1, 3, 3, 8),
    "TRANSPOSE_CONV": (8, 3, 3, 8),
    "FULLY_CONNECTED": (8, 8),
}
ATTRIBUTES: Final[Mapping[str, Mapping[str, Any]]] = {
    "DEPTHWISE_CONV_2D": {**WINDOW, "depth_multiplier": 1},
    "FULLY_CONNECTED": {"keep_num_dims": True},
    "MAX_POOL_2D": {**WINDOW, "filter_width": 2, "filter_height": 2},
    "RESIZE_BILINEAR": {},
    "ADD": {},
}
FOUR_DIMENSIONS: Final = frozenset(
    {"CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "RESIZE_BILINEAR"}
)
"""Operations that LiteRT by default keeps from XNNPACK where the file does not declare as many."""

KINDS: Final = (*sorted(FOUR_DIMENSIONS), "FULLY_CONNECTED", "ADD", "MAX_POOL_2D")


def declared(kind: str, dtype: DType = U8) -> Model:
    """An ADD, and an operation on its result; nothing is below zero."""
    b = ModelBuilder()
    rng = np.random.default_rng(5)
    least = {U8: 0, I8: -128, F32: 0}[dtype]
    step, coarse = (None, None) if dtype is F32 else (q(0.05, least), q(0.0253, least))
    x = b.input(dtype, SHAPE, "x", step)
    (middle,) = b.operation("ADD", [x, x], [(dtype, SHAPE, step)])
    inputs: list[int | None] = [middle]
    result, shape = step, SHAPE
    if kind in WEIGHTS:
        zero = 100 if dtype is U8 else 0
        values = (rng.integers(-1, 3, WEIGHTS[kind]) + zero).astype(dtype.numpy)
        inputs.append(b.constant(values, "w", None if dtype is F32 else q(0.01, zero)))
        result = coarse
    if kind == "TRANSPOSE_CONV":
        inputs = [b.constant(np.array(SHAPE, np.int32)), inputs[1], middle]
    elif kind in WEIGHTS:
        zeros = np.zeros(8, np.float32 if dtype is F32 else np.int32)
        inputs.append(b.constant(zeros, "b", None if dtype is F32 else q(0.05 * 0.01)))
    elif kind == "RESIZE_BILINEAR":
        shape = (1, 17, 17, 8)
        inputs.append(b.constant(np.array(shape[1:3], np.int32)))
    elif kind == "ADD":
        inputs.append(middle)
    attributes = ATTRIBUTES.get(kind, WINDOW)
    return b.build(b.operation(kind, inputs, [(dtype, shape, result)], attributes))


def undeclared(model: Model, places: Collection[int] = (0, 1)) -> bytes:
    """A file without the shapes of what the operations at *places* make."""
    blank = {i for at in places for i in model.operations[at].outputs}
    operands = tuple(
        replace(o, shape_declared=i not in blank) for i, o in enumerate(model.operands)
    )
    return write(replace(model, subgraphs=(replace(model.entry, operands=operands),)))


def is_given_to_xnnpack(content: bytes) -> bool:
    """Whether LiteRT by default gives XNNPACK the last operation of a file."""
    interpreter = make_interpreter(content, "xnnpack", 1)
    interpreter.allocate_tensors()
    last = interpreter.get_output_details()[0]["index"]
    nodes = interpreter._get_ops_details()
    return any(n["op_name"] == "DELEGATE" and last in n["outputs"] for n in nodes)


def written(model: Model, accuracy: AccuracyClass) -> bytes:
    """What the driver gives LiteRT, of one segment."""
    (segment,) = make_segments(model, classify(model), accuracy)
    assert segment.part.kernels == "xnnpack"
    return write(segment.model)


def by_litert(content: bytes, given: NDArray) -> NDArray:
    interpreter = make_interpreter(content, "xnnpack", 1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], given)
    interpreter.invoke()
    return np.array(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


@pytest.mark.parametrize("dtype", [U8, I8], ids=lambda d: d.value)
@pytest.mark.parametrize("kind", KINDS)
def test_faithful_uses_xnnpack_where_litert_does_by_default(kind: str, dtype: DType) -> None:
    whole = declared(kind, dtype)
    for places in ((), (0,), (1,), (0, 1)):
        content = undeclared(whole, places)
        model = infer_shapes(loaders.load(content))
        assert [o.shape for o in model.outputs] == [o.shape for o in whole.outputs]
        usual = is_given_to_xnnpack(content)
        assert usual == (not places or kind not in FOUR_DIMENSIONS)
        assert is_given_to_xnnpack(written(model, "faithful")) == usual
        assert is_given_to_xnnpack(written(model, "relaxed"))


@pytest.mark.parametrize("dtype", [U8, I8], ids=lambda d: d.value)
@pytest.mark.parametrize("kind", sorted(FOUR_DIMENSIONS))
def test_faithful_results_equal_litert_by_default(kind: str, dtype: DType) -> None:
    whole = declared(kind, dtype)
    content = undeclared(whole, (1,))
    (given,) = drawn(whole)
    default, once = by_litert(content, given), by_litert(write(whole), given)
    assert np.any(default != once), "both kernel sets round these alike, and nothing is tested"
    model = loaders.load(content)
    (found,) = run_on([device()], model, [given], "faithful")
    assert np.array_equal(found, default)
    (found,) = run_on([device()], model, [given], "relaxed")
    assert np.array_equal(found, once)


def test_mul_with_a_fused_activation_runs_on_xnnpack() -> None:
    """LiteRT's own kernel is wrong there (docs/xnnpack.md)."""
    b = ModelBuilder()
    x = b.input(U8, SHAPE, "x", q(0.05))
    (middle,) = b.operation("ADD", [x, x], [(U8, SHAPE, q(0.05))])
    fused = {"fused_activation_function": "RELU6"}
    model = b.build(b.operation("MUL", [middle, x], [(U8, SHAPE, q(0.05))], fused))
    model = infer_shapes(loaders.load(undeclared(model)))
    assert is_given_to_xnnpack(written(model, "faithful"))


def test_float_operations_run_on_xnnpack() -> None:
    content = undeclared(declared("CONV_2D", F32))
    model = infer_shapes(loaders.load(content))
    assert not is_given_to_xnnpack(content)
    assert is_given_to_xnnpack(written(model, "faithful"))


def test_partition_keeps_undeclared_shapes_undeclared() -> None:
    model = infer_shapes(loaders.load(undeclared(declared("CONV_2D"))))
    assert not is_given_to_xnnpack(written(Cutter(model).cut((1,)).model, "faithful"))
