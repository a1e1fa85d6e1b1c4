"""An extension's operation goes only to a device that offers the extension, and says yes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest

import penstock
from penstock import hal
from penstock.drivers.null import NullDevice
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import InputError, PlacementError
from penstock.ir import DType, ExtensionType, Model, ModelBuilder, Operand
from penstock.partitioning.policy import Policy
from penstock.partitioning.support import collect_support
from tests.support_extensions import COUNT, EXTENSION, NAME, OTHER, SERIES, Fibonacci, series

FLOAT: Final = DType.FLOAT32
CALL: Final[dict[str, Any]] = {"extension": NAME, "code": SERIES}


class Eager(NullDevice):
    """Says yes to everything, and notes what it is asked for."""

    name = "eager"
    capabilities = hal.Capabilities(extensions=(hal.Extension(OTHER),))

    def __init__(self) -> None:
        self.asked: list[str] = []

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        self.asked += [operation.key for operation in model.operations]
        return super().supported_operations(model)


def network(around: Callable[[ModelBuilder, int], int] = lambda _, x: x) -> Model:
    """The series of relu(x), through *around*."""
    builder = ModelBuilder()
    x = builder.input(FLOAT, (1,), "x")
    (n,) = builder.operation("RELU", [x], [(FLOAT, (1,))])
    (y,) = builder.operation("EXTENSION", [n], [(FLOAT, (10,))], CALL)
    return builder.build([around(builder, y)])


def reasons(model: Model, device: Any) -> list[str]:
    (candidate,) = collect_support(model, [device], Policy()).candidates
    return [answer.reason for answer in candidate.answers]


def test_a_device_is_not_asked_for_extensions_that_it_does_not_offer() -> None:
    device = Eager()
    told = f"the device does not offer the extension {NAME}"
    assert reasons(network(), device) == ["", told]
    assert device.asked == ["RELU"]


def test_operand_types_of_unknown_extensions_have_no_device() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.UINT8, (8,), "x", extension=ExtensionType(NAME, COUNT, 8, False))
    model = builder.build(
        builder.operation("EXTENSION", [x], [(FLOAT, (1,))], {"extension": OTHER, "code": 0})
    )
    device = Eager()
    assert reasons(model, device) == [f"the device does not offer the extension {NAME}"]
    assert device.asked == []


@pytest.mark.parametrize(("kind", "told"), [
    (ExtensionType(NAME, 9, 8), f"the device's extension {NAME} has no operand type 9"),
    (ExtensionType(NAME, COUNT, 4, False), f"the device's operand type {NAME}:0 is another one"),
    (ExtensionType(NAME, COUNT, 8, True), f"the device's operand type {NAME}:0 is another one"),
])  # fmt: skip
def test_undeclared_operand_types_of_an_extension_have_no_device(
    kind: ExtensionType, told: str
) -> None:
    builder = ModelBuilder()
    x = builder.input(
        DType.UINT8, (kind.byte_size,), "x", extension=None if kind.is_tensor else kind
    )
    y = Operand(DType.UINT8, (kind.byte_size,), extension=kind)
    model = builder.build(builder.operation("EXTENSION", [x], [y], CALL))
    assert reasons(model, Fibonacci()) == [told]


@pytest.mark.parametrize("depth", [1, 3, 60])
def test_control_flow_with_unknown_extension_operations_has_no_device(depth: int) -> None:
    builder = ModelBuilder()
    chosen, x = builder.input(DType.BOOL, (), "chosen"), builder.input(FLOAT, (1,), "x")
    kind, attributes = "EXTENSION", dict(CALL)
    for _ in range(depth):
        inner = builder.subgraph()
        given = [inner.input(FLOAT, (1,), "i")]
        if kind == "IF":
            given.insert(0, inner.constant(np.array(True)))
        made = inner.operation(kind, given, [(FLOAT, (10,))], attributes)
        target = builder.add_subgraph(inner.finish(made))
        kind = "IF"
        attributes = {"then_subgraph_index": target, "else_subgraph_index": target}
    model = builder.build(builder.operation("IF", [chosen, x], [(FLOAT, (10,))], attributes))
    device = Eager()
    assert reasons(model, device) == [f"the device does not offer the extension {NAME}"]
    assert device.asked == []
    assert f"the extension {NAME}" in reasons(model, ReferenceDevice())[0]


def test_a_device_below_the_level_of_extensions_is_not_asked() -> None:
    device = Eager()
    device.feature_level = 2
    device.capabilities = hal.Capabilities(extensions=(EXTENSION,))
    assert reasons(network(), device) == ["", "needs feature level 3; the device has 2"]


def test_an_offer_alone_is_no_yes() -> None:
    builder = ModelBuilder()
    x = builder.input(FLOAT, (1,), "x")
    model = builder.build(
        builder.operation("EXTENSION", [x], [(FLOAT, (1,))], {"extension": OTHER, "code": 0})
    )
    assert reasons(model, Fibonacci()) == [f"fibonacci has no EXTENSION:{OTHER}:0"]


@pytest.mark.parametrize("placement", ["cost", "nnapi"])
@pytest.mark.parametrize("performance", [{}, {"float32": penstock.hal.PerformanceInfo(9.0, 9.0)}])
def test_model_is_split_between_the_extension_device_and_others(
    placement: Any, performance: dict[str, Any]
) -> None:
    device = Fibonacci()
    device.capabilities = hal.Capabilities(
        performance=performance, default_performance=None, extensions=(EXTENSION,)
    )
    wish = Policy(placement=placement, require={f"EXTENSION:{NAME}:{SERIES}": "fibonacci"})
    with penstock.compile(
        network(), devices=[device, "reference"], cache=None, policy=wish
    ) as compiled:
        assert [o.device for o in compiled.plan.operations] == ["reference", "fibonacci"]
        assert (compiled(np.array([10], np.float32))[0] == series(10)).all()


def test_a_model_with_an_extension_needs_a_device_that_offers_it() -> None:
    with pytest.raises(PlacementError, match=f"reference: the device does not offer .* {NAME}"):
        penstock.compile(network(), devices=["reference"], cache=None)


def test_a_device_that_declares_a_type_otherwise_is_no_candidate() -> None:
    device = Fibonacci("other", [hal.Extension(NAME, (hal.ExtensionOperandType(COUNT, 4, False),))])
    builder = ModelBuilder()
    n = builder.input(DType.UINT8, (8,), "n", extension=ExtensionType(NAME, COUNT, 8, False))
    model = builder.build(builder.operation("EXTENSION", [n], [(FLOAT, (10,))], CALL))
    with pytest.raises(PlacementError, match=r"other: .* is another one"):
        penstock.compile(model, devices=[device, "reference"], cache=None)
    with penstock.compile(model, devices=[device, Fibonacci()], cache=None) as compiled:
        assert [o.device for o in compiled.plan.operations] == ["fibonacci"]


class TestAttributes:
    GOOD: Final = (hal.ExtensionAttribute(NAME, 0, b"x"),)

    @pytest.mark.parametrize("devices", [None, [], ["reference", "sample"]])
    def test_a_compile_takes_them_for_one_device_alone(self, devices: Any) -> None:
        with pytest.raises(InputError, match="one device"):
            penstock.compile(network(), devices=devices, cache=None, extension_attributes=self.GOOD)

    @pytest.mark.parametrize("bad", [
        "text", (GOOD[0], GOOD[0]), [("a.b", 0, b"x")], [hal.ExtensionAttribute("word", 0, b"x")],
        {"a.b": b"x"},
    ])  # fmt: skip
    def test_malformed_ones_are_refused(self, bad: Any) -> None:
        with pytest.raises(InputError, match="extension"):
            penstock.compile(network(), devices=[Fibonacci()], cache=None, extension_attributes=bad)
        device = Fibonacci()
        x = np.array([10], np.float32)
        with penstock.compile(network(), devices=[device, "reference"], cache=None) as compiled:
            for run in (compiled.run, compiled.burst().run, compiled.start_fenced):
                with pytest.raises(InputError, match="extension"):
                    run([x], extension_attributes=bad)

    def test_every_way_to_run_passes_attributes_to_the_driver(self) -> None:
        device = Fibonacci()
        x = np.array([10], np.float32)
        more = [hal.ExtensionAttribute(NAME, 1, b"run")]
        device.seen.clear()
        builder = ModelBuilder()
        n = builder.input(FLOAT, (1,), "n")
        model = builder.build(builder.operation("EXTENSION", [n], [(FLOAT, (10,))], CALL))
        with (
            penstock.compile(
                model, devices=[device], cache=None, extension_attributes=self.GOOD
            ) as compiled,
            compiled.burst() as burst,
        ):
            compiled.run([x], extension_attributes=more)
            for _ in range(2):
                burst.run([x], extension_attributes=more)
            compiled.start_fenced([x], extension_attributes=more).result()
            compiled.run([x])
        assert device.seen == [self.GOOD, *[tuple(more)] * 4, ()]
