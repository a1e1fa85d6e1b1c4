"""Whatever is called, in whatever order: a model answers with an `NnapiError`, or it is one that
compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from penstock.nnapi import Compilation, Model, NnapiError, OperandType, OperationCode, ResultCode
from penstock.nnapi.description import NnapiModel
from tests.unit.nnapi.building import finished, unfinished
from tests.unit.nnapi.lowering.one import model_of
from tests.unit.nnapi.lowering.samples import SAMPLES
from tests.unit.nnapi.replay import replay

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from(
        [2**31, -(2**31), 2**32, 2**63, 2**64, 10**40, 1.5, float("nan"), float("inf")]
    ),
    st.text(max_size=3),
    st.binary(max_size=9),
    st.just(object()),
    st.lists(st.integers(-1, 8), max_size=3),
    st.just(np.zeros((2, 3), np.float32)),
    st.just(np.zeros(1, object)),
)
INDEX = st.one_of(st.integers(0, 7), st.integers(0, 7), JUNK)
LIST = st.one_of(st.lists(st.integers(0, 7), max_size=4), st.lists(INDEX, max_size=3), JUNK)
TYPE = st.one_of(st.sampled_from(list(OperandType)), st.integers(0, 16), JUNK)
DIMENSIONS = st.one_of(
    st.sampled_from([(), (1,), (2, 3), (0,), (2, None), (4, 1, 1, 3)]),
    st.lists(st.integers(0, 4), max_size=3),
    JUNK,
)
SCALE = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), JUNK)
ZERO = st.one_of(st.just(0), st.integers(-200, 300), JUNK)
VALUE = st.one_of(
    st.sampled_from([bytes(n) for n in (0, 1, 2, 4, 6, 12, 24, 132)]),
    st.just(np.zeros((2, 3), np.float32)),
    st.just(np.zeros(6, np.uint8)),
    JUNK,
)
OPERATION = st.one_of(st.sampled_from(list(OperationCode)), st.integers(-1, 107), JUNK)
MODELS = st.one_of(st.just(finished()), st.builds(unfinished), JUNK)

CALLS: dict[str, tuple[st.SearchStrategy[Any], ...]] = {
    "add_operand": (TYPE, DIMENSIONS, SCALE, ZERO),
    "set_operand_value": (INDEX, VALUE),
    "set_operand_value_from_memory": (INDEX, VALUE, ZERO, ZERO),
    "set_operand_value_from_model": (INDEX, MODELS),
    "set_operand_symm_per_channel_quant_params": (INDEX, ZERO, LIST),
    "set_operand_extension_data": (INDEX, VALUE, ZERO),
    "add_operation": (OPERATION, LIST, LIST),
    "identify_inputs_and_outputs": (LIST, LIST),
    "relax_computation_float32_to_float16": (JUNK,),
    "finish": (),
    "get_supported_operations_for_devices": (st.one_of(st.just(["reference"]), LIST),),
}
CALL = st.one_of(
    [st.tuples(st.just(name), st.tuples(*arguments)) for name, arguments in CALLS.items()]
)
START: dict[str, Callable[[], Model]] = {"empty": Model, "built": unfinished}


def attempt(model: Model, name: str, arguments: tuple[Any, ...]) -> None:
    with suppress(NnapiError):
        getattr(model, name)(*arguments)


def settle(model: Model) -> None:
    """Finishes *model* if it can be, and compiles what came of it."""
    attempt(model, "finish", ())
    if not model.is_finished:
        return
    with suppress(NnapiError), Compilation(model) as compilation:
        compilation.finish()


def operands_of(description: NnapiModel) -> Model:
    """The operands of *description* alone."""
    model = Model()
    for operand in description.main.operands:
        model.add_operand(operand.type, operand.dimensions, operand.scale, operand.zero_point)
    return model


@pytest.mark.parametrize("start", START.values(), ids=START)
@given(calls=st.lists(CALL, max_size=12))
@example(calls=[("finish", ()), ("finish", ())])
@example(
    calls=[
        ("add_operand", (OperandType.SUBGRAPH, (), 0.0, 0)),
        ("add_operation", ("IF", [0, 4, 4, 1], [2])),
    ]
)
def test_calls_in_any_order(
    start: Callable[[], Model], calls: list[tuple[str, tuple[Any, ...]]]
) -> None:
    model = start()
    for name, arguments in calls:
        attempt(model, name, arguments)
    settle(model)


@settings(max_examples=300)
@given(kind=st.sampled_from(sorted(SAMPLES)), data=st.data())
def test_valid_models_with_a_few_more_calls(kind: str, data: st.DataObject) -> None:
    """A model of each operation, and then calls that change some of it before it is finished."""
    description = model_of(kind, *SAMPLES[kind])
    model = Model()
    for operand in description.main.operands:
        model.add_operand(operand.type, operand.dimensions, operand.scale, operand.zero_point)
    steps: list[tuple[str, tuple[Any, ...]]] = [
        ("set_operand_value", (at, operand.value))
        for at, operand in enumerate(description.main.operands)
        if operand.value is not None
    ]
    (operation,) = description.main.operations
    steps += [
        ("add_operation", (operation.type, operation.inputs, operation.outputs)),
        ("identify_inputs_and_outputs", (description.main.inputs, description.main.outputs)),
    ]
    for _ in range(data.draw(st.integers(0, 3))):
        steps.insert(data.draw(st.integers(0, len(steps))), data.draw(CALL))
    for name, arguments in steps:
        attempt(model, name, arguments)
    settle(model)


@pytest.mark.parametrize("kind", sorted(set(SAMPLES) - {"SPLIT"}))
def test_each_operation_with_an_operand_too_many_is_refused_at_once(kind: str) -> None:
    """NNAPI's TestValidateOperations: numbers of inputs and outputs. SPLIT gives any number."""
    description = model_of(kind, *SAMPLES[kind])
    (operation,) = description.main.operations
    for inputs, outputs in (
        ((*operation.inputs, operation.inputs[0]), operation.outputs),
        (operation.inputs, (*operation.outputs, operation.outputs[0])),
    ):
        model = operands_of(description)
        with pytest.raises(NnapiError) as caught:
            model.add_operation(kind, inputs, outputs)
        assert caught.value.code is ResultCode.BAD_DATA


@pytest.mark.parametrize("kind", sorted(set(SAMPLES) - {"CONCATENATION", "SPLIT"}))
def test_each_operation_with_an_operand_too_few_is_refused_at_once(kind: str) -> None:
    """The same. CONCATENATION takes any number."""
    description = model_of(kind, *SAMPLES[kind])
    (operation,) = description.main.operations
    for inputs, outputs in (
        (operation.inputs[1:], operation.outputs),
        (operation.inputs, operation.outputs[1:]),
    ):
        model = operands_of(description)
        with pytest.raises(NnapiError) as caught:
            model.add_operation(kind, inputs, outputs)
        assert caught.value.code is ResultCode.BAD_DATA


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_each_operation_with_an_operand_of_an_impossible_type_is_refused_at_once(kind: str) -> None:
    """NNAPI's TestValidateOperations: types of inputs and outputs."""
    description = model_of(kind, *SAMPLES[kind])
    (operation,) = description.main.operations
    anything = {"RANK": {0}, "LSH_PROJECTION": {1}}.get(kind, set())
    places = set(range(len(operation.inputs))) - anything
    assert bool(places) == (kind != "RANK")
    for place in places:
        model = operands_of(description)
        wrong = model.add_operand(OperandType.SUBGRAPH)
        inputs = [*operation.inputs]
        inputs[place] = wrong
        with pytest.raises(NnapiError) as caught:
            model.add_operation(kind, inputs, operation.outputs)
        assert caught.value.code is ResultCode.BAD_DATA


def test_the_samples_are_valid() -> None:
    for kind, sample in SAMPLES.items():
        assert replay(model_of(kind, *sample)).is_finished, kind
