"""How many pieces of memory an operation handles, from the shapes of its values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from penstock.ir import DType, Model, ModelBuilder
from penstock.partitioning.costs import cell_of, features_of
from penstock.partitioning.pieces import pieces_of


def model_of(
    kind: str, inputs: list[tuple[int | None, ...]], output: tuple[int, ...], **attributes: Any
) -> Model:
    net = ModelBuilder()
    given = [net.input(DType.FLOAT32, shape, f"x{at}") for at, shape in enumerate(inputs)]
    given += [net.constant(np.array(each, np.int32)) for each in attributes.pop("arguments", ())]
    return net.build(net.operation(kind, given, [(DType.FLOAT32, output)], attributes))


def pieces(model: Model) -> float | None:
    return pieces_of(model.entry, model.operations[0])


def runs(indexes: np.ndarray[Any, Any]) -> int:
    """Stretches of neighbouring elements in *indexes*, in the order in which they are written."""
    flat = indexes.reshape(-1)
    return int(np.count_nonzero(np.diff(flat) != 1)) + 1


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((4, 3, 5), (0, 2, 1)),
        ((4, 3, 5), (1, 0, 2)),
        ((4, 3, 5, 2), (0, 2, 1, 3)),
        ((4, 3, 5, 2), (1, 0, 3, 2)),
        ((4, 3, 5, 2), (1, 0, 2, 3)),
        ((1, 4, 1, 6), (0, 3, 2, 1)),
    ],
)
def test_a_transposition_copies_what_stays_in_a_row(
    shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    made = tuple(shape[axis] for axis in order)
    model = model_of("TRANSPOSE", [shape], made, arguments=[order])
    source = np.arange(math.prod(shape)).reshape(shape)
    # An element at the end of a row that stays may follow the one at the start of another.
    assert pieces(model) == pytest.approx(runs(source.transpose(order)), rel=0.15)


@pytest.mark.parametrize(
    ("kind", "inputs", "output", "expected"),
    [
        ("SLICE", [(2, 8, 6)], (2, 8, 3), 16),
        ("SLICE", [(2, 8, 6)], (2, 4, 6), 2),
        ("CONCATENATION", [(2, 8, 6), (2, 8, 2)], (2, 8, 8), 32),
        ("CONCATENATION", [(2, 8, 6), (2, 2, 6)], (2, 10, 6), 4),
        ("PAD", [(2, 8, 6)], (2, 10, 6), 2),
        ("TILE", [(2, 8, 6)], (2, 16, 6), 4),
        ("SPACE_TO_DEPTH", [(1, 8, 8, 4)], (1, 4, 4, 16), 64),
        ("ADD", [(8, 10, 4, 2), (8, 10, 1, 2)], (8, 10, 4, 2), 320),
        ("ADD", [(8, 10, 4, 2), (8, 10, 4, 1)], (8, 10, 4, 2), 320),
        ("ADD", [(8, 10, 4, 2), (8, 1, 1, 1)], (8, 10, 4, 2), 8),
    ],
)
def test_pieces_are_rows_of_which_both_sides_are_in_a_row(
    kind: str, inputs: list[tuple[int | None, ...]], output: tuple[int, ...], expected: int
) -> None:
    arguments = {
        "SLICE": [(0, 0, 0), output],
        "PAD": [[(0, 0), (1, 1), (0, 0)]],
        "TILE": [(1, 2, 1)],
    }
    attributes: dict[str, dict[str, int]] = {"SPACE_TO_DEPTH": {"block_size": 2}}
    model = model_of(
        kind, inputs, output, arguments=arguments.get(kind, []), **attributes.get(kind, {})
    )
    assert pieces(model) == expected


@pytest.mark.parametrize(("axis", "expected"), [(0, 2), (1, 4), (-1, 24)])
def test_stacked_values_are_copied_up_to_the_axis(axis: int, expected: int) -> None:
    shape = [2, 6]
    shape.insert(axis if axis >= 0 else len(shape), 2)
    model = model_of("PACK", [(2, 6), (2, 6)], tuple(shape), axis=axis, values_count=2)
    assert pieces(model) == expected


def test_values_of_unknown_shape_count_by_the_element() -> None:
    model = model_of("CONCATENATION", [(None, 6), (None, 2)], (3, 8))
    assert pieces(model) is None
    assert features_of(model.entry, model.operations[0])[1] == 24


@pytest.mark.parametrize(
    ("shape", "order", "expected"),
    [
        ((1, 4, 6, 8), (0, 3, 1, 2), "TRANSPOSE float32"),
        ((4, 6, 8), (0, 2, 1), "TRANSPOSE float32"),
        ((4, 6, 8), (1, 0, 2), "TRANSPOSE apart float32"),
        ((4, 6, 3, 8), (1, 0, 3, 2), "TRANSPOSE apart float32"),
    ],
)
def test_a_transposition_of_matrices_is_a_kind_of_its_own(
    shape: tuple[int, ...], order: tuple[int, ...], expected: str
) -> None:
    made = tuple(shape[axis] for axis in order)
    model = model_of("TRANSPOSE", [shape], made, arguments=[order])
    assert cell_of(model.entry, model.operations[0]) == expected
