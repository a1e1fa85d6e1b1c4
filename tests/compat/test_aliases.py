"""`install_aliases()` in code, with the real packages installed, missing, or imported too early."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support_programs import run_python


def run(source: str, *search: Path) -> str:
    """What a program prints in a process of its own; *search* goes before every other directory."""
    first = f"import sys; sys.path[:0] = {[str(p) for p in search]}\n"
    done = run_python("-W", "error", "-c", first + source)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def installed(directory: Path, package: str) -> Path:
    """A directory with a package such as the real ones."""
    place = directory / package
    place.mkdir()
    (place / "__init__.py").write_text("__version__ = '2.14.0'\n")
    (place / "interpreter.py").write_text("Interpreter = 'the real one'\n")
    (place / "schema.py").write_text("KIND = 'the real schema'\n")
    return directory


PACKAGES = ["tflite_runtime", "ai_edge_litert"]


@pytest.mark.parametrize("package", PACKAGES)
def test_only_the_interpreter_of_an_installed_package_is_answered(
    package: str, tmp_path: Path
) -> None:
    source = (
        "from penstock.tflite import install_aliases, Interpreter\n"
        "install_aliases()\n"
        f"import {package}, {package}.interpreter as t, {package}.schema as s\n"
        f"print(t.Interpreter is Interpreter, {package}.interpreter is t, s.KIND, "
        f"{package}.__version__)"
    )
    assert run(source, installed(tmp_path, package)) == "True True the real schema 2.14.0"


def test_a_package_that_is_not_installed_is_stood_for(tmp_path: Path) -> None:
    source = (
        "import penstock\nfrom penstock.tflite import install_aliases\n"
        "install_aliases()\n"
        "import tflite_runtime, tflite_runtime.interpreter\n"
        "print(tflite_runtime.__version__ == penstock.__version__, tflite_runtime.__path__)\n"
        "try:\n    import tflite_runtime.metrics\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    assert run(source).splitlines() == ["True []", "No module named 'tflite_runtime.metrics'"]


def test_installing_twice_changes_nothing() -> None:
    source = (
        "from penstock.tflite import install_aliases\n"
        "install_aliases(); finders = list(sys.meta_path)\n"
        "import tflite_runtime.interpreter as t\n"
        "install_aliases()\n"
        "print(finders == sys.meta_path, t is sys.modules['penstock.tflite'])"
    )
    assert run(source) == "True True"


@pytest.mark.parametrize("package", PACKAGES)
def test_an_earlier_import_of_the_real_module_is_an_error(package: str, tmp_path: Path) -> None:
    source = (
        f"import {package}.interpreter\n"
        "from penstock.errors import StateError\n"
        "from penstock.tflite import install_aliases\n"
        "finders = list(sys.meta_path)\n"
        "try:\n    install_aliases()\n"
        "except StateError as error:\n    print(error)\n"
        "print(finders == sys.meta_path)"
    )
    told, untouched = run(source, installed(tmp_path, package)).splitlines()
    assert told.startswith(f"{package}.interpreter has been imported already")
    assert "before its first import" in told
    assert untouched == "True"


def test_an_earlier_import_of_the_package_alone_does_no_harm(tmp_path: Path) -> None:
    source = (
        "import ai_edge_litert\n"
        "from penstock.tflite import install_aliases\n"
        "install_aliases()\n"
        "from ai_edge_litert import interpreter\n"
        "print(interpreter.__name__, ai_edge_litert.interpreter.__name__)"
    )
    answer = run(source, installed(tmp_path, "ai_edge_litert"))
    assert answer == "penstock.tflite penstock.tflite"


def test_the_modules_own_name_and_spec_stay() -> None:
    source = (
        "from penstock import tflite\n"
        "tflite.install_aliases()\n"
        "import tflite_runtime.interpreter as t\n"
        "print(t is tflite, t.__name__, t.__spec__.name, t.__package__)"
    )
    assert run(source) == "True penstock.tflite penstock.tflite penstock.tflite"


def test_aliases_leave_other_imports_alone() -> None:
    source = (
        "from penstock.tflite import install_aliases\n"
        "install_aliases()\n"
        "import json, importlib.util\n"
        "print(importlib.util.find_spec('tflite_runtime.interpreter').name)\n"
        "print(importlib.util.find_spec('tensorflow_that_is_not_here'))"
    )
    assert run(source).splitlines() == ["tflite_runtime.interpreter", "None"]


def test_a_forked_process_keeps_the_aliases() -> None:
    source = (
        "import os\nfrom penstock.tflite import install_aliases\n"
        "install_aliases()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    import tflite_runtime.interpreter as t\n"
        "    os._exit(0 if t.__name__ == 'penstock.tflite' else 1)\n"
        "print(os.waitpid(child, 0)[1])"
    )
    assert run(source) == "0"
