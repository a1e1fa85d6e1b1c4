from __future__ import annotations

import gc
import io
from pathlib import Path

import numpy as np
import pytest

from penstock import loaders
from penstock.errors import InputError, NotAModel
from penstock.loaders import Source
from penstock.memory import sealed_file
from tests.conftest import open_descriptors
from tests.support_programs import run_python
from tests.unit.loaders.files import FileBuilder

WEIGHTS = np.arange(40_000, dtype=np.float32)


def content() -> bytes:
    file = FileBuilder()
    x, w, y = (
        file.tensor(n, [40_000], value=v) for n, v in (("x", None), ("w", WEIGHTS), ("y", None))
    )
    file.operator("ADD", [x, w], [y])
    return file.finish([x], [y])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "net.tflite"
    path.write_bytes(content())
    return path


def test_a_model_comes_from_paths_bytes_and_files(path: Path) -> None:
    expected = loaders.load(path)
    with path.open("rb") as file:
        sources: list[Source] = [
            str(path),
            content(),
            bytearray(content()),
            memoryview(content()),
            io.BytesIO(content()),
            file,
        ]
        for source in sources:
            assert loaders.load(source) == expected


def test_digest_of_a_file_is_the_same_by_every_way_of_loading(path: Path) -> None:
    assert (
        loaders.load(path).digest
        == loaders.load(path, map=True).digest
        == loaders.load(content()).digest
    )


def test_a_file_rewritten_after_load_changes_nothing(path: Path) -> None:
    model = loaders.load(path)
    with path.open("r+b") as file:
        file.write(b"\xff" * len(content()))
    assert np.array_equal(model.constant(model.operands[1]), WEIGHTS)


def test_truncating_a_loaded_file_changes_nothing(path: Path) -> None:
    program = (
        "import os, sys, numpy as np\n"
        "from penstock import loaders\n"
        "model = loaders.load(sys.argv[1])\n"
        "os.truncate(sys.argv[1], 0)\n"
        "print(int(model.constant(model.operands[1]).sum()), model.digest.hex()[:8])\n"
    )
    expected = f"{int(WEIGHTS.sum())} {loaders.load(path).digest.hex()[:8]}"
    done = run_python("-c", program, path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, expected, "")


def test_a_mapped_file_is_not_copied(path: Path) -> None:
    model = loaders.load(path, map=True)
    owner = model.pools[0].owner
    assert owner.mapped
    assert np.array_equal(model.constant(model.operands[1]), WEIGHTS)


def test_constants_cannot_be_written(path: Path) -> None:
    for source in (path, content(), bytearray(content())):
        model = loaders.load(source)
        assert not model.constant(model.operands[1]).flags.writeable


def test_a_dead_model_leaves_no_descriptor(path: Path) -> None:
    gc.collect()
    before = sealed_file.open_descriptors(), open_descriptors()
    weights = loaders.load(path).constant(loaders.load(path).operands[1])
    models = [loaders.load(path) for _ in range(5)]
    for bad in (b"", b"12345678", content()[:1000]):
        with pytest.raises(ValueError, match=r".*"):
            loaders.load(io.BytesIO(bad))
    del models
    gc.collect()
    assert sealed_file.open_descriptors() == before[0]
    assert weights[7] == 7
    del weights
    gc.collect()
    assert open_descriptors() == before[1]


@pytest.mark.parametrize(
    "bad", [b"", b"TFL3", b"plain text, and long enough", b"\x08\0\0\0TFL2" + bytes(50)]
)
def test_bytes_that_are_no_model_are_refused(bad: bytes) -> None:
    with pytest.raises(NotAModel):
        loaders.load(bad)


def test_source_of_a_wrong_type_is_an_input_error() -> None:
    with pytest.raises(InputError, match="int"):
        loaders.load(7)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="path"):
        loaders.load(content(), map=True)


class Blocked:
    """A file whose `read` has nothing to give yet."""

    def read(self, size: int = -1) -> None:
        return None


def test_text_file_is_an_input_error(tmp_path: Path) -> None:
    text = tmp_path / "net.txt"
    text.write_text("net", "utf-8")
    with text.open(encoding="utf-8") as file:
        for source, message in (
            (io.StringIO("net"), "read.* gave str, not bytes"),
            (file, "read.* gave str, not bytes"),
            (Blocked(), "read.* gave NoneType, not bytes"),
            (memoryview(content())[::2], "gaps"),
        ):
            with pytest.raises(InputError, match=message):
                loaders.load(source)  # type: ignore[arg-type]  # what no caller should give


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        loaders.load(tmp_path / "absent.tflite")
    with pytest.raises(IsADirectoryError):
        loaders.load(tmp_path)
