"""Files that come through pipes, and named pipes, which may never be written."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from penstock import knobs
from penstock.cli.application import app
from penstock.cli.failures import FileError
from penstock.cli.feed.files import input_file
from penstock.export import tflite
from penstock.ir import DType, ModelBuilder
from tests.support_pipes import descriptors, in_time, named_pipe, written
from tests.unit.cli.test_damaged_inputs import sound

__all__ = ["named_pipe"]


def model(*shape: int) -> bytes:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, shape, name="x")
    y = builder.operation("NEG", [x], [(DType.FLOAT32, shape)])
    return tflite.write(builder.build(y))


def png() -> bytes:
    stream = io.BytesIO()
    Image.linear_gradient("L").resize((4, 4)).convert("RGB").save(stream, "PNG")
    return stream.getvalue()


def saved(save: Callable[..., None], *shape: int) -> bytes:
    stream = io.BytesIO()
    save(stream, np.ones(shape, np.float32))
    return stream.getvalue()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["--json", *map(str, arguments)])


@descriptors
@pytest.mark.parametrize(
    ("content", "shape", "options"),
    [
        (png(), (1, 4, 4, 3), ["--normalize", "unit"]),
        (sound(), (1, 50), ["--task", "outputs"]),
        (saved(np.save, 2, 3), (2, 3), []),
        (saved(np.savez, 2, 3), (2, 3), []),
    ],
    ids=["picture", "sound", "npy", "npz"],
)
def test_an_input_through_a_pipe_is_read_as_its_file_is(
    content: bytes, shape: tuple[int, ...], options: list[str], tmp_path: Path
) -> None:
    (tmp_path / "model").write_bytes(model(*shape))
    (tmp_path / "input").write_bytes(content)
    from_file = run("run", tmp_path / "model", tmp_path / "input", *options)
    with written(lambda file: file.write(content)) as path:
        from_pipe = run("run", tmp_path / "model", path, *options)
    assert from_pipe.exit_code == from_file.exit_code == 0
    answers = [json.loads(r.stdout) for r in (from_file, from_pipe)]
    assert answers[0]["outputs"] == answers[1]["outputs"]
    assert answers[1]["inputs"][0]["source"] == path


@descriptors
def test_an_empty_pipe_is_named() -> None:
    with (
        written(lambda file: file.write(b"")) as path,
        pytest.raises(FileError, match="the file is empty"),
    ):
        input_file(path)


@descriptors
def test_a_pipe_is_read_to_the_bound() -> None:
    with (
        written(lambda file: file.write(bytes(2 << 20))) as path,
        knobs.override(stream_limit_mib=1),
        pytest.raises(FileError, match="more than 1048576 bytes"),
    ):
        input_file(path)


@descriptors
def test_labels_come_through_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(model(1, 2))
    with written(lambda file: file.write(b"cat\ndog\n")) as path:
        assert run("run", tmp_path / "model", "random", "--labels", path).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "PIPE"),
        ("run", "PIPE", "random"),
        ("run", "MODEL", "PIPE"),
        ("run", "MODEL", "random", "--labels", "PIPE"),
    ],
    ids=" ".join,
)
def test_a_named_pipe_is_refused_at_once(
    named_pipe: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "model").write_bytes(model(2))
    places = {"PIPE": named_pipe, "MODEL": tmp_path / "model"}
    found: list[Result] = []
    assert in_time(lambda: found.append(run(*(places.get(a, a) for a in arguments)))) is None
    assert found[0].exit_code == 3
    assert f"{named_pipe}: is a named pipe, not a regular file; pipe" in found[0].stderr


@pytest.mark.parametrize("command", ["inspect", "run"])
def test_a_directory_is_refused_with_what_to_name(command: str, tmp_path: Path) -> None:
    assert f"{tmp_path}: is a directory; name a file" in run(command, tmp_path).stderr


def test_an_empty_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert (
        "the file is empty; copy or download it again" in run("inspect", tmp_path / "empty").stderr
    )
