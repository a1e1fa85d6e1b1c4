"""Slices of models, written and run: a network in pieces gives what it gives whole."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from penstock import loaders
from penstock.export.tflite import write
from penstock.ir import Lifetime, Model, Subgraph
from penstock.ir.operand import Operand

litert = pytest.importorskip("ai_edge_litert.interpreter")


def cut(model: Model, first: int, last: int) -> tuple[Model, list[int], list[int]]:
    """Operations [first, last) as a model, with the operand indexes of its inputs and outputs."""
    operations = model.operations[first:last]
    written = [o for operation in operations for o in operation.outputs]
    read = {i for operation in operations for i in operation.inputs}
    inputs = sorted(
        i
        for i in read - set(written)
        if not model.operands[i].is_constant and model.operands[i].has_value
    )
    later = {i for operation in model.operations[last:] for i in operation.inputs} | set(
        model.entry.outputs
    )
    outputs = [o for o in written if o in later]

    def role(index: int, operand: Operand) -> Operand:
        if operand.is_constant or not operand.has_value:
            return operand
        if index in inputs:
            return replace(operand, lifetime=Lifetime.SUBGRAPH_INPUT)
        lifetime = Lifetime.SUBGRAPH_OUTPUT if index in outputs else Lifetime.TEMPORARY_VARIABLE
        return replace(operand, lifetime=lifetime)

    operands = tuple(role(i, o) for i, o in enumerate(model.operands))
    piece = Subgraph(operands, operations, tuple(inputs), tuple(outputs))
    return Model((piece,), model.pools), inputs, outputs


def run(content: bytes, inputs: list[Any]) -> list[Any]:
    made = litert.Interpreter(
        model_content=content,
        num_threads=1,
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    made.allocate_tensors()
    for detail, value in zip(made.get_input_details(), inputs, strict=True):
        made.set_tensor(detail["index"], value)
    made.invoke()
    return [made.get_tensor(d["index"]) for d in made.get_output_details()]


@pytest.mark.parametrize(
    "name", ["mobilenet_v1_0.25_128_uint8", "resnet8_cifar10_int8", "kws_dscnn_int8"]
)
@pytest.mark.parametrize("pieces", [2, 5])
def test_a_network_in_pieces_gives_what_it_gives_whole(
    corpus: Path, name: str, pieces: int
) -> None:
    content = (corpus / "models" / "networks" / f"{name}.tflite").read_bytes()
    model = loaders.load(content)
    (entry,) = model.entry.inputs
    operand = model.operands[entry]
    shape = tuple(d or 1 for d in operand.shape or ())
    given = np.random.default_rng(1).integers(0, 100, shape).astype(operand.dtype.numpy)
    values = {entry: given}
    marks = np.linspace(0, len(model.operations), pieces + 1).astype(int)
    for first, last in itertools.pairwise(marks):
        piece, inputs, outputs = cut(model, int(first), int(last))
        values.update(zip(outputs, run(write(piece), [values[i] for i in inputs]), strict=True))
    expected = run(content, [given])
    found = [values[o] for o in model.entry.outputs]
    assert [a.tolist() for a in found] == [a.tolist() for a in expected]
