from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock.errors import ModelError
from penstock.ir import Model
from penstock.tflite.session import entered, with_every_output, with_input_shapes
from tests.unit.loaders.files import FileBuilder, svdf
from tests.unit.tflite import models


def load(content: bytes) -> Model:
    return penstock.load(content)


def test_input_shapes_replace_the_declared_ones_everywhere() -> None:
    model = with_input_shapes(load(models.chain()), {0: (3, 5)})
    assert [o.shape for o in model.operands] == [(3, 5), (3, 5), (3, 5), (1,)]


def test_the_declared_shape_again_changes_nothing() -> None:
    model = with_input_shapes(load(models.chain()), {0: (1, 2)})
    assert with_input_shapes(model, {0: (1, 2)}) is model


def test_shapes_of_what_no_rule_gives_are_forgotten_downstream_only() -> None:
    file = FileBuilder()
    x, y, z = (file.tensor(n, [2]) for n in "xyz")
    u, v = file.tensor("u", [2]), file.tensor("v", [2])
    file.operator("CUSTOM:Mystery", [x], [y])
    file.operator("RELU", [y], [z])
    file.operator("CUSTOM:Mystery", [u], [v])
    model = with_input_shapes(load(file.finish([x, u], [z, v])), {0: (7,)})
    assert [model.operands[i].shape for i in (x, y, z, u, v)] == [(7,), None, None, (2,), (2,)]


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ModelError):
        with_input_shapes(load(models.branches()), {1: (3,)})


def test_every_computed_value_follows_the_models_own_outputs() -> None:
    model = with_every_output(load(models.chain()))
    assert [o.name for o in model.outputs] == ["y", "total"]
    outputs = penstock.compile(model, devices=["reference"])(np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(outputs[1], [[2, 2]])


def test_states_stay_states() -> None:
    model = load(svdf().encode())
    kept = with_every_output(model)
    assert kept.entry.states == model.entry.states
    assert len(kept.outputs) == len(model.outputs)


def test_another_entry() -> None:
    model = load(models.signed())
    assert entered(model, 0) is model
    assert entered(model, 1).inputs[0].name == "u"
