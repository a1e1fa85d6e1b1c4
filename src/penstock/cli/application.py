"""The typer application: help of every command, and errors of command lines.

The lists of commands import none of them: a command is imported when its help is shown, or a line
for it is parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter as PythonParameter, Signature as PythonSignature
from typing import Annotated, Any, Final, cast

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from penstock.cli import failures, program
from penstock.cli.commands import COMMANDS, GROUPS
from penstock.cli.declarations import REQUIRED, Command, Parameter, Signature, signature_of
from penstock.cli.output import Output

__all__ = ["app", "group"]

EPILOG: Final = (
    "Every command takes --json (one JSON object instead of tables) and --debug (a traceback with "
    "errors). Exit codes: 0 done, 1 the work failed, 2 usage, 3 bad input file, 130 interrupted."
)

IMPORTED: Final = ("callback", "help", "params")
"""What a `DeferredCommand` takes from the command's function."""


class DeferredCommand(TyperCommand):
    """A command that is imported when its parameters, its help or its function are needed."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(path.rpartition(" ")[2], short_help=COMMANDS[path].summary)
        for name in IMPORTED:
            delattr(self, name)

    def __getattr__(self, name: str) -> Any:
        if name not in IMPORTED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        command = COMMANDS[self.path].load()
        made = typed(command, signature_of(command))
        for each in IMPORTED:
            setattr(self, each, getattr(made, each))
        return getattr(made, name)


class CommandGroup(TyperGroup):
    """The commands of `COMMANDS` below the group *name*, and *commands*, which are groups."""

    def __init__(self, *, name: str, commands: dict[str, Any], **settings: Any) -> None:
        before = "" if name == program.NAME else name
        own = {
            path.rpartition(" ")[2]: DeferredCommand(path)
            for path in COMMANDS
            if path.rpartition(" ")[0] == before
        }
        super().__init__(name=name, commands={**own, **commands}, **settings)


class RootGroup(CommandGroup):
    """The root command: accepts `EVERYWHERE`, and reports errors as one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> Any:
        program.perform(args or (), self.answer)

    def answer(self, given: list[str], began_ns: int) -> object:
        """Runs the command line *given*, whatever it is. Raises `Misused` with typer's words."""
        try:
            return super().main(given, program.NAME, standalone_mode=False, obj=began_ns)
        except typer.TyperException as error:
            text = " ".join(error.format_message().split())
            context = getattr(error, "ctx", None)
            if context is not None and text.startswith("No such "):
                path = context.command_path
                text = f"{text.rstrip('.')}; '{path} --help' lists what there is"
            raise failures.Misused(text, type(error).__name__, error.exit_code) from error

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            # Typer would exit silently on it.
            raise failures.Interrupted("interrupted") from error


def typed(command: Command, signature: Signature) -> TyperCommand:
    """*command* as typer's, with the parameters of *signature*."""

    def run(context: typer.Context, **values: Any) -> None:
        command(output_of(context), **signature.arguments(values))

    first = PythonParameter(
        "context", PythonParameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    cast("Any", run).__signature__ = PythonSignature(
        [first, *map(_typed_parameter, signature.parameters)]
    )
    run.__annotations__ = {}
    run.__doc__ = command.__doc__
    alone = typer.Typer(add_completion=False)
    alone.command(command.__name__)(run)
    found = typer.main.get_command(alone)
    assert isinstance(found, TyperCommand)
    return found


def _typed_parameter(parameter: Parameter) -> PythonParameter:
    declared = parameter.declared
    about: Any = {"metavar": declared.metavar, "help": declared.text}
    if declared.names:
        info = typer.Option(*declared.names, min=declared.least, **about)
    else:
        info = typer.Argument(**about)
    return PythonParameter(
        parameter.name,
        PythonParameter.KEYWORD_ONLY,
        default=PythonParameter.empty if parameter.default is REQUIRED else parameter.default,
        annotation=Annotated[parameter.annotation, info],
    )


def output_of(context: typer.Context) -> Output:
    """The output that the root command created."""
    found = context.find_object(Output)
    return found if found is not None else Output()


app = typer.Typer(
    cls=RootGroup,
    name=program.NAME,
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
    debug: Annotated[  # noqa: ARG001  # `program` reads it, also when parsing fails
        bool, typer.Option("--debug", help="Print a traceback with an error.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    context.obj = Output(as_json=json, began_ns=context.obj)
    if version:
        program.show_version(context.obj)
        raise typer.Exit
    help_without_command(context)


def help_without_command(context: typer.Context) -> None:
    """Prints the group's help if no command follows it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


for name, text in GROUPS.items():
    below = typer.Typer(cls=CommandGroup, name=name, help=text, invoke_without_command=True)
    below.callback()(help_without_command)
    app.add_typer(below)


def group() -> RootGroup:
    """The application as typer's root command."""
    found = typer.main.get_command(app)
    assert isinstance(found, RootGroup)
    return found
