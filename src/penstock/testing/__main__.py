"""The test kits as a program.

- `python -m penstock.testing contract DRIVER [--json]` runs the contract suites on a driver.
- `python -m penstock.testing chaos DRIVER [--json]` runs the runtime over a driver that fails, is
  slow or returns wrong results.
- `python -m penstock.testing vectors DIRECTORY --device NAME [--json]` runs operation vectors on a
  device.

DRIVER is an entry point of penstock.drivers, a device's name, or module:callable. Exit codes: 0
nothing failed, 1 something failed, 2 the driver, device or command does not exist, 3 a file is
malformed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import PenstockError
from penstock.testing.chaos import scenarios as chaos
from penstock.testing.contract import Report, runner as contract
from penstock.testing.contract.promise import show
from penstock.testing.vectors import VectorError, runner as vectors

FAILED: Final = 1
USAGE: Final = 2
BAD_INPUT: Final = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line *arguments* (default: the process's) and returns the exit code."""
    options = _parser().parse_args(arguments)
    command = {"contract": _contract, "chaos": _chaos, "vectors": _vectors}[options.command]
    try:
        return command(options)
    except VectorError as error:
        print(error, file=sys.stderr)  # noqa: T201  # a program prints
        return BAD_INPUT
    except PenstockError as error:
        print(error, file=sys.stderr)  # noqa: T201  # a program prints
        return USAGE
    except BrokenPipeError:
        # The reader closed the pipe. Without this, Python reports it again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _show(result: contract.CheckResult | chaos.Result) -> None:
    print(show(result.label, result), flush=True)  # noqa: T201  # a program prints


def _contract(options: argparse.Namespace) -> int:
    progress = None if options.json else _show
    results = contract.run(options.driver, limit=options.limit, progress=progress)
    report = Report.of(results)
    _report(report, contract.summary(options.driver, results), json=options.json)
    return FAILED if report.failed else 0


def _chaos(options: argparse.Namespace) -> int:
    results = chaos.run(
        options.driver,
        graphs=options.graphs,
        seed=options.seed,
        limit=options.limit,
        progress=None if options.json else _show,
    )
    report = Report.of(results)
    _report(report, report.summary(options.driver), json=options.json)
    return FAILED if report.failed else 0


def _vectors(options: argparse.Namespace) -> int:
    cases, results, report = vectors.run(options.directory, options.device, options.operation)
    _print(report, "\n".join(vectors.table(cases, results, report)), json=options.json)
    return FAILED if report.failed else 0


def _report(report: Report[Any], summary: str, *, json: bool) -> None:
    _print(report, "\n".join([*report.reasons(), summary]), json=json)


def _print(report: msgspec.Struct, text: str, *, json: bool) -> None:
    print(msgspec.json.encode(report).decode() if json else text)  # noqa: T201  # a program prints


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
        add = command.add_argument
        which = "a driver's entry point in penstock.drivers, a device's name, or module:callable"
        add("driver", help=which)
        add("--json", action="store_true", help="print one JSON object")
        longest = "the longest that one case may take (default: %(default)g)"
        add("--limit", type=_seconds, default=limit, metavar="SECONDS", help=longest)
        if name == "chaos":
            count = "random graphs for each fault (default: %(default)s)"
            add("--graphs", type=int, default=chaos.GRAPHS, metavar="N", help=count)
            add("--seed", type=int, default=0, metavar="N", help="of the graphs")
    add = commands.add_parser("vectors", help="operation vectors").add_argument
    add(
        "directory", type=Path, help="a directory of .npz files (nnapi-vectors/1), or one such file"
    )
    add("--device", required=True, help="a device's name, or module:function of its driver")
    occurs = "only cases in which this operation occurs"
    add("--operation", action="append", default=[], metavar="NAME", help=occurs)
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
