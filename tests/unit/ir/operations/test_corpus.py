"""Shapes inferred for whole networks of the corpus are those LiteRT computes, operand by
operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest

from penstock import loaders
from penstock.errors import ModelError
from penstock.ir import Model, Operation, Shape, infer_shapes
from tests.unit.ir.operations.test_unknown import compatible
from tests.unit.loaders.corpus import Entry, parameters, path_of, stops_at

VALUE_DEPENDENT: Final = {
    "litert_simple_topk_op_runtime_k",
    "litert_tile_with_bool_input",
    "quantizer_single_slice",
    "tflm_transpose_conv3",
}
"""Models whose shapes depend on values that are given at run time."""


def interpreter(content: bytes) -> Any:
    """An allocated interpreter, with kernels that have the file's operators."""
    litert = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="ai-edge-litert, the judge, is not installed"
    )
    kinds = litert.OpResolverType
    for kind in (kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES, kinds.BUILTIN_REF, kinds.AUTO):
        try:
            made = litert.Interpreter(
                model_content=content, num_threads=1, experimental_op_resolver_type=kind
            )
            made.allocate_tensors()
        except (RuntimeError, ValueError):
            continue
        return made
    pytest.fail("no kernels of LiteRT take the file", pytrace=False)


def written(model: Model, details: dict[int, Any]) -> list[tuple[str, Shape, Shape]]:
    """(operation type, inferred shape, LiteRT's) of every operand that the main subgraph writes."""
    found: list[tuple[str, Shape, Shape]] = []
    for operation in model.entry.operations:
        for index in operation.outputs:
            operand = model.entry.operands[index]
            if operand.origin is None or operand.origin.subgraph != 0:
                continue
            theirs = tuple(int(d) for d in details[operand.origin.index]["shape"])
            found.append((operation.type, operand.shape, theirs))
    return found


@pytest.mark.parametrize("entry", parameters("network", "unit"))
def test_shapes_are_those_litert_computes(entry: Entry) -> None:
    if entry.get("id") in VALUE_DEPENDENT:
        pytest.skip("its shapes depend on values; the recorded cases judge it")
    model = loaders.load(path_of(entry))
    judge = interpreter(path_of(entry).read_bytes())

    def details() -> dict[int, Any]:
        return {d["index"]: d for d in judge.get_tensor_details()}

    given = {}
    for position, index in enumerate(model.entry.ordinary_inputs):
        origin = model.operands[index].origin
        assert origin is not None
        given[position] = tuple(int(d) for d in details()[origin.index]["shape"])
    inferred = infer_shapes(model, given)
    if any(mine != theirs for _, mine, theirs in written(inferred, details())):
        # Tensors that LiteRT sizes while it runs have a declared shape until then.
        for detail in judge.get_input_details():
            judge.set_tensor(detail["index"], np.zeros(detail["shape"], detail["dtype"]))
        judge.invoke()
    for kind, mine, theirs in written(inferred, details()):
        assert mine == theirs, kind


@pytest.mark.parametrize("entry", parameters("network", "unit"))
def test_shapes_of_recorded_cases(entry: Entry) -> None:
    if "golden" not in entry:
        pytest.skip("nothing is recorded")
    model = loaders.load(path_of(entry))
    with np.load(path_of(entry).with_suffix(".npz")) as arrays:
        for case in entry["golden"]["cases"]:
            named = case.get("signature")
            entered = model.signature_model(named) if named else model
            positions, outputs = _places(entered, case, named)
            given = {positions[k]: arrays[f"{case['id']}/in/{k}"].shape for k in case["inputs"]}
            inferred = infer_shapes(entered, given)
            for k in case["outputs"]:
                wanted = arrays[f"{case['id']}/out/{k}"].shape
                found = inferred.outputs[outputs[k]].shape
                assert compatible(found, wanted), f"case {case['id']}: {found}, not {wanted}"


def _places(
    model: Model, case: Any, signature: str | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Positions of the case's inputs and outputs, which it names by number, or by signature."""
    if signature is None:
        return {k: int(k) for k in case["inputs"]}, {k: int(k) for k in case["outputs"]}
    names, entry = model.signatures[signature], model.entry
    return (
        {label: entry.ordinary_inputs.index(i) for label, i in names.inputs},
        {label: entry.ordinary_outputs.index(i) for label, i in names.outputs},
    )


@pytest.mark.parametrize("entry", parameters("rejected", "corrupted"))
def test_operations_that_litert_does_not_prepare_are_refused_or_custom(entry: Entry) -> None:
    """Of damaged files that load, inference refuses what LiteRT refuses, but for unknown
    operators.
    """
    if stops_at(entry) not in {"load", "allocate"}:
        pytest.skip("LiteRT prepares it")
    refused: ModelError | None = None
    operations: Sequence[Operation] = ()
    try:
        model = loaders.load(path_of(entry))
        operations = model.operations
        infer_shapes(model)
    except ModelError as error:
        refused = error
    assert refused is not None or any(o.type == "CUSTOM" for o in operations)
