"""Who may run what: answers of devices, feature levels, accuracy, shapes, the policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import InputError, PlacementError, Refusal, RefusalCode
from penstock.hal import Capabilities, InvalidDevice, Support
from penstock.ir import DType, Model, Operand
from penstock.partitioning import Policy
from penstock.partitioning.placement import place
from penstock.partitioning.support import collect_support
from tests.support_devices import NumpyDevice
from tests.unit.partitioning.models import SHAPE, Net, chain


def answers(model: Model, device: NumpyDevice, policy: Policy | None = None) -> list[bool]:
    table = collect_support(model, [device], policy or Policy())
    return [answer.supported for answer in table.candidates[0].answers]


def reasons(model: Model, device: NumpyDevice, policy: Policy | None = None) -> list[str]:
    table = collect_support(model, [device], policy or Policy())
    return [
        str(table.refusals(index).get(device.name, "")) for index in range(len(model.operations))
    ]


def test_refusals_carry_the_device_s_reason() -> None:
    device = NumpyDevice("a", lambda kind, _: "needs a larger table" if kind == "RELU" else True)
    assert reasons(chain(["ADD", "RELU"]), device) == ["", "needs a larger table"]


def test_refusal_without_a_reason_gets_a_reason() -> None:
    device = NumpyDevice("a", lambda *_: "")
    assert reasons(chain(["ADD"]), device) == ["the device gives no reason"]


class Broken(NumpyDevice):
    def __init__(self, answer: Callable[[Model], Any]) -> None:
        super().__init__("broken")
        self.answer = answer

    def supported_operations(self, model: Model) -> list[Support]:
        result: list[Support] = self.answer(model)
        return result


def _raise(_: Model) -> Any:
    raise ZeroDivisionError("driver bug")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_raise, "cannot be asked: ZeroDivisionError: driver bug"),
        (
            lambda _: [Support(supported=True)],
            "cannot be asked: ValueError: supported_operations gave 1 answer for 2 operations",
        ),
        (
            lambda _: [True, True],
            (
                "cannot be asked: ValueError: supported_operations gave something other than "
                "hal.Support"
            ),
        ),
        (lambda _: None, "cannot be asked: TypeError: 'NoneType' object is not iterable"),
    ],
)
def test_a_broken_answer_is_a_refusal_of_everything(
    answer: Callable[[Model], Any], reason: str
) -> None:
    assert reasons(chain(["ADD", "RELU"]), Broken(answer)) == [reason, reason]


@pytest.mark.parametrize("accuracy", ["MUL is reserved", None, []])
def test_an_accuracy_that_is_no_class_refuses_its_operation_alone(accuracy: Any) -> None:
    device = Broken(lambda _: [Support(True, "", accuracy), Support(True, "", "exact")])
    table = collect_support(chain(["ADD", "RELU"]), [device], Policy(accuracy="relaxed"))
    reason = (
        f"the answer of device broken is malformed: its accuracy {accuracy!r} is not one of "
        "exact, faithful, stepwise, relaxed"
    )
    assert table.refusals(0) == {"broken": Refusal(RefusalCode.NO_ANSWER, reason)}
    assert table.takers(1) == [0]


def test_a_device_that_loses_its_capabilities_is_a_refusal() -> None:
    class Lost(NumpyDevice):
        @property
        def capabilities(self) -> Capabilities:
            raise OSError("device unplugged")

        @capabilities.setter
        def capabilities(self, value: Capabilities) -> None: ...

    assert reasons(chain(["ADD"]), Lost("lost")) == ["cannot be asked: OSError: device unplugged"]


@pytest.mark.parametrize(
    ("capabilities", "reason"),
    [
        ({"alignment": 48}, "capabilities declare alignment 48, not a power of two up to 65536"),
        ({"padding": 0}, "capabilities declare padding 0, not a power of two up to 65536"),
        ({"alignment": 1 << 40}, "capabilities declare alignment 1099511627776, not a power"),
        ({"alignment": "64"}, "Expected `int`, got `str`"),
        ({"if_performance": "slow"}, "Expected `object`, got `str`"),
    ],
)
def test_impossible_capabilities_are_a_refusal(capabilities: dict[str, Any], reason: str) -> None:
    (given,) = reasons(chain(["ADD"]), NumpyDevice("a", **capabilities))
    assert given.startswith("cannot be asked: ")
    assert reason in given


def test_an_invalid_device_gives_its_reason() -> None:
    table = collect_support(chain(["ADD"]), [InvalidDevice("gone", "host died")], Policy())
    assert table.refusals(0) == {"gone": Refusal(RefusalCode.UNSUPPORTED, "host died")}


def test_a_device_sees_only_its_feature_level() -> None:
    """NNAPI's SliceModel: MAXIMUM and NEG came with level 3, SUB with 2, ADD and RELU with 1."""
    device = NumpyDevice("old", level=1)
    model = chain(["ADD", "MAXIMUM", "RELU", "SUB"])
    assert answers(model, device) == [True, False, True, False]
    assert reasons(model, device)[1] == "needs feature level 3; the device has 1"
    seen = device.asked[0]
    assert [operation.type for operation in seen.operations] == ["ADD", "RELU"]
    assert [operand.name for operand in seen.inputs] == ["x", "v1"]
    assert [operand.name for operand in seen.outputs] == ["v0", "v2"]


def test_a_device_below_every_operation_is_not_asked() -> None:
    """NNAPI's SliceModelToEmpty."""
    device = NumpyDevice("old", level=1)
    assert answers(chain(["MAXIMUM", "SUB"]), device) == [False, False]
    assert device.asked == []


def test_operations_without_a_level_are_shown_to_every_device() -> None:
    net = Net()
    x = net.source("x")
    parts = [Operand(DType.FLOAT32, SHAPE[1:], name=f"part{k}") for k in range(2)]
    indexes = net.operation("UNPACK", [x], parts, {"num": 2, "axis": 0})
    assert answers(net.build(indexes), NumpyDevice("old", level=1)) == [True]


@pytest.mark.parametrize(
    ("offered", "asked", "supported"),
    [
        ("exact", "exact", True),
        ("faithful", "exact", False),
        ("faithful", "faithful", True),
        ("relaxed", "faithful", False),
        ("relaxed", "relaxed", True),
        ("exact", "relaxed", True),
    ],
)
def test_accuracy_class(offered: Any, asked: Any, supported: bool) -> None:
    device = NumpyDevice("a", accuracy=offered)
    assert answers(chain(["ADD"]), device, Policy(accuracy=asked)) == [supported]
    expected = "" if supported else f"its accuracy there is {offered}; the policy asks for {asked}"
    assert reasons(chain(["ADD"]), device, Policy(accuracy=asked)) == [expected]


@pytest.mark.parametrize(
    ("offered", "names", "remedy"),
    [
        (["relaxed"], ["a"], ('; Policy(accuracy="relaxed") (--accuracy relaxed) permits what is '
            "refused for that, and the")),
        (["relaxed", "stepwise"], ["a", "b"], ('; Policy(accuracy="stepwise") (--accuracy '
            "stepwise) permits")),
        (["relaxed"], ["reference"], ('; Policy(accuracy="relaxed") (--accuracy relaxed) permits '
            "what is refused for that\n")),
    ],
)  # fmt: skip
def test_an_error_names_the_class_that_would_do(
    offered: list[Any], names: list[str], remedy: str
) -> None:
    devices = [NumpyDevice(n, accuracy=a) for n, a in zip(names, offered, strict=True)]
    with pytest.raises(PlacementError) as found:
        place(chain(["ADD"]), devices, Policy())
    assert remedy in str(found.value)
    assert [why.admits for why in found.value.refusals.values()] == offered


def test_an_error_about_more_than_accuracy_names_no_class() -> None:
    device = NumpyDevice("a", frozenset({"ADD"}), accuracy="relaxed")
    with pytest.raises(PlacementError) as found:
        place(chain(["ADD", "RELU"]), [device], Policy())
    assert "--accuracy" not in str(found.value)


def test_a_plan_quotes_how_far_off_a_device_was_measured_to_be() -> None:
    class Rough(NumpyDevice):
        def supported_operations(self, model: Model) -> list[Support]:
            given = super().supported_operations(model)
            return [replace(a, distance="off by 2 steps") for a in given]

    rough = Rough("a", accuracy="relaxed")
    wanted = "its accuracy there is relaxed (off by 2 steps); the policy asks for faithful"
    assert reasons(chain(["ADD"]), rough) == [wanted]
    assert reasons(chain(["ADD"]), rough, Policy(accuracy="relaxed")) == [""]


def test_unknown_shapes_need_a_device_that_supports_them() -> None:
    model = chain(["ADD", "RELU"])
    entry = model.entry
    operands = tuple(replace(o, shape=(None, 3)) if o.name == "v0" else o for o in entry.operands)
    model = replace(model, subgraphs=(replace(entry, operands=operands),))
    reason = "the shape of an output is known at run time only, which the device does not take"
    assert reasons(model, NumpyDevice("a", dynamic_outputs=False)) == [reason, ""]
    assert reasons(model, NumpyDevice("a", dynamic_outputs=True)) == ["", ""]


def test_forbid_by_type_by_name_and_everywhere() -> None:
    model, device = chain(["ADD", "RELU", "RELU"]), NumpyDevice("a")
    assert answers(model, device, Policy(forbid={"RELU": "a"})) == [True, False, False]
    assert answers(model, device, Policy(forbid={"v1": "a"})) == [True, False, True]
    assert answers(model, device, Policy(forbid={"*": ["a", "b"]})) == [False, False, False]
    assert answers(model, device, Policy(forbid={"*": "b"})) == [True, True, True]
    assert reasons(model, device, Policy(forbid={"v0": "a"}))[0] == "the policy forbids it"


def test_require_by_type_by_name_and_everywhere() -> None:
    model, device = chain(["ADD", "RELU", "RELU"]), NumpyDevice("a")
    assert answers(model, device, Policy(require={"RELU": "b"})) == [True, False, False]
    assert answers(model, device, Policy(require={"*": "b", "v1": "a"})) == [False, True, False]
    policy = Policy(require={"v0": ["b", "c"]})
    assert reasons(model, device, policy)[0] == "the policy requires b or c"


def test_the_device_s_own_refusal_comes_before_the_policy_s() -> None:
    device = NumpyDevice("a", {"RELU"})
    assert reasons(chain(["ADD"]), device, Policy(forbid={"*": "a"})) == ["a has no ADD"]


@pytest.mark.parametrize(
    ("label", "policy"),
    [("require", Policy(require={"ADDD": "a"})), ("forbid", Policy(forbid={"ADDD": "a"}))],
)
def test_a_key_that_means_nothing_is_an_error(label: str, policy: Policy) -> None:
    with pytest.raises(InputError, match=f"policy {label}: 'ADDD' is neither"):
        answers(chain(["ADD"]), NumpyDevice("a"), policy)


def test_a_type_that_the_model_does_not_use_is_a_fine_key() -> None:
    assert answers(chain(["ADD"]), NumpyDevice("a"), Policy(forbid={"SOFTMAX": "a"})) == [True]


def test_two_devices_of_one_name_are_an_error() -> None:
    with pytest.raises(InputError, match="two devices are named 'a'"):
        collect_support(chain(["ADD"]), [NumpyDevice("a"), NumpyDevice("a")], Policy())
