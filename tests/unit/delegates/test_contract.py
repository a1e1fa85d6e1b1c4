"""The delegate suite: what passes it, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from examples.my_delegate import MyDelegate, MyRawDelegate
from penstock.delegates import (
    Delegate,
    DelegateContext,
    DelegateFlags,
    DelegateTensor,
    DriverDelegate,
    NnapiDelegate,
)
from penstock.testing.contract.delegate_subjects import standard_subjects
from penstock.testing.contract.delegates import (
    CHECKS,
    DelegateCheck,
    Subject,
    run_delegate_contract,
)
from tests.unit.delegates import graphs
from tests.unit.delegates.recorder import Recorder, Uploading
from tests.unit.loaders.files import accumulator, svdf

CHAIN = graphs.chain("NEG", "ABS", "NEG")
DYNAMIC = DelegateFlags.ALLOW_DYNAMIC_TENSORS

SUBJECTS: dict[str, Subject] = {
    "example": Subject(MyDelegate, graphs.convolved("ABS")),
    "raw example": Subject(MyRawDelegate, graphs.convolved("ABS")),
    "static": Subject(lambda: Recorder("NEG"), CHAIN),
    "dynamic": Subject(lambda: Recorder("NEG", flags=DYNAMIC), CHAIN),
    "buffers": Subject(lambda: Recorder("NEG", buffers=True), CHAIN),
    "buffers both ways": Subject(lambda: Uploading("NEG", "ABS", buffers=True), CHAIN),
    "state": Subject(lambda: Recorder("ADD"), accumulator().encode()),
    "driver": Subject(lambda: DriverDelegate("reference", cache=False), CHAIN, rtol=0, atol=0),
    "driver, recurrent": Subject(
        lambda: DriverDelegate("reference", cache=False), svdf().encode(), rtol=0, atol=0
    ),
    "nnapi": Subject(lambda: NnapiDelegate("reference"), graphs.diamond(), rtol=0, atol=0),
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_delegates_pass_the_contract_suite(name: str) -> None:
    found = run_delegate_contract(SUBJECTS[name])
    assert [(r.check, r.message) for r in found if r.outcome == "failed"] == []
    passed = {r.check for r in found if r.outcome == "passed"}
    assert ("check_every_buffer_is_freed_once" in passed) == ("buffers" in name)
    assert len(passed) >= 9


class Wrong(Recorder):
    def _write(self, context: DelegateContext, tensor: DelegateTensor, value: Any) -> None:
        super()._write(context, tensor, value + 1)


class Remembering(Recorder):
    first: Any = None

    def _write(self, context: DelegateContext, tensor: DelegateTensor, value: Any) -> None:
        self.first = value if self.first is None else self.first
        super()._write(context, tensor, self.first)


class Writing(Recorder):
    def _read(self, tensor: DelegateTensor) -> Any:
        data = tensor.data
        value = np.array(data)
        data.flags.writeable = True
        data[...] = 0
        return value


class Hasty(Recorder):
    """Frees its buffers when a kernel goes, though the interpreter does it."""

    def _free(self, context: DelegateContext, user_data: Any) -> None:
        for index in user_data.outputs:
            self.free_buffer_handle(context, context.tensor(index).buffer_handle)


class Stuck(Recorder):
    """Leaves the first result in its buffer for good."""

    def _write(self, context: DelegateContext, tensor: DelegateTensor, value: Any) -> None:
        tensor.buffer_handle = tensor.index
        self.buffers.setdefault(tensor.index, value)
        tensor.data_is_stale = True


class Once(Recorder):
    """Works until the first of its kernels is freed."""

    def _free(self, context: DelegateContext, user_data: Any) -> None:
        self.fail = "invoke"


BROKEN: dict[str, tuple[Callable[[], Delegate], bytes]] = {
    "check_results_are_those_without_it": (lambda: Wrong("NEG"), CHAIN),
    "check_runs_do_not_depend_on_each_other": (lambda: Remembering("NEG"), graphs.chain("NEG")),
    "check_inputs_are_only_read": (lambda: Writing("NEG"), CHAIN),
    "check_outputs_may_stay_in_buffers": (lambda: Stuck("NEG"), graphs.chain("ABS", "NEG")),
    "check_every_buffer_is_freed_once": (lambda: Hasty("NEG", buffers=True), CHAIN),
    "check_two_interpreters_share_it": (lambda: Once("NEG"), graphs.chain("NEG", "ABS")),
    "check_input_shapes_change": (lambda: Once("NEG"), graphs.chain("NEG", "ABS")),
}


@pytest.mark.parametrize("check", BROKEN)
def test_broken_delegate_fails_the_check_of_its_fault(check: str) -> None:
    make, content = BROKEN[check]
    checks: list[DelegateCheck] = [c for c in CHECKS if c.__name__ == check]
    (result,) = run_delegate_contract(Subject(make, content), checks)
    assert result.outcome == "failed"
    assert result.message
    assert result.rule


def test_a_delegate_that_takes_nothing_shows_nothing() -> None:
    found = run_delegate_contract(Subject(lambda: Recorder("SQUARE"), CHAIN))
    assert {r.outcome for r in found} == {"not_covered"}
    assert {r.message for r in found} == {"the delegate takes no node of this file"}


RESULTS: list[DelegateCheck] = [c for c in CHECKS if "results_are_those" in c.__name__]
STANDARD = list(standard_subjects(MyDelegate))


def outcomes(make: Callable[[], Delegate]) -> dict[str, str]:
    """What comes of the first check on every standard subject."""
    found: dict[str, str] = {}
    for name, subject in standard_subjects(make).items():
        (result,) = run_delegate_contract(subject, RESULTS)
        found[name] = result.outcome
        assert "Error" not in result.message, result.message
    return found


@pytest.mark.parametrize("kind", [MyDelegate, MyRawDelegate])
def test_the_example_is_right_on_every_standard_subject(kind: type[Delegate]) -> None:
    found = outcomes(kind)
    assert "failed" not in found.values()
    passed = {n for n, outcome in found.items() if outcome == "passed"}
    assert {"CONV_2D NONE", "CONV_2D RELU", "CONV_2D VALID", "MEAN keep_dims True"} <= passed


def test_a_device_is_right_on_every_standard_subject() -> None:
    found = outcomes(lambda: DriverDelegate("reference", cache=False))
    assert found == dict.fromkeys(STANDARD, "passed")


def test_a_delegate_that_takes_whatever_has_the_right_name_is_found() -> None:
    class Careless(MyDelegate):
        is_node_supported = staticmethod(lambda kind, *_: kind.builtin_name in ("CONV_2D", "MEAN"))  # type: ignore[assignment]

    wrong: set[str] = set()
    for name, subject in standard_subjects(Careless).items():
        (result,) = run_delegate_contract(subject, RESULTS)
        wrong |= {name} if result.outcome == "failed" else set()
    assert wrong >= {
        "CONV_2D RELU6",
        "CONV_2D RELU_N1_TO_1",
        "CONV_2D dilation_h",
        "CONV_2D dilation_w",
        "CONV_2D groups",
        "CONV_2D int8",
        "CONV_2D without bias",
    }
