"""`.npy` and `.npz` files, and random values, as inputs."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.cli.failures import FileError, UsageError
from penstock.cli.feed import arrays
from penstock.cli.feed.arrays import read_npy, read_npz
from penstock.cli.feed.files import random_array
from penstock.ir import DType, Lifetime, NDArray, Operand, Shape


def tensor(shape: Shape, dtype: DType = DType.FLOAT32, name: str = "x") -> Operand:
    return Operand(dtype, shape, Lifetime.SUBGRAPH_INPUT, name)


def test_an_array_that_fits_is_read(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", values)
    found = read_npy(tmp_path / "x.npy", tensor((2, 3)))
    assert found.dtype == np.float32
    assert np.array_equal(found, values)


def test_fortran_order_and_foreign_byte_order_are_read(tmp_path: Path) -> None:
    values = np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3))
    np.save(tmp_path / "x.npy", values)
    found = read_npy(tmp_path / "x.npy", tensor((2, 3)))
    assert found.dtype == np.dtype("=f4")
    assert found.flags.c_contiguous
    assert np.array_equal(found, values)


@pytest.mark.parametrize("value", [np.array(True), np.array(False, np.bool_)])
def test_a_scalar_stays_without_dimensions(tmp_path: Path, value: NDArray) -> None:
    np.save(tmp_path / "x.npy", value)
    np.savez(tmp_path / "x.npz", x=value)
    scalar = tensor((), DType.BOOL)
    for found in (read_npy(tmp_path / "x.npy", scalar), *read_npz(tmp_path / "x.npz", [scalar])):
        assert found.shape == ()
        assert found == value


def test_unknown_dimensions_take_any_size(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 3), np.float32))
    assert read_npy(tmp_path / "x.npy", tensor((None, 3))).shape == (5, 3)


def test_a_wrong_shape_names_both(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    with pytest.raises(FileError, match=r"holds float32\[2, 4\]; input 'x' needs float32\[2, 3\]"):
        read_npy(tmp_path / "x.npy", tensor((2, 3)))


def test_a_wrong_dtype_names_both(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    with pytest.raises(FileError, match=r"holds float64\[2, 3\]; input 'x' needs float32"):
        read_npy(tmp_path / "x.npy", tensor((2, 3)))


def test_pickles_are_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}, {}], object), allow_pickle=True)
    with pytest.raises(FileError, match="Python objects"):
        read_npy(tmp_path / "x.npy", tensor((2,), DType.STRING))


def test_strings_are_read_as_bytes(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array(["gate", "ä"]))
    assert read_npy(tmp_path / "x.npy", tensor((2,), DType.STRING)).tolist() == [
        b"gate",
        "ä".encode(),
    ]


def test_a_damaged_header_is_named_in_plain_words(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((2, 3), np.float32))
    whole = path.read_bytes()
    for place, byte in ((12, 0), (11, ord("(")), (40, 0xFF), (20, ord("\\"))):
        damaged = bytearray(whole)
        damaged[place] = byte
        path.write_bytes(damaged)
        with pytest.raises(FileError) as raised:
            read_npy(path, tensor((2, 3)))
        assert str(raised.value) == (
            f"{path}: not an .npy file, or its header is damaged; numpy.save writes one"
        )


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\0\x10\0{'shape'", b"hello, world"]
)
def test_malformed_npy_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(FileError, match=r"not an \.npy file"):
        read_npy(tmp_path / "x.npy", tensor((2,)))


def test_a_file_that_ends_early_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(8, np.float32))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-3])
    with pytest.raises(FileError, match="ends after 29 of 32 bytes"):
        read_npy(tmp_path / "cut.npy", tensor((8,)))


def test_a_declared_size_is_bounded_before_it_is_read(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }"
    (tmp_path / "x.npy").write_bytes(
        b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header
    )
    with pytest.raises(FileError, match="at most"):
        read_npy(tmp_path / "x.npy", tensor((None,)))


def test_npz_by_name(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "x.npz", b=np.ones(2, np.float32), a=np.zeros(3, np.float32), more=np.zeros(1)
    )
    first, second = read_npz(tmp_path / "x.npz", [tensor((3,), name="a"), tensor((2,), name="b")])
    assert (first.tolist(), second.tolist()) == ([0, 0, 0], [1, 1])


def test_npz_by_position(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", np.zeros(3, np.float32), np.ones(2, np.float32))
    first, second = read_npz(tmp_path / "x.npz", [tensor((3,), name="a"), tensor((2,), name="b")])
    assert (first.tolist(), second.tolist()) == ([0, 0, 0], [1, 1])


def test_an_npz_entry_that_does_not_fit_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", p=np.zeros(2, np.float32), q=np.zeros(3, np.float32))
    with pytest.raises(
        FileError, match=r"entry 'q' holds float32\[3\]; input 'b' needs float32\[2\]"
    ):
        read_npz(tmp_path / "x.npz", [tensor((2,), name="a"), tensor((2,), name="b")])


def test_npz_that_does_not_match_lists_what_it_holds(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", p=np.zeros(3, np.float32))
    with pytest.raises(FileError, match="holds 'p'; the model needs 'a', 'b'"):
        read_npz(tmp_path / "x.npz", [tensor((3,), name="a"), tensor((2,), name="b")])


def test_npz_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(FileError, match=r"not an \.npz file"):
        read_npz(tmp_path / "x.npz", [tensor((3,))])


def test_an_npz_entry_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "MAX_BYTES", 1000)
    stream = io.BytesIO()
    np.save(stream, np.zeros(300, np.float32))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", stream.getvalue())
    with pytest.raises(FileError, match="at most 1,000"):
        read_npz(tmp_path / "x.npz", [tensor((None,))])


@given(
    dtype=st.sampled_from([d for d in DType if d not in {DType.RESOURCE, DType.VARIANT}]),
    shape=st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=3).map(tuple),
    seed=st.integers(0, 2**32),
)
def test_random_values_fit_their_input_and_repeat(dtype: DType, shape: Shape, seed: int) -> None:
    operand = tensor(shape, dtype)
    first = random_array(operand, np.random.default_rng(seed))
    second = random_array(operand, np.random.default_rng(seed))
    assert first.dtype == dtype.numpy
    assert first.shape == tuple(1 if d is None else d for d in shape or ())
    assert first.tolist() == second.tolist()


def test_random_8_bit_values_use_the_full_range() -> None:
    values = random_array(tensor((5000,), DType.INT8), np.random.default_rng(0))
    assert (values.min(), values.max()) == (-128, 127)
    values = random_array(tensor((5000,), DType.UINT8), np.random.default_rng(0))
    assert (values.min(), values.max()) == (0, 255)


def test_random_indexes_are_zero_or_one() -> None:
    assert set(random_array(tensor((50,), DType.INT32), np.random.default_rng(0)).tolist()) == {
        0,
        1,
    }


def test_an_unknown_rank_cannot_be_made_up() -> None:
    with pytest.raises(UsageError, match="no fixed rank"):
        random_array(tensor(None), np.random.default_rng(0))
