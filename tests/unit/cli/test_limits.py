"""Limits of the process, settings out of range, and a standard output that takes nothing: each
error names its cause.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.cli import failures
from penstock.cli.application import app
from penstock.errors import ResourceExhaustedTransient
from penstock.export import tflite
from penstock.ir import DType, ModelBuilder
from penstock.memory.pool import MemoryPool

SAYS = "no file descriptor is left in this process: raise its limit with 'ulimit -n'"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="isolated drivers are Linux's")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 512), "x")
    k = builder.constant(np.ones((1, 512), np.float32), "k")
    y = builder.operation("ADD", [x, k], [(DType.FLOAT32, (1, 512))])
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite.write(builder.build(y)))
    return path


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    if sys.platform == "win32":
        pytest.skip("this system has no such limit")
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_model_beyond_the_limit_of_files_is_not_said_to_be_too_large(model: Path) -> None:
    with files_of_at_most(1024):
        found = CliRunner().invoke(app, ["run", str(model), "random", "-d", "sample"])
    if sys.platform == "linux":
        assert found.exit_code == 3
        assert "the limit that this process has for the size of files" in found.stderr
        assert "raise it with 'ulimit -f'" in found.stderr
    else:
        assert found.exit_code == 0


def test_a_pool_beyond_the_limit_of_files_names_it() -> None:
    with (
        files_of_at_most(1024),
        pytest.raises(ResourceExhaustedTransient, match="raise it with 'ulimit -f'"),
    ):
        MemoryPool.anonymous(4096)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE), "penstock/execution/executable.py"),
        OSError(errno.ENFILE, os.strerror(errno.ENFILE)),
        ImportError(f"libengine.so: cannot open shared object file: {os.strerror(errno.EMFILE)}"),
    ],
    ids=["a module", "the system", "an extension"],
)
def test_want_of_descriptors_is_no_internal_error(error: Exception) -> None:
    assert failures.message(error).startswith(SAYS)
    assert failures.exit_code(error) == failures.WORK_FAILED


@LINUX
@pytest.mark.parametrize("number", [12, 16, 18, 19, 20, 22, 24])
def test_isolated_driver_without_descriptors_names_the_limit(
    number: int, model: Path, tmp_path: Path
) -> None:
    command = f'ulimit -n {number} && exec "$0" -m penstock run "$1" random -d reference'
    found = subprocess.run(
        ["sh", "-c", command, sys.executable, str(model)],
        env={
            **os.environ,
            "PENSTOCK_ISOLATE": "reference",
            "PENSTOCK_STATE_DIR": str(tmp_path / "state"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    told = found.stdout + found.stderr
    assert "internal error" not in told
    assert "Invalid argument" not in told
    assert found.returncode == 0 or "Too many open files" in told


@pytest.mark.parametrize(
    "isolated", [pytest.param("openvino", marks=LINUX), ""], ids=["isolated", "here"]
)
def test_a_setting_out_of_range_is_the_error_whether_the_driver_is_isolated_or_not(
    isolated: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ISOLATE", isolated)
    monkeypatch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", "9" * 21)
    found = CliRunner().invoke(app, ["run", str(model), "random", "-d", "openvino-cpu"])
    assert found.exit_code == 2
    assert found.stderr.startswith("penstock: error: knob driver_timeout_ms (environment ")


@pytest.mark.skipif(sys.platform == "win32", reason="the shell's way to close the output")
@pytest.mark.parametrize("command", ["run M random -d sample", "run M random --json", "--version"])
def test_a_closed_standard_output_fails_the_command(command: str, model: Path) -> None:
    arguments = command.replace("M", str(model)).split()
    found = subprocess.run(
        ["sh", "-c", 'exec "$0" -m penstock "$@" >&-', sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 1
    assert found.stderr == (
        "penstock: error: cannot write the output: the standard output is closed\n"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of another kind")
def test_a_pipe_that_nobody_reads_any_more_ends_the_command_without_a_word() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        found = subprocess.run(
            [sys.executable, "-m", "penstock", "knobs"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert (found.returncode, found.stderr) == (1, "")
