"""`python -m penstock.tflite PROGRAM`: runs an unchanged LiteRT program on Penstock."""

from __future__ import annotations

import builtins
import errno
import io
import os
import runpy
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final, NoReturn
from zipfile import is_zipfile

from penstock.tflite.aliases import install_aliases

USAGE: Final = """\
usage: python -m penstock.tflite PROGRAM [ARGS...]
       python -m penstock.tflite -m MODULE [ARGS...]

Runs a Python program, as python itself would, with tflite_runtime.interpreter and
ai_edge_litert.interpreter answered by penstock.tflite. PROGRAM is a file, or a directory or
zip file with a __main__.py.
"""

LAUNCHER: Final = frozenset({__file__, runpy.__file__, "<frozen runpy>"})
"""Files whose frames are removed from the start of a traceback."""


def main(arguments: list[str]) -> None:
    """Runs the program that *arguments* name; returns or raises as the program does."""
    match arguments:
        case ["-h" | "--help", *_]:
            sys.stdout.write(USAGE)
        case ["-m", module, *rest]:
            _prepare([module, *rest])
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [program, *rest] if not program.startswith("-"):
            _prepare([program, *rest])
            _run(program)
        case _:
            sys.stderr.write(USAGE)
            sys.exit(2)


def _prepare(argv: list[str]) -> None:
    install_aliases()
    sys.argv = argv
    sys.excepthook = _show


def _run(program: str) -> None:
    path = Path(program)
    if not path.exists():
        _refuse(program, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    if path.suffix == ".pyc" or not path.is_file() or is_zipfile(path):
        _put_first(str(path))
        runpy.run_path(program, run_name="__main__")
        return
    # Read before anything is changed, as python does, so that tracebacks show the program's frames.
    try:
        with io.open_code(str(path.absolute())) as file:
            source = file.read()
    except OSError as error:
        _refuse(program, error)
    _put_first(str(path.resolve().parent))
    module = ModuleType("__main__")
    name = str(path.absolute())
    module.__dict__.update(
        __file__=name,
        __builtins__=builtins,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", name),
    )
    sys.modules["__main__"] = module
    code = compile(source, name, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102  # the program that the user names


def _put_first(entry: str) -> None:
    """Puts the program's directory first on the import path, as python does."""
    if sys.flags.safe_path:
        return
    if sys.path and sys.path[0] in {"", str(Path.cwd())}:
        del sys.path[0]
    sys.path.insert(0, entry)


def _refuse(program: str, error: OSError) -> NoReturn:
    name = os.fspath(Path(program).absolute())
    sys.stderr.write(
        f"{sys.executable}: can't open file '{name}': [Errno {error.errno}] {error.strerror}\n"
    )
    sys.exit(2)


def _show(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    """Shows an uncaught error as python does, from the program's first frame."""
    while frames is not None and frames.tb_frame.f_code.co_filename in LAUNCHER:
        frames = frames.tb_next
    sys.__excepthook__(kind, error.with_traceback(frames), frames)


if __name__ == "__main__":
    main(sys.argv[1:])
