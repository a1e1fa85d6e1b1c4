"""NNAPI's rules for operations over channels, random classes, and sparse tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import ModelError
from penstock.nnapi.codes import EXPERIMENTAL
from penstock.nnapi.description import NnapiOperand
from tests.unit.nnapi.lowering.one import (
    b,
    channels,
    constant,
    f,
    h,
    i,
    lowered,
    model_of,
    nothing,
    run,
    t,
)

Case = tuple[dict[str, NnapiOperand], list[NnapiOperand]]


def shuffle(kind: str = "f32") -> Case:
    return {"input": t(kind, 2, 6), "groups": i(3), "axis": i(-1)}, [t(kind, 2, 6)]


def normalised(kind: str = "f32") -> Case:
    real = h if kind == "f16" else f
    numbers = {n: real(1.0) for n in ("gamma", "beta", "epsilon")}
    return {"input": t(kind, 2, 5, 6, 3), **numbers, "nchw": b(False)}, [t(kind, 2, 5, 6, 3)]


def grouped(kind: str = "f32", weights: str = "") -> Case:
    quantised = kind.startswith("q")
    filters = t(weights or kind, 4, 3, 3, 2)
    bias = t("i32", 4, scale=0.25) if quantised else t(kind, 4)
    if weights == "pc":
        filters, bias = channels(4, 3, 3, 2), t("i32", 4)
    return {
        "input": t(kind, 1, 8, 8, 4),
        "filter": filters,
        "bias": bias,
        "left": i(1),
        "right": i(0),
        "top": i(2),
        "bottom": i(0),
        "stride_w": i(2),
        "stride_h": i(1),
        "groups": i(2),
        "activation": i(1),
        "nchw": b(False),
    }, [t(kind, 1, 8, 4, 4)]


def implicit(kind: str = "f32") -> Case:
    arguments, _ = grouped(kind)
    kept = {n: o for n, o in arguments.items() if n not in {"left", "right", "top", "bottom"}}
    given = list(kept.items())
    return dict([*given[:3], ("padding", i(1)), *given[3:]]), [t(kind, 1, 8, 4, 4)]


def drawn(kind: str = "f32") -> Case:
    given = {"logits": t(kind, 2, 5), "samples": i(9), "seeds": constant("i32", [1, 2])}
    return given, [t("i32", 2, 9)]


MAKERS: dict[str, Any] = {
    "CHANNEL_SHUFFLE": shuffle,
    "INSTANCE_NORMALIZATION": normalised,
    "GROUPED_CONV_2D": grouped,
    "RANDOM_MULTINOMIAL": drawn,
}


@pytest.mark.parametrize("kind", ["f32", "f16", "q8", "q8s"])
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_each_type_has_its_level(name: str, kind: str) -> None:
    arguments, outputs = MAKERS[name](kind)
    if kind.startswith("q") and name in {"INSTANCE_NORMALIZATION", "RANDOM_MULTINOMIAL"}:
        with pytest.raises(ModelError, match="cannot be a TENSOR_QUANT8"):
            lowered(name, arguments, outputs)
        return
    least = 4 if kind == "q8s" else 3
    assert lowered(name, arguments, outputs, least).operations[0].type == name
    with pytest.raises(ModelError, match="needs feature level"):
        lowered(name, arguments, outputs, least - 1)


def test_padding_of_groups() -> None:
    (explicit,) = lowered("GROUPED_CONV_2D", *grouped()).operations
    assert explicit.attributes["padding"] == "EXPLICIT"
    assert explicit.attributes["explicit_padding"] == (1, 0, 2, 0)
    assert (explicit.attributes["stride_w"], explicit.attributes["stride_h"]) == (2, 1)
    assert explicit.attributes["fused_activation_function"] == "RELU"
    (same,) = lowered("GROUPED_CONV_2D", *implicit()).operations
    assert (same.attributes["padding"], same.attributes["explicit_padding"]) == ("SAME", ())


def test_scales_a_channel_beside_either_kind_of_image() -> None:
    for kind in ("q8", "q8s"):
        assert lowered("GROUPED_CONV_2D", *grouped(kind, "pc")).operations


BAD: list[tuple[str, Case, dict[str, NnapiOperand], str]] = [
    ("CHANNEL_SHUFFLE", shuffle(), {"groups": i(0)}, "groups of CHANNEL_SHUFFLE must be above 0"),
    ("CHANNEL_SHUFFLE", shuffle(), {"groups": i(4)}, "6 channels are not a multiple of 4"),
    ("CHANNEL_SHUFFLE", shuffle(), {"axis": i(2)}, "axis 2"),
    ("CHANNEL_SHUFFLE", shuffle(), {"input": t("f32", 1, 1, 1, 2, 6)}, "has rank 5"),
    ("CHANNEL_SHUFFLE", shuffle("q8"), {"input": t("q8", 2, 6, zero=9)}, "one scale"),
    ("INSTANCE_NORMALIZATION", normalised(), {"input": t("f32", 2, 5)}, "has rank 2"),
    ("INSTANCE_NORMALIZATION", normalised(), {"gamma": h(1)}, "where a FLOAT32 is needed"),
    ("RANDOM_MULTINOMIAL", drawn(), {"samples": i(0)}, "samples"),
    ("RANDOM_MULTINOMIAL", drawn(), {"seeds": constant("i32", [1])}, "number of seeds"),
    ("RANDOM_MULTINOMIAL", drawn(), {"logits": t("f32", 2)}, "has rank 1"),
    ("GROUPED_CONV_2D", grouped(), {"groups": i(0)}, "groups"),
    ("GROUPED_CONV_2D", grouped(), {"groups": i(3)}, "channels"),
    ("GROUPED_CONV_2D", grouped(), {"stride_h": i(0)}, "stride_h"),
    ("GROUPED_CONV_2D", grouped(), {"activation": i(4)}, "fuse code 4"),
    ("GROUPED_CONV_2D", grouped(), {"left": i(-1)}, "left of GROUPED_CONV_2D must be at least 0"),
    ("GROUPED_CONV_2D", implicit(), {"padding": i(3)}, "padding scheme 3"),
    ("GROUPED_CONV_2D", grouped(), {"filter": t("f16", 4, 3, 3, 2)}, "a filter|filter TENSOR"),
    ("GROUPED_CONV_2D", grouped("q8"), {"filter": t("q8s", 4, 3, 3, 2)}, "a filter"),
    ("GROUPED_CONV_2D", grouped("q8"), {"bias": t("i32", 4, scale=0.3)}, "the bias"),
    ("GROUPED_CONV_2D", grouped("q8", "pc"), {"bias": t("i32", 4, scale=0.25)}, "scale 0"),
    (
        "GROUPED_CONV_2D",
        grouped("q8", "pc"),
        {"filter": channels(4, 3, 3, 2, axis=3)},
        "dimension 3",
    ),
    ("GROUPED_CONV_2D", grouped(), {"filter": t("f32", 3, 3, 3, 2)}, "3 filters|bias"),
]


@pytest.mark.parametrize(("name", "case", "changed", "message"), BAD)
def test_broken_rules_are_named(
    name: str, case: Case, changed: dict[str, NnapiOperand], message: str
) -> None:
    arguments, outputs = case
    with pytest.raises(ModelError, match=message):
        lowered(name, arguments | changed, outputs)


def sparse(**changed: NnapiOperand) -> Case:
    """[[0, 0, 1], [2, 0, 0]]: rows dense, columns compressed."""
    given = {
        "values": t("f32", 2),
        "order": constant("i32", [0, 1]),
        "blocks": nothing("i32"),
        "formats": constant("i32", [0, 1]),
        "sizes": constant("i32", [2, 3]),
        "segments_0": nothing("i32"),
        "indices_0": nothing("i32"),
        "segments_1": constant("i32", [0, 1, 2]),
        "indices_1": constant("i32", [2, 0]),
    }
    return given | changed, [t("f32", 2, 3)]


@pytest.mark.parametrize("constants", [True, False])
def test_sparse_tensors(constants: bool) -> None:
    arguments, outputs = sparse()
    fed = [np.array([1, 2], np.float32)]
    if not constants:
        for name, operand in arguments.items():
            if operand.value is not None:
                fed.append(np.frombuffer(operand.value, np.int32))
                arguments[name] = t("i32", *operand.dimensions or ())
    model = lowered("DENSIFY", arguments, outputs, EXPERIMENTAL)
    np.testing.assert_array_equal(run(model, fed)[0], [[0, 0, 1], [2, 0, 0]])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"order": constant("i32", [0, 1, 2])}, "2 pairs of lists for 3 levels"),
        ({"order": constant("i32", [0, 0])}, "levels in the order"),
        ({"sizes": constant("i32", [2])}, "levels and their sizes"),
        ({"sizes": constant("i32", [2, 4])}, "an output is declared"),
        ({"values": t("f32", 2, 1)}, "has rank 2"),
        ({"order": t("f32", 2)}, "where a TENSOR_INT32 is needed"),
        ({"blocks": nothing("f32")}, "where a TENSOR_INT32 is needed"),
    ],
)
def test_sparse_tensors_that_are_refused(changed: dict[str, NnapiOperand], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        lowered("DENSIFY", *sparse(**changed), EXPERIMENTAL)


def test_sparse_tensors_are_experimental() -> None:
    with pytest.raises(ModelError, match="experimental level"):
        lowered("DENSIFY", *sparse())


def test_models_of_one_operation_number_their_operands_in_order() -> None:
    arguments, outputs = shuffle()
    model = model_of("CHANNEL_SHUFFLE", list(arguments.values()), outputs)
    assert (model.main.inputs, model.main.outputs) == ((0,), (3,))
