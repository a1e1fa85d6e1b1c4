"""`python -m penstock.tflite PROGRAM` beside `python PROGRAM`: the same to the program and to its
caller.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.support_programs import run_python

Result = tuple[int, str, str]

PROGRAMS: dict[str, str | bytes] = {
    "arguments": "import sys; print(sys.argv)",
    "place": "import sys; print(sys.path[0], sys.path[1:3])",
    "names": "print(__name__, __file__, __doc__, __package__, __spec__, __cached__)",
    "main module": "import __main__; print(__main__.__dict__ is globals(), __main__.__file__)",
    "return code": "import sys; sys.exit(7)",
    "text for a code": "raise SystemExit('no camera')",
    "failure": "def inner():\n    return 1 // 0\n\n\ninner()\n",
    "chained failure": "try:\n    int('x')\nexcept ValueError as e:\n    raise KeyError('y') from "
    "e",
    "syntax": "print('never')\ndef (:\n",
    "interrupted": "raise KeyboardInterrupt",
    "source in another coding": b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))",
    "future of the launcher's own": "def f(x: int): pass\nprint(f.__annotations__)",
    "at exit": "import atexit\nX = 5\natexit.register(lambda: print('bye', X))",
    "thread at the end": (
        "import threading, time\nX = 3\n"
        "def work():\n    time.sleep(0.05); print('done', X)\n"
        "threading.Thread(target=work).start()"
    ),
    "classes pickle": (
        "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__module__)"
    ),
    "neighbour": "import neighbour; print(neighbour.NAME, neighbour.__file__)",
    "own hook": "import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__)\n1 / 0",
    "input": "print(input()[::-1])",
    "warning": "import warnings; warnings.warn('careful')",
}


def run(*arguments: str | Path, directory: Path) -> Result:
    done = run_python(*arguments, cwd=directory, input="abc\n")
    return done.returncode, done.stdout, done.stderr


def both(directory: Path, *arguments: str | Path) -> tuple[Result, Result]:
    """What python makes of *arguments*, and what the launcher does."""
    plain = run(*arguments, directory=directory)
    return plain, run("-m", "penstock.tflite", *arguments, directory=directory)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_under_python(name: str, tmp_path: Path) -> None:
    source = PROGRAMS[name]
    place = tmp_path / "programs"
    place.mkdir()
    (place / "neighbour.py").write_text("NAME = 'beside the program'")
    program = place / "program.py"
    program.write_bytes(source if isinstance(source, bytes) else source.encode())
    plain, launched = both(tmp_path, program, "one", "--two", "-m")
    assert launched == plain


def test_the_program_may_be_named_from_where_one_stands(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("import sys; print(sys.argv, sys.path[0], __file__)")
    plain, launched = both(tmp_path, "p.py", "a")
    assert launched == plain


def test_a_link_leads_to_the_programs_neighbours(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "neighbour.py").write_text("NAME = 'there'")
    (there / "p.py").write_text("import neighbour, sys; print(neighbour.NAME, sys.argv)")
    (tmp_path / "link.py").symlink_to(there / "p.py")
    plain, launched = both(tmp_path, "link.py")
    assert launched == plain


SHOW = "import sys; print(sys.argv, sys.path[0], __name__, __file__, sys.exit(4))"


@pytest.mark.parametrize("source", [SHOW, "print(open('nosuch'))"])
def test_a_directory_runs_by_its_main(source: str, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(source)
    plain, launched = both(tmp_path, "app", "x")
    assert launched[:2] == plain[:2]
    assert launched[2].splitlines()[-1:] == plain[2].splitlines()[-1:]


def test_a_zip_file_runs_by_its_main(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", SHOW)
    plain, launched = both(tmp_path, "app.pyz", "x")
    assert launched == plain


def test_a_module_runs_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(SHOW)
    plain, launched = both(tmp_path, "-m", "tool", "x", "-y")
    assert launched == plain


def test_a_package_runs_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "__main__.py").write_text("from . import __name__ as n; print(n)")
    plain, launched = both(tmp_path, "-m", "pack")
    assert launched == plain


def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    code, out, err = run("-m", "penstock.tflite", "-m", "nosuchmodule", directory=tmp_path)
    assert (code, out) == (1, "")
    assert "nosuchmodule" in err


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    plain, launched = both(tmp_path, "none.py")
    assert launched == plain
    assert launched[0] == 2


@pytest.mark.parametrize("arguments", [[], ["-x"], ["-m"]])
def test_launcher_without_a_program_shows_its_usage(arguments: list[str], tmp_path: Path) -> None:
    code, out, err = run("-m", "penstock.tflite", *arguments, directory=tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith("usage: python -m penstock.tflite PROGRAM")


def test_help_is_printed_where_it_is_asked_for(tmp_path: Path) -> None:
    code, out, err = run("-m", "penstock.tflite", "--help", directory=tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith("usage:")


def test_pythons_safe_path_is_kept(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("import sys; print(sys.path)")
    plain = run("-P", "p.py", directory=tmp_path)
    assert run("-P", "-m", "penstock.tflite", "p.py", directory=tmp_path) == plain


IMPORTS = {
    "tflite_runtime": "import tflite_runtime.interpreter as t",
    "tflite_runtime from": "from tflite_runtime import interpreter as t",
    "litert": "import ai_edge_litert.interpreter as t",
    "litert from": "from ai_edge_litert import interpreter as t",
    "litert dotted": "import ai_edge_litert.interpreter\nt = ai_edge_litert.interpreter",
    "by name": "import importlib\nt = importlib.import_module('tflite_runtime.interpreter')",
    "names": "import sys\nfrom ai_edge_litert.interpreter import Interpreter, load_delegate\n"
    "t = sys.modules[Interpreter.__module__.rpartition('.')[0]]",
}


@pytest.mark.parametrize("name", IMPORTS)
def test_imports_of_litert_are_answered(name: str, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(f"{IMPORTS[name]}\nprint(t.__name__)")
    answer = run("-m", "penstock.tflite", "p.py", directory=tmp_path)
    assert answer == (0, "penstock.tflite\n", "")
