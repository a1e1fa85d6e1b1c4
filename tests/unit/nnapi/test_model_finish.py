"""What `Model.finish` makes of a model: order, forms, control flow; and who supports it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.hal import Device
from penstock.nnapi import Compilation, Model, OperandType, ResultCode
from penstock.nnapi.description import NnapiOperand
from penstock.nnapi.lowering import lower
from penstock.testing.vectors import load_directory
from penstock.testing.vectors.derive import runs_of
from tests.support_devices import NumpyDevice
from tests.unit.nnapi import building
from tests.unit.nnapi.lowering.one import b, f, i, model_of, t
from tests.unit.nnapi.lowering.samples import SAMPLES
from tests.unit.nnapi.replay import difference, replay


def chain(kinds: Sequence[str], added: Sequence[int]) -> Model:
    """Operations of one input each, one after the other, added in another order."""
    model = Model()
    values = [model.add_operand(building.FLOAT, (4,)) for _ in range(len(kinds) + 1)]
    for at in added:
        model.add_operation(kinds[at], [values[at]], [values[at + 1]])
    model.identify_inputs_and_outputs([values[0]], [values[-1]])
    model.finish()
    return model


class TestOrder:
    @pytest.mark.parametrize("added", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
    def test_operations_run_after_what_they_read(self, added: tuple[int, ...]) -> None:
        model = chain(["NEG", "ABS", "EXP", "LOG"], added)
        assert [o.type for o in model.lowered.operations] == ["NEG", "ABS", "EXP", "LOG"]
        assert model.lowered.digest == chain(["NEG", "ABS", "EXP", "LOG"], range(4)).lowered.digest

    def test_finish_takes_the_last_ready_operation_first(self) -> None:
        model = Model()
        x, a, c, y = (model.add_operand(building.FLOAT, (4,)) for _ in range(4))
        model.add_operation("ABS", [x], [a])
        model.add_operation("EXP", [x], [c])
        model.add_operation("MAXIMUM", [a, c], [y])
        model.identify_inputs_and_outputs([x], [y])
        model.finish()
        assert [o.type for o in model.lowered.operations] == ["EXP", "ABS", "MAXIMUM"]

    @pytest.mark.parametrize("length", [1, 2, 5])
    def test_model_with_a_cycle_is_rejected(self, length: int) -> None:
        model = Model()
        x, y = model.add_operand(building.FLOAT, (4,)), model.add_operand(building.FLOAT, (4,))
        ring = [model.add_operand(building.FLOAT, (4,)) for _ in range(length)]
        for at in range(length):
            model.add_operation("ABS", [ring[at]], [ring[(at + 1) % length]])
        model.add_operation("MAXIMUM", [x, ring[0]], [y])
        model.identify_inputs_and_outputs([x], [y])
        with building.answers(building.BAD_DATA):
            model.finish()
        with building.answers(building.BAD_STATE):
            model.finish()

    def test_model_with_operation_reading_unwritten_operand_is_rejected(self) -> None:
        model = Model()
        x, y, z = (model.add_operand(building.FLOAT, (4,)) for _ in range(3))
        model.add_operation("MAXIMUM", [x, z], [y])
        model.identify_inputs_and_outputs([x], [y])
        with building.answers(building.BAD_DATA, "operation 0 .MAXIMUM."):
            model.finish()

    @pytest.mark.parametrize("again", [[0, 1, 2], [0, 1, 0]])
    def test_model_writing_an_operand_twice_or_an_input_is_rejected(self, again: list[int]) -> None:
        model = building.unfinished()
        model.add_operation("MAXIMUM", again[:2], again[2:])
        model.identify_inputs_and_outputs([0, 1], [2])
        with building.answers(building.BAD_DATA):
            model.finish()

    def test_empty_model_is_rejected(self) -> None:
        with building.answers(building.BAD_DATA):
            Model().finish()


X, W, BIAS = t("f32", 1, 4, 4, 2), t("f32", 2, 1, 1, 2), t("f32", 2)
DEPTHWISE = t("f32", 1, 1, 1, 2)
PADS = [i(0)] * 4
NO, YES = b(False), b(True)
POOL = [X, *PADS, i(1), i(1), i(1), i(1), i(0)]
POOL_IMPLICIT = [X, i(1), i(1), i(1), i(1), i(1), i(0)]
DEEP = t("f32", 1, 2, 2, 8)
DEFAULTS: dict[str,
    tuple[str, list[NnapiOperand], list[NnapiOperand], NnapiOperand, list[NnapiOperand]]] = {
    **{kind: (kind, POOL, [NO], X, [YES]) for kind in ("AVERAGE_POOL_2D", "L2_POOL_2D",
        "MAX_POOL_2D")},
    **{
        f"{kind} implicit": (kind, POOL_IMPLICIT, [NO], X, [YES])
        for kind in ("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D")
    },
    "CONV_2D layout": ("CONV_2D", [X, W, BIAS, *PADS, i(1), i(1), i(0)], [NO], X, []),
    "CONV_2D dilation": ("CONV_2D", [X, W, BIAS, *PADS, i(1), i(1), i(0)], [NO, i(1), i(1)], X, []),
    "CONV_2D implicit": ("CONV_2D", [X, W, BIAS, i(1), i(1), i(1), i(0)], [NO], X, []),
    "CONV_2D implicit dilation": (
        "CONV_2D", [X, W, BIAS, i(1), i(1), i(1), i(0)], [NO, i(1), i(1)], X, [],
    ),
    "DEPTHWISE_CONV_2D layout": (
        "DEPTHWISE_CONV_2D", [X, DEPTHWISE, BIAS, *PADS, i(1), i(1), i(1), i(0)], [NO], X, [],
    ),
    "DEPTHWISE_CONV_2D dilation": (
        "DEPTHWISE_CONV_2D", [X, DEPTHWISE, BIAS, *PADS, i(1), i(1), i(1), i(0)],
        [NO, i(1), i(1)], X, [],
    ),
    "DEPTHWISE_CONV_2D implicit": (
        "DEPTHWISE_CONV_2D", [X, DEPTHWISE, BIAS, i(1), i(1), i(1), i(1), i(0)], [NO], X, [],
    ),
    "DEPTH_TO_SPACE": ("DEPTH_TO_SPACE", [DEEP, i(2)], [NO], X, []),
    "SPACE_TO_DEPTH": ("SPACE_TO_DEPTH", [X, i(2)], [NO], DEEP, []),
    "SOFTMAX": ("SOFTMAX", [X, f(1.0)], [i(-1)], X, [i(1)]),
    "L2_NORMALIZATION": ("L2_NORMALIZATION", [X], [i(-1)], X, [i(1)]),
    "LOCAL_RESPONSE_NORMALIZATION": (
        "LOCAL_RESPONSE_NORMALIZATION", [X, i(1), f(1.0), f(0.5), f(0.5)], [i(-1)], X, [i(1)],
    ),
    "RESIZE_BILINEAR layout": ("RESIZE_BILINEAR", [X, i(4), i(4)], [NO], X, []),
    "RESIZE_BILINEAR corners": ("RESIZE_BILINEAR", [X, i(4), i(4)], [NO, NO], X, [NO, YES]),
    "RESIZE_BILINEAR half": ("RESIZE_BILINEAR", [X, i(4), i(4)], [NO, NO, NO], X, [NO, NO, YES]),
    "RESIZE_NEAREST_NEIGHBOR": (
        "RESIZE_NEAREST_NEIGHBOR", [X, i(4), i(4), NO], [NO, NO], X, [NO, YES],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DEFAULTS.values(), ids=DEFAULTS)
def test_default_arguments_are_as_if_they_were_left_out(case: Any) -> None:
    kind, inputs, defaults, output, others = case
    absent = replay(model_of(kind, inputs, [output])).lowered
    given = replay(model_of(kind, [*inputs, *defaults], [output])).lowered
    assert given.digest == absent.digest
    if others:
        assert replay(model_of(kind, [*inputs, *others], [output])).lowered.digest != absent.digest


@pytest.mark.parametrize("values_last", [False, True])
@pytest.mark.parametrize("kind", SAMPLES)
def test_every_operation_call_by_call(kind: str, values_last: bool) -> None:
    description = model_of(kind, *SAMPLES[kind])
    assert replay(description, values_last=values_last).lowered.digest == lower(description).digest


def test_an_operation_that_becomes_nothing_is_supported_and_runs() -> None:
    model = replay(model_of("CAST", [t("f32", 2, 3)], [t("f32", 2, 3)]))
    assert model.lowered.operations == ()
    assert model.get_supported_operations_for_devices([NumpyDevice("none", ())]) == [True]
    with Compilation(model) as compilation:
        compilation.finish()
        x = np.ones((2, 3), np.float32)
        assert compilation.compiled.run([x])[0].tolist() == x.tolist()
        assert compilation.get_preferred_memory_alignment_for_input(0) == 16


class TestControlFlow:
    @staticmethod
    def branch(kind: str) -> Model:
        model = Model()
        x, y = model.add_operand(building.FLOAT, (4,)), model.add_operand(building.FLOAT, (4,))
        model.add_operation(kind, [x], [y])
        model.identify_inputs_and_outputs([x], [y])
        model.finish()
        return model

    @staticmethod
    def choice(then: Model, otherwise: Model) -> Model:
        """if condition: then(x) else: otherwise(x)."""
        model = Model()
        condition = model.add_operand(OperandType.TENSOR_BOOL8, (1,))
        first, second = (model.add_operand(OperandType.SUBGRAPH) for _ in range(2))
        x, y = model.add_operand(building.FLOAT, (4,)), model.add_operand(building.FLOAT, (4,))
        model.set_operand_value_from_model(first, then)
        model.set_operand_value_from_model(second, otherwise)
        model.add_operation("IF", [condition, first, second, x], [y])
        model.identify_inputs_and_outputs([condition, x], [y])
        model.finish()
        return model

    def test_if_runs_the_chosen_branch(self) -> None:
        model = self.choice(self.branch("NEG"), self.branch("ABS"))
        assert {g.operations[0].type for g in model.lowered.subgraphs} == {"IF", "NEG", "ABS"}
        assert model.get_supported_operations_for_devices(["reference"]) == [True]

    def test_one_model_serves_both_branches_with_large_constants(self) -> None:
        shared = building.weighted()
        outer = Model()
        condition = outer.add_operand(OperandType.TENSOR_BOOL8, (1,))
        first, second = (outer.add_operand(OperandType.SUBGRAPH) for _ in range(2))
        x, h = outer.add_operand(building.FLOAT, (1, 8)), outer.add_operand(building.FLOAT, (1, 40))
        c, y = outer.add_operand(building.FLOAT, (40,)), outer.add_operand(building.FLOAT, (1, 40))
        outer.set_operand_value_from_model(first, shared)
        outer.set_operand_value_from_model(second, shared)
        outer.set_operand_value(c, np.full(40, 2, np.float32))
        outer.add_operation("IF", [condition, first, second, x], [h])
        outer.add_operation("ADD", [h, c, building.fuse(outer)], [y])
        outer.identify_inputs_and_outputs([condition, x], [y])
        outer.finish()
        assert len(outer.lowered.subgraphs) == 2
        lowered = outer.lowered
        (constant,) = [o for o in lowered.operands if o.is_constant]
        assert set(lowered.constant(constant)) == {2.0}

    def test_nested_branches_run(self) -> None:
        inner = self.branch("NEG")
        for _ in range(3):
            model = Model()
            condition = model.add_operand(OperandType.TENSOR_BOOL8, (1,))
            model.set_operand_value(condition, np.array([True]))
            then = model.add_operand(OperandType.SUBGRAPH)
            x, y = model.add_operand(building.FLOAT, (4,)), model.add_operand(building.FLOAT, (4,))
            model.set_operand_value_from_model(then, inner)
            model.add_operation("IF", [condition, then, then, x], [y])
            model.identify_inputs_and_outputs([x], [y])
            model.finish()
            inner = model
        assert len(inner.lowered.subgraphs) == 4

    def test_a_branch_that_takes_something_else_is_refused_at_once(self) -> None:
        with building.answers(building.BAD_DATA):
            self.choice(self.branch("NEG"), building.finished())


class TestSupport:
    def test_answers_are_in_the_order_of_adding(self) -> None:
        device = NumpyDevice("gpu", {"NEG"})
        model = chain(["NEG", "ABS", "NEG", "EXP"], (3, 1, 2, 0))
        assert model.get_supported_operations_for_devices([device]) == [False, False, True, True]

    def test_supported_operations_of_several_devices_are_joined(self) -> None:
        first, second = NumpyDevice("first", {"NEG"}), NumpyDevice("second", {"ABS"})
        model = chain(["NEG", "ABS", "EXP"], range(3))
        assert model.get_supported_operations_for_devices([first, second]) == [True, True, False]
        assert model.get_supported_operations_for_devices([second]) == [False, True, False]

    def test_an_operation_that_became_several_needs_them_all(self) -> None:
        model = replay(model_of("GREATER", [t("b8", 2, 3), t("b8", 3)], [t("b8", 2, 3)]))
        kinds = {o.type for o in model.lowered.operations}
        assert kinds == {"CAST", "GREATER"}
        for known in (kinds, {"GREATER"}, {"CAST"}):
            device = NumpyDevice("gpu", known)
            assert model.get_supported_operations_for_devices([device]) == [known == kinds]

    def test_a_device_of_an_earlier_level(self) -> None:
        device = NumpyDevice("old", {"RELU", "MAXIMUM"}, level=1)
        model = Model()
        x, y, z = (model.add_operand(building.FLOAT, (4,)) for _ in range(3))
        model.add_operation("MAXIMUM", [x, y], [z])
        model.add_operation("RELU", [x], [y])
        model.identify_inputs_and_outputs([x], [z])
        model.finish()
        assert model.get_supported_operations_for_devices([device]) == [False, True]

    def test_a_relaxed_model_takes_relaxed_devices(self) -> None:
        device = NumpyDevice("fast", {"ADD"}, accuracy="relaxed")
        assert building.finished().get_supported_operations_for_devices([device]) == [False]
        assert building.finished(relaxed=True).get_supported_operations_for_devices([device]) == [
            True
        ]

    @pytest.mark.parametrize(
        ("devices", "code"),
        [
            (None, ResultCode.UNEXPECTED_NULL),
            ([None], ResultCode.UNEXPECTED_NULL),
            (["reference", None], ResultCode.UNEXPECTED_NULL),
            (["reference", "reference"], building.BAD_DATA),
            ([], building.BAD_DATA),
            (["nobody"], building.BAD_DATA),
            ("reference", building.BAD_DATA),
            ([1], building.BAD_DATA),
            (7, building.BAD_DATA),
        ],
    )
    def test_supported_operations_reject_wrong_devices(
        self, devices: Any, code: ResultCode
    ) -> None:
        with building.answers(code):
            building.finished().get_supported_operations_for_devices(devices)

    def test_a_model_that_is_not_finished(self) -> None:
        device: Device = NumpyDevice("gpu", {"ADD"})
        for model in (building.unfinished(), building.invalid()):
            with building.answers(building.BAD_STATE):
                model.get_supported_operations_for_devices([device])


def test_models_of_the_operation_vectors_call_by_call(corpus: Path) -> None:
    """One in thirty; tests/soak/soak_nnapi_objects.py takes them all."""
    directory = corpus / "conformance" / "nnapi"
    if not directory.is_dir():
        pytest.skip("the corpus has no operation vectors of NNAPI")
    runs = [
        run
        for specification in load_directory(directory)
        for at, case in enumerate(specification.cases)
        if at % 30 == 0
        for run in runs_of(case)
    ]
    assert runs
    found = {f"{run.case.name} ({run.kind})": difference(run.model) for run in runs}
    assert {name: text for name, text in found.items() if text} == {}
