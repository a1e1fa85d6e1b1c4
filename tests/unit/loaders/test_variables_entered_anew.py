"""Variable tensors of subgraphs that an operation enters begin with each entry, beside LiteRT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import penstock
import penstock.tflite
from penstock.ir import NDArray
from tests.unit.loaders.files import FileBuilder

X: Final = np.array([[1, 2]], np.float32)
FEATURE: Final = np.array([[3, -1]], np.float32)
TIME: Final = np.array([[1, 10, 100]], np.float32)
TRUE: Final = np.array(True)
RUNS: Final = 3
LOOPED: Final[tuple[tuple[str, list[int], str], ...]] = (
    ("count", [], "INT32"),
    ("x", [1, 2], "FLOAT32"),
    ("y", [1, 1], "FLOAT32"),
)


def _stateful(file: FileBuilder, x: int) -> int:
    """SVDF of one filter: what the last three steps make of x, as [1, 1]."""
    state = file.tensor("state", [1, 3])
    file.subgraphs[-1]["tensors"][state]["is_variable"] = True
    y = file.tensor("y", [1, 1])
    weights = [file.tensor(n, v.shape, value=v) for n, v in (("feature", FEATURE), ("time", TIME))]
    file.operator("SVDF", [x, *weights, -1, state], [y], {"rank": 1})
    return y


def _branches(file: FileBuilder) -> None:
    """A branch with state, and one without."""
    file.begin("stateful")
    x = file.tensor("x", [1, 2])
    file.end([x], [_stateful(file, x)])
    file.begin("stateless")
    x, y = file.tensor("x", [1, 2]), file.tensor("y", [1, 1])
    begin, size = (
        file.tensor(n, [2], "INT32", np.array(v, np.int32))
        for n, v in (("b", [0, 0]), ("s", [1, 1]))
    )
    file.operator("SLICE", [x, begin, size], [y])
    file.end([x], [y])


def _twice() -> tuple[bytes, list[NDArray]]:
    """Two operations enter one branch in each run."""
    file = FileBuilder()
    chosen, x = file.tensor("chosen", dtype="BOOL"), file.tensor("x", [1, 2])
    made = [file.tensor(n, [1, 1]) for n in ("first", "second")]
    for y in made:
        file.operator("IF", [chosen, x], [y], {"then_subgraph_index": 1, "else_subgraph_index": 2})
    file.end([chosen, x], made)
    _branches(file)
    return file.encode(), [TRUE, X]


def _loop() -> tuple[bytes, list[NDArray]]:
    """The state of a loop's body lasts from round to round, and not to the next loop."""
    file = FileBuilder()
    count, x, y = (file.tensor(n, s, d) for n, s, d in LOOPED)
    outs = [file.tensor(f"{n}_out", s, d) for n, s, d in LOOPED]
    options = {"cond_subgraph_index": 1, "body_subgraph_index": 2}
    file.operator("WHILE", [count, x, y], outs, options)
    file.end([count, x, y], outs)
    file.begin("cond")
    count, x, y = (file.tensor(n, s, d) for n, s, d in LOOPED)
    more = file.tensor("more", dtype="BOOL")
    file.operator("GREATER", [count, file.tensor("zero", [], "INT32", np.int32(0))], [more], {})
    file.end([count, x, y], [more])
    file.begin("body")
    count, x, y = (file.tensor(n, s, d) for n, s, d in LOOPED)
    less = file.tensor("less", dtype="INT32")
    file.operator("SUB", [count, file.tensor("one", [], "INT32", np.int32(1))], [less], {})
    file.end([count, x, y], [less, x, _stateful(file, x)])
    return file.encode(), [np.array(3, np.int32), X, np.zeros((1, 1), np.float32)]


def _answers(runner: Any, feeds: list[NDArray]) -> list[NDArray]:
    for detail, array in zip(runner.get_input_details(), feeds, strict=True):
        runner.set_tensor(detail["index"], array)
    runner.invoke()
    return [runner.get_tensor(d["index"]) for d in runner.get_output_details()]


@pytest.mark.parametrize(("made", "wanted"), [(_twice, [100, 100]), (_loop, [0, X, 111])])
def test_each_entry_begins_anew(
    made: Callable[[], tuple[bytes, list[NDArray]]], wanted: list[Any]
) -> None:
    content, feeds = made()
    with penstock.compile(penstock.load(content), devices=["reference"]) as compiled:
        for _ in range(RUNS):
            for got, want in zip(compiled(*feeds), wanted, strict=True):
                np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape))


@pytest.mark.parametrize("made", [_twice, _loop])
def test_litert_restarts_variables_at_each_entry(
    made: Callable[[], tuple[bytes, list[NDArray]]],
) -> None:
    litert = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="ai-edge-litert is not installed"
    )
    content, feeds = made()
    judge = litert.Interpreter(
        model_content=content,
        num_threads=1,
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF,
    )
    judge.allocate_tensors()
    with penstock.tflite.Interpreter(model_content=content) as ours:
        ours.allocate_tensors()
        for _ in range(RUNS):
            for got, want in zip(_answers(ours, feeds), _answers(judge, feeds), strict=True):
                np.testing.assert_array_equal(got, want)
