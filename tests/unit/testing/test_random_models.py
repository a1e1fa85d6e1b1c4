from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock
from penstock.drivers.null import create as null
from penstock.drivers.reference import create as reference
from penstock.drivers.sample import create as sample
from penstock.hal import Device
from penstock.ir import Model, infer_shapes
from penstock.testing import random_models
from penstock.testing.doubles import SubsetDevice
from penstock.testing.strategies import dags, models, support_tables

SEEDS = range(200)


def run(case: random_models.RandomModel, *devices: str | Device) -> list[bytes]:
    count = len(case.model.inputs)
    with penstock.compile(case.model, devices=list(devices), cache=False) as compiled:
        state = compiled.new_state()
        return [
            output.tobytes()
            for _ in range(2)
            for output in compiled.run(list(case.inputs[:count]), state=state)
        ]


def test_equal_seeds_give_equal_models() -> None:
    for seed in range(20):
        one, other = (
            random_models.random_model(Random(seed)),
            random_models.random_model(Random(seed)),
        )
        assert one.model == other.model
        assert all(np.array_equal(a, b) for a, b in zip(one.inputs, other.inputs, strict=True))


def test_inputs_fit_and_declared_shapes_are_right() -> None:
    for seed in SEEDS:
        model, inputs = random_models.random_model(Random(seed))
        entry = model.entry
        assert [a.shape for a in inputs] == [entry.operands[i].shape for i in entry.inputs]
        inferred = infer_shapes(model)
        assert [o.shape for o in inferred.operands] == [o.shape for o in model.operands]


def test_the_mix_has_everything_it_promises() -> None:
    made = [random_models.random_model(Random(seed)).model for seed in SEEDS]
    kinds = {o.type for m in made for o in m.operations}
    assert kinds == set(random_models.RECIPES)
    assert sum(len(m.outputs) > 1 for m in made) > 40
    assert sum(bool(m.entry.states) for m in made) > 20
    assert sum(any(len(o.outputs) > 1 for o in m.operations) for m in made) > 20
    assert sum(any(o.is_constant for o in m.operands) for m in made) > 40
    read_inside = [
        m
        for m in made
        if {i for o in m.operations for i in o.inputs} & set(m.entry.ordinary_outputs)
    ]
    assert len(read_inside) > 20


def test_random_models_use_only_supported_operations() -> None:
    assert set(random_models.recipes_for(sample())) == {"ADD", "RELU"}
    assert set(random_models.recipes_for(null())) == set(random_models.RECIPES)
    for seed in range(50):
        model = random_models.random_model(Random(seed), sample()).model
        assert all(a.supported for a in sample().supported_operations(model))


def test_random_models_need_relu() -> None:
    dull = SubsetDevice(sample(), "dull", lambda m, i: m.operations[i].type == "ADD")
    with pytest.raises(ValueError, match="need RELU"):
        random_models.recipes_for(dull)


@settings(max_examples=25)
@given(models(sample(), max_operations=6))
def test_sample_and_reference_agree_on_random_models(case: random_models.RandomModel) -> None:
    assert run(case, "sample") == run(case, "reference")


@settings(max_examples=25)
@given(st.data())
def test_a_random_split_over_devices_is_invisible(data: st.DataObject) -> None:
    case = data.draw(models(max_operations=8))
    tables = data.draw(support_tables(case.model, 3))
    names = [case.model.entry.operation_name(i) for i in range(len(case.model.operations))]
    mine = [{names[i] for i in table} for table in tables]
    assert set().union(*mine) == set(names)

    def part(number: int) -> Device:
        def supports(model: Model, index: int) -> bool:
            return model.entry.operation_name(index) in mine[number]

        return SubsetDevice(reference(), f"part{number}", supports)

    devices = [part(number) for number in range(3)]
    assert run(case, *devices, "reference") == run(case, "reference")


@given(dags(max_nodes=12, reads=3))
def test_a_dag_reads_only_what_is_before(dag: tuple[tuple[int, ...], ...]) -> None:
    assert 1 <= len(dag) <= 12
    for node, reads in enumerate(dag):
        assert len(reads) <= 3
        assert all(0 <= r < node for r in reads)
        assert list(reads) == sorted(set(reads))


def test_a_dag_is_a_model() -> None:
    model, inputs = random_models.model_of_dag(((), (), (0,), (0, 1, 2), (3,)))
    assert [o.type for o in model.operations] == ["RELU", "ADD", "ADD", "RELU"]
    assert len(model.inputs) == len(inputs) == 2
    assert len(model.outputs) == 1
    for seed in range(50):
        case = random_models.model_of_dag(random_models.random_dag(Random(seed)))
        assert len(case.inputs) == len(case.model.inputs)
