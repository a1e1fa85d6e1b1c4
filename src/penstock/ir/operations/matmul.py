"""Rows of matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ShapeMismatch
from penstock.ir.operations.attributes import (
    ASYMMETRIC_INPUTS,
    FUSED_ACTIVATION,
    QUANTIZED_BIAS_TYPE,
    choice,
    flag,
)
from penstock.ir.operations.requirements import integer_filter
from penstock.ir.operations.rules import (
    BLOCK_SCALES,
    agree,
    at_least,
    broadcast,
    check_blocks,
    dimension,
    elements,
    fill,
    product,
    ranked,
)
from penstock.ir.operations.spec import AttributeSpec, OperationSpec, Port, ShapeContext
from penstock.ir.operations.types import ACTIVATION, BIAS, INT, VALUE, WEIGHTS
from penstock.ir.types import Shape


def _fully_connected(context: ShapeContext) -> Sequence[Shape]:
    """Weights [units, in]. The input is flattened to rows of `in`, unless `keep_num_dims`. The work
    space of shuffled weights keeps its declared shape (TFLite).
    """
    shape, weights = context.shape(0), ranked(context, 1, 2)
    units, depth = dimension(weights, 0), dimension(weights, 1)
    if context.has(2):
        agree(elements(context, 2), units, "elements of the bias and units")
    check_blocks(context, 3)
    if context.attributes.flag("keep_num_dims"):
        if shape is None:
            return _with_space(context, None)
        if not shape:
            raise ShapeMismatch("keep_num_dims needs an input of rank 1 or more")
        agree(shape[-1], depth, "last input dimension and weight columns")
        return _with_space(context, (*shape[:-1], units))
    size = None if shape is None else product(shape)
    if size is None or depth is None:
        return _with_space(context, (None, units))
    if depth == 0 or size % depth:
        raise ShapeMismatch(f"an input of shape {shape} does not make rows of {depth}")
    return _with_space(context, (size // depth, units))


def _with_space(context: ShapeContext, output: Shape) -> Sequence[Shape]:
    space = [context.declared(i) for i in range(1, context.output_count)]
    return fill(context, output, *space)


def _batch_matmul(context: ShapeContext) -> Sequence[Shape]:
    a, b = at_least(context, 0, 2), at_least(context, 1, 2)
    swap_a, swap_b = context.attributes.flag("adj_x"), context.attributes.flag("adj_y")
    rows, inner = (
        (dimension(a, -1), dimension(a, -2)) if swap_a else (dimension(a, -2), dimension(a, -1))
    )
    depth, columns = (
        (dimension(b, -1), dimension(b, -2)) if swap_b else (dimension(b, -2), dimension(b, -1))
    )
    agree(inner, depth, "inner dimensions of the product")
    if a is None or b is None:
        return (None,)
    batch = broadcast(a[:-2], b[:-2])
    return (None if batch is None else (*batch, rows, columns),)


def _matrix_diagonal(context: ShapeContext) -> Sequence[Shape]:
    shape = at_least(context, 0, 1)
    return (None if shape is None else (*shape, shape[-1]),)


def _set_diagonal(context: ShapeContext) -> Sequence[Shape]:
    return (at_least(context, 0, 2),)


ROWS: Final = (
    OperationSpec(
        "FULLY_CONNECTED",
        (
            Port("input", ACTIVATION),
            Port("weights", WEIGHTS),
            Port("bias", BIAS, optional=True),
            BLOCK_SCALES,
        ),
        (Port("output", ACTIVATION), Port("shuffled_input", ACTIVATION, optional=True)),
        _fully_connected,
        (
            FUSED_ACTIVATION,
            choice("weights_format", "DEFAULT", "SHUFFLED4x16INT8"),
            flag("keep_num_dims"),
            ASYMMETRIC_INPUTS,
            QUANTIZED_BIAS_TYPE,
            AttributeSpec("quant_spec", "bytes", b""),
        ),
        require=integer_filter(0, checks_bias=True),
        feature_level=1,
        doc="The input's rows times the transposed weights, plus a bias. Integer weights may have a scale for each "
        "block of a row. "
        "The second output is the work space of the shuffled format.",
    ),
    OperationSpec(
        "BATCH_MATMUL",
        (Port("a", ACTIVATION | INT), Port("b", WEIGHTS | INT)),
        (Port("product", ACTIVATION | INT),),
        _batch_matmul,
        (flag("adj_x"), flag("adj_y"), ASYMMETRIC_INPUTS),
        feature_level=6,
        doc="The matrix products of the last two dimensions, either side transposed on demand, the others broadcast.",
    ),
    OperationSpec(
        "MATRIX_DIAG",
        (Port("diagonal", VALUE, "T"),),
        (Port("matrix", VALUE, "T"),),
        _matrix_diagonal,
        doc="Matrices with the last dimension of the input on their diagonal, zero elsewhere.",
    ),
    OperationSpec(
        "MATRIX_SET_DIAG",
        (Port("matrix", VALUE, "T"), Port("diagonal", VALUE, "T")),
        (Port("result", VALUE, "T"),),
        _set_diagonal,
        doc="The matrices with their diagonals replaced.",
    ),
)
