"""Verification, rotation and attention against LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import loaders
from penstock.errors import GeneralFailure, InvalidAttribute, ShapeMismatch
from penstock.ir import DType, NDArray, Operand
from penstock.ir.infer import infer_shapes
from tests.support_litert import Given, Wanted, assert_agrees, kernel_of, q, run_alone
from tests.support_runs import BUILT_IN, DELEGATED, assert_same_runs, custom, flexible
from tests.unit.loaders.files import FileBuilder

F32 = DType.FLOAT32


def floats(seed: int, *shape: int) -> NDArray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16, DType.FLOAT16])
@pytest.mark.parametrize(("tolerance", "log"), [(5.0, False), (0.0, False), (0.05, True)])
def test_numeric_verify_returns_differences(dtype: DType, tolerance: float, log: bool) -> None:
    stored = np.random.default_rng(0).integers(0, 100, (2, 3)).astype(dtype.numpy)
    scale = q(0.1, 0 if dtype is DType.INT16 else 3) if dtype.is_integer else None
    options = flexible({"tolerance": tolerance, "log_if_failed": log})
    given = [Given(stored, scale), Given(10 * floats(1, 2, 3))]
    assert_agrees(run_alone("CUSTOM:NumericVerify", given, [Wanted(F32)], options), 0)


def verify(reference: NDArray, **options: Any) -> NDArray:
    operands = [Operand(DType.INT8, (2,), quantization=q(0.5)), Operand(F32, (2,))]
    row = custom("NumericVerify", flexible(options))
    run = kernel_of("CUSTOM:NumericVerify", operands, [Operand(F32, (2,))], **row)
    return run([np.array([2, 4], np.int8), reference])[0]


def test_numeric_verify_fails_beyond_the_tolerance_on_request() -> None:
    options = {"tolerance": 2.0, "log_if_failed": True}
    assert verify(np.array([2, 3], np.float32), **options).tolist() == [-1, -1]
    with pytest.raises(GeneralFailure, match=r"2\.0 stands for 3\.5"):
        verify(np.array([1, 3.5], np.float32), **options)
    with pytest.raises(ShapeMismatch):
        verify(np.zeros(3, np.float32), **options)


def rotate(x: NDArray, size: int) -> bytes:
    file = FileBuilder()
    ends = file.tensor("x", x.shape), file.tensor("y", x.shape)
    options = flexible({"hadamard_size": size})
    file.operator("CUSTOM:aeq.hadamard_rotation", ends[:1], ends[1:], custom_options=options)
    return file.finish(ends[:1], ends[1:])


@pytest.mark.parametrize(
    ("shape", "size"),
    [((1, 4), 4), ((2, 8), 4), ((3, 64), 64), ((1, 2, 128), 128), ((2, 2), 1), ((2, 1024), 1024)],
)
def test_hadamard_rotation_is_the_product_with_the_matrix(
    shape: tuple[int, ...], size: int
) -> None:
    x = floats(2, *shape)
    assert_same_runs(rotate(x, size), [[x]], BUILT_IN)


def test_hadamard_rotation_is_its_own_inverse() -> None:
    x = floats(3, 2, 16)
    row = custom("x", flexible({"hadamard_size": 16}))
    run = kernel_of(
        "CUSTOM:aeq.hadamard_rotation", [Operand(F32, None)], [Operand(F32, None)], **row
    )
    np.testing.assert_allclose(run(run([x]))[0], x, 1e-6, 1e-6)
    with pytest.raises(ShapeMismatch, match="multiple of 16"):
        run([floats(3, 2, 24)])


@pytest.mark.parametrize("size", [0, 3, -4, 2**40])
def test_hadamard_rotation_refuses_other_sizes(size: int) -> None:
    row = custom("x", flexible({"hadamard_size": size}))
    with pytest.raises(InvalidAttribute, match="hadamard_size"):
        kernel_of("CUSTOM:aeq.hadamard_rotation", [Operand(F32, None)], [Operand(F32, None)], **row)


def attend(arrays: list[NDArray], options: dict[str, Any]) -> bytes:
    file = FileBuilder()
    inputs = [file.tensor(f"i{i}", a.shape) for i, a in enumerate(arrays)]
    output = file.tensor("output", arrays[0].shape)
    name = "CUSTOM:odml.scaled_dot_product_attention"
    file.operator(name, inputs, [output], custom_options=flexible(options))
    return file.finish(inputs, [output])


@pytest.mark.parametrize("options", [{}, {"scale": 0.5}, {"scale": 0.375, "logit_cap": 2.5}])
@pytest.mark.parametrize("mask", [None, (1, 1, 3, 5), (1, 1, 1, 5), (1, 4, 3, 5)])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention_agrees_with_its_definition(
    options: dict[str, Any], mask: tuple[int, ...] | None, heads: int
) -> None:
    arrays = [floats(4, 1, 3, 4, 8), floats(5, 1, 5, heads, 8), floats(6, 1, 5, heads, 8)]
    arrays += [] if mask is None else [floats(7, *mask)]
    assert_same_runs(attend(arrays, options), [arrays], DELEGATED, 1e-6)


def test_attention_refuses_heads_that_do_not_divide() -> None:
    arrays = [floats(4, 1, 3, 4, 8), floats(5, 1, 5, 3, 8), floats(6, 1, 5, 3, 8)]
    with pytest.raises(ShapeMismatch, match="3 heads of keys cannot serve 4"):
        infer_shapes(loaders.load(attend(arrays, {})))
