"""Whatever a model says, lowering it succeeds or ends in a `ModelError`: samples, changed at
random.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from hypothesis import given, settings, strategies as st

from penstock.errors import ModelError
from penstock.ir import Model
from penstock.nnapi import description
from penstock.nnapi.lowering import lower, rules
from tests.unit.nnapi.lowering.one import model_of
from tests.unit.nnapi.lowering.samples import SAMPLES

MODELS = {name: model_of(name, *sample) for name, sample in SAMPLES.items()}
NUMBERS = st.sampled_from([-(2**31), -7, -2, -1, 0, 1, 2, 3, 5, 64, 2**31 - 1])
DIMENSIONS = st.one_of(
    st.none(), st.lists(st.sampled_from([None, -1, 0, 1, 2, 3, 4, 2**32]), max_size=5).map(tuple)
)
PLACES = st.integers(-1, 12)


def scalars(operand: description.NnapiOperand) -> st.SearchStrategy[description.NnapiOperand]:
    """The operand with other bytes of the same number."""
    length = len(operand.value or b"")
    numbers = st.lists(NUMBERS, min_size=length // 4, max_size=length // 4).map(
        lambda values: b"".join(v.to_bytes(4, "little", signed=True) for v in values)
    )
    values = numbers if length % 4 == 0 else st.binary(min_size=length, max_size=length)
    return values.map(lambda value: replace(operand, value=value))


@st.composite
def operands(draw: st.DrawFn, operand: description.NnapiOperand) -> description.NnapiOperand:
    """*operand* with one thing changed."""
    if operand.value is not None and draw(st.booleans()):
        return draw(scalars(operand))
    change: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(description.OperandType),
        "dimensions": DIMENSIONS,
        "lifetime": st.sampled_from(description.NnapiLifetime),
        "scale": st.sampled_from([-1.0, 0.0, 1e-30, 0.25, 1.0, float("inf"), float("nan")]),
        "zero_point": st.sampled_from([-129, -128, 0, 1, 128, 255, 65536]),
        "channel_quantization": st.builds(
            description.ChannelQuantization,
            st.integers(-1, 4),
            st.lists(st.sampled_from([0.0, 0.5])).map(tuple),
        ),
        "value": st.binary(max_size=12),
        "subgraph": st.integers(-1, 2),
    }
    name = draw(st.sampled_from(sorted(change)))
    changed: description.NnapiOperand = replace(operand, **{name: draw(change[name])})
    return changed


@st.composite
def operations(
    draw: st.DrawFn, operation: description.NnapiOperation
) -> description.NnapiOperation:
    """*operation* with another type, or with other operands."""
    what = draw(st.sampled_from(["type", "inputs", "outputs", "swap"]))
    if what == "type":
        return replace(operation, type=draw(st.sampled_from(sorted(rules()))))
    if what == "swap" and operation.inputs:
        return replace(operation, inputs=tuple(draw(st.permutations(operation.inputs))))
    listed = list(operation.outputs if what == "outputs" else operation.inputs)
    at = draw(st.integers(0, len(listed)))
    listed[at : at + draw(st.integers(0, 1))] = draw(st.lists(PLACES, max_size=2))
    if what == "outputs":
        return replace(operation, outputs=tuple(listed))
    return replace(operation, inputs=tuple(listed))


@st.composite
def models(draw: st.DrawFn) -> description.NnapiModel:
    """A sample with up to three changes."""
    model = MODELS[draw(st.sampled_from(sorted(MODELS)))]
    for _ in range(draw(st.integers(1, 3))):
        main = model.main
        if draw(st.integers(0, 3)) == 0:
            (operation,) = main.operations
            main = replace(main, operations=(draw(operations(operation)),))
        else:
            changed = list(main.operands)
            at = draw(st.integers(0, len(changed) - 1))
            changed[at] = draw(operands(changed[at]))
            main = replace(main, operands=tuple(changed))
        model = replace(model, main=main)
    return model


@settings(max_examples=300)
@given(models(), st.integers(0, 9), st.sets(st.integers(-1, 5), max_size=1))
def test_lowering_ends_in_a_model_or_a_model_error(
    model: description.NnapiModel, level: int, omitted: set[int]
) -> None:
    lowered: Model | None = None
    with suppress(ModelError):
        lowered = lower(model, level, omitted)
    if lowered is None:
        return
    assert len(lowered.outputs) == len(model.main.outputs)
    assert len(lowered.inputs) == len(model.main.inputs) - len(omitted)
    for found, wanted in zip(lowered.outputs, model.main.outputs, strict=True):
        declared = model.main.operands[wanted]
        assert found.dtype is declared.type.dtype
        if declared.dimensions is not None and None not in declared.dimensions:
            assert found.shape == declared.dimensions
