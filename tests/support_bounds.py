"""What the tests of bounds share: files of absurd models, and what a call took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import DeadObject, MissedDeadline, PenstockError
from penstock.ir import Model, NDArray
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
    """Seconds of this thread's own processor time that *call* takes, and what it returns or raises
    on purpose.

    A machine that is busy with other things does not make it more, and what waits for nothing takes
    as much by the clock.
    """
    began = time.thread_time()
    try:
        result = call()
    except PenstockError as error:
        result = error.with_traceback(None)
    return time.thread_time() - began, result


def ones_for(model: Model) -> list[NDArray]:
    """Inputs of floats."""
    return [np.ones([d or 1 for d in o.shape or ()], np.float32) for o in model.inputs]


def whole(*values: int) -> Any:
    return np.array(values, np.int32)


def made_of(
    kind: str,
    given: Sequence[tuple[Sequence[int], Any]],
    result: Sequence[int],
    options: dict[str, Any] | None = None,
) -> bytes:
    """One operation of *given*: shapes, each with its value or None for an input of the model. All
    floats but constants.
    """
    file = FileBuilder()
    inputs, operands = [], []
    for at, (shape, value) in enumerate(given):
        dtype = "FLOAT32" if value is None else {"i": "INT32", "f": "FLOAT32"}[value.dtype.kind]
        operands.append(file.tensor(f"x{at}", shape, dtype, value))
        if value is None:
            inputs.append(operands[-1])
    output = file.tensor("y", result)
    file.operator(kind, operands, [output], options)
    return file.finish(inputs, [output])


def broadcast(side: int) -> bytes:
    """One number made a square of so many rows."""
    shape = whole(side, side)
    return made_of("BROADCAST_TO", [([1, 1], None), ([2], shape)], [side, side])


def summed(side: int) -> bytes:
    """The same, summed: only the value in between is large."""
    file = FileBuilder()
    x, between, y = (
        file.tensor(n, s) for n, s in (("x", [1, 1]), ("b", [side, side]), ("y", [1, 1]))
    )
    shape = file.tensor("s", [2], "INT32", whole(side, side))
    axes = file.tensor("a", [2], "INT32", whole(0, 1))
    file.operator("BROADCAST_TO", [x, shape], [between])
    file.operator("SUM", [between, axes], [y], {"keep_dims": True})
    return file.finish([x], [y])


def pool(window: int, side: int, kind: str = "MAX_POOL_2D", stride: int = 1) -> bytes:
    options = {
        "stride_w": stride, "stride_h": stride, "filter_width": window, "filter_height": window
    }  # fmt: skip
    across = max(1, side // stride)
    return made_of(kind, [([1, side, side, 3], None)], [1, across, across, 3], options)


def convolution(kernel: int, side: int, channels: int = 8) -> bytes:
    weights = np.ones((1, kernel, kernel, channels), np.float32)
    given = [
        ([1, side, side, channels], None),
        (weights.shape, weights),
        ([1], np.zeros(1, np.float32)),
    ]
    return made_of("CONV_2D", given, [1, side, side, 1], {"stride_w": 1, "stride_h": 1})


def product(side: int) -> bytes:
    """One number made two squares, which are multiplied, and the product summed."""
    file = FileBuilder()
    x, left, right, all_, y = (
        file.tensor(n, s)
        for n, s in (("x", [1, 1]), ("l", [side, side]), ("r", [side, side]),
                     ("p", [side, side]), ("y", [1, 1]))
    )  # fmt: skip
    shape = file.tensor("s", [2], "INT32", whole(side, side))
    axes = file.tensor("a", [2], "INT32", whole(0, 1))
    file.operator("BROADCAST_TO", [x, shape], [left])
    file.operator("RELU", [left], [right])
    file.operator("BATCH_MATMUL", [left, right], [all_])
    file.operator("SUM", [all_, axes], [y], {"keep_dims": True})
    return file.finish([x], [y])


def doubling(times: int) -> bytes:
    """A row joined with itself, again and again."""
    file = FileBuilder()
    last = first = file.tensor("x", [1, 4])
    for at in range(times):
        made = file.tensor(f"y{at}", [2 ** (at + 1), 4])
        file.operator("CONCATENATION", [last, last], [made], {"axis": 0})
        last = made
    return file.finish([first], [last])


def drawn(seed: int) -> bytes:
    """A model with absurd sizes; equal seeds give equal files."""
    rng = np.random.default_rng(seed)

    def size(most: float) -> int:
        """Log-uniform: every magnitude is as likely."""
        return int(2 ** rng.uniform(0, most))

    kinds: list[Callable[[], bytes]] = [
        lambda: broadcast(size(18)),
        lambda: summed(size(16)),
        lambda: pool(size(31), size(9), stride=size(8)),
        lambda: pool(size(12), size(9), "AVERAGE_POOL_2D"),
        lambda: pool(size(31), 8, "AVERAGE_POOL_2D", stride=size(31)),
        lambda: convolution(size(8), size(9)),
        lambda: product(size(14)),
        lambda: doubling(size(5)),
        lambda: chain(size(12)),
        lambda: beside(size(11)),
        lambda: made_of("TILE", [([1, 4], None), ([2], whole(size(30), size(8)))], [1, 4]),
        lambda: made_of("RESIZE_BILINEAR", [([1, 4, 4, 3], None), ([2], whole(size(15), size(15)))],
            [1, 4, 4, 3]),
        lambda: made_of("PAD",
            [([4, 4], None), ([2, 2], whole(size(30), 0, 0, size(10)).reshape(2, 2))], [4, 4]),
        lambda: made_of("LOCAL_RESPONSE_NORMALIZATION", [([1, 8, 8, size(12)], None)], [1, 8, 8, 4],
            {"radius": size(31), "bias": 1.0, "alpha": 1.0, "beta": 0.5}),
    ]  # fmt: skip
    return kinds[int(rng.integers(len(kinds)))]()


def stretch() -> float:
    """How much longer than its own work a thread takes here now: 1 on a machine with nothing else
    to do.
    """
    clock, work = time.perf_counter(), time.thread_time()
    while time.thread_time() - work < 0.02:
        sum(range(1000))
    return max(1.0, (time.perf_counter() - clock) / (time.thread_time() - work))


def allowed(timeout: float) -> float:
    """Seconds by the clock that a call with this timeout may take on a machine that is as busy as
    this one now.
    """
    return timeout + SLACK * max(stretch(), stretch())


def is_late(result: object) -> bool:
    """Whether a call ended for want of time: its own, or what of it the process of a driver had to
    start in.
    """
    return isinstance(result, MissedDeadline) or (
        isinstance(result, DeadObject) and "still being started" in str(result)
    )
