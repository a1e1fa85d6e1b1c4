"""A file is judged by its first bytes, and what does not tell its size is not read without end."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from penstock import knobs, loaders
from penstock.cli.application import app
from penstock.errors import LimitExceeded, ModelError, NotAModel, OffsetOutOfBounds
from penstock.memory import sealed_file
from penstock.tflite import Interpreter
from tests.support_pipes import descriptors, in_time, named_pipe, written
from tests.unit.loaders.files import FileBuilder

__all__ = ["named_pipe"]

SIZE: Final = 3 << 30
HEADS: Final[dict[str, tuple[bytes, type[ModelError]]]] = {
    "zeros": (b"", NotAModel),
    "another format": (b"GGUF\3\0\0\0", NotAModel),
    "a version, and zeros": (b"\x08\x07", NotAModel),
    "TFLite's identifier, and zeros": (b"\0\0\0\0TFL3", OffsetOutOfBounds),
    "TFLite's identifier, and a root outside": (b"\xff\xff\xff\xffTFL3", OffsetOutOfBounds),
}

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")
MOST_CHUNKS: Final = 1 << 10
"""Chunks of 64 KiB that stand for a stream without end."""


@pytest.fixture(params=HEADS)
def large(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, type[ModelError]]:
    """A file of 3 GiB that is no model, and what is wrong with it."""
    head, error = HEADS[request.param]
    path = tmp_path / "large"
    path.write_bytes(head)
    os.truncate(path, SIZE)
    return path, error


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be read but the first bytes."""

    def refuse(*_: object) -> Any:
        pytest.fail("the file is read")

    monkeypatch.setattr(sealed_file, "_sealed", refuse)
    monkeypatch.setattr(sealed_file, "_gather", refuse)


@pytest.mark.usefixtures("unread")
class TestWhatIsNoModel:
    def test_a_path_is_refused_unread(self, large: tuple[Path, type[ModelError]]) -> None:
        with pytest.raises(large[1]):
            loaders.load(large[0])

    @pytest.mark.parametrize("buffering", [0, -1])
    def test_a_file_object_is_refused_unread(
        self, large: tuple[Path, type[ModelError]], buffering: int
    ) -> None:
        with large[0].open("rb", buffering=buffering) as file, pytest.raises(large[1]):
            loaders.load(file)

    def test_an_interpreter_refuses_it_unread(self, large: tuple[Path, type[ModelError]]) -> None:
        with pytest.raises(ValueError, match="not a valid Flatbuffer buffer"):
            Interpreter(str(large[0]))

    @pytest.mark.parametrize(
        "command", [("inspect",), ("run",), ("plan",), ("dump", "--after", "load")], ids=" ".join
    )
    def test_a_command_refuses_it_unread(
        self, large: tuple[Path, type[ModelError]], command: tuple[str, ...]
    ) -> None:
        found = CliRunner().invoke(app, [*command, str(large[0])])
        assert found.exit_code == 3
        assert f"{large[0]}: " in found.output.replace("\n", "")

    def test_bytes_are_refused_uncopied(self) -> None:
        with pytest.raises(NotAModel, match="begins with"):
            loaders.load(bytearray(1 << 20))


class Endless(io.RawIOBase):
    """*head*, and then zeros, more than anybody may read; *given* counts what was read."""

    def __init__(self, head: bytes) -> None:
        self._head, self.given = head, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.given > MOST_CHUNKS << 16:
            return 0
        part = self._head[self.given :][: len(buffer)] or bytes(len(buffer))
        buffer[: len(part)] = part
        self.given += len(part)
        return len(part)


def model() -> bytes:
    file = FileBuilder()
    x, y = file.tensor("x", [2]), file.tensor("y", [2])
    file.operator("NEG", [x], [y])
    return file.finish([x], [y])


@pytest.mark.parametrize("wrap", [lambda f: f, io.BufferedReader], ids=["raw", "buffered"])
class TestFileObjects:
    def test_file_object_that_is_no_model_is_read_no_further(
        self, wrap: Callable[[Any], Any]
    ) -> None:
        endless = Endless(b"")
        with pytest.raises(NotAModel):
            loaders.load(wrap(endless))
        assert endless.given <= 1 << 18

    def test_file_object_that_begins_as_a_model_is_read_to_the_limit(
        self, wrap: Callable[[Any], Any]
    ) -> None:
        endless = Endless(model())
        with (
            knobs.override(stream_limit_mib=8),
            pytest.raises(LimitExceeded, match="knob stream_limit_mib"),
        ):
            loaders.load(wrap(endless))
        assert endless.given <= 16 << 20


def zeros(file: Any) -> None:
    for _ in range(MOST_CHUNKS):
        file.write(bytes(1 << 16))


def model_and_zeros(file: Any) -> None:
    file.write(model())
    zeros(file)


@descriptors
class TestPipes:
    def test_pipe_that_is_no_model_is_refused_at_once(self) -> None:
        with written(zeros) as path, pytest.raises(NotAModel):
            loaders.load(path)

    def test_endless_pipe_is_read_to_the_limit(self) -> None:
        with (
            written(model_and_zeros) as path,
            knobs.override(stream_limit_mib=1),
            pytest.raises(LimitExceeded, match="more than 1048576 bytes"),
        ):
            loaders.load(path)

    def test_an_interpreter_reads_one_to_the_bound(self) -> None:
        with (
            written(model_and_zeros) as path,
            knobs.override(stream_limit_mib=1),
            pytest.raises(ValueError, match="stream_limit_mib"),
        ):
            Interpreter(path)

    def test_model_loads_from_a_pipe(self) -> None:
        with written(lambda file: file.write(model())) as path:
            found = loaders.load(path)
        assert found == loaders.load(model())
        with written(lambda file: file.write(model())) as path:
            assert Interpreter(path).get_input_details()[0]["name"] == "x"


class TestNamedPipes:
    @pytest.mark.parametrize("map_file", [False, True])
    def test_a_path_is_refused_at_once(self, named_pipe: Path, map_file: bool) -> None:
        error = in_time(lambda: loaders.load(named_pipe, map=map_file))
        assert isinstance(error, OSError)
        assert "is a named pipe, not a regular file; pipe" in str(error)

    def test_an_interpreter_refuses_it_at_once(self, named_pipe: Path) -> None:
        error = in_time(lambda: Interpreter(str(named_pipe)))
        assert isinstance(error, ValueError)
        assert "is a named pipe" in str(error)


def test_a_file_larger_than_memory_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large"
    path.write_bytes(model())
    os.truncate(path, SIZE)
    monkeypatch.setattr(sealed_file, "available_memory", lambda: SIZE - 1)
    with pytest.raises(LimitExceeded, match="map=True maps it"):
        loaders.load(path)


@pytest.mark.parametrize("size", range(9))
def test_files_shorter_than_a_header_are_no_models(size: int, tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(model()[:size])
    with pytest.raises(ModelError):
        loaders.load(path)
