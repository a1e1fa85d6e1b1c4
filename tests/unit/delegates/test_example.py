"""The guide's own example, `examples/my_delegate.py`, in both forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.my_delegate import MyDelegate, MyRawDelegate
from penstock.delegates import Delegate
from tests.unit.delegates import graphs
from tests.unit.delegates.test_delegates import opened, run

RELU6 = 3
X = np.random.default_rng(0).normal(size=(1, 5, 4, 2)).astype(np.float32)

GRAPHS = {
    "both in a row: one kernel": (graphs.convolved(after="NEG"), ["DELEGATE", "NEG"]),
    "apart: two kernels": (graphs.convolved("ABS"), ["DELEGATE", "ABS", "DELEGATE"]),
    "nothing else: one node": (graphs.convolved(), ["DELEGATE"]),
}


@pytest.mark.parametrize("kind", [MyDelegate, MyRawDelegate])
@pytest.mark.parametrize("name", GRAPHS)
def test_both_forms_of_the_example_compute_as_the_interpreter(
    kind: type[Delegate], name: str
) -> None:
    content, names = GRAPHS[name]
    interpreter = opened(content, kind())
    (got,), (wanted,) = run(interpreter, X), run(opened(content), X)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    graph: Any = interpreter._core.graph(0)._delegated
    plan = graph.plan
    assert [d["op_name"] for d in map(interpreter._get_op_details, plan)] == names


@pytest.mark.parametrize("kind", [MyDelegate, MyRawDelegate])
@pytest.mark.parametrize(
    "changed",
    [
        {"fused_activation_function": RELU6},
        {"stride_h": 1, "stride_w": 1, "dilation_h_factor": 2},
        {"stride_h": 1, "stride_w": 1, "dilation_w_factor": 2},
    ],
    ids=["relu6", "rows apart", "columns apart"],
)
def test_example_delegate_leaves_nodes_with_other_options(
    kind: type[Delegate], changed: dict[str, int]
) -> None:
    content = graphs.convolved(options=changed)
    interpreter = opened(content, kind())
    (got,), (wanted,) = run(interpreter, X), run(opened(content), X)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    graph: Any = interpreter._core.graph(0)._delegated
    plan = graph.plan
    names = [d["op_name"] for d in map(interpreter._get_op_details, plan)]
    assert names == ["CONV_2D", "DELEGATE"]


@pytest.mark.parametrize(
    "name", ["mobilenet_v1_0.25_224_float", "yunet_int8_float_io", "resnet8_cifar10_float"]
)
def test_real_networks_are_as_without_it(corpus: Path, name: str) -> None:
    """Networks with RELU6, quantised convolutions and means of integers."""
    content = (corpus / "models" / "networks" / f"{name}.tflite").read_bytes()
    interpreter = opened(content, MyDelegate())
    shapes = [d["shape"] for d in interpreter.get_input_details()]
    given = [np.random.default_rng(0).random(s, np.float32) for s in shapes]
    for got, wanted in zip(run(interpreter, *given), run(opened(content), *given), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)


def test_example_is_under_sixty_lines() -> None:
    source = Path(__file__).parents[3] / "examples" / "my_delegate.py"
    assert len(source.read_text("utf-8").splitlines()) < 60


@pytest.mark.parametrize("kind", [MyDelegate, MyRawDelegate])
@pytest.mark.parametrize("name", ["digits_float32", "digits_int8"])
def test_the_projects_own_networks_are_as_without_it(kind: type[Delegate], name: str) -> None:
    root = Path(__file__).parents[3]
    content = (root / "examples" / "digits" / f"{name}.tflite").read_bytes()
    plain, interpreter = opened(content), opened(content, kind())
    (detail,) = plain.get_input_details()
    rng = np.random.default_rng(1)
    for _ in range(3):
        value = (rng.random(detail["shape"]) * 127).astype(detail["dtype"])
        for got, wanted in zip(run(interpreter, value), run(plain, value), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
