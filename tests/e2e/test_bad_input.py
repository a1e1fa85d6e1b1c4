"""What is wrong with a command line or its files: one line on stderr, the right exit code, no
traceback.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.export.tflite import write
from penstock.ir import DType
from penstock.ir.builder import ModelBuilder
from tests.e2e.conftest import Program


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Files that are wrong, each in its way."""
    (tmp_path / "text.tflite").write_bytes(b"#!/bin/sh\necho no model\n")
    (tmp_path / "empty.tflite").write_bytes(b"")
    (tmp_path / "identifier.tflite").write_bytes(b"\x20\0\0\0TFL3" + bytes(64))
    (tmp_path / "text.png").write_bytes(b"no picture")
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (tmp_path / "picture.webp").write_bytes(b"RIFF\x1a\0\0\0WEBPVP8L" + bytes(14))
    (tmp_path / "text.wav").write_bytes(b"no sound")
    np.save(tmp_path / "shape.npy", np.zeros((1, 9, 8, 1), np.float32))
    np.save(tmp_path / "dtype.npy", np.zeros((1, 8, 8, 1), np.float64))
    np.savez(tmp_path / "names.npz", a=np.zeros(1), b=np.zeros(1))
    (tmp_path / "empty.txt").write_bytes(b"")
    return tmp_path


CASES = {
    "a file that is not a model": (["run", "@text.tflite", "*seven.png"], 3, "text.tflite"),
    "an empty model": (["inspect", "@empty.tflite"], 3, "empty"),
    "a model of zeros": (["plan", "@identifier.tflite"], 3, "identifier.tflite"),
    "a missing model": (["run", "@missing.tflite", "*seven.png"], 3, "No such file"),
    "a directory as model": (["inspect", "@."], 3, "directory"),
    "an unreadable picture": (
        ["run", "*digits_float32.tflite", "@text.png"],
        3,
        "not a PNG, JPEG or BMP",
    ),
    "a picture that is cut off": (["run", "*digits_float32.tflite", "@cut.png"], 3, "cut.png"),
    "a missing picture": (["run", "*digits_float32.tflite", "@missing.png"], 3, "No such file"),
    "a picture in another format": (
        ["run", "*digits_float32.tflite", "@picture.webp"],
        3,
        "not a PNG, JPEG or BMP",
    ),
    "a file that is no sound": (["run", "*digits_float32.tflite", "@text.wav"], 3, "text.wav"),
    "a wrong shape": (["run", "*digits_float32.tflite", "@shape.npy"], 3, "float32[1, 9, 8, 1]"),
    "a wrong dtype": (["run", "*digits_float32.tflite", "@dtype.npy"], 3, "float64[1, 8, 8, 1]"),
    "wrong names": (["run", "*digits_float32.tflite", "@names.npz"], 3, "'a', 'b'"),
    "a missing label file": (
        ["run", "*digits_float32.tflite", "*seven.png", "--labels", "@missing.txt"],
        3,
        "missing.txt: No such file",
    ),
    "an empty label file": (
        ["run", "*digits_float32.tflite", "*seven.png", "--labels", "@empty.txt"],
        3,
        "has no labels",
    ),
    "no input": (["run", "*digits_float32.tflite"], 2, "0 inputs given, the model has 1"),
    "too many inputs": (
        ["run", "*digits_float32.tflite", "*seven.png", "*seven.png"],
        2,
        "2 inputs given",
    ),
    "no such command": (["fly"], 2, "No such command 'fly'"),
    "no such option": (["run", "*digits_float32.tflite", "--fly"], 2, "--fly"),
    "a device that cannot": (
        ["run", "*digits_int8.tflite", "*seven.png", "-d", "sample"],
        1,
        "sample",
    ),
    "a device nobody has": (
        ["run", "*digits_int8.tflite", "*seven.png", "-d", "quantum"],
        2,
        "quantum",
    ),
    "a picture that cannot be written": (
        ["run", "*digits_int8.tflite", "*seven.png", "--out", "@none/x.npz"],
        1,
        "there is no directory",
    ),
    "a capsule that is none": (["replay", "@text.tflite"], 3, "no capsule"),
    "a capsule that is missing": (["replay", "@missing.capsule"], 3, "No such file"),
}


def spelled(argument: str, files: Path, digits: Path) -> str:
    """`@name`: among the wrong files; `*name`: in the example."""
    base = {"@": files, "*": digits}.get(argument[0])
    return argument if base is None else str(base / argument[1:])


IN_A_PROCESS = ("a file that is not a model", "a device that cannot", "no such command")


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line(command: Program, files: Path, digits: Path, name: str) -> None:
    check(command, files, digits, name)


@pytest.mark.parametrize("name", IN_A_PROCESS)
def test_bad_input_ends_the_program(program: Program, files: Path, digits: Path, name: str) -> None:
    check(program, files, digits, name)


def check(program: Program, files: Path, digits: Path, name: str) -> None:
    arguments, code, words = CASES[name]
    result = program(*(spelled(a, files, digits) for a in arguments))
    assert result.returncode == code, result.stderr
    assert result.stderr.startswith("penstock: error: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("\n")
    assert words in result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    assert not result.stdout


def test_debug_shows_where_it_happened(program: Program, files: Path) -> None:
    result = program("inspect", files / "text.tflite", "--debug")
    assert result.returncode == 3
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("penstock: error: ")


def test_a_reader_that_goes_away_is_no_traceback(digits: Path) -> None:
    import subprocess
    import sys

    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "penstock",
            "dump",
            digits / "digits_float32.tflite",
            "--after",
            "load",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["devices"],
        ["devices", "--json"],
        ["inspect", "*digits_float32.tflite", "--json"],
        ["inspect", "@missing.tflite", "--json"],
    ],
)
def test_a_full_standard_output_is_one_line(
    files: Path, digits: Path, arguments: list[str]
) -> None:
    import subprocess
    import sys

    spelt = [spelled(a, files, digits) for a in arguments]
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "penstock", *spelt],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    missing = "@missing.tflite" in arguments
    assert result.returncode == (3 if missing else 1)
    assert result.stderr.count("\n") == 1, result.stderr
    assert missing or result.stderr.startswith("penstock: error: cannot write the output: ")


def test_error_found_while_compiling_names_the_file(program: Program, tmp_path: Path) -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (None, 4), "x")
    size = builder.constant(np.array([2, 3], np.int32), "size")
    (y,) = builder.operation("RESHAPE", [x, size], outputs=[(DType.FLOAT32, (2, 3))])
    file = tmp_path / "shape.tflite"
    file.write_bytes(write(builder.build(outputs=[y])))
    for command in (["run", file, "random"], ["bench", file]):
        result = program(*command)
        assert result.returncode == 3, result.stdout
        assert result.stderr.startswith(
            f"penstock: error: {file}: subgraph 0, operation 0 (RESHAPE)"
        )
        assert result.stderr.count("\n") == 1
