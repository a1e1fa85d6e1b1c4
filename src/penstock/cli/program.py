"""Runs one command line: root options anywhere, and every error as one line and an exit code."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn, cast

from penstock.cli import failures
from penstock.cli.output import Output, say
from penstock.logs import printable

NAME: Final = "penstock"

EVERYWHERE: Final = ("--json", "--debug")
"""Root options that are accepted anywhere on the command line."""

COMPLETING: Final = "_PENSTOCK_COMPLETE"
"""The environment variable by which a shell asks typer for completions."""


def perform(
    args: Sequence[str], otherwise: Callable[[list[str], int], object], age_ns: int = 0
) -> NoReturn:
    """Runs the command line *args*, for which the process began *age_ns* ago; exits with its code.

    *otherwise* gets a line that is not plain, with the options of `EVERYWHERE` first, and the time
    of the beginning by `time.perf_counter_ns`. It may return an exit code.
    """
    began_ns = time.perf_counter_ns() - age_ns
    given = hoist(args)
    code: object = None
    try:
        if sys.stdout is None:
            # Its descriptor is closed. Python then does not print anywhere.
            raise failures.OutputError("the output", "the standard output is closed")
        plain = plain_call(given, began_ns)
        code = otherwise(given, began_ns) if plain is None else plain()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # to one line
        fail(error, as_json="--json" in given, debug="--debug" in given)
    sys.exit(code if isinstance(code, int) else failures.DONE)


def hoist(args: Sequence[str]) -> list[str]:
    """*args* with the options of `EVERYWHERE` first; anything after `--` is unchanged."""
    end = args.index("--") if "--" in args else len(args)
    front = [a for a in args[:end] if a in EVERYWHERE]
    return [*dict.fromkeys(front), *(a for a in args[:end] if a not in EVERYWHERE), *args[end:]]


def plain_call(given: Sequence[str], began_ns: int) -> Callable[[], None] | None:
    """What the line *given* does; None if it is not plain, see `penstock.cli.parsing`."""
    if COMPLETING in os.environ:
        return None
    first = next((at for at, word in enumerate(given) if word not in EVERYWHERE), len(given))
    words = given[first:]
    output = Output(as_json="--json" in given[:first], began_ns=began_ns)
    if words == ["--version"]:
        return partial(show_version, output)
    from penstock.cli import commands

    found = commands.find(words)
    if found is None:
        return None
    from penstock.cli.declarations import signature_of
    from penstock.cli.parsing import parse

    name, rest = found
    command = commands.COMMANDS[name].load()
    signature = signature_of(command)
    values = parse(signature.parameters, rest)
    return None if values is None else partial(command, output, **signature.arguments(values))


def show_version(output: Output) -> None:
    """Prints the version."""
    from penstock import __version__ as number

    output.line(f"penstock {number}")
    output.json({"version": number})


def fail(error: BaseException, *, as_json: bool, debug: bool) -> NoReturn:
    """Prints *error* as one line on stderr, with *debug* also its traceback, and exits."""
    if isinstance(error, BrokenPipeError):
        abandon_stdout()
        sys.exit(failures.WORK_FAILED)
    if unwritable := failures.of_the_output(error):
        abandon_stdout()
        error = failures.OutputError("the output", failures.os_reason(cast("OSError", error)))
    text = failures.message(error)
    if debug:
        import traceback

        say(printable("".join(traceback.format_exception(error))).removesuffix("\n"))
    say(f"penstock: error: {printable(text)}")
    if as_json and not unwritable and not isinstance(error, failures.Unfinished):
        try:
            Output(as_json=True).json({"error": {"type": failures.name(error), "message": text}})
        except OSError:
            abandon_stdout()
    sys.exit(failures.exit_code(error))


def abandon_stdout() -> None:
    """Discards unwritten output, so that Python's flush at exit does not fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
