"""`python -m penstock.testing vectors DIRECTORY --device NAME [--operation NAME]... [--json]`.

Exit code 0 when nothing failed, 1 when something did, 2 for a device, directory or operation that
is not there, 3 for a directory that holds something else, or broken files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import PenstockError
from penstock.hal import Device
from penstock.runtime.discovery import manager
from penstock.testing.devices import find_devices
from penstock.testing.vectors.format import Case, VectorError, load_directory
from penstock.testing.vectors.report import Report, RunResult
from penstock.testing.vectors.runner import run_vectors

FAILED: Final = 1
USAGE: Final = 2
BAD_INPUT: Final = 3
MAX_LISTED: Final = 200
"""Lines of failures, and of what was not covered, that a table prints."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument(
        "directory", type=Path, help="a directory of .npz files (nnapi-vectors/1), or one such file"
    )
    parser.add_argument(
        "--device", required=True, help="a device's name, or module:function of its driver"
    )
    parser.add_argument(
        "--operation",
        action="append",
        default=[],
        metavar="NAME",
        help="only cases in which this operation occurs",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(directory: Path, device: str, operations: Sequence[str] = (), *, json: bool = False) -> int:
    """Runs the command and returns the exit code."""
    if not directory.exists():
        _complain(f"{directory}: no such directory")
        return USAGE
    try:
        chosen = _device(device)
        cases = [
            case for specification in load_directory(directory) for case in specification.cases
        ]
        occurring = frozenset[str]().union(*(case.operations for case in cases))
        if absent := [name for name in operations if name not in occurring]:
            _complain(f"{directory}: no case has the operation {absent[0]!r}")
            return USAGE
        wanted = [c for c in cases if not operations or c.operations & set(operations)]
        results: list[RunResult] = []
        report = run_vectors(wanted, chosen, results.append)
    except VectorError as error:
        _complain(str(error))
        return BAD_INPUT
    except PenstockError as error:
        _complain(str(error))
        return USAGE
    if json:
        print(msgspec.json.encode(report).decode())  # noqa: T201  # a program prints
    else:
        _print(wanted, results, report)
    return FAILED if report.failed else 0


def _device(name: str) -> Device:
    if ":" in name:
        return find_devices(name)[0]
    return manager.choose([name])[0]


def _print(cases: Sequence[Case], results: Sequence[RunResult], report: Report) -> None:
    """A row for each operation, then what failed and what was not covered, then the counts."""
    print(f"{'operation':32} {'cases':>6} {'passed':>7} {'failed':>7} {'not covered':>12}")  # noqa: T201  # the answer
    by_case: dict[tuple[str, str], list[RunResult]] = {}
    for result in results:
        by_case.setdefault((result.specification, result.case), []).append(result)
    of_operation: dict[str, list[RunResult]] = {}
    for case in cases:
        for operation in case.operations:
            its = by_case.get((case.specification.name, case.name), [])
            of_operation.setdefault(operation, []).extend(its)
    for operation, its in sorted(of_operation.items()):
        row = Report.of(its)
        total = row.passed + row.failed + row.not_covered
        print(f"{operation:32} {total:6} {row.passed:7} {row.failed:7} {row.not_covered:12}")  # noqa: T201  # the answer
    for word, listed in (("FAILED", report.failures), ("not covered", report.uncovered)):
        for result in listed[:MAX_LISTED]:
            print(f"{word}: {result.case} ({result.run}): {result.message}")  # noqa: T201  # a program prints
        if len(listed) > MAX_LISTED:
            print(f"{word}: {len(listed) - MAX_LISTED} more")  # noqa: T201  # a program prints
    print(  # noqa: T201  # a program prints
        f"{report.passed} passed, {report.failed} failed, {report.not_covered} not covered "
        f"({report.runs['passed']} of {sum(report.runs.values())} runs passed)"
    )


def _complain(message: str) -> None:
    print(message, file=sys.stderr)  # noqa: T201  # a program prints
