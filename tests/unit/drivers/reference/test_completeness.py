"""Every row of the operation table is whole: checked, inferred, computed, compared and documented;
or it is a gap.

The table of gaps may hold only what LiteRT itself refuses, which a test asks it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock.drivers.reference.kernel import KERNELS
from penstock.errors import InvalidAttribute, InvalidOperation, PenstockError
from penstock.export.tflite.encoding import encode
from penstock.export.tflite.fields import TFLITE
from penstock.ir import Attributes, Operation, infer_shapes
from penstock.ir.operations import OPERATIONS, OperationSpec
from tests.differential.registry import draw_single, every_case
from tests.differential.trial import run
from tools.generate_operations import page

ROOT: Final = Path(__file__).parents[4]
PAGE: Final = page()
CASES: Final = (
    "tests/differential/generators",
    "tests/unit/drivers/reference",
    "tests/unit/loaders",
)
"""Where golden cases stand: models whose results come from LiteRT, or from another
implementation.
"""

GAPS: Final[dict[str, str]] = {
    "CONCAT_EMBEDDINGS": "LiteRT registers no kernel",
    "DELEGATE": "the mark that a delegate leaves in a graph; no file has it",
    "STABLEHLO_CUSTOM_CALL": "LiteRT registers no kernel",
    "CUSTOM": "the row of custom operators that nobody knows",
}
"""Rows that the reference driver does not compute."""

VENDORS: Final = frozenset({"EXTENSION"})
"""Rows of NNAPI's extensions: no file has them, and the vendor's device alone computes them."""

LOWERED: Final = frozenset(
    {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE", "HASHTABLE", "HASHTABLE_IMPORT"}
)
"""Rows that the loader turns into state: no driver meets them."""


def has_validation(row: OperationSpec) -> None:
    """It refuses an attribute that it does not have, or operands that it does not take."""
    operation = Operation(row.name.partition(":")[0], (), (), Attributes(nobody_has_this=1))
    with pytest.raises((InvalidAttribute, InvalidOperation)):
        row.check(operation, [])


def has_shape_inference(row: OperationSpec) -> None:
    """What it infers for drawn models is what they give when they run; for a row that nobody draws,
    a test of shapes names it.
    """
    if row.name not in every_case():
        short = row.name.partition("STABLEHLO_")[2]
        assert f'"{row.name}"' in _shape_tests() or (short and f'"{short}"' in _shape_tests())
        return
    ran = 0
    for seed in range(6):
        drawn = draw_single(row.name, [seed])
        try:
            model = infer_shapes(penstock.load(drawn.file))
            arrays = run(model, drawn)
        except PenstockError:
            continue
        ran += 1
        for operand, array in zip(model.outputs, arrays, strict=True):
            if operand.shape is not None:
                known = [
                    d if d is not None else n
                    for d, n in zip(operand.shape, array.shape, strict=True)
                ]
                assert tuple(known) == array.shape, drawn.listing
    assert ran


def has_a_reference_implementation(row: OperationSpec) -> None:
    assert row.name in LOWERED or callable(KERNELS[row.name])


def has_a_golden_case(row: OperationSpec) -> None:
    """A generator or a test names it; custom operators by their code, and StableHLO's in files of
    their own also without what all their names begin with.
    """
    family, _, short = row.name.partition("STABLEHLO_" if "STABLEHLO_" in row.name else ":")
    named = f'"{row.name}"' in _cases("")
    assert named or (short and f'"{short}"' in _cases("" if family else "stablehlo")), row.name


def has_a_doc_row(row: OperationSpec) -> None:
    assert f"| `{row.name}` |" in PAGE


@cache
def _shape_tests() -> str:
    """The text of the tests of shapes, and of those that run models of operations that nobody
    draws.
    """
    places = (
        "tests/unit/ir",
        "tests/unit/drivers/reference",
        "tests/unit/loaders",
        "tests/unit/nnapi",
    )
    files = sorted(p for place in places for p in (ROOT / place).rglob("*.py"))
    return "\n".join(p.read_text("utf-8") for p in files if p != Path(__file__))


@cache
def _cases(word: str) -> str:
    """The text of the tests whose file names contain *word*."""
    files = sorted(p for place in CASES for p in (ROOT / place).rglob("*.py") if word in p.name)
    return "\n".join(p.read_text("utf-8") for p in files if p != Path(__file__))


PROMISES: Final[tuple[Callable[[OperationSpec], None], ...]] = (
    has_validation,
    has_shape_inference,
    has_a_reference_implementation,
    has_a_golden_case,
    has_a_doc_row,
)
ASKED_OF_GAPS: Final = {has_validation, has_a_doc_row}
"""What a gap keeps all the same."""


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - set(GAPS) - VENDORS))
def test_row_of_the_table_is_complete(name: str, promise: Callable[[OperationSpec], None]) -> None:
    promise(OPERATIONS[name])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=reason))
        for name, reason in GAPS.items()
    ],
)
def test_gap_has_no_reference_kernel(name: str) -> None:
    has_a_reference_implementation(OPERATIONS[name])


@pytest.mark.parametrize("name", sorted(GAPS))
def test_a_gap_is_refused_by_litert(name: str) -> None:
    litert = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="ai-edge-litert is not installed"
    )
    kinds = litert.OpResolverType
    for kind in (kinds.BUILTIN_REF, kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES):
        with pytest.raises((ValueError, RuntimeError), match=r"op|Op|custom"):
            litert.Interpreter(
                model_content=_file(name), experimental_op_resolver_type=kind
            ).allocate_tensors()


@pytest.mark.parametrize("name", sorted((set(GAPS) & set(OPERATIONS)) | VENDORS))
def test_a_gap_is_checked_and_documented(name: str) -> None:
    for promise in PROMISES:
        if promise in ASKED_OF_GAPS:
            promise(OPERATIONS[name])


def _file(name: str) -> bytes:
    """A file of one operator of this name, from one float32 number to another."""
    number = TFLITE.number("BuiltinOperator", name)
    code = {
        "deprecated_builtin_code": min(number, 127),
        "builtin_code": number,
        "custom_code": "NobodyKnows" if name == "CUSTOM" else None,
        "version": 1,
    }
    tensor = {"shape": [1], "type": TFLITE.number("TensorType", "FLOAT32"), "buffer": 0}
    graph = {
        "tensors": [tensor, tensor],
        "inputs": [0],
        "outputs": [1],
        "operators": [{"opcode_index": 0, "inputs": [0], "outputs": [1]}],
    }
    root = {"version": 3, "operator_codes": [code], "subgraphs": [graph], "buffers": [{}]}
    return encode(TFLITE, root)
