"""Axes that an input has not, or that are named twice: refused by the node's name, of constants as
of other values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pytest

import penstock
from penstock.errors import ModelError
from penstock.ir import NDArray
from tests.support_onnx import onnx

ONES: Final = np.zeros((1, 2, 1), np.float32)
IMAGE: Final = np.zeros((2, 3), np.float32)


def model(
    kind: str,
    x: NDArray,
    constants: Mapping[str, Any],
    *,
    is_constant: bool,
    opset: int = 17,
    outputs: int = 1,
    **attributes: Any,
) -> bytes:
    """One node of *kind* that reads x, and the constants in order."""
    helper, numpy_helper, real = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT
    given = {name: np.asarray(value) for name, value in constants.items() if value is not None}
    inputs = [] if is_constant else [helper.make_tensor_value_info("x", real, x.shape)]
    given |= {"x": x} if is_constant else {}
    names = ["x", *(name if value is not None else "" for name, value in constants.items())]
    made = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(kind, names, made, "the node", **attributes)
    ends = [helper.make_tensor_value_info(name, real, None) for name in made]
    filled = [numpy_helper.from_array(value, name) for name, value in given.items()]
    graph = helper.make_graph([node], "g", inputs, ends, filled)
    opsets = [helper.make_opsetid("", opset)]
    written: bytes = helper.make_model(
        graph, opset_imports=opsets, ir_version=8
    ).SerializeToString()
    return written


def refused(*arguments: Any, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        penstock.load(model(*arguments, **options))
    assert "the node" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("axis", [3, 5, -4, -7])
class TestOutOfRange:
    def test_squeeze_refuses_axes_out_of_range(self, axis: int, is_constant: bool) -> None:
        told = refused("Squeeze", ONES, {"axes": [axis]}, is_constant=is_constant)
        assert f"axis {axis} of a rank-3 input" in told
        refused("Squeeze", ONES, {}, is_constant=is_constant, opset=11, axes=[axis])

    def test_unsqueeze_refuses_axes_out_of_range(self, axis: int, is_constant: bool) -> None:
        beyond = axis + 1 if axis > 0 else axis - 1
        told = refused("Unsqueeze", ONES, {"axes": [beyond]}, is_constant=is_constant)
        assert f"axis {beyond} of a rank-4 input" in told

    def test_slice_refuses_axes_out_of_range(self, axis: int, is_constant: bool) -> None:
        bounds = {"starts": [0], "ends": [1], "axes": [axis]}
        told = refused("Slice", ONES, bounds, is_constant=is_constant)
        assert f"axis {axis} of a rank-3 input" in told
        refused("Slice", ONES, {}, is_constant=is_constant, opset=9, **bounds)

    def test_flatten_refuses_axes_out_of_range(self, axis: int, is_constant: bool) -> None:
        beyond = axis + 1 if axis > 0 else axis
        assert f"axis {beyond} of" in refused(
            "Flatten", ONES, {}, is_constant=is_constant, axis=beyond
        )

    @pytest.mark.parametrize(
        "kind", ["Softmax", "LogSoftmax", "ArgMax", "LpNormalization", "TopK", "Compress", "Gather"]
    )
    def test_operators_of_one_axis_refuse_it_out_of_range(
        self, kind: str, axis: int, is_constant: bool
    ) -> None:
        more: dict[str, dict[str, Any]] = {
            "TopK": {"k": [1]}, "Compress": {"c": [True]}, "Gather": {"i": [0]},
        }  # fmt: skip
        outputs = 2 if kind == "TopK" else 1
        refused(kind, ONES, more.get(kind, {}), is_constant=is_constant, outputs=outputs, axis=axis)

    @pytest.mark.parametrize(
        "kind", ["ReduceMean", "ReduceMax", "ReduceL2", "MeanVarianceNormalization"]
    )
    def test_operators_of_several_axes_refuse_them_out_of_range(
        self, kind: str, axis: int, is_constant: bool
    ) -> None:
        refused(kind, ONES, {}, is_constant=is_constant, axes=[0, axis])

    def test_split_refuses_axes_out_of_range(self, axis: int, is_constant: bool) -> None:
        refused("Split", ONES, {"sizes": [1, 1]}, is_constant=is_constant, outputs=2, axis=axis)


@pytest.mark.parametrize("is_constant", [False, True])
class TestNamedTwice:
    @pytest.mark.parametrize("kind", ["Squeeze", "Unsqueeze", "ReduceSum"])
    @pytest.mark.parametrize("axes", [[0, 0], [2, -1]])
    def test_operators_refuse_an_axis_named_twice(
        self, kind: str, axes: list[int], is_constant: bool
    ) -> None:
        if kind == "Unsqueeze":
            axes = [axes[0], axes[0]]
        assert "name one twice" in refused(kind, ONES, {"axes": axes}, is_constant=is_constant)

    def test_slice_refuses_an_axis_named_twice(self, is_constant: bool) -> None:
        bounds = {"starts": [0, 0], "ends": [1, 1], "axes": [1, -2]}
        assert "name one twice" in refused("Slice", ONES, bounds, is_constant=is_constant)


@pytest.mark.parametrize("is_constant", [False, True])
class TestBatches:
    @pytest.mark.parametrize("batch", [-1, 2, 5])
    def test_missing_batch_dimensions_are_refused(self, batch: int, is_constant: bool) -> None:
        indices = np.zeros((2, 1), np.int64)
        told = refused(
            "GatherND", IMAGE, {"indices": indices}, is_constant=is_constant, batch_dims=batch
        )
        assert f"batch_dims={batch}" in told

    def test_index_vectors_longer_than_what_is_left(self, is_constant: bool) -> None:
        indices = np.zeros((2, 2), np.int64)
        told = refused(
            "GatherND", IMAGE, {"indices": indices}, is_constant=is_constant, batch_dims=1
        )
        assert "index vectors of 2 for 1 dimensions" in told


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize(
    ("kind", "axis", "shape"),
    [
        ("Flatten", 3, (2, 1)),
        ("Flatten", -3, (1, 2)),
        ("Flatten", 0, (1, 2)),
        ("Squeeze", -1, (1, 2)),
    ],
)
def test_axes_in_range_are_accepted(
    kind: str, axis: int, shape: tuple[int, ...], is_constant: bool
) -> None:
    if kind == "Squeeze":
        content = model(kind, ONES, {"axes": [axis]}, is_constant=is_constant)
    else:
        content = model(kind, ONES, {}, is_constant=is_constant, axis=axis)
    (output,) = penstock.load(content).outputs
    assert output.shape == shape
