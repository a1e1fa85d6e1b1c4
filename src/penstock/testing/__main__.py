"""The kits as a program:

`python -m penstock.testing contract DRIVER [--json]`: a driver against the contract suites; `python
-m penstock.testing chaos DRIVER [--json]`: the runtime over a driver that fails, dawdles and lies;
`python -m penstock.testing vectors DIRECTORY --device NAME [--json]`: a device against operation
vectors.

DRIVER is an entry point of penstock.drivers, a device's name, or module:callable. Exit code 0 when
nothing failed, 1 when something did, 2 for a driver, device or command that does not exist, 3 for
files that are not what they should be.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.errors import PenstockError
from penstock.testing.chaos import command as chaos
from penstock.testing.contract import CheckResult, Report, command as contract
from penstock.testing.vectors import command as vectors

USAGE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line *arguments* (default: the process's) and returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "vectors":
        return vectors.run(options.directory, options.device, options.operation, json=options.json)
    try:
        if options.command == "chaos":
            return _chaos(options)
        return _contract(options)
    except PenstockError as error:
        print(error, file=sys.stderr)  # noqa: T201  # a program prints
        return USAGE
    except BrokenPipeError:
        # Nobody reads on; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _contract(options: argparse.Namespace) -> int:
    def show(result: CheckResult) -> None:
        print(contract.show(result), flush=True)  # noqa: T201  # a program prints

    results = contract.run(
        options.driver, limit=options.limit, progress=None if options.json else show
    )
    report = Report.of(results)
    _print_report(report, contract.summary(options.driver, report, results), json=options.json)
    return 1 if report.failed else 0


def _chaos(options: argparse.Namespace) -> int:
    def show(result: chaos.Result) -> None:
        print(chaos.show(result), flush=True)  # noqa: T201  # a program prints

    results = chaos.run(
        options.driver,
        graphs=options.graphs,
        seed=options.seed,
        limit=options.limit,
        progress=None if options.json else show,
    )
    report = chaos.Report.of(results)
    _print_report(report, chaos.summary(options.driver, report), json=options.json)
    return 1 if report.failed else 0


def _print_report(report: msgspec.Struct, line: str, *, json: bool) -> None:
    print(msgspec.json.encode(report).decode() if json else line)  # noqa: T201  # a program prints


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m penstock.testing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what, limit in (
        ("contract", "the contract suites", contract.LIMIT),
        ("chaos", "the runtime over faults, delays and lies", chaos.LIMIT),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument(
            "driver",
            help="a driver's entry point in penstock.drivers, a device's name, or module:callable",
        )
        command.add_argument("--json", action="store_true", help="print one JSON object")
        command.add_argument(
            "--limit",
            type=_seconds,
            default=limit,
            metavar="SECONDS",
            help="the longest that one case may take (default: %(default)g)",
        )
        if name == "chaos":
            command.add_argument(
                "--graphs",
                type=int,
                default=chaos.GRAPHS,
                metavar="N",
                help="random graphs for each fault (default: %(default)s)",
            )
            command.add_argument("--seed", type=int, default=0, metavar="N", help="of the graphs")
    vectors.add_arguments(commands.add_parser("vectors", help="operation vectors"))
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
