"""`python -m penstock.testing contract DRIVER [--json]`: a driver against the contract suites;
`python -m penstock.testing vectors DIRECTORY --device NAME [--json]`: a device against operation vectors.

Exit code 0 when nothing failed, 1 when something did, 2 for a driver, device or command that does not exist,
3 for files that are not what they should be.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from penstock.errors import PenstockError
from penstock.testing.contract import CheckResult, Report, run_contract
from penstock.testing.devices import find_devices
from penstock.testing.vectors import command as vectors

USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line *arguments* (default: the process's) and returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "vectors":
        return vectors.run(options.directory, options.device, options.operation, json=options.json)
    if options.command != "contract":
        print(f"{options.command}: not available yet in this version", file=sys.stderr)  # noqa: T201  # a program prints
        return USAGE
    try:
        devices = find_devices(options.driver)
    except PenstockError as error:
        print(error, file=sys.stderr)  # noqa: T201  # a program prints
        return USAGE
    results: list[CheckResult] = []
    for device in devices:
        if (reason := device.check()) is not None:
            print(f"{device.name} cannot work here: {reason}", file=sys.stderr)  # noqa: T201  # a program prints
            return USAGE
        results += run_contract(device, progress=None if options.json else _print_result)
        device.close()
    report = Report.of(results)
    if options.json:
        print(msgspec.json.encode(report).decode())  # noqa: T201  # a program prints
    else:
        _print_summary(options.driver, report)
    return 1 if report.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m penstock.testing", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("contract", "the contract suites"),
        ("chaos", "faults, crashes and hangs (not available yet)"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument(
            "driver", help="a driver's entry point in penstock.drivers, or module:function"
        )
        command.add_argument("--json", action="store_true", help="print one JSON object")
    vectors.add_arguments(commands.add_parser("vectors", help="operation vectors"))
    return parser


def _print_result(result: CheckResult) -> None:
    word = {"passed": "ok", "failed": "FAILED", "not_covered": "-"}[result.outcome]
    line = f"{result.suite:9} {result.check:56} {word:7} {result.seconds * 1e3:8.1f} ms"
    print(line + (f"  {result.message}" if result.message else ""))  # noqa: T201  # a program prints


def _print_summary(driver: str, report: Report) -> None:
    counts = f"{report.passed} passed, {report.failed} failed, {report.not_covered} not covered"
    print(f"{driver}: {counts}")  # noqa: T201  # a program prints


if __name__ == "__main__":
    sys.exit(main())
