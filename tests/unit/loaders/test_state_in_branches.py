"""Variables that the branches of STABLEHLO_CASE read and assign, beside LiteRT."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

import penstock
from penstock.ir import NDArray
from tests.unit.loaders.files import FileBuilder

VARIABLE: Final = {"container": "", "shared_name": "v"}
X: Final = np.array([1, 2], np.float32)


def _branch(file: FileBuilder, name: str, *, assigns: bool) -> None:
    """Its argument plus the variable, which it may assign."""
    file.begin(name)
    x, y, v = file.tensor("x", [2]), file.tensor("y", [2]), file.tensor("v", [2])
    handle = file.tensor("handle", dtype="RESOURCE")
    file.operator("VAR_HANDLE", [], [handle], VARIABLE)
    file.operator("READ_VARIABLE", [handle], [v])
    file.operator("ADD", [x, v], [y], {})
    if assigns:
        file.operator("ASSIGN_VARIABLE", [handle, y], [])
    file.end([x], [y])


@pytest.fixture
def content() -> bytes:
    """The variable is x; then one of two branches; then the variable is read."""
    file = FileBuilder()
    index, x = file.tensor("index", dtype="INT32"), file.tensor("x", [2])
    y, after = file.tensor("y", [2]), file.tensor("after", [2])
    handle = file.tensor("handle", dtype="RESOURCE")
    file.operator("VAR_HANDLE", [], [handle], VARIABLE)
    file.operator("ASSIGN_VARIABLE", [handle, x], [])
    file.operator("STABLEHLO_CASE", [index, x], [y], {"branch_subgraph_indices": [1, 2]})
    file.operator("READ_VARIABLE", [handle], [after])
    file.end([index, x], [y, after])
    _branch(file, "assigns", assigns=True)
    _branch(file, "reads", assigns=False)
    return file.encode()


def feeds(index: int) -> list[NDArray]:
    return [np.array(index, np.int32), X]


def test_the_branch_that_is_taken_assigns(content: bytes) -> None:
    with penstock.compile(penstock.load(content), devices=["reference"]) as compiled:
        for index, after in ((0, 2 * X), (1, X), (5, X), (-1, X), (0, 2 * X)):
            outputs = compiled(*feeds(index))
            np.testing.assert_array_equal(outputs[0], 2 * X)
            np.testing.assert_array_equal(outputs[1], after)


def test_litert_keeps_state_in_branches_as_the_loader_does(content: bytes) -> None:
    litert = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="ai-edge-litert is not installed"
    )
    runner = litert.Interpreter(
        model_content=content,
        num_threads=1,
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    runner.allocate_tensors()
    with penstock.compile(penstock.load(content), devices=["reference"]) as compiled:
        for index in (0, 1, 5, 0):
            for detail, array in zip(runner.get_input_details(), feeds(index), strict=True):
                runner.set_tensor(detail["index"], array)
            runner.invoke()
            outputs = compiled(*feeds(index))
            for number, detail in enumerate(runner.get_output_details()):
                np.testing.assert_array_equal(outputs[number], runner.get_tensor(detail["index"]))
