"""Long short-term memories over real values, with dense and sparse weights."""

from __future__ import annotations

import flatbuffers
import numpy as np
import pytest

from penstock.ir import DType, NDArray, Operand
from penstock.ir.operand import OMITTED
from tests.support_litert import kernel_of, refusal, schema
from tests.unit.drivers.reference.support_lstm import Form, bidirectional_case, real_case
from tests.unit.drivers.reference.support_recurrent import (
    Case,
    Constant,
    Item,
    compare,
    pairs,
    run_litert,
    run_reference,
    shape_of,
    values,
)

REAL = DType.FLOAT32
WEIGHTS = [(REAL, False), (DType.INT8, False), (DType.INT8, True), (DType.UINT8, False)]
"""Type of the weights, and whether activations are quantised asymmetrically at run time."""

FORMS = {
    "plain": Form(),
    "coupled": Form(coupled=True),
    "peephole": Form(peephole=True),
    "projection": Form(outputs=3),
    "projection with bias": Form(outputs=5, projection_bias=True),
    "normalised": Form(norm=True),
    "everything": Form(peephole=True, outputs=3, projection_bias=True, norm=True),
    "everything coupled": Form(coupled=True, peephole=True, outputs=3, norm=True),
    "one sequence": Form(batch=1),
}


@pytest.mark.parametrize(("weights", "asymmetric"), WEIGHTS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("order", ["batch", "time", "step"])
def test_lstm_forms_agree_with_litert(
    form: Form, weights: DType, asymmetric: bool, order: str
) -> None:
    kind = "LSTM" if order == "step" else form.kind
    tried = Form(**{**vars(form), "kind": kind, "time_major": order == "time"})
    rng = np.random.default_rng(1)
    case = real_case(
        tried, rng, weights, asymmetric_quantize_inputs=asymmetric, cell_clip=0.6, proj_clip=0.3
    )
    compare(case, case.feeds(rng, 3, reach=2.0))


@pytest.mark.parametrize("weights", [REAL, DType.INT8])
@pytest.mark.parametrize("form", ["plain", "coupled", "peephole", "projection"])
@pytest.mark.parametrize("order", ["sequence", "step", "both directions"])
def test_the_input_gate_is_coupled_where_the_input_has_no_elements(
    form: str, weights: DType, order: str
) -> None:
    """LiteRT aborts where activations are quantised asymmetrically."""
    tried, rng = Form(**{**vars(FORMS[form]), "size": 0}), np.random.default_rng(1)
    if order == "both directions":
        case = bidirectional_case(tried, rng, weights)
    else:
        kind = "LSTM" if order == "step" else tried.kind
        case = real_case(Form(**{**vars(tried), "kind": kind}), rng, weights)
    compare(case, case.feeds(rng, 3))


@pytest.mark.parametrize(("weights", "asymmetric"), WEIGHTS)
def test_lstm_projection_may_have_more_outputs_than_cells(weights: DType, asymmetric: bool) -> None:
    """Of a sequence, and by a few: LiteRT writes past its scratch memory otherwise
    (docs/differences.md).
    """
    rng = np.random.default_rng(1)
    form = Form(outputs=9, projection_bias=True)
    case = real_case(form, rng, weights, asymmetric_quantize_inputs=asymmetric)
    compare(case, case.feeds(rng, 3, reach=2.0))


@pytest.mark.parametrize("weights", [REAL, DType.INT8])
@pytest.mark.parametrize("activation", ["TANH", "RELU", "RELU6", "RELU_N1_TO_1", "SIGN_BIT"])
def test_lstm_activations_agree_with_litert(activation: str, weights: DType) -> None:
    rng = np.random.default_rng(2)
    case = real_case(Form(), rng, weights)
    case.attributes["fused_activation_function"] = activation
    compare(case, case.feeds(rng, 2, reach=2.0))


@pytest.mark.parametrize("weights", [REAL, DType.INT8])
@pytest.mark.parametrize("diagonal", [(0, 1, 2, 3), (1, 2)])
def test_lstm_with_diagonal_recurrent_weights_agrees_with_litert(
    diagonal: tuple[int, ...], weights: DType
) -> None:
    rng = np.random.default_rng(3)
    case = real_case(Form(diagonal=diagonal), rng, weights, diagonal_recurrent_tensors=True)
    compare(case, case.feeds(rng, 2, reach=2.0))


@pytest.mark.parametrize("weights", [REAL, DType.INT8])
@pytest.mark.parametrize(("batch", "steps"), [(0, 3), (2, 0)])
@pytest.mark.parametrize("time_major", [False, True])
def test_lstm_of_an_empty_sequence_is_empty(
    batch: int, steps: int, time_major: bool, weights: DType
) -> None:
    form = Form(batch=batch, steps=steps, time_major=time_major, norm=True, outputs=3)
    rng = np.random.default_rng(4)
    case = real_case(form, rng, weights)
    compare(case, case.feeds(rng, 2))


@pytest.mark.parametrize(("weights", "asymmetric"), WEIGHTS[:3])
@pytest.mark.parametrize("form", [FORMS["plain"], FORMS["everything"], FORMS["coupled"]])
@pytest.mark.parametrize("auxiliary", ["none", "weighted", "linked"])
@pytest.mark.parametrize("time_major", [False, True])
def test_bidirectional_lstm_agrees_with_litert(
    form: Form, weights: DType, asymmetric: bool, auxiliary: str, time_major: bool
) -> None:
    tried = Form(**{**vars(form), "time_major": time_major})
    rng = np.random.default_rng(5)
    case = bidirectional_case(
        tried,
        rng,
        weights,
        merge=time_major,
        auxiliary={"none": 0, "weighted": 7, "linked": tried.size}[auxiliary],
        linked=auxiliary == "linked",
        asymmetric_quantize_inputs=asymmetric,
        cell_clip=0.7,
    )
    compare(case, case.feeds(rng, 2, reach=2.0))


def operands(form: Form, dtype: DType) -> list[Operand]:
    """The inputs of *form* as operands, none of them constant."""
    return real_case(form, np.random.default_rng(0)).operands(dtype)


def random_values(rng: np.random.Generator, inputs: list[Operand]) -> list[NDArray | None]:
    return [values(rng, o.dtype, shape_of(o)) if o.has_value else None for o in inputs]


def test_lstm_computes_float16_in_float32() -> None:
    form = Form(peephole=True, norm=True, outputs=3)
    rng = np.random.default_rng(6)
    halves, singles = (operands(form, t) for t in (DType.FLOAT16, REAL))
    given = random_values(rng, halves)
    made = [halves[0], halves[18], halves[19]]
    results = kernel_of("UNIDIRECTIONAL_SEQUENCE_LSTM", halves, made, **form.attributes())(given)
    wide = [None if a is None else a.astype(np.float32) for a in given]
    wanted = kernel_of("UNIDIRECTIONAL_SEQUENCE_LSTM", singles, singles[:3], **form.attributes())(
        wide
    )
    for got, want in zip(results, wanted, strict=True):
        assert got.dtype == np.float16
        np.testing.assert_array_equal(got, want.astype(np.float16))


def test_lstm_states_keep_their_shapes_and_are_not_written() -> None:
    form = Form(batch=2)
    given_operands = operands(form, REAL)
    flat = Operand(REAL, (12,))
    given_operands[18:20] = [flat, flat]
    rng = np.random.default_rng(7)
    given = random_values(rng, given_operands)
    for array in given:
        if array is not None:
            array.flags.writeable = False
    run = kernel_of(form.kind, given_operands, [given_operands[0], flat, flat], **form.attributes())
    shapes = [r.shape for r in run(given)]
    assert shapes == [(2, 5, 6), (12,), (12,)]


@pytest.mark.parametrize(
    ("without", "reason"),
    [
        (2, "without input 2"),
        (5, "without input 5"),
        (12, "without input 12"),
        (1, "without its input weights"),
        (10, "peephole weights of some gates only"),
        (22, "layer normalisation coefficients of some gates only"),
        (16, "a projection bias without projection weights"),
    ],
)
def test_lstm_refuses_incomplete_parameters(without: int, reason: str) -> None:
    form = Form(peephole=True, norm=True, outputs=3, projection_bias=True)
    inputs = operands(form, REAL)
    inputs[without] = OMITTED
    assert reason in refusal(form.kind, inputs, [inputs[0]] * 3, **form.attributes())


def test_lstm_refuses_what_tflite_refuses() -> None:
    form = Form()
    inputs = operands(form, REAL)
    assert "cell_clip" in refusal(form.kind, inputs, [inputs[0]] * 3, cell_clip=-1.0)
    doubles = operands(form, DType.FLOAT64)
    assert "float64" in refusal(form.kind, doubles, [doubles[0]] * 3)
    inputs[2] = Operand(DType.INT16, (6, 4))
    assert "int16" in refusal(form.kind, inputs, [inputs[0]] * 3)


BLOCK = 16
"""Columns of a block, as the kernel of LSTM has them."""

INPUT, RECURRENT, PROJECTION = [1, 2, 3, 4], [5, 6, 7, 8], [16]


def thin_case(*, asymmetric: bool = False) -> Case:
    """A hybrid LSTM half of whose blocks of weights are zero."""
    rng = np.random.default_rng(1)
    case = real_case(
        Form(kind="LSTM", size=32, cells=32, outputs=16),
        rng,
        DType.INT8,
        asymmetric_quantize_inputs=asymmetric,
    )
    return Case(case.kind, [thin(i, rng) for i in case.inputs], case.outputs, case.attributes)


def thin(item: Item, rng: np.random.Generator) -> Item:
    if not isinstance(item, Constant) or item.value.dtype != np.int8 or item.value.ndim != 2:
        return item
    rows, columns = item.value.shape
    blocks = item.value.reshape(rows, columns // BLOCK, BLOCK).copy()
    blocks[rng.random(blocks.shape[:2]) < 0.5] = 0
    return Constant(blocks.reshape(rows, columns), item.quantization)


def dense(size: int) -> object:
    made = schema.DimensionMetadataT()
    made.format, made.denseSize = schema.DimensionType.DENSE, size
    return made


def vector(values: list[int]) -> object:
    made = schema.Int32VectorT()
    made.values = values
    return made


def sparse(file: bytes, positions: list[int]) -> bytes:
    """The same file with the weights at *positions* in blocks."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(file, 0))
    graph = model.subgraphs[0]
    for position in positions:
        tensor = graph.tensors[graph.operators[0].inputs[position]]
        rows, columns = tensor.shape
        stored = np.array(model.buffers[tensor.buffer].data, np.uint8)
        blocks = stored.reshape(rows, columns // BLOCK, BLOCK)
        kept = blocks.any(axis=2)
        middle = schema.DimensionMetadataT()
        middle.format = schema.DimensionType.SPARSE_CSR
        middle.arraySegments = vector([0, *(int(n) for n in kept.sum(axis=1).cumsum())])
        middle.arrayIndices = vector([int(i) for i in np.nonzero(kept)[1]])
        kind = schema.SparseIndexVector.Int32Vector
        middle.arraySegmentsType = middle.arrayIndicesType = kind
        tensor.sparsity = schema.SparsityParametersT()
        tensor.sparsity.traversalOrder, tensor.sparsity.blockMap = [0, 1, 2], [1]
        tensor.sparsity.dimMetadata = [dense(rows), middle, dense(BLOCK)]
        buffer = schema.BufferT()
        buffer.data = blocks[kept].reshape(-1)
        tensor.buffer = len(model.buffers)
        model.buffers.append(buffer)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def worst(a: list[list[NDArray]], b: list[list[NDArray]]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in pairs(a, b))


def test_lstm_with_sparse_weights_agrees_with_litert() -> None:
    case = thin_case()
    file = sparse(case.model(), INPUT + PROJECTION)
    feeds = case.feeds(np.random.default_rng(2), 3, reach=2.0)
    assert worst(run_reference(file, feeds), run_litert(file, feeds)) < 1e-6


@pytest.mark.parametrize(
    ("positions", "asymmetric"),
    [(INPUT + RECURRENT + PROJECTION, False), (INPUT + PROJECTION, True)],
    ids=["recurrent weights", "asymmetric inputs"],
)
def test_litert_computes_sparse_lstm_weights_differently(
    positions: list[int], asymmetric: bool
) -> None:
    """LiteRT scales the previous output as it does the input, and leaves offsets out
    (docs/differences.md).
    """
    case = thin_case(asymmetric=asymmetric)
    file = sparse(case.model(), positions)
    feeds = case.feeds(np.random.default_rng(2), 3, reach=2.0)
    ours = run_reference(file, feeds)
    assert worst(ours, run_reference(case.model(), feeds)) == 0
    assert worst(ours, run_litert(case.model(), feeds)) < 1e-6
    assert worst(ours, run_litert(file, feeds)) > 1e-2
