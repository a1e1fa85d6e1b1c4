"""SVDF against plain loops and against LiteRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.drivers.reference.kernel import Site, Unsupported, build
from penstock.ir import Attributes, DType, NDArray, Operand, Operation
from tests.support_litert import interpreter, kernel_of, record, refusal
from tests.unit.drivers.reference.support_cells import (
    REAL,
    Filters,
    integer_svdf_case,
    real_svdf_case,
)
from tests.unit.drivers.reference.support_recurrent import compare, shape_of, values


def test_a_network_of_svdf_layers_agrees_over_several_runs(
    corpus: Path, manifest: dict[str, Any]
) -> None:
    (entry,) = (e for e in manifest["entries"] if e["id"] == "keyword_svdf_int8_int16")
    path = corpus / "models" / entry["file"]
    layers = [r for r in record(path) if r.operation.type == "SVDF"]
    assert len(layers) == 7
    runner = interpreter(path.read_bytes())
    runner.allocate_tensors()
    (detail,) = runner.get_input_details()
    rng = np.random.default_rng(5)
    for _ in range(4):
        states = [np.array(runner.get_tensor(r.operation.inputs[4])) for r in layers]
        values = rng.integers(-32768, 32768, detail["shape"]).astype(np.int16)
        runner.set_tensor(detail["index"], values)
        runner.invoke()
        for layer, before in zip(layers, states, strict=True):
            given: list[NDArray | None] = [*layer.given[:4], before]
            given[0] = runner.get_tensor(layer.operation.inputs[0])
            state = layer.inputs[4]
            assert state is not None
            kernel = build(replace(layer.site, outputs=(*layer.outputs, state)))
            output, after = kernel(given)
            np.testing.assert_array_equal(output, runner.get_tensor(layer.operation.outputs[0]))
            np.testing.assert_array_equal(after, runner.get_tensor(layer.operation.inputs[4]))


def site(*inputs: Operand | None, rank: int = 1, activation: str = "NONE") -> Site:
    attributes = Attributes(
        rank=rank, fused_activation_function=activation, asymmetric_quantize_inputs=False
    )
    target = Operand(DType.FLOAT32, None)
    operation = Operation("SVDF", tuple(range(len(inputs))), (9, 10), attributes)
    return Site(operation, inputs, (target, target), lambda _: None)


def real(*shape: int) -> Operand:
    return Operand(DType.FLOAT32, shape)


@pytest.mark.parametrize("activation", ["NONE", "RELU"])
def test_svdf_of_floats_equals_plain_loops(activation: str) -> None:
    rng = np.random.default_rng(1)
    batch, size, units, rank, memory = 2, 5, 3, 2, 4
    filters = units * rank
    feature = rng.standard_normal((filters, size)).astype(np.float32)
    time = rng.standard_normal((filters, memory)).astype(np.float32)
    bias = rng.standard_normal(units).astype(np.float32)
    kernel = build(
        site(
            real(batch, size),
            real(filters, size),
            real(filters, memory),
            real(units),
            real(batch, filters * memory),
            rank=rank,
            activation=activation,
        )
    )
    state = np.zeros((batch, filters * memory), np.float32)
    history: list[NDArray] = [np.zeros((batch, filters), np.float32)] * memory
    for _ in range(6):
        inputs = rng.standard_normal((batch, size)).astype(np.float32)
        output, state = kernel([inputs, feature, time, bias, state])
        history = [*history[1:], inputs @ feature.T]
        for b in range(batch):
            for unit in range(units):
                total = float(bias[unit])
                for f in range(unit * rank, (unit + 1) * rank):
                    total += sum(float(history[m][b, f]) * float(time[f, m]) for m in range(memory))
                expected = max(total, 0.0) if activation == "RELU" else total
                assert output[b, unit] == pytest.approx(expected, abs=1e-5)


def test_svdf_refuses_unsupported_types() -> None:
    half = Operand(DType.BFLOAT16, (1, 4))
    with pytest.raises(Unsupported, match="SVDF of"):
        build(site(half, half, half, None, half))


@pytest.mark.parametrize("seed", range(8))
def test_integer_svdf_agrees_with_litert(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = integer_svdf_case(rng, Filters(rank=1 + seed % 3), bias=bool(seed % 2))
    compare(case, case.feeds(rng, 8))


@pytest.mark.parametrize(
    ("weights", "asymmetric"),
    [(REAL, False), (DType.INT8, False), (DType.INT8, True), (DType.UINT8, False)],
)
@pytest.mark.parametrize(
    "activation", ["NONE", "RELU", "RELU6", "RELU_N1_TO_1", "TANH", "SIGN_BIT"]
)
def test_float_and_hybrid_svdf_agree_with_litert(
    activation: str, weights: DType, asymmetric: bool
) -> None:
    rng = np.random.default_rng(1)
    case = real_svdf_case(
        rng,
        weights,
        Filters(),
        fused_activation_function=activation,
        asymmetric_quantize_inputs=asymmetric,
    )
    compare(case, case.feeds(rng, 8, reach=2.0))


def test_svdf_computes_float16_in_float32() -> None:
    rng = np.random.default_rng(2)
    case = real_svdf_case(rng, REAL, Filters())
    given = [values(rng, DType.FLOAT16, shape_of(o)) for o in case.operands(DType.FLOAT16)]
    results = []
    for dtype in (DType.FLOAT16, REAL):
        inputs = case.operands(dtype)
        run = kernel_of("SVDF", inputs, [inputs[0], inputs[4]], **case.attributes)
        results.append(run([a.astype(dtype.numpy) for a in given]))
    for half, single in zip(*results, strict=True):
        assert half.dtype == np.float16
        np.testing.assert_array_equal(half, single.astype(np.float16))


def test_integer_svdf_supports_only_relu() -> None:
    case = integer_svdf_case(np.random.default_rng(3), Filters(), bias=True)
    inputs = case.quantized_operands()
    attributes = {**case.attributes, "fused_activation_function": "NONE"}
    assert "with the activation NONE" in refusal("SVDF", inputs, inputs[:1], **attributes)
