"""What becomes of a case: its runs, their comparison, and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.drivers.reference import ReferenceDevice
from penstock.drivers.sample import create as sample
from penstock.errors import GeneralFailure
from penstock.hal import ExecutionConfig, ExecutionResult, PrepareConfig, PreparedModelBase, Request
from penstock.ir import Model
from penstock.nnapi.description import NnapiLifetime, OperandType
from penstock.testing import __main__ as command
from penstock.testing.vectors import Case, Report, RunResult, run_case, run_vectors
from penstock.testing.vectors.derive import plain_run, runs_of
from penstock.testing.vectors.runner import difference
from tests.unit.testing.vectors.made import Blob, Entry, addition, case_of, near, operand, write

DERIVED = {"tensors_as_inputs": [1], "inputs_as_internal": [0, 1], "dynamic_output_shape": True}


def adding(path: Path, expected: tuple[float, ...] = (4, 6), **more: Any) -> Case:
    blob = Blob()
    return case_of(path, addition("sum", blob, expected, **more), blob)


def quantised(path: Path) -> Case:
    """[10, 20] + [1, 2] of scale 0.5 and zero point 0."""
    blob = Blob()
    kind, scale = "TENSOR_QUANT8_ASYMM", {"scale": 0.5}
    entry = addition("sum", blob, [0, 0], derive={"quant8_signed": True})
    entry["main"]["operands"] = [
        operand(blob, kind, "input", [10, 20], **scale),
        operand(blob, kind, "constant", [1, 2], shared_memory=True, **scale),
        entry["main"]["operands"][2],
        near(blob, kind, [11, 22], **scale),
    ]
    return case_of(path, entry, blob)


def test_runs_are_derived(tmp_path: Path) -> None:
    runs = list(runs_of(adding(tmp_path, derive=DERIVED)))
    assert [r.kind for r in runs] == [
        "plain",
        "tensors_as_inputs",
        "inputs_as_internal",
        "tensors_as_inputs, inputs_as_internal",
        "dynamic_output_shape",
    ]
    plain, constants, inputs, both, dynamic = (r.model.main for r in runs)
    assert (plain.inputs, constants.inputs) == ((0,), (0, 1))
    assert constants.operands[1].lifetime is NnapiLifetime.SUBGRAPH_INPUT
    assert [o.type for o in inputs.operations] == ["ADD", "ADD"]
    assert [o.type for o in both.operations] == ["ADD", "ADD", "ADD"]
    assert inputs.operands[0].lifetime is NnapiLifetime.TEMPORARY_VARIABLE
    assert dynamic.operands[3].dimensions == (None,)
    assert runs[-1].feature_level == 3
    assert all(r.outcome == "passed" for r in run_case(runs[0].case, ReferenceDevice()))


def test_signed_values_are_less_128(tmp_path: Path) -> None:
    case = quantised(tmp_path)
    signed = list(runs_of(case))[1]
    first, second, _, result = signed.model.main.operands
    kind = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    assert {first.type, second.type, result.type} == {kind}
    assert (first.zero_point, first.scale) == (-128, 0.5)
    assert second.value == np.array([-127, -126], np.int8).tobytes()
    assert [a.tolist() for a in signed.fed] == [[-118, -108]]
    assert signed.outputs[0].values is not None
    assert signed.outputs[0].values.tolist() == [-117, -106]
    assert [r.outcome for r in run_case(case, ReferenceDevice())] == ["passed", "passed"]


def test_inputs_may_be_omitted(tmp_path: Path) -> None:
    blob = Blob()
    entry = addition("svdf", blob, [])
    ones: dict[str, Entry] = {
        name: operand(blob, "TENSOR_FLOAT32", "input", [1.0] * count, dims=dims)
        for name, count, dims in (
            ("x", 2, [1, 2]), ("feature", 2, [1, 2]), ("time", 3, [1, 3]), ("state", 3, [1, 3]),
        )
    }  # fmt: skip
    bias = operand(blob, "TENSOR_FLOAT32", "input", [], omitted=True)
    numbers = [operand(blob, "INT32", "constant", [n]) for n in (1, 0)]
    state = operand(blob, "TENSOR_FLOAT32", "output", None, dims=[1, 3], compare="ignored")
    result = near(blob, "TENSOR_FLOAT32", [4.0], dims=[1, 1])
    x, feature, time, before = ones.values()
    entry["main"] = {
        "inputs": [0, 1, 2, 3, 4],
        "outputs": [7, 8],
        "operations": [{"op": "SVDF", "inputs": list(range(7)), "outputs": [7, 8]}],
        "operands": [x, feature, time, bias, before, *numbers, state, result],
    }
    case = case_of(tmp_path, entry, blob)
    assert plain_run(case).omitted == {3}
    assert [r.message for r in run_case(case, ReferenceDevice())] == [""]


@pytest.mark.parametrize(
    ("got", "complaint"),
    [
        ([4.0, 6.0], None),
        ([4.0, 6.000015], None),
        ([4.0, 6.00002], "1 of 2 values differ, first at [1]: 6.00002003, where 6 is expected"),
        ([4.0, np.nan], "first at [1]: nan, where 6 is expected"),
        ([[4.0, 6.0]], "shape (1, 2), where (2,) is expected"),
    ],
)
def test_outputs_are_near(tmp_path: Path, got: Any, complaint: str | None) -> None:
    found = difference(plain_run(adding(tmp_path)), [np.array(got, np.float32)])
    if complaint is None:
        assert found is None
    else:
        assert found is not None
        assert complaint in found


def test_infinities_and_what_is_no_number_are_values(tmp_path: Path) -> None:
    run = plain_run(adding(tmp_path, (np.inf, np.nan)))
    assert difference(run, [np.array([np.inf, np.nan], np.float32)]) is None
    assert difference(run, [np.array([-np.inf, np.nan], np.float32)]) is not None


def test_ignored_outputs_are_not_looked_at(tmp_path: Path) -> None:
    blob = Blob()
    entry = addition("sum", blob, [4, 6])
    entry["main"]["operands"][3]["compare"] = "ignored"
    assert difference(plain_run(case_of(tmp_path, entry, blob)), [np.zeros(7)]) is None


def multinomial(path: Path) -> Case:
    blob = Blob()
    entry = addition("draw", blob, [0, 0], multinomial_tolerance=0.1)
    entry["main"]["operands"][0] = operand(blob, "TENSOR_FLOAT32", "input", [0, 0], dims=[1, 2])
    entry["main"]["operands"][3]["compare"] = "multinomial"
    return case_of(path, entry, blob)


@pytest.mark.parametrize(
    ("got", "complaint"),
    [
        ([[0, 1, 0, 1]], None),
        ([[0, 0, 0, 1]], "class 0 has a share of 0.7500, where 0.5000 is expected"),
        ([[0, 2, 0, 1]], "a class outside [0, 2)"),
        ([0, 1], "shape (2,)"),
    ],
)
def test_random_classes_have_their_shares(tmp_path: Path, got: Any, complaint: str | None) -> None:
    found = difference(plain_run(multinomial(tmp_path)), [np.array(got, np.int32)])
    assert (found or "").find(complaint or "") >= 0
    assert (found is None) == (complaint is None)


def test_wrong_values_fail(tmp_path: Path) -> None:
    (result,) = run_case(adding(tmp_path, (4, 7)), ReferenceDevice())
    assert result.outcome == "failed"
    assert "first at [1]: 6, where 7 is expected" in result.message


def test_unsupported_operation_is_not_covered(tmp_path: Path) -> None:
    (result, _) = run_case(quantised(tmp_path), sample())
    assert result.outcome == "not_covered"
    assert result.message.startswith("ADD: ")


def broken_model(path: Path, **more: Any) -> Case:
    blob = Blob()
    entry = addition("sum", blob, [4, 6], **more)
    entry["main"]["operations"][0]["inputs"] = [0, 1]
    return case_of(path, entry, blob)


def test_a_failure_that_is_expected_passes(tmp_path: Path) -> None:
    (failed,) = run_case(broken_model(tmp_path), ReferenceDevice())
    assert failed.message.startswith("unexpected InvalidOperation(main, operation 0 (ADD)")
    (passed,) = run_case(broken_model(tmp_path, expect_failure=True), ReferenceDevice())
    assert passed.outcome == "passed"
    (missing,) = run_case(adding(tmp_path, expect_failure=True), ReferenceDevice())
    assert missing.message.startswith("a run that must fail was accepted")


def test_an_endless_loop_fails_by_its_timeout(tmp_path: Path) -> None:
    (result,) = run_case(broken_model(tmp_path, expect_failure="infinite_loop"), ReferenceDevice())
    assert result.outcome == "failed"
    assert result.message.endswith("was raised, not MissedDeadline")


def test_a_loop_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.testing.vectors.runner.LOOP_TIMEOUT_NS", 1_000_000)
    blob = Blob()
    kind = "TENSOR_FLOAT32"
    x = operand(blob, kind, "input", [1])
    given = {**x, "data": None}
    truth = {"name": "t", "type": "TENSOR_BOOL8", "dims": [1], "lifetime": "output"}
    result = operand(blob, kind, "output", None, dims=[1], compare="none")
    condition = {
        "inputs": [0],
        "outputs": [1],
        "operations": [{"op": "EQUAL", "inputs": [0, 0], "outputs": [1]}],
        "operands": [given, truth],
    }
    body = {
        "inputs": [0],
        "outputs": [1],
        "operations": [{"op": "FLOOR", "inputs": [0], "outputs": [1]}],
        "operands": [given, result],
    }
    calls: list[Entry] = [
        {"name": "s", "type": "SUBGRAPH", "dims": [], "lifetime": "subgraph", "subgraph": at}
        for at in (0, 1)
    ]
    main = {
        "inputs": [2],
        "outputs": [3],
        "operations": [{"op": "WHILE", "inputs": [0, 1, 2], "outputs": [3]}],
        "operands": [*calls, x, result],
    }
    entry = {
        "name": "while_infinite_loop",
        "feature_level": 4,
        "main": main,
        "referenced": [condition, body],
        "expect_failure": True,
    }
    (result_of_run,) = run_case(case_of(tmp_path, entry, blob), ReferenceDevice())
    assert (result_of_run.outcome, result_of_run.message) == ("passed", "")


class Broken(ReferenceDevice):
    """Prepares what fails in its own way when it runs."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def prepare_model(self, model: Model, config: PrepareConfig) -> Any:
        error = self.error

        class Prepared(PreparedModelBase):
            def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
                raise error

        return Prepared()


@pytest.mark.parametrize("error", [GeneralFailure("no"), RuntimeError("out of its mind")])
def test_error_of_a_driver_is_a_failure(tmp_path: Path, error: Exception) -> None:
    (result,) = run_case(adding(tmp_path), Broken(error))
    assert result.outcome == "failed"
    assert result.message == f"unexpected {type(error).__name__}({error})"


@pytest.mark.parametrize("pools", [True, False])
def test_arguments_lie_in_pools_or_with_the_caller(tmp_path: Path, pools: bool) -> None:
    case = adding(tmp_path, derive=DERIVED)
    report = run_vectors([case], ReferenceDevice(), pools=pools)
    assert (report.passed, report.failed, report.runs["passed"]) == (1, 0, 5)


def test_a_case_fails_if_one_run_fails_and_passes_only_if_all_pass() -> None:
    results = [
        RunResult("s", "a", "plain", "passed"),
        RunResult("s", "a", "dynamic_output_shape", "not_covered", "why"),
        RunResult("s", "b", "plain", "not_covered", "why"),
        RunResult("s", "c", "plain", "passed"),
        RunResult("s", "c", "quant8_signed", "failed", "wrong"),
    ]
    report = Report.of(results)
    assert (report.passed, report.failed, report.not_covered) == (1, 1, 1)
    assert report.runs == {"passed": 2, "failed": 1, "not_covered": 2}
    assert report.failures == (results[4],)
    assert report.uncovered == (results[1], results[2])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    blob = Blob()
    cases = [addition("right", blob, [4, 6]), addition("wrong", blob, [4, 7])]
    write(tmp_path / "v" / "mixed.npz", cases, blob)
    return tmp_path


def arguments(directory: Path, *more: str, device: str = "reference") -> list[str]:
    return ["vectors", str(directory), "--device", device, *more]


def test_the_command_prints_a_table(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments(directory)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["operation", "cases", "passed", "failed", "not", "covered"]
    assert lines[1].split() == ["ADD", "2", "1", "1", "0"]
    assert lines[2].startswith("FAILED: wrong (plain): output 0 (output): 1 of 2 values differ")
    assert lines[-1] == "1 passed, 1 failed, 0 not covered (1 of 2 runs passed)"


def test_the_command_prints_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments(directory, "--json")) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["passed"], printed["failed"], printed["not_covered"]) == (1, 1, 0)
    assert [f["case"] for f in printed["failures"]] == ["wrong"]


def test_the_command_takes_one_operation(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments(directory, "--operation", "ADD")) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 passed, 1 failed")


def test_an_operation_that_no_case_has_is_no_success(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for operations in (["--operation", "MUL"], ["--operation", "ADD", "--operation", "MUL"]):
        assert command.main(arguments(directory, *operations)) == 2
        printed = capsys.readouterr()
        assert printed.err == f"{directory}: no case has the operation 'MUL'\n"
        assert printed.out == ""


def test_table_lists_uncovered_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quantised(tmp_path)
    monkeypatch.setattr("penstock.testing.vectors.runner.MAX_LISTED", 1)
    assert command.main(arguments(tmp_path, device="sample")) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[2].startswith("not covered: sum (plain): ADD: ")
    assert printed[3:] == [
        "not covered: 1 more",
        "0 passed, 0 failed, 1 not covered (0 of 2 runs passed)",
    ]


def test_missing_device_or_directory_is_exit_code_2(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments(directory, device="nope")) == 2
    assert "no device is named 'nope'" in capsys.readouterr().err
    assert command.main(arguments(directory / "nowhere")) == 2
    assert "no such directory" in capsys.readouterr().err
    assert command.main(arguments(directory, device="penstock.drivers.sample:create")) == 1


def test_files_of_another_kind_are_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments(tmp_path)) == 3
    (tmp_path / "broken.npz").write_bytes(b"nonsense")
    assert command.main(arguments(tmp_path)) == 3
    printed = capsys.readouterr()
    assert "broken.npz: not operation vectors" in printed.err
    assert printed.out == ""
