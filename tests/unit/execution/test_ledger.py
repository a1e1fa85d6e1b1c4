"""The copy ledger: whatever tensor data the runtime copies within a run is in its receipt, with the
reason.
"""

from __future__ import annotations

import ast
from typing import Any, Final

import numpy as np
import pytest

import penstock
from penstock.ir import DType, Lifetime, ModelBuilder, Operand, Signature
from penstock.memory import MemoryPool
from penstock.testing import assert_no_copies
from tests.checked import does_not_raise
from tests.conftest import ROOT
from tests.support_copies import copying

F32 = DType.FLOAT32
X = np.arange(6, dtype=np.float32).reshape(2, 3)

ELSEWHERE: Final = {
    ("execution/results.py", "copy_over"): "writes the receipt",
    ("execution/inputs.py", "as_array"): "writes the receipt",
    ("execution/series.py", "Series.targets"): "writes the receipt",
    ("execution/series.py", "Kept.take"): "writes the receipt",
    ("execution/inputs.py", "same"): "compares what was given under two names for one input",
    ("execution/inputs.py", "_parameters"): "scales and zero points",
    ("execution/inputs.py", "_import"): "makes an array of a list of strings",
    ("execution/state.py", "State.as_dict"): "the caller asks for copies",
    ("execution/state.py", "State.__reduce__"): "pickles",
    ("execution/state.py", "State.copied"): "the caller asks for a copy",
    ("execution/state.py", "_initial_values"): "makes the initial value, before any run",
    ("execution/bound_state.py", "BoundState.read"): "the caller asks for a copy",
    ("execution/bound_state.py", "BoundState.write"): "the caller asks for a copy",
    ("execution/cells.py", "Cells.fetch_variables"): "writes the receipt",
    ("execution/cells.py", "put"): "writes the receipt",
    ("ipc/ring_requests.py", "_copied"): "writes the receipt",
    ("ipc/dispatch.py", "Dispatcher._make"): "does what the client asks, which accounts for it",
    ("ipc/shared_arrays.py", "Staged._copy"): "told to the client, whose receipt has it",
    ("memory/bound.py", "BoundPool.read"): "called by Copying.fetch, which writes the receipt",
    ("memory/bound.py", "BoundPool.write"): "called by Copying.put, which writes the receipt",
    ("memory/buffer.py", "DeviceBuffer._copy_from_buffer"): "the caller asks for a copy",
    ("memory/buffer.py", "DeviceBuffer.copy_from"): "the caller asks for a copy",
    ("memory/buffer.py", "DeviceBuffer.copy_to"): "the caller asks for a copy",
    ("memory/buffer.py", "StoredValue._staged"): "counted for who writes the receipt",
    ("memory/buffer.py", "StoredValue.copy_to"): "counted for who writes the receipt",
    ("memory/buffer.py", "StoredValue.copy_to_array"): "counted for who writes the receipt",
    ("memory/buffer.py", "StoredValue.put"): "counted for who writes the receipt",
    ("memory/buffer.py", "StoredValue.take"): "counted for who writes the receipt",
    ("memory/buffer.py", "DeviceBuffer.numpy"): "the caller asks for a copy",
    ("memory/buffer.py", "fetch_value"): "counted for who writes the receipt",
    ("memory/domain.py", "MemoryDomain.decode"): "a driver's memory",
    ("memory/domain.py", "MemoryDomain.encode"): "a driver's memory",
    ("memory/pool.py", "MemoryPool.__array__"): "the caller asks for an array",
    ("memory/storage.py", "InPool.copy_to"): "counted for who writes the receipt",
    ("memory/storage.py", "OnDevice.copy_from"): "counted for who writes the receipt",
    ("memory/storage.py", "OnDevice.copy_to"): "counted for who writes the receipt",
    ("memory/storage.py", "InPool.copy_from"): "counted for who writes the receipt",
    ("runtime/shadow.py", "ShadowedVariant._copies"): "writes the receipt",
}
"""Functions of the runtime's that copy arrays: where the copy is accounted for, or why it is no
copy of a run.
"""


def reasons(outputs: Any) -> list[str]:
    return [copy.reason for copy in outputs.receipt.copies]


def compile_(builder: ModelBuilder, ends: list[int], **options: Any) -> penstock.CompiledModel:
    return penstock.compile(builder.build(ends), devices=["reference"], cache=None, **options)


def test_an_ordinary_run_copies_nothing() -> None:
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    with compile_(b, b.operation("RELU", [x], [(F32, (2, 3))])) as compiled:
        out = np.empty((2, 3), np.float32)
        with does_not_raise(), assert_no_copies():
            compiled(X)
            compiled.run([X], out=[out])


def test_inputs_and_constants_that_are_outputs_are_copied_and_show() -> None:
    b = ModelBuilder()
    x, k = b.input(F32, (2, 3), "x"), b.constant(X, "k")
    (y,) = b.operation("ADD", [x, k], [(F32, (2, 3))])
    with compile_(b, [y, x, k]) as compiled:
        assert reasons(compiled(X)) == ["an input or a constant is an output, too"] * 2
        given = [np.empty_like(X) for _ in range(3)]
        outputs = compiled.run([X], out=given)
        assert [c.nbytes for c in outputs.receipt.copies] == [X.nbytes] * 2
        assert all("was not computed in the array of out=" in r for r in reasons(outputs))


def test_one_value_under_two_outputs_is_copied_and_shows() -> None:
    b = ModelBuilder()
    (y,) = b.operation("RELU", [b.input(F32, (2, 3), "x")], [(F32, (2, 3))])
    with compile_(b, [y, y]) as compiled:
        assert reasons(compiled(X)) == ["one value is several outputs"]
        out = [np.empty_like(X), np.empty_like(X)]
        outputs = compiled.run([X], out=out)
        assert [*map(id, outputs)] == [*map(id, out)]
        assert len(reasons(outputs)) == 1
        one, other = compiled.run([X], out=[None, out[1]])
        assert other is out[1]
        assert not np.shares_memory(one, other)


def test_one_output_under_two_names_is_copied_and_shows() -> None:
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    (y,) = b.operation("RELU", [x], [(F32, (2, 3))])
    signature = Signature(0, (("x", x),), (("one", y), ("other", y)))
    model = b.build([y], {"main": signature})
    with penstock.compile(model, devices=["reference"], cache=None, signature="main") as compiled:
        assert reasons(compiled(X)) == ["one output has several names"]


def test_a_state_that_is_an_output_too_is_copied_and_shows() -> None:
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    before = b.operand(Operand(F32, (2, 3), Lifetime.SUBGRAPH_INPUT, "before"))
    (after,) = b.operation("ADD", [before, x], [(F32, (2, 3))])
    b.state(b.variable("sum", F32, (2, 3)), before, after)
    with compile_(b, [after]) as compiled:
        assert reasons(compiled(X)) == ["a new state is also something else"]


def test_an_input_that_is_not_contiguous_is_copied_and_shows() -> None:
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    with compile_(b, b.operation("RELU", [x], [(F32, (2, 3))])) as compiled:
        wide = np.zeros((2, 6), np.float32)
        assert reasons(compiled(wide[:, ::2])) == ["input 0 (x) is not contiguous"]


def test_output_of_unknown_shape_is_copied_into_out_and_reported() -> None:
    b = ModelBuilder()
    x = b.input(DType.BOOL, (4,), "x")
    (places,) = b.operation("WHERE", [x], [(DType.INT64, (None, 1))])
    with compile_(b, [places]) as compiled:
        given = np.array([True, False, True, False])
        outputs = compiled.run([given], out=[np.empty((2, 1), np.int64)])
        assert [c.nbytes for c in outputs.receipt.copies] == [16]


def test_strings_are_packed_for_the_device_and_it_shows() -> None:
    b = ModelBuilder()
    x = b.input(DType.STRING, (2,), "x")
    two = b.constant(np.array([2, 1], np.int32), "shape")
    with compile_(b, b.operation("RESHAPE", [x, two], [(DType.STRING, (2, 1))])) as compiled:
        outputs = compiled(np.array(["ab", "c"], object))
        assert [(c.source, c.destination) for c in outputs.receipt.copies] == [
            ("caller", "host"),
            ("host", "reference"),
            ("reference", "host"),
        ]


def test_assert_no_copies_lists_every_copy() -> None:
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    (y,) = b.operation("RELU", [x], [(F32, (2, 3))])
    with compile_(b, [y, x]) as compiled:
        with (
            pytest.raises(AssertionError, match="24 bytes, host -> output: an input or a constant"),
            assert_no_copies(),
        ):
            compiled(X)
        with assert_no_copies(allowed_bytes=24) as copies:
            compiled(X)
        assert len(copies) == 1


def test_no_code_of_a_run_copies_arrays_without_a_receipt() -> None:
    """Every call in the packages of a run that copies an array stands in the table of this file."""
    found = {}
    source = ROOT / "src" / "penstock"
    packages = [source / name for name in ("execution", "memory", "ipc")]
    paths = [source / "runtime" / name for name in ("shadow.py", "investigation.py")]
    for path in [*paths, *(path for package in packages for path in package.rglob("*.py"))]:
        for function in copying(ast.parse(path.read_text("utf-8"))):
            found[path.relative_to(source).as_posix(), function] = True
    assert sorted(set(found) - set(ELSEWHERE)) == []
    assert sorted(set(ELSEWHERE) - set(found)) == []


def test_temporaries_are_not_copied_for_a_pools_only_device() -> None:
    b = ModelBuilder()
    value = b.input(F32, (2, 3), "x")
    for kind in ("RELU", "TANH", "RELU"):
        (value,) = b.operation(kind, [value], [(F32, (2, 3))])
    policy = penstock.Policy(require={"RELU": "sample"})
    with (
        penstock.compile(
            b.build([value]), devices=["sample", "reference"], cache=None, policy=policy
        ) as compiled,
        MemoryPool.anonymous(X.nbytes) as x,
        MemoryPool.anonymous(X.nbytes) as y,
    ):
        assert [step.device for step in compiled.plan.steps] == ["sample", "reference", "sample"]
        x.view(np.float32, X.shape)[...] = X
        for _ in range(2):
            with assert_no_copies():
                compiled.run([x], out=[y])
        np.testing.assert_allclose(y.view(np.float32, X.shape), np.tanh(X), rtol=1e-6)
