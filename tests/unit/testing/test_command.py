from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.drivers.null import create
from penstock.errors import PlacementError
from penstock.hal import Device
from penstock.testing import __main__ as command, contract, supervised
from penstock.testing.contract.promise import PAGE, rule_of, show
from penstock.testing.contract.runner import reading, summary
from penstock.testing.devices import find_devices
from tests.support_programs import run_python


def test_json_is_one_object_of_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["contract", "null", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"passed", "failed", "not_covered", "failures", "not_covered_reasons"}
    reasons = printed["not_covered_reasons"]
    assert sum(reasons.values()) == printed["not_covered"] > max(reasons.values())
    assert list(reasons.values()) == sorted(reasons.values(), reverse=True)
    assert printed["passed"] + printed["not_covered"] == len(contract.CHECKS)
    assert (printed["failed"], printed["failures"]) == (0, [])


def test_a_table_has_a_line_for_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["contract", "null"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heading = lines.index("not covered:")
    assert heading == len(contract.CHECKS)
    reasons = [line.split(maxsplit=1) for line in lines[heading + 1 : -1]]
    assert len({reason for _, reason in reasons}) == len(reasons) > 1
    assert f" {sum(int(count) for count, _ in reasons)} not covered" in lines[-1]
    assert any("check_support_is_pure" in line and " ok " in line for line in lines)
    assert lines[-1].startswith("null: ")


def test_summary_gives_the_reasons_when_most_checks_are_not_covered() -> None:
    def results(passed: int, **reasons: int) -> list[contract.CheckResult]:
        left = [
            contract.CheckResult("s", "c", "not_covered", why.replace("_", " "), 0.0)
            for why, n in reasons.items()
            for _ in range(n)
        ]
        return [contract.CheckResult("s", "c", "passed", "", 0.0)] * passed + left

    def line(found: list[contract.CheckResult]) -> str:
        return summary("d", found)

    assert line(results(2, it_caches_nothing=1, it_supports_none=4, it_is_shy=2)) == (
        "d: 2 passed, 0 failed, 7 not covered; "
        "most was not tried: it supports none (4 checks), it is shy (2 checks)"
    )
    assert line(results(3, it_supports_none=7)) == "d: 3 passed, 0 failed, 7 not covered"


DRIVERS = """
import os
import time
import numpy as np
from penstock.hal import InvalidDevice
from penstock.driverkit import KernelDevice, kernel
from penstock.testing.doubles import InterceptingDevice, LyingDevice


class Relu(KernelDevice):
    name, version = "relu", "1"

    @kernel("RELU")
    def relu(self, site, x):
        return np.maximum(x, 0)


def broken():
    print("a driver that prints")
    return [LyingDevice(Relu(), "support_length")]


def unusable():
    return InvalidDevice("gone", "there is no such hardware")


def some():
    return [unusable(), Relu()]


def nothing():
    return []


def number():
    return 7


class Crashes(InterceptingDevice):
    def prepare_model_from_cache(self, config):
        os.abort()


def crashes():
    return Crashes(Relu(), "crashes")


class Waits(InterceptingDevice):
    def prepare_model_from_cache(self, config):
        time.sleep(60)


def hangs():
    return Waits(Relu(), "hangs")
"""


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `broken_driver` that a process of its own finds, too."""
    (tmp_path / "broken_driver.py").write_text(DRIVERS)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("drivers")
def test_a_failure_is_exit_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["contract", "broken_driver:broken", "--json"]) == 1
    printed = json.loads(capfd.readouterr().out)
    assert printed["failed"] == len(printed["failures"]) > 0
    first = printed["failures"][0]
    assert first["check"] == "check_support_has_one_answer_per_operation"
    assert "answers for" in first["message"]


def test_failure_shows_the_rule_the_observation_and_the_page() -> None:
    result = contract.CheckResult(
        "execute", "check_values", "failed", "wrong sum", 0.5, "mine", "Sums are right.", "a page"
    )
    first, *about = show(result.label, result).splitlines()
    assert first.split() == ["execute", "check_values", "FAILED", "500.0", "ms"]
    assert about == ["    rule: Sums are right.", "    seen: wrong sum", "    read: a page"]


@pytest.mark.parametrize("suite", contract.SUITES)
def test_every_suite_has_a_section_to_read_and_a_docstring(suite: str) -> None:
    import penstock.hal

    found_there = re.fullmatch(
        rf"{re.escape(PAGE)}#([\w-]+), help\(penstock\.hal\.([\w.]+)\)", reading(suite)
    )
    assert found_there
    section, name = found_there.groups()
    page = (Path(__file__).resolve().parents[3] / PAGE).read_text("utf-8")
    headings = [h.lower() for h in re.findall(r"(?m)^##+ (.*)$", page)]
    assert section in [re.sub(r"[^\w -]", "", h).replace(" ", "-") for h in headings]
    found: Any = penstock.hal
    for part in name.split("."):
        found = getattr(found, part)
    assert found.__doc__


def test_every_check_has_its_rule_in_a_sentence() -> None:
    for check in contract.CHECKS:
        rule = rule_of(check)
        assert rule.endswith((".", ".)")), rule
        assert rule[0].isupper(), rule


@pytest.mark.usefixtures("drivers")
def test_a_crash_fails_its_checks_and_the_next_one_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["contract", "broken_driver:crashes", "--json"]) == 1
    printed = json.loads(capfd.readouterr().out)
    assert {f["suite"] for f in printed["failures"]} == {"caching"}
    failure = printed["failures"][0]
    assert failure["message"].startswith(
        "the process died of SIGABRT, in prepare_model_from_cache ("
    )
    assert "broken_driver.py" in failure["message"]
    assert failure["device"] == "crashes"
    assert failure["rule"].endswith(".")
    assert failure["read"].startswith("docs/writing-a-driver.md#caching")
    assert printed["passed"] + printed["failed"] + printed["not_covered"] == len(contract.CHECKS)
    assert printed["passed"] > 50


@pytest.mark.usefixtures("drivers")
def test_a_hang_fails_its_check_within_the_limit() -> None:
    limit = 3.0
    make, kind = "penstock.testing.contract.runner:cases", contract.CheckResult
    results = supervised.supervise(make, HANGS, kind, limit=limit)
    hung = next(result for result in results if "it did not end" in result.message)
    results.close()
    assert (hung.device, hung.suite) == ("hangs", "caching")
    assert (hung.check, hung.outcome) == ("check_loading_without_a_cache", "failed")
    assert hung.message.startswith("it did not end within 3 s, in prepare_model_from_cache (")
    assert "broken_driver.py" in hung.message


HANGS = ["broken_driver:hangs"]


def test_a_check_may_be_limited_in_this_process() -> None:
    import threading

    let_go = threading.Event()

    def check_waits(device: Device) -> None:
        let_go.wait()

    result = contract.run_check(create(), check_waits, limit=0.05)
    let_go.set()
    assert (result.outcome, result.message) == ("failed", "it did not end within 0.05 s")
    assert contract.run_check(create(), check_waits, limit=60).outcome == "passed"


@pytest.mark.usefixtures("drivers")
def test_a_device_that_cannot_work_here_is_passed_over_beside_one_that_can(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["contract", "broken_driver:some"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].endswith("gone cannot work here: there is no such hardware")
    assert lines.index("not covered:") == len(contract.CHECKS) + 1


@pytest.mark.usefixtures("drivers")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["contract", "nope"], "no driver is named 'nope'; installed: "),
        (["contract", "no_such_module:create"], "cannot be loaded"),
        (
            ["contract", "broken_driver:unusable"],
            "gone cannot work here: there is no such hardware",
        ),
        (["contract", "broken_driver:nothing"], "made no device"),
        (["contract", "broken_driver:number"], "made 7, which is no device"),
        (["contract", "broken_driver:none_of_this_name"], "cannot be loaded: AttributeError"),
        (["chaos", "nope"], "no driver is named 'nope'; installed: "),
        (["chaos", "sample", "--graphs", "0"], "0 graphs are too few"),
        (["vectors", "no_directory", "--device", "sample"], "no_directory: no such directory"),
    ],
)
def test_driver_that_cannot_be_run_is_exit_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize(
    "arguments", [[], ["contract"], ["dance", "sample"], ["contract", "sample", "--limit", "-1"]]
)
def test_wrong_usage_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert "usage: python -m penstock.testing" in capsys.readouterr().err


def test_the_module_runs() -> None:
    done = run_python("-m", "penstock.testing", "contract", "null", "--json", check=True)
    assert json.loads(done.stdout)["failed"] == 0
    assert done.stderr == ""


def test_a_device_is_found_by_its_name_beside_its_driver() -> None:
    pytest.importorskip("openvino")
    assert [d.name for d in find_devices("openvino-cpu")] == ["openvino-cpu"]


def test_every_built_in_driver_is_found_by_name() -> None:
    for name in ("lab", "llvm", "null", "sample", "reference"):
        assert [d.name for d in find_devices(name)] == [name]
    with pytest.raises(PlacementError, match=r"installed: lab, llvm, null, .*reference, sample"):
        find_devices("nope")
