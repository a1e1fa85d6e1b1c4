"""Quantised graphs: layers between DequantizeLinear and QuantizeLinear are integer operations,
exactly where they may.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock
from penstock.ir import DType, NDArray
from tests.support_onnx import check, helper, judged, model_of, ours

F = np.float32
RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Every test draws the same numbers, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(11).bit_generator.state


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, name=f"n_{outputs[0]}", **attributes)


class Net:
    """A chain in which every value is quantised and dequantised."""

    def __init__(self, kind: type = np.int8) -> None:
        self.kind = kind
        self.nodes: list[Any] = []
        self.constants: dict[str, NDArray] = {}

    def parameters(self, name: str, scale: Any, zero: int, dtype: Any = None) -> list[str]:
        scale = np.asarray(scale, F)
        self.constants[f"{name}_s"] = scale
        self.constants[f"{name}_z"] = np.full(scale.shape, zero, dtype or self.kind)
        return [f"{name}_s", f"{name}_z"]

    def through(self, x: str, name: str, scale: float, zero: int) -> str:
        """*x* quantised and dequantised."""
        given = self.parameters(name, scale, zero)
        self.nodes.append(node("QuantizeLinear", [x, *given], [f"{name}_q"]))
        self.nodes.append(node("DequantizeLinear", [f"{name}_q", *given], [name]))
        return name

    def weights(self, name: str, shape: tuple[int, ...], scale: Any, axis: int = 0) -> str:
        self.constants[f"{name}_q"] = RNG.integers(-127, 128, shape).astype(np.int8)
        given = self.parameters(name, scale, 0, np.int8)
        self.nodes.append(node("DequantizeLinear", [f"{name}_q", *given], [name], axis=axis))
        return name

    def model(self, x: NDArray, output: str) -> Any:
        return model_of(self.nodes, {"x": x}, [output], self.constants)


def convolutions(kind: type, per_channel: bool, scale: float = 0.0123) -> tuple[Any, NDArray]:
    net, zero = Net(kind), 3 if kind is np.int8 else 131
    a = net.through("x", "a", 0.0311, zero)
    scales = [0.0113, 0.0079, 0.0151, 0.0201] if per_channel else 0.0113
    w = net.weights("w", (4, 3, 3, 3), scales)
    net.constants["b_q"] = RNG.integers(-900, 900, 4).astype(np.int32)
    net.constants["b_s"] = (
        np.float32(0.0311) * np.broadcast_to(np.asarray(scales, F), (4,))
    ).astype(F)
    net.nodes.append(node("DequantizeLinear", ["b_q", "b_s"], ["b"], axis=0))
    net.nodes.append(node("Conv", [a, w, "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]))
    net.nodes.append(node("Relu", ["c"], ["r"]))
    d = net.through("r", "d", 0.0713, -128 if kind is np.int8 else 0)
    net.nodes.append(node("MaxPool", [d], ["p"], kernel_shape=[2, 2]))
    e = net.through("p", "e", 0.0713, -128 if kind is np.int8 else 0)
    v = net.weights("v", (6, 4, 1, 1), scale)
    net.nodes.append(node("Conv", [e, v], ["g"]))
    y = net.through("g", "y", 0.0931, zero)
    x = RNG.uniform(-4, 4, (2, 3, 9, 9)).astype(F)
    return net.model(x, y), x


def integer_operations(model: Any) -> list[str]:
    loaded = penstock.load(model.SerializeToString())
    layers = {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"}
    return [
        o.type
        for o in loaded.operations
        if o.type in layers and loaded.operands[o.inputs[0]].dtype is not DType.FLOAT32
    ]


def in_steps(model: Any, x: NDArray, step: float) -> float:
    """The largest difference from ONNX Runtime without optimisation, in steps."""
    (want,) = judged(model, {"x": x}, optimised=False)
    (got,) = ours(model, {"x": x})
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / step)


@pytest.mark.parametrize(
    ("kind", "per_channel"), [(np.int8, True), (np.int8, False), (np.uint8, False)]
)
def test_convolutions_are_integer_operations(kind: type, per_channel: bool) -> None:
    model, x = convolutions(kind, per_channel)
    assert integer_operations(model) == ["CONV_2D", "CONV_2D"]
    assert in_steps(model, x, 0.0931) < 1.01


def test_scales_of_channels_beside_unsigned_activations_are_computed_in_floats() -> None:
    model, x = convolutions(np.uint8, per_channel=True)
    assert integer_operations(model) == ["CONV_2D"]
    assert in_steps(model, x, 0.0931) < 1.01


def test_scales_that_put_sums_on_halves_are_computed_as_onnx_rounds() -> None:
    net = Net()
    a = net.through("x", "a", 1 / 32, 0)
    w = net.weights("w", (5, 8), 1 / 64, axis=0)
    net.nodes.append(node("Gemm", [a, w], ["g"], transB=1))
    y = net.through("g", "y", 1 / 8, 0)
    x = (RNG.integers(-64, 64, (16, 8)) / 32).astype(F)
    model = net.model(x, y)
    assert integer_operations(model) == []
    check(model, {"x": x}, share=0.0, optimised=False)


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_products_are_integer_operations(op: str) -> None:
    net = Net()
    a = net.through("x", "a", 0.0311, 5)
    transposed = op == "Gemm"
    shape, axis = ((6, 8), 0) if transposed else ((8, 6), 1)
    w = net.weights("w", shape, RNG.uniform(0.01, 0.02, 6), axis=axis)
    net.nodes.append(node(op, [a, w], ["g"], **({"transB": 1} if transposed else {})))
    y = net.through("g", "y", 0.0537, -7)
    x = RNG.uniform(-4, 4, (16, 8)).astype(F)
    model = net.model(x, y)
    assert integer_operations(model) == ["FULLY_CONNECTED"]
    assert in_steps(model, x, 0.0537) < 1.01


def test_stored_values_of_several_scales_are_joined() -> None:
    net = Net()
    given = [net.parameters(n, s, 0) for n, s in (("a", 0.0311), ("b", 0.0713))]
    for name, each in zip("ab", given, strict=True):
        net.nodes.append(node("QuantizeLinear", ["x", *each], [f"{name}_q"]))
        w = net.weights(f"w{name}", (3, 3), 0.0123)
        net.nodes.append(node("DequantizeLinear", [f"{name}_q", *each], [name]))
        net.nodes.append(node("MatMul", [name, w], [f"{name}_m"]))
        net.nodes.append(node("QuantizeLinear", [f"{name}_m", *each], [f"{name}_r"]))
    net.nodes.append(node("Concat", ["a_r", "b_r"], ["y"], axis=1))
    x = RNG.uniform(-2, 2, (2, 3)).astype(F)
    model = net.model(x, "y")
    (want,) = judged(model, {"x": x}, optimised=False)
    (got,) = ours(model, {"x": x})
    assert got.dtype == want.dtype
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1
