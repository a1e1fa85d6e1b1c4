"""Large constants, which lie in a file beside the ONNX model while ONNX Runtime compiles it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.drivers.onnxruntime import engine, external
from penstock.errors import GeneralFailure
from penstock.ir import DType, Model, ModelBuilder, NDArray
from tests.support_onnxruntime import needs_onnxruntime

pytestmark = needs_onnxruntime

SHAPE = (40, 50)
DEVICES = ["onnxruntime-cpu"]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every constant that may be is in a file of its own. The list has the models that sessions
    were made of by path.
    """
    monkeypatch.setattr("penstock.drivers.onnxruntime.wire.LARGE_BYTES", 0)
    inner, seen = engine.session_of, list[Path]()

    def session_of(data: Any, *given: Any, **named: Any) -> Any:
        if isinstance(data, Path) and data.name == external.MODEL:
            assert (data.parent / external.CONSTANTS).stat().st_size >= 4 * SHAPE[0] * SHAPE[1]
            seen.append(data)
        return inner(data, *given, **named)

    monkeypatch.setattr(engine, "session_of", session_of)
    return seen


def product() -> Model:
    """x times a matrix, with a bias: one large constant and one small one."""
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (1, SHAPE[1]), "x")
    rng = np.random.default_rng(7)
    weights = b.constant(rng.standard_normal(SHAPE, dtype=np.float32))
    bias = b.constant(rng.standard_normal(SHAPE[0], dtype=np.float32))
    (y,) = b.operation("FULLY_CONNECTED", [x, weights, bias], [(DType.FLOAT32, (1, SHAPE[0]))])
    return b.build([y])


@pytest.mark.parametrize("cache", [False, True])
def test_a_model_with_large_constants_computes_the_same_and_loads_again(
    cache: bool, apart: list[Path], tmp_path: Path
) -> None:
    where: Any = tmp_path / "cache" if cache else False
    x = np.random.default_rng(1).standard_normal((1, SHAPE[1]), dtype=np.float32)
    with penstock.compile(product(), devices=["reference"], cache=False) as reference:
        expected = reference.run([x])[0]
    found = []
    for _ in range(2):
        with penstock.compile(product(), devices=DEVICES, cache=where) as compiled:
            found.append(compiled.run([x])[0])
    assert len(apart) == (1 if cache else 2)
    for result in found:
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    assert not any(path.parent.exists() for path in apart)


def test_a_measured_run_of_a_model_with_large_constants_names_its_operation(
    apart: list[Path],
) -> None:
    with penstock.compile(product(), devices=DEVICES, cache=False) as compiled:
        compiled.run([np.zeros((1, SHAPE[1]), np.float32)], measure=True)
    assert len(apart) == 2


class TestInlined:
    def put(self, graph: Any, name: str, value: NDArray, file: Any) -> None:
        tensor = graph.initializer.add(name=name, data_type=1)
        tensor.dims.extend(value.shape)
        external.put_apart(tensor, value, file)

    def test_constants_are_in_the_model_with_their_values_and_names(self, tmp_path: Path) -> None:
        onnx = engine.onnx()
        values = {f"c{i}": np.arange(i + 3, dtype=np.float32).reshape(-1, 1) for i in range(3)}
        inner = np.full((70, 2), 3, np.float32)
        model = onnx.ModelProto(ir_version=10, producer_name="penstock")
        small = model.graph.initializer.add(name="small", data_type=1, raw_data=b"abcd")
        small.dims.append(1)
        branch = onnx.AttributeProto(name="then_branch", type=onnx.AttributeProto.GRAPH)
        with (tmp_path / external.CONSTANTS).open("wb") as file:
            for name, value in values.items():
                self.put(model.graph, name, value, file)
            self.put(branch.g, "inner", inner, file)
        model.graph.node.add(op_type="If").attribute.append(branch)
        made = onnx.ModelProto.FromString(b"".join(map(bytes, external.inlined(model, tmp_path))))
        found = {t.name: t for t in made.graph.initializer}
        assert list(found) == ["small", *values]
        assert found["small"].raw_data == b"abcd"
        for name, value in values.items():
            assert not found[name].external_data
            np.testing.assert_array_equal(onnx.numpy_helper.to_array(found[name]), value)
        (node,) = made.graph.node
        (held,) = node.attribute[0].g.initializer
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(held), inner)

    def test_a_constant_that_its_file_lacks_is_refused_by_name(self, tmp_path: Path) -> None:
        onnx = engine.onnx()
        model = onnx.ModelProto(ir_version=10)
        with (tmp_path / external.CONSTANTS).open("wb") as file:
            self.put(model.graph, "weights", np.zeros(70, np.float32), file)
        (tmp_path / external.CONSTANTS).write_bytes(b"short")
        with pytest.raises(GeneralFailure, match="'weights' cannot be read"):
            list(external.inlined(model, tmp_path))
