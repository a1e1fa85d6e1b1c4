"""Integer long short-term memories, bit for bit against LiteRT's kernels over steps and successive
runs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.ir import DType, Operand, Quantization
from penstock.ir.operand import OMITTED
from penstock.ir.operation import AttributeValue
from tests.support_litert import kernel_of, q, refusal
from tests.unit.drivers.reference.support_lstm import Form, integer_case, narrow_case
from tests.unit.drivers.reference.support_recurrent import Case, compare, run_reference

FORMS = {
    "plain": Form(),
    "coupled": Form(coupled=True),
    "peephole": Form(peephole=True),
    "projection": Form(outputs=3, projection_bias=True),
    "normalised": Form(norm=True),
    "normalised projection": Form(outputs=3, norm=True),
    "everything": Form(peephole=True, outputs=6, projection_bias=True, norm=True),
    "everything coupled": Form(coupled=True, peephole=True, outputs=6, norm=True),
    "odd sizes": Form(batch=3, size=7, cells=11, norm=True),
    "input of size zero": Form(size=0, norm=True),
}


@pytest.mark.parametrize("order", ["batch", "time", "step"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    ("cell_power", "hidden_zero_point", "cell_clip", "proj_clip"),
    [(-11, 0, 0.0, 0.0), (-15, -10, 0.6, 0.3), (-9, 17, 2.5, 1.0)],
)
def test_integer_lstm_with_5_intermediates_agrees_with_litert(
    form: Form,
    order: str,
    cell_power: int,
    hidden_zero_point: int,
    cell_clip: float,
    proj_clip: float,
) -> None:
    kind = "LSTM" if order == "step" else form.kind
    rng = np.random.default_rng(1)
    case = integer_case(
        replace(form, kind=kind, time_major=order == "time"),
        rng,
        hidden_zero_point,
        cell_power,
        cell_clip=cell_clip,
        proj_clip=proj_clip,
    )
    compare(case, case.feeds(rng, 3))


@pytest.mark.parametrize(("batch", "steps"), [(0, 3), (2, 0)])
def test_integer_lstm_of_an_empty_sequence_is_empty(batch: int, steps: int) -> None:
    rng = np.random.default_rng(2)
    case = integer_case(Form(batch=batch, steps=steps, norm=True, outputs=3), rng)
    compare(case, case.feeds(rng, 2))


@pytest.mark.parametrize("seed", range(6))
def test_integer_lstm_with_12_intermediates_agrees_with_litert(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = narrow_case(
        rng,
        cells=2 + 3 * seed,
        cell_clip=0.5 if seed % 2 else 0.0,
        proj_clip=0.7 if seed % 3 == 0 else 0.0,
    )
    compare(case, case.feeds(rng, 6))


def nnapi_case(form: Form, rng: np.random.Generator) -> tuple[Case, dict[str, AttributeValue]]:
    """A memory of one step, and the same as NNAPI writes its scales."""
    case = integer_case(replace(form, kind="LSTM"), rng)
    scales = case.attributes["intermediate_scales"]
    assert isinstance(scales, tuple)
    gates = [s if form.norm else 2.0**-12 for s in scales[:4]]
    names = [f"{g}_intermediate_scale" for g in ("input", "forget", "cell", "output")]
    zero_point = case.outputs[0].quantization
    assert zero_point is not None
    return case, {
        **dict(zip(names, gates, strict=True)),
        "cell_clip": 0.0,
        "proj_clip": 0.0,
        "hidden_state_scale": scales[4],
        "hidden_state_zero_point": 0 if form.outputs else zero_point.zero_point,
    }


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_quantized_lstm_equals_the_integer_lstm(form: Form) -> None:
    rng = np.random.default_rng(3)
    case, attributes = nnapi_case(form, rng)
    (feed,) = case.feeds(rng, 1)
    ((wanted,),) = run_reference(case.model(), [feed])
    inputs = case.quantized_operands()
    state, cell = inputs[18], inputs[19]
    run = kernel_of("QUANTIZED_LSTM", inputs, [state, cell, state], **attributes)
    new_state, new_cell, output = run(case.arrays(feed))
    np.testing.assert_array_equal(output, wanted)
    np.testing.assert_array_equal(new_state, wanted)
    assert new_cell.dtype == np.int16
    assert new_cell.shape == cell.shape


@pytest.mark.parametrize(
    ("position", "operand", "reason"),
    [
        (19, Operand(DType.INT16, (2, 6), quantization=q(0.01)), "power of two"),
        (19, Operand(DType.INT16, (2, 6), quantization=q(2.0**-8)), "between 2"),
        (
            19,
            Operand(DType.INT8, (2, 6), quantization=q(2.0**-11)),
            "UNIDIRECTIONAL_SEQUENCE_LSTM of",
        ),
        (2, Operand(DType.INT8, (6, 4)), "without one scale"),
        (2, Operand(DType.UINT8, (6, 4), quantization=q(0.1)), "UNIDIRECTIONAL_SEQUENCE_LSTM of"),
        (
            2,
            Operand(DType.INT8, (6, 4), quantization=Quantization((0.1,) * 6, (0,) * 6, 0)),
            "one scale",
        ),
        (12, OMITTED, "without input 12"),
    ],
)
def test_integer_lstm_refuses_unknown_forms(position: int, operand: Operand, reason: str) -> None:
    case = integer_case(Form(), np.random.default_rng(4))
    inputs = case.quantized_operands()
    inputs[position] = operand
    target = inputs[18]
    assert reason in refusal(case.kind, inputs, [target], **case.attributes)


@pytest.mark.parametrize(
    ("scales", "reason"),
    [
        ((), "with 0 intermediate results"),
        ((0.1,) * 12, "with 12 intermediate results"),
        ((0.0,) * 5, "without a scale"),
    ],
)
def test_integer_lstm_refuses_inconsistent_intermediates(
    scales: tuple[float, ...], reason: str
) -> None:
    case = integer_case(Form(), np.random.default_rng(5))
    given = {"intermediate_scales": scales, "intermediate_zero_points": (0,) * len(scales)}
    inputs = case.quantized_operands()
    found = refusal(case.kind, inputs, [inputs[18]], **{**case.attributes, **given})
    assert reason in found
