"""What a command imports: no more than it needs
(docs/decisions/0024-plain-command-lines-are-parsed-without-typer.md).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import pytest

from penstock.export import tflite
from penstock.ir import DType, ModelBuilder
from tests.conftest import ROOT
from tests.support_programs import run_python

PROGRAM: Final = """
import sys, json
from penstock.cli.main import main
sys.argv[0] = "penstock"
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(sorted(sys.modules)))
"""

DIGITS: Final = ROOT / "examples" / "digits"
RUN: Final = f"run {DIGITS}/digits_int8.tflite {DIGITS}/seven.png -d reference"

NOT_FOR_A_LINE: Final = ("typer", "click", "rich", "email", "importlib.metadata", "asyncio")
"""Modules that no plain line needs whose output is no terminal's."""


def imported(line: str, place: Path) -> set[str]:
    """Every module that the program has imported when it has done what *line* says."""
    own = {"PENSTOCK_CACHE_DIR": str(place), "PENSTOCK_DEVICES": "reference"}
    done = run_python("-c", PROGRAM, *line.split(), check=True, env=os.environ | own)
    return set(json.loads(done.stdout.splitlines()[-1]))


def among(names: tuple[str, ...], modules: set[str]) -> list[str]:
    return sorted(m for m in modules if any(f"{m}.".startswith(f"{name}.") for name in names))


def small(place: Path) -> str:
    """A line that runs a network of one operation, which is made in *place*, on a picture."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 8, 8, 1), "x")
    made = builder.build(builder.operation("RELU", [x], [(DType.FLOAT32, (1, 8, 8, 1))]))
    (place / "small.tflite").write_bytes(tflite.write(made))
    options = "-d sample --normalize unit --task outputs"
    return f"run {place}/small.tflite {DIGITS}/seven.png {options}"


@pytest.fixture(scope="module")
def run_modules(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What `run` imports for a picture and a network that it finds in the cache."""
    place = tmp_path_factory.mktemp("run")
    line = small(place)
    imported(line, place / "cache")
    return imported(line, place / "cache")


@pytest.mark.parametrize(
    "line", [RUN, "--version", "knobs", "cache ls", f"plan {DIGITS}/digits_int8.tflite"]
)
def test_plain_line_imports_neither_typer_nor_rich(line: str, tmp_path: Path) -> None:
    assert among(NOT_FOR_A_LINE, imported(line, tmp_path)) == []


NOT_TO_RUN: Final = (
    *("asyncio", "base64", "csv", "difflib", "html", "logging.handlers", "multiprocessing"),
    *("numpy.random", "numpy.typing", "pathlib", "random", "secrets", "socket", "subprocess"),
    *("tempfile", "urllib", "wave", "zipfile"),
    *("PIL.ImageOps", "PIL.JpegImagePlugin", "PIL.BmpImagePlugin", "PIL.GifImagePlugin"),
    *("penstock.cli.answers.drawing", "penstock.cli.application", "penstock.cli.feed.arrays"),
    *("penstock.cli.feed.sound", "penstock.cli.terminal", "penstock.ipc"),
    *("penstock.runtime.isolation",),
)
"""What the standard library, NumPy, Pillow and Penstock have for other uses of `run`."""


@pytest.mark.parametrize("name", NOT_TO_RUN)
def test_running_a_picture_does_not_import(name: str, run_modules: set[str]) -> None:
    assert among((name,), run_modules) == []


def test_only_the_command_of_the_line_is_imported(run_modules: set[str]) -> None:
    others = ("bench", "capsules", "compare", "doctor", "dump", "inspect", "plan", "cache")
    assert among(tuple(f"penstock.cli.{o}" for o in others), run_modules) == []


@pytest.mark.parametrize("command", ["ls", "verify", "gc"])
def test_cache_is_looked_after_without_numpy(command: str, tmp_path: Path) -> None:
    imported(small(tmp_path), tmp_path / "cache")
    modules = imported(f"cache {command}", tmp_path / "cache")
    assert "penstock.cache.cache" in modules
    assert among(("numpy", "penstock.ir.model", "penstock.drivers"), modules) == []


def test_list_of_devices_imports_nothing_of_the_doctor(tmp_path: Path) -> None:
    modules = imported("devices", tmp_path)
    unwanted = ("penstock.cli.doctor", "penstock.cli.capsules", "penstock.ipc", "email", "rich")
    assert among((*unwanted, "importlib.metadata", "penstock.blobcache"), modules) == []


def test_version_imports_neither_numpy_nor_msgspec(tmp_path: Path) -> None:
    wanted = ("numpy", "msgspec", "penstock.cli.commands", "penstock.knobs")
    assert among(wanted, imported("--version", tmp_path)) == []


def test_help_of_the_program_imports_no_command(tmp_path: Path) -> None:
    modules = imported("--help", tmp_path)
    assert "typer" in modules
    assert among(("penstock.cli.run", "penstock.cli.cache", "numpy"), modules) == []
