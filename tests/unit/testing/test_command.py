from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.errors import PlacementError
from penstock.hal import InvalidDevice
from penstock.testing import __main__ as command
from penstock.testing.contract import CHECKS, CheckResult
from penstock.testing.devices import find_devices


def test_json_is_one_object_of_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["contract", "sample", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"passed", "failed", "not_covered", "failures"}
    assert printed["passed"] + printed["not_covered"] == len(CHECKS)
    assert (printed["failed"], printed["failures"]) == (0, [])


def test_a_table_has_a_line_for_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["contract", "null"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CHECKS) + 1
    assert any("check_support_is_pure" in line and " ok " in line for line in lines)
    assert lines[-1].startswith("null: ")


def broken() -> list[object]:
    """An entry point for the tests below."""
    from penstock.drivers.sample import create
    from penstock.testing.doubles import LyingDevice

    return [LyingDevice(create(), "support_length")]


def unusable() -> InvalidDevice:
    return InvalidDevice("gone", "there is no such hardware")


def test_a_failure_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "broken_driver", sys.modules[__name__])
    assert command.main(["contract", "broken_driver:broken", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["failed"] == len(printed["failures"]) > 0
    first = printed["failures"][0]
    assert first["check"] == "check_support_has_one_answer_per_operation"
    assert "answers for" in first["message"]


def test_a_failure_stands_out_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    command._print_result(CheckResult("execute", "check_values", "failed", "wrong sum", 0.5))
    assert capsys.readouterr().out.split() == [
        "execute",
        "check_values",
        "FAILED",
        "500.0",
        "ms",
        "wrong",
        "sum",
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["contract", "nope"], "no driver is named 'nope'; installed: "),
        (["contract", "no_such_module:create"], "cannot be loaded"),
        (
            ["contract", "broken_driver:unusable"],
            "gone cannot work here: there is no such hardware",
        ),
        (["chaos", "sample"], "chaos: not available yet"),
        (["vectors", "no_directory", "--device", "sample"], "no_directory: no such directory"),
    ],
)
def test_what_cannot_be_run_is_exit_code_2(
    arguments: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "broken_driver", sys.modules[__name__])
    assert command.main(arguments) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize("arguments", [[], ["contract"], ["dance", "sample"]])
def test_wrong_usage_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert "usage: python -m penstock.testing" in capsys.readouterr().err


def test_the_module_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.testing", "contract", "null", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(done.stdout)["failed"] == 0
    assert done.stderr == ""


def test_every_built_in_driver_is_found_by_name() -> None:
    for name in ("lab", "null", "sample", "reference"):
        assert [d.name for d in find_devices(name)] == [name]
    with pytest.raises(PlacementError, match=r"installed: lab, null, .*reference, sample"):
        find_devices("nope")
