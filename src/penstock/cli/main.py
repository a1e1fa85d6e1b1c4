"""The application: root options, commands, and error reports."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, NoReturn, cast

import typer
from typer.core import TyperGroup

from penstock.cli import failures
from penstock.cli.bench import bench
from penstock.cli.cache import cache
from penstock.cli.capsules import replay
from penstock.cli.compare import compare
from penstock.cli.doctor import devices, doctor
from penstock.cli.dump import dump
from penstock.cli.inspect import inspect
from penstock.cli.output import Output
from penstock.cli.plan import plan
from penstock.cli.run import run
from penstock.cli.settings import knobs
from penstock.logs import printable

EVERYWHERE: Final = ("--json", "--debug")
"""Root options that are accepted anywhere on the command line."""

EPILOG: Final = (
    "Every command takes --json (one JSON object instead of tables) and --debug (a traceback with "
    "errors). Exit codes: 0 done, 1 the work failed, 2 usage, 3 bad input file, 130 interrupted."
)


class PenstockGroup(TyperGroup):
    """The root command: accepts `EVERYWHERE`, and reports errors as one line and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        given = hoist(list(sys.argv[1:] if args is None else args))
        try:
            if sys.stdout is None:
                # Its descriptor is closed. Python then does not print anywhere.
                raise failures.OutputError("the output", "the standard output is closed")
            code = super().main(
                given, prog_name or "penstock", complete_var, False, windows_expand_args, **extra
            )
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # to one line
            fail(error, as_json="--json" in given, debug="--debug" in given)
        sys.exit(code if isinstance(code, int) else failures.DONE)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            # Typer would exit silently on it.
            raise failures.Interrupted("interrupted") from error


def hoist(args: list[str]) -> list[str]:
    """*args* with the options of `EVERYWHERE` first; anything after `--` is unchanged."""
    end = args.index("--") if "--" in args else len(args)
    front = [a for a in args[:end] if a in EVERYWHERE]
    return [*dict.fromkeys(front), *(a for a in args[:end] if a not in EVERYWHERE), *args[end:]]


def fail(error: BaseException, *, as_json: bool, debug: bool) -> NoReturn:
    """Prints *error* as one line on stderr, with *debug* also its traceback, and exits."""
    if isinstance(error, BrokenPipeError):
        abandon_stdout()
        sys.exit(failures.WORK_FAILED)
    if unwritable := failures.of_the_output(error):
        abandon_stdout()
        error = failures.OutputError("the output", failures.os_reason(cast("OSError", error)))
    if isinstance(error, typer.TyperException):
        code, text = error.exit_code, " ".join(error.format_message().split())
        context = getattr(error, "ctx", None)
        if context is not None and text.startswith("No such "):
            text = f"{text.rstrip('.')}; '{context.command_path} --help' lists what there is"
    else:
        code, text = failures.exit_code(error), failures.message(error)
    if debug:
        typer.echo(printable("".join(traceback.format_exception(error))), err=True, nl=False)
    typer.echo(f"penstock: error: {printable(text)}", err=True)
    if as_json and not unwritable and not isinstance(error, failures.Unfinished):
        try:
            Output(as_json=True).json({"error": {"type": failures.name(error), "message": text}})
        except OSError:
            abandon_stdout()
    sys.exit(code)


def abandon_stdout() -> None:
    """Discards unwritten output, so that Python's flush at exit does not fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=PenstockGroup,
    name="penstock",
    help="Run neural networks on every accelerator this machine has.",
    epilog=EPILOG,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[  # noqa: ARG001  # the group reads it, also when parsing fails
        bool, typer.Option("--debug", help="Print a traceback with an error.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    context.obj = Output(as_json=json)
    if version:
        from penstock import __version__ as number

        context.obj.line(f"penstock {number}")
        context.obj.json({"version": number})
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


for command in (run, inspect, plan, dump, bench, compare, replay, devices, doctor, knobs):
    app.command()(command)
app.add_typer(cache)


def main() -> None:
    """The `penstock` program."""
    app()
