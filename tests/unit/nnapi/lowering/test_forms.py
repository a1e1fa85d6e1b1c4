from __future__ import annotations

import pytest

from penstock.nnapi.description import NnapiOperand, OperandType
from penstock.nnapi.lowering import forms
from tests.unit.nnapi.lowering.one import NOTHING, b, f, h, i, t

FORM = forms.parse_form("x:T w:T? size:i [nchw:b@3 [align:b@4 half:b@4]] -> y:T [state:T@4]")
TYPES = {"T": forms.parse_types("f32 q8 f16@3 q8s")}
LIST = forms.parse_form("axis:i parts:T+ more:real -> y:T*")


def match(inputs: list[NnapiOperand], outputs: list[NnapiOperand], level: int = 8) -> forms.Match:
    return forms.match_form(FORM, TYPES, inputs, outputs, level)


def test_types_have_the_higher_of_two_levels() -> None:
    assert TYPES["T"] == {
        OperandType.TENSOR_FLOAT32: 1,
        OperandType.TENSOR_QUANT8_ASYMM: 1,
        OperandType.TENSOR_FLOAT16: 3,
        OperandType.TENSOR_QUANT8_ASYMM_SIGNED: 4,
    }
    every = forms.parse_types("any")
    assert set(every) == {t for t in OperandType if t.is_tensor}


def test_every_type_but_uint32_has_a_short_name() -> None:
    assert set(OperandType) - set(forms.KINDS.values()) == {OperandType.UINT32}


def test_arguments_are_found_by_name() -> None:
    found = match([t("f32", 2), t("f32", 2), i(1), b(True)], [t("f32", 2)])
    assert dict(found.inputs) == {"x": 0, "w": 1, "size": 2, "nchw": 3}
    assert dict(found.outputs) == {"y": 0}
    assert dict(found.types) == {"T": OperandType.TENSOR_FLOAT32}


def test_the_last_arguments_may_be_left_away_together() -> None:
    x = t("f32", 2)
    for count in (3, 4, 6):
        match([x, x, i(1), b(True), b(True), b(True)][:count], [x])
    with pytest.raises(forms.Misfit, match="takes 3 or 4 or 6 inputs, not 5"):
        match([x, x, i(1), b(True), b(True)], [x])
    with pytest.raises(forms.Misfit, match="takes 1 or 2 outputs, not 0"):
        match([x, x, i(1)], [])


def test_optional_arguments_may_be_omitted() -> None:
    x = t("f32", 2)
    match([x, NOTHING, i(1)], [x])
    with pytest.raises(forms.Misfit, match=r"input 0 \(x\) has no value, and must have one"):
        match([NOTHING, x, i(1)], [x])


def test_a_variable_is_one_type() -> None:
    x, y = t("f32", 2), t("q8", 2)
    with pytest.raises(
        forms.Misfit, match="is a TENSOR_QUANT8_ASYMM, where a TENSOR_FLOAT32 is needed"
    ):
        match([x, y, i(1)], [x])
    with pytest.raises(forms.Misfit, match=r"output 0 \(y\) is a TENSOR_QUANT8_ASYMM"):
        match([x, x, i(1)], [y])
    with pytest.raises(forms.Misfit, match="cannot be a TENSOR_INT32"):
        match([t("i32", 2), x, i(1)], [x])


def test_levels_hold_for_arguments_and_for_types() -> None:
    x, half = t("f32", 2), t("f16", 2)
    with pytest.raises(
        forms.Misfit, match=r"\(nchw\) as a BOOL needs feature level 3, the model keeps to 2"
    ):
        match([x, x, i(1), b(True)], [x], level=2)
    with pytest.raises(forms.Misfit, match="TENSOR_FLOAT16 needs feature level 3"):
        match([half, half, i(1)], [half], level=2)
    with pytest.raises(forms.Misfit, match=r"output 1 \(state\)"):
        match([x, x, i(1)], [x, x], level=3)


def test_lists_take_what_the_others_leave() -> None:
    x, half = t("f32", 2), t("f16", 2)
    found = forms.match_form(LIST, TYPES, [i(0), x, x, x, f(1.0)], [x, x], 8)
    assert (found.repeats, found.inputs["parts"], found.inputs["more"]) == (3, 1, 4)
    found = forms.match_form(LIST, TYPES, [i(0), half, h(1.0)], [], 8)
    assert found.repeats == 1
    with pytest.raises(forms.Misfit, match="takes 3 inputs at least, not 2"):
        forms.match_form(LIST, TYPES, [i(0), f(1.0)], [], 8)
    with pytest.raises(forms.Misfit, match="is a FLOAT32, where a FLOAT16 is needed"):
        forms.match_form(LIST, TYPES, [i(0), half, f(1.0)], [], 8)


def test_malformed_form_is_refused() -> None:
    for text in ("x:T y:T", "x y -> z", "x:T@a -> y:T"):
        with pytest.raises(ValueError, match="form"):
            forms.parse_form(text)
