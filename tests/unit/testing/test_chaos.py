"""Chaos: a driver that keeps its promises passes every scenario, and each broken one fails where it
should.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest

from penstock.driverkit import KernelDevice, Site, kernel
from penstock.drivers.null import create as null
from penstock.drivers.reference import create as reference
from penstock.hal import Device
from penstock.ir import NDArray
from penstock.testing import __main__ as program
from penstock.testing.chaos import SCENARIOS, graphs_for
from penstock.testing.chaos.scenarios import Result, Subjects, try_scenario
from penstock.testing.doubles import METHODS, InterceptingDevice, LyingDevice

T = TypeVar("T")
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


class Relu(KernelDevice):
    name, version = "relu", "1"

    @kernel("RELU")
    def relu(self, site: Site, x: NDArray) -> NDArray:
        return np.maximum(x, np.float32(0))


class Negation(KernelDevice):
    name, version = "negation", "1"

    @kernel("NEG")
    def negate(self, site: Site, x: NDArray) -> NDArray:
        return -x


def tried(device: Device, scenario: str, graphs: int = 2) -> Result:
    subjects = Subjects(device, graphs, 0)
    return try_scenario(BY_NAME[scenario], device, subjects.graphs)


@pytest.mark.parametrize("scenario", BY_NAME)
def test_the_runtime_survives(scenario: str) -> None:
    result = tried(Relu(), scenario, graphs=1)
    cached = scenario.startswith("prepare_model_from_cache") and not scenario.endswith("delay")
    assert result.outcome == ("not_covered" if cached else "passed"), result.message


@pytest.mark.parametrize("scenario", [s for s in BY_NAME if s.startswith("prepare_model_from")])
def test_a_cache_that_fails_is_survived(scenario: str) -> None:
    from penstock.testing.lab import LabDevice

    assert tried(LabDevice(), scenario, graphs=1).outcome == "passed"


def test_every_method_that_a_compile_calls_is_made_to_fail() -> None:
    failing = {s.name.partition(":")[0] for s in SCENARIOS} & set(METHODS)
    assert failing == {
        "supported_operations",
        "prepare_model",
        "prepare_model_from_cache",
        "execute",
    }


class Raises(InterceptingDevice):
    """What it raises is no error of a driver's."""

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if method == "execute":
            raise KeyError("surprise")
        return proceed()


class Leaks(InterceptingDevice):
    kept: ClassVar[list[io.FileIO]] = []

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if method == "execute":
            self.kept.append(io.FileIO("/dev/null"))
        return proceed()


def test_chaos_reports_wrong_values_foreign_errors_and_refusals() -> None:
    wrong = tried(LyingDevice(Relu(), "values"), "no fault")
    assert wrong.outcome == "failed"
    assert "output 0 is not the reference's, and nothing was raised" in wrong.message
    assert wrong.rule == "Without a fault the answer is the reference's."
    assert wrong.read == "docs/writing-a-driver.md#chaos"
    failing = tried(Raises(Relu(), "raises"), "no fault")
    assert failing.outcome == "failed"
    assert "no run of 3 went well" in failing.message or "without a fault" in failing.message
    refuses = tried(LyingDevice(Relu(), "refuses_after_all"), "placement")
    assert "never executed it on this device" in refuses.message


def test_chaos_reports_descriptors_that_a_driver_leaves_open() -> None:
    leaking = tried(Leaks(Relu(), "leaks"), "no fault")
    for file in Leaks.kept:
        file.close()
    assert leaking.outcome == "failed"
    assert "descriptors" in leaking.message


def test_a_device_without_relu_is_tried_on_what_it_has() -> None:
    result = tried(Negation(), "no fault")
    assert (result.outcome, result.message) == (
        "not_covered",
        "it supports none of the models that are tried",
    )

    class Sums(KernelDevice):
        name, version = "sums", "1"

        @kernel("ADD")
        def add(self, site: Site, x: NDArray, y: NDArray) -> NDArray:
            return np.asarray(x + y)

    assert [graph.name for graph in graphs_for(Sums(), 2, 0)] == ["add", "add_constant"]
    assert tried(Sums(), "execute: GENERAL_FAILURE").outcome == "passed"


def test_graphs_are_the_same_for_the_same_seed() -> None:
    first, second = graphs_for(reference(), 3, 7), graphs_for(reference(), 3, 7)
    assert [g.model.digest for g in first] == [g.model.digest for g in second]
    assert [g.model.digest for g in graphs_for(reference(), 3, 8)] != [
        g.model.digest for g in first
    ]


def test_a_device_that_computes_nothing_fails_without_a_fault() -> None:
    assert tried(null(), "no fault").outcome == "failed"


def test_the_command_keeps_nothing_in_the_user_s_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(state))
    assert program.main(["chaos", "null", "--graphs", "1", "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["failed"]
    assert not state.exists()


def test_the_command_prints_json_and_a_table(capfd: pytest.CaptureFixture[str]) -> None:
    assert program.main(["chaos", "reference", "--graphs", "1", "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert set(printed) == {"passed", "failed", "not_covered", "failures", "not_covered_reasons"}
    assert printed["passed"] + printed["not_covered"] == len(SCENARIOS)
    assert printed["failures"] == []
    assert sum(printed["not_covered_reasons"].values()) == printed["not_covered"]


def test_a_failing_command_is_exit_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert program.main(["chaos", "null", "--graphs", "1", "--seed", "3"]) == 1
    printed = capfd.readouterr().out
    assert "    rule: Without a fault the answer is the reference's.\n" in printed
    assert "    seen: graph 0 of seed 3: " in printed
    assert printed.splitlines()[-1].startswith("null: ")
