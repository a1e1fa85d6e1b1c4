"""What the tests of bounds share: files of absurd models, and what a call took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import PenstockError
from tests.unit.loaders.files import FileBuilder

SLACK = 0.5
"""Seconds that a call may take beyond its timeout."""


def chain(count: int) -> bytes:
    """So many RELUs, each of what the one before made."""
    file = FileBuilder()
    file.code("RELU")
    file.tensor("x", [1, 4])
    file.graph["tensors"] += [{"name": "", "shape": [1, 4], "type": 0} for _ in range(count)]
    file.graph["operators"] = [
        {"opcode_index": 0, "inputs": [at], "outputs": [at + 1]} for at in range(count)
    ]
    return file.finish([0], [count])


def beside(count: int) -> bytes:
    """So many RELUs, each with an input and an output of the model."""
    file = FileBuilder()
    file.code("RELU")
    given = [file.tensor(f"x{at}", [1, 4]) for at in range(count)]
    made = [file.tensor(f"y{at}", [1, 4]) for at in range(count)]
    file.graph["operators"] = [
        {"opcode_index": 0, "inputs": [x], "outputs": [y]} for x, y in zip(given, made, strict=True)
    ]
    return file.finish(given, made)


def nested_ifs(depth: int) -> bytes:
    """An ONNX model of an If whose branches are Ifs, so deep: 2 ** depth graphs."""
    import onnx
    from onnx import helper

    info = helper.make_tensor_value_info

    def choose(left: int, result: str) -> Any:
        branches = [branch(left - 1), branch(left - 1)]
        return helper.make_node(
            "If", ["c"], [result], then_branch=branches[0], else_branch=branches[1]
        )

    def branch(left: int) -> Any:
        node = choose(left, "r") if left else helper.make_node("Relu", ["x"], ["r"])
        return helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="r")])

    graph = helper.make_graph(
        [choose(depth, "y")], "g", [info("x", 1, [2, 3]), info("c", 9, [])], [info("y", 1, None)]
    )
    opsets = [helper.make_opsetid("", 17)]
    content: bytes = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    return content


def spent(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of this thread's own processor time that *call* takes, and what it returns or raises on purpose.

    A machine that is busy with other things does not make it more, and what waits for nothing takes as much by the clock.
    """
    began = time.thread_time()
    try:
        result = call()
    except PenstockError as error:
        result = error.with_traceback(None)
    return time.thread_time() - began, result


def kinds(results: Sequence[Any]) -> list[str]:
    """The class of each."""
    return [type(result).__name__ for result in results]
