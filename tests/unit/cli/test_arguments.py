"""INPUT arguments: which goes to which model input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock.cli.failures import FileError, UsageError
from penstock.cli.feed import Wishes, feed
from penstock.cli.feed.arguments import kind_of
from penstock.cli.feed.normalization import RAW
from penstock.ir import DType, Lifetime, Operand, Shape, TensorMetadata
from tests.unit.cli.support_slots import slots


def tensor(name: str, shape: Shape, dtype: DType = DType.FLOAT32) -> Operand:
    return Operand(dtype, shape, Lifetime.SUBGRAPH_INPUT, name)


A, B = tensor("a", (2,)), tensor("b", (3,))
IMAGE = tensor("image", (1, 4, 4, 3))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.new("RGB", (8, 8), (255, 0, 255)).save(tmp_path / "x.png")
    return tmp_path / "x.png"


def test_files_are_fed_in_order(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(2, np.float32))
    np.save(tmp_path / "b.npy", np.ones(3, np.float32))
    fed = feed([str(tmp_path / "a.npy"), str(tmp_path / "b.npy")], slots([A, B]), Wishes())
    assert [a.tolist() for a in fed.arrays] == [[0, 0], [1, 1, 1]]
    assert [s["name"] for s in fed.sources] == ["a", "b"]


def test_one_npz_fills_every_input_that_is_left(tmp_path: Path, picture: Path) -> None:
    np.savez(tmp_path / "x.npz", b=np.ones(3, np.float32), a=np.zeros(2, np.float32))
    fed = feed([str(picture), str(tmp_path / "x.npz")], slots([IMAGE, A, B]), Wishes())
    assert [a.shape for a in fed.arrays] == [(1, 4, 4, 3), (2,), (3,)]


def test_a_last_random_fills_every_input_that_is_left(picture: Path) -> None:
    fed = feed([str(picture), "random"], slots([IMAGE, A, B]), Wishes())
    assert [s["source"] for s in fed.sources] == [str(picture), "random, seed 0", "random, seed 0"]


def test_random_depends_on_the_seed_alone() -> None:
    first, again, other = (feed(["random"], slots([A, B]), Wishes(seed=s)) for s in (1, 1, 2))
    assert [a.tolist() for a in first.arrays] == [a.tolist() for a in again.arrays]
    assert [a.tolist() for a in first.arrays] != [a.tolist() for a in other.arrays]


def test_a_picture_is_normalised_as_the_metadata_says(picture: Path) -> None:
    metadata = TensorMetadata(normalization=((0.0,), (255.0,)))
    fed = feed([str(picture)], slots([IMAGE], [metadata]), Wishes())
    assert fed.arrays[0][0, 0, 0].tolist() == [1.0, 0.0, 1.0]
    assert fed.notes == []
    assert fed.sources[0]["normalize"] == "0,255"
    assert fed.sources[0]["normalize_from"] == "metadata"


def test_a_picture_of_which_the_file_says_nothing_has_an_array_for_each_usual_scheme(
    picture: Path,
) -> None:
    fed = feed([str(picture)], slots([IMAGE]), Wishes())
    assert fed.schemes == ["unit", "pm1", "f255", "imagenet", "caffe"]
    assert fed.sources[0]["normalize"] is None
    first = {name: fed.arrays_by(name)[0][0, 0, 0].tolist() for name in fed.schemes}
    assert (first["unit"], first["pm1"], first["f255"]) == (
        [1.0, 0.0, 1.0],
        [1.0, -1.0, 1.0],
        [255.0, 0.0, 255.0],
    )
    assert first["caffe"] == pytest.approx([255 - 103.939, -116.779, 255 - 123.68])
    assert first["imagenet"] == pytest.approx([0.515 / 0.229, -0.456 / 0.224, 0.594 / 0.225])


def test_a_scheme_for_pictures_is_noted_where_none_is_fed() -> None:
    fed = feed(["random"], slots([A]), Wishes(normalization=RAW))
    assert fed.notes == ["--normalize is not used: no INPUT is a picture"]


def test_the_callers_normalisation_comes_first(picture: Path) -> None:
    metadata = TensorMetadata(normalization=((0.0,), (255.0,)))
    fed = feed([str(picture)], slots([IMAGE], [metadata]), Wishes(normalization=RAW))
    assert fed.arrays[0][0, 0, 0].tolist() == [255.0, 0.0, 255.0]


def test_the_picture_is_kept_in_its_own_size(picture: Path) -> None:
    assert feed([str(picture)], slots([IMAGE]), Wishes()).picture.size == (8, 8)


def test_a_picture_for_an_input_that_takes_none_is_a_file_error(picture: Path) -> None:
    with pytest.raises(
        FileError, match=r"input 'a' is float32\[2\], which is not the shape of a picture"
    ):
        feed([str(picture)], slots([A]), Wishes())


@pytest.mark.parametrize("given", [[], ["random", "random", "random"]])
def test_a_wrong_count_lists_the_inputs(given: list[str]) -> None:
    with pytest.raises(
        UsageError, match=rf"{len(given)} inputs given, the model has 2: a float32\[2\]"
    ):
        feed(given, slots([A, B]), Wishes())


def test_one_input_for_a_model_without_inputs() -> None:
    with pytest.raises(UsageError, match=r"^1 input given, the model has 0: none$"):
        feed(["random"], slots([]), Wishes())


def test_a_model_without_inputs_takes_none() -> None:
    assert feed([], slots([]), Wishes()).arrays == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"missing\.npy: No such file"):
        feed([str(tmp_path / "missing.npy")], slots([A]), Wishes())


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("x.npy", b"", "npy"),
        ("x.WAV", b"", "sound"),
        ("x.jpeg", b"", "picture"),
        ("x", b"\x93NUMPY\x01", "npy"),
        ("x", b"PK\x03\x04", "npz"),
        ("x", b"RIFF1234WAVE", "sound"),
        ("x", b"RIFF1234WEBP", "picture"),
        ("x", b"\x89PNG\r\n", "picture"),
        ("x.dat", b"?", "picture"),
    ],
)
def test_the_kind_is_the_suffix_or_the_beginning(
    tmp_path: Path, name: str, content: bytes, kind: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert kind_of(tmp_path / name) == kind
