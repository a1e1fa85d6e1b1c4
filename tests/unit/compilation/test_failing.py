"""The error of a step that nothing repeats names the model's own operation, the device, and why
nothing repeats it.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

import penstock
from penstock.compilation.failing import (
    DriverMessage,
    driver_message,
    driver_message_in,
    parse_message,
)
from penstock.errors import GeneralFailure, OutputInsufficientSize
from penstock.hal import ExecutionConfig, Request
from tests.unit.execution.fakes import NumpyDevice, add_relu, f32


def fail(_: Request, __: ExecutionConfig) -> None:
    raise GeneralFailure("operation 0 (RELU): ValueError: no such shape")


def message(policy: penstock.Policy, **arguments: Any) -> str:
    devices = [NumpyDevice("adder", only=["ADD"]), NumpyDevice("relu", only=["RELU"], before=fail)]
    one = f32([[1, 2, 3]] * 2)
    with (
        penstock.compile(
            add_relu(), devices=devices, policy=policy, cache=False, **arguments
        ) as made,
        pytest.raises(GeneralFailure) as caught,
    ):
        made(one, one)
    assert isinstance(caught.value.__cause__, GeneralFailure)
    return str(caught.value)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (penstock.Policy(allow_fallback=False), "no fallback is allowed (allow_fallback=False)"),
        (
            penstock.Policy(require={"RELU": "relu"}),
            "nothing may repeat it (adder: no RELU; reference: the policy requires relu)",
        ),
        (
            penstock.Policy(forbid={"relu": "reference"}),
            "nothing may repeat it (adder: no RELU; reference: the policy forbids it)",
        ),
        (
            penstock.Policy(min_coverage=1.0),
            (
                "nothing may repeat it (adder: no RELU; reference: the policy's min_coverage of 1 "
                "needs it)"
            ),
        ),
    ],
)
def test_error_of_a_run_names_operation_and_device(policy: penstock.Policy, why: str) -> None:
    told = message(policy)
    assert told == f"operation 1 (RELU, 'relu') on relu: ValueError: no such shape; {why}"


def test_error_of_a_compile_names_operation_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = NumpyDevice("both")

    def prepare(*_: object) -> Any:
        raise GeneralFailure("no room")

    monkeypatch.setattr(device, "prepare_model", prepare)
    words = (
        "step 0, operations 0 (ADD, 'sum') to 1 (RELU, 'relu'), on both: no room; "
        "no fallback is allowed (allow_fallback=False)"
    )
    monkeypatch.setenv("PENSTOCK_ALLOW_FALLBACK", "0")
    with pytest.raises(GeneralFailure, match=f"^{re.escape(words)}$"):
        penstock.compile(add_relu(), devices=[device], cache=False)


def test_error_keeps_its_output_shapes() -> None:
    shapes = (((2, 3), False),)

    def refuse(_: Request, __: ExecutionConfig) -> None:
        raise OutputInsufficientSize("too small", shapes)

    device = NumpyDevice("both", before=refuse)
    one = f32([[1, 2, 3]] * 2)
    policy = penstock.Policy(allow_fallback=False)
    with (
        penstock.compile(add_relu(), devices=[device], cache=False, policy=policy) as made,
        pytest.raises(OutputInsufficientSize, match="on both: too small; no fallback") as caught,
    ):
        made(one, one)
    assert caught.value.output_shapes == shapes


def test_one_error_raised_again_and_again_does_not_grow() -> None:
    error = GeneralFailure("the same")

    def refuse(_: Request, __: ExecutionConfig) -> None:
        raise error

    device = NumpyDevice("both", before=refuse)
    one = f32([[1, 2, 3]] * 2)
    policy = penstock.Policy(allow_fallback=False)
    with penstock.compile(add_relu(), devices=[device], cache=False, policy=policy) as made:
        for _ in range(2):
            with pytest.raises(GeneralFailure) as caught:
                made(one, one)
            assert str(caught.value).count("the same") == 1
    assert str(error) == "the same"


NUMBERED = "GeneralFailure: operation 1 (RELU): ValueError: no such shape"


def test_error_of_a_measured_device_has_operation_numbers_of_the_model() -> None:
    devices = [NumpyDevice("adder", only=["ADD"]), NumpyDevice("relu", only=["RELU"], before=fail)]
    one = f32([[1, 2, 3]] * 2)
    policy = penstock.Policy(allow_fallback=False)
    with (
        penstock.compile(add_relu(), devices=devices, policy=policy, cache=False) as made,
        pytest.raises(GeneralFailure) as caught,
    ):
        made(one, one)
    assert driver_message(caught.value) == NUMBERED
    assert driver_message(GeneralFailure("of its own")) == "GeneralFailure: of its own"


def test_equal_errors_are_named_once() -> None:
    def refuse(_: Request, __: ExecutionConfig) -> None:
        raise GeneralFailure("the buffer is lost")

    one = f32([[1, 2, 3]] * 2)
    devices = [NumpyDevice(name, before=refuse) for name in ("first", "second")]
    policy = penstock.Policy(forbid={"*": "reference"})
    with (
        penstock.compile(add_relu(), devices=devices, cache=False, policy=policy) as made,
        pytest.raises(
            GeneralFailure, match=r"on first: the buffer is lost; second failed alike$"
        ) as caught,
    ):
        made(one, one)
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("fenced", [False, True], ids=["at once", "behind fences"])
def test_error_of_a_run_names_every_device_that_failed(fenced: bool) -> None:
    relus = [NumpyDevice(name, only=["RELU"], before=fail) for name in ("first", "second")]
    one = f32([[1, 2, 3]] * 2)
    with penstock.compile(
        add_relu(), devices=[NumpyDevice("adder", only=["ADD"]), *relus], cache=False
    ) as made:
        outputs = made.start_fenced([one, one]).result(30) if fenced else made(one, one)
    failures = [f for step in outputs.receipt.steps for f in step.failures]
    assert {f.device for f in failures} == ({"first"} if fenced else {"first", "second"})
    assert {f.error for f in failures} == {NUMBERED}


def test_error_of_a_compile_names_every_device_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    relus = [NumpyDevice(name, only=["RELU"]) for name in ("first", "second")]

    def prepare(*_: object) -> Any:
        raise GeneralFailure("operation 0 (RELU): ValueError: no such shape")

    for device in relus:
        monkeypatch.setattr(device, "prepare_model", prepare)
    with penstock.compile(
        add_relu(), devices=[NumpyDevice("adder", only=["ADD"]), *relus], cache=False
    ) as made:
        failures = [f for step in made.receipt.steps for f in step.failures]
    assert [(f.device, f.error) for f in failures] == [("first", NUMBERED), ("second", NUMBERED)]


@pytest.mark.parametrize(
    ("words", "operation", "kind", "cause"),
    [
        ("operation 1 (RELU): hot", 1, "RELU", "hot"),
        ("operation 1 (CUSTOM:a.b, 'x: y'): hot", 1, "CUSTOM:a.b", "y'): hot"),
        ("Hot: operation 0 (ADD): no", 0, "ADD", ""),
        ("operation 1 (RELU)", 1, "RELU", ""),
        ("operation 01 (RELU): hot", None, "", ""),
        (f"operation {'1' * 5000} (RELU): hot", None, "", ""),
        ("", None, "", ""),
    ],
)
def test_a_driver_is_heard_once(words: str, operation: int | None, kind: str, cause: str) -> None:
    said = parse_message(words)
    assert (said.operation, said.kind, said.cause) == (operation, kind, cause)
    assert str(said) == words


def test_only_an_operation_of_the_part_is_renumbered() -> None:
    model = add_relu()
    for words in ("operation 1 (ADD): x", "operation 2 (RELU): x", "no operation"):
        assert parse_message(words).renumbered(model, [7, 8]) == parse_message(words)
    said = parse_message("Hot: operation 1 (RELU): x").renumbered(model, [7, 8])
    assert said == DriverMessage("Hot: operation ", 8, "RELU", " (RELU): x")
    error = GeneralFailure("operation 1 (RELU): x")
    assert driver_message_in(error, model, [7, 8]) == "GeneralFailure: operation 8 (RELU): x"
