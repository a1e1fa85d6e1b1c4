"""The accuracy class that would admit a device, in errors, receipts and on the command line."""

from __future__ import annotations

from typing import Any

import penstock
from penstock.cli.plan import refusals
from penstock.hal import AccuracyClass, Support
from penstock.ir import DType, Model, ModelBuilder
from penstock.partitioning import Policy, place
from penstock.partitioning.remedies import refused_for_accuracy, strictest
from tests.support_devices import NumpyDevice
from tests.unit.partitioning.models import chain


class Mixed(NumpyDevice):
    """Of the class *wish* for each type of operation."""

    def __init__(self, name: str, wish: dict[str, AccuracyClass]) -> None:
        super().__init__(name, frozenset(wish))
        self.classes = wish

    def supported_operations(self, model: Model) -> list[Support]:
        given = super().supported_operations(model)
        return [
            Support(True, "", self.classes[o.type]) if answer.supported else answer
            for o, answer in zip(model.operations, given, strict=True)
        ]


def test_device_that_was_named_says_which_class_admits_it() -> None:
    model = chain(["ADD", "RELU", "MUL", "SUB"])
    rough = Mixed("rough", {"ADD": "stepwise", "RELU": "relaxed", "MUL": "faithful"})
    devices = [rough, NumpyDevice("sound"), NumpyDevice("reference")]
    plan = place(model, devices, Policy())
    told = (
        "device rough is refused 2 of 4 operations for accuracy: "
        'Policy(accuracy="relaxed") (--accuracy relaxed) admits it'
    )
    assert [*refused_for_accuracy(plan, plan.devices)] == [told]
    assert [*refused_for_accuracy(plan, ["sound", "reference"])] == []
    assert plan.operations[0].refusals["rough"].admits == "stepwise"
    assert plan.operations[3].refusals["rough"].admits == ""
    assert strictest(plan.operations[0].refusals.values()) == "stepwise"
    with penstock.compile(model, devices, cache=None) as compiled:
        assert compiled.receipt.notes == (told,)
    exact = Policy(accuracy="relaxed")
    with penstock.compile(model, devices, cache=None, policy=exact) as compiled:
        assert compiled.receipt.notes == ()


def test_command_line_asks_devices_about_the_shapes_that_it_compiled_for() -> None:
    net = ModelBuilder()
    x = net.input(DType.FLOAT32, (None, 3), "x")
    model = net.build(list(net.operation("ADD", [x, x], [(DType.FLOAT32, (None, 3))])))
    device: Any = NumpyDevice("still", dynamic_outputs=False)
    (told,), _ = refusals(model, [device], None, {})
    assert list(told["reasons"]) == ["still"]
    (told,), _ = refusals(model, [device], None, {0: (1, 3)})
    assert (told["devices"], told["reasons"]) == (["still"], {})
