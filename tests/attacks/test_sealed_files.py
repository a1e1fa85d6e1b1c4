"""Cache files altered in every way a file can be: nothing but what was saved ever loads."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock import errors
from penstock.sealed import HEADER_BYTES, LEAF_BYTES, EntryFiles, Header, Seal, open_cache_file
from penstock.sealed.private_memory import CAN_FREEZE
from penstock.testing.doubles import FaultyFiles
from tests.support_sealed import BINDING, PROGRAM, TOKEN, WEIGHTS, MemoryRegistry, Opened, Rig

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

FILES = range(3)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def quick(tmp_path: Path) -> Rig:
    """Thousands of cases, none of them about the registry."""
    registry = MemoryRegistry()
    return Rig(tmp_path, registry=lambda: registry)


@contextmanager
def opened(rig: Rig) -> Iterator[tuple[Seal, list[Opened], list[Opened]]]:
    with rig.handles() as (model, data):
        yield rig.seal(), model, data


def flipped(content: bytes, bit: int) -> bytes:
    altered = bytearray(content)
    altered[bit // 8] ^= 1 << bit % 8
    return bytes(altered)


def refusal(
    seal: Seal,
    model: list[Opened],
    data: list[Opened],
    token: bytes = TOKEN,
    binding: bytes = BINDING,
) -> type:
    """The class that a load is refused with; None's where it is a hit, with what was saved."""
    try:
        loaded = seal.load(EntryFiles(model, data, token, binding))
    except errors.CacheError as error:
        return type(error)
    assert tuple(map(bytes, loaded.model)) == PROGRAM
    assert tuple(map(bytes, loaded.data)) == WEIGHTS
    return HIT


HIT = type(None)


@pytest.mark.parametrize("number", FILES)
def test_each_single_bit_of_each_file_is_refused(quick: Rig, number: int) -> None:
    assert quick.saved()
    whole = quick.paths()[number].read_bytes()
    assert len(whole) <= 1024
    with opened(quick) as (seal, model, data):
        fd = (*model, *data)[number].fd
        for bit in range(len(whole) * 8):
            assert refusal(seal, model, data) is HIT
            os.pwrite(fd, flipped(whole, bit)[bit // 8 :][:1], bit // 8)
            assert refusal(seal, model, data) is errors.SealBroken, f"bit {bit} of file {number}"
            os.pwrite(fd, whole[bit // 8 :][:1], bit // 8)
    assert quick.hits()


@pytest.mark.parametrize("number", FILES)
def test_save_replaces_a_file_with_any_flipped_bit(quick: Rig, number: int) -> None:
    assert quick.saved()
    path = quick.paths()[number]
    for bit in range(path.stat().st_size * 8):
        if bit % 16 == number:
            path.write_bytes(flipped(path.read_bytes(), bit))
            assert quick.saved()


@pytest.mark.parametrize("number", FILES)
def test_sealed_file_of_another_length_is_refused(quick: Rig, number: int) -> None:
    assert quick.saved()
    path = quick.paths()[number]
    whole = path.read_bytes()
    more = random.Random(number).randbytes(256)
    with opened(quick) as (seal, model, data):
        fd = (*model, *data)[number].fd
        for length in {*range(len(whole) + 257)} - {len(whole)}:
            assert refusal(seal, model, data) is HIT
            os.ftruncate(fd, min(length, len(whole)))
            os.pwrite(fd, more[: max(0, length - len(whole))], len(whole))
            assert path.stat().st_size == length
            assert refusal(seal, model, data) is errors.WrongLength, f"length {length}"
            os.ftruncate(fd, min(length, len(whole)))
            os.pwrite(fd, whole[length:], length)
    path.write_bytes(whole[:-1])
    assert quick.saved()


@pytest.mark.parametrize("what", ["token", "binding"])
def test_each_bit_of_token_and_binding_is_compared(quick: Rig, what: str) -> None:
    assert quick.saved()
    with opened(quick) as (seal, model, data):
        for bit in range(256):
            assert refusal(seal, model, data) is HIT
            if what == "token":
                assert refusal(seal, model, data, token=flipped(TOKEN, bit)) is errors.ForeignEntry
            else:
                assert (
                    refusal(seal, model, data, binding=flipped(BINDING, bit))
                    is errors.TokenCollision
                )


def test_files_of_two_entries_never_load_together(rig: Rig) -> None:
    """Every way of taking each file from one of two entries of one token, or of two tokens."""
    assert rig.saved("one")
    assert rig.saved("two")
    assert rig.saved("other", token=bytes(32))
    for folders in itertools.product(("one", "two", "other"), repeat=3):
        assert rig.hits("one")
        for number, folder in enumerate(folders):
            shutil.copyfile(rig.paths(folder)[number], rig.paths("mixed")[number])
        if folders in {("one",) * 3, ("two",) * 3}:
            assert rig.hits("mixed")
        else:
            assert rig.refuses(errors.ForeignEntry, "mixed")
    assert rig.saved("mixed")


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(FILES, 2)))
def test_a_file_in_the_place_of_another_of_its_entry_is_refused(
    rig: Rig, one: int, other: int
) -> None:
    assert rig.saved()
    shutil.copyfile(rig.paths()[one], rig.paths()[other])
    assert rig.refuses(errors.ForeignEntry)
    assert rig.saved()


def test_entry_of_another_driver_is_refused(rig: Rig, tmp_path: Path) -> None:
    assert rig.saved()
    assert Rig(tmp_path, driver="other").saved()
    assert rig.refuses(errors.ForeignEntry)
    assert rig.saved()


def test_entry_of_another_version_is_refused_and_its_registry_stays(
    rig: Rig, tmp_path: Path
) -> None:
    newer = Rig(tmp_path, version="2")
    assert rig.saved("old")
    shutil.copytree(tmp_path / "old", tmp_path / "cache")
    assert newer.refuses(errors.OtherVersion)
    assert newer.saved()
    assert rig.refuses(errors.OtherVersion)
    assert rig.hits("old")


def test_an_entry_of_another_number_of_files_is_refused(rig: Rig, tmp_path: Path) -> None:
    assert rig.saved()
    fewer = Rig(tmp_path, program=rig.program[:1])
    assert fewer.refuses(errors.ForeignEntry)
    assert fewer.saved()


def test_entry_of_another_user_is_refused(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "stranger").mkdir()
    stranger = Rig(tmp_path / "stranger")
    assert stranger.saved()
    assert rig.saved()
    for ours, theirs in zip(rig.paths(), stranger.paths(), strict=True):
        shutil.copyfile(theirs, ours)
    assert rig.refuses(errors.SealBroken)
    assert rig.saved()


@pytest.mark.parametrize("number", FILES)
@pytest.mark.parametrize("how", ["symlink", "hard link", "directory", "pipe"])
def test_link_or_special_file_is_refused(rig: Rig, number: int, how: str) -> None:
    assert rig.saved()
    path = rig.paths()[number]
    aside = rig.root / "aside"
    path.rename(aside)
    if how == "symlink":
        path.symlink_to(aside)
    elif how == "hard link":
        path.hardlink_to(aside)
    elif how == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert rig.refuses(errors.NotRegularFile)
    with pytest.raises(errors.NotRegularFile):
        rig.save()
    if how == "directory":
        path.rmdir()
    else:
        path.unlink()
    assert rig.saved()


def test_a_hard_link_is_not_written_through(rig: Rig) -> None:
    assert rig.saved()
    victim = rig.root / "victim"
    victim.write_bytes(b"precious")
    with rig.handles() as (model, data):
        rig.paths()[1].unlink()
        rig.paths()[1].hardlink_to(victim)
        with victim.open("r+b") as linked:
            report = rig.seal().save(
                EntryFiles([model[0], Opened(linked.fileno())], data, TOKEN, BINDING),
                model=rig.program,
                data=rig.weights,
            )
    assert report.reason is not None
    assert report.reason.startswith("NotRegularFile: model file 1 is a hard link")
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("number", FILES)
@pytest.mark.parametrize("mode", [os.O_RDONLY, os.O_WRONLY])
def test_a_handle_of_the_wrong_access_mode(rig: Rig, number: int, mode: int) -> None:
    """Saving through a read-only one fails with a reason; loading through a write-only one is
    refused.
    """
    assert rig.saved()
    with opened(rig) as (seal, *lists):
        fd = os.open(rig.paths()[number], mode)
        handles = [*lists[0], *lists[1]]
        handles[number] = Opened(fd)
        model, data = handles[:2], handles[2:]
        try:
            if mode == os.O_WRONLY:
                assert refusal(seal, model, data) is errors.Unreadable
            else:
                report = seal.save(
                    EntryFiles(model, data, TOKEN, BINDING), model=rig.program, data=rig.weights
                )
                assert report.reason is not None
                assert report.reason.startswith("Unreadable: ")
                # All files are looked at before the first byte is written: nothing is lost.
                assert refusal(seal, model, data) is HIT
        finally:
            os.close(fd)
    assert rig.saved()


def test_offsets_of_handles_do_not_matter(rig: Rig) -> None:
    with rig.handles(create=True) as (model, data):
        for handle in (*model, *data):
            os.write(handle.fd, b"xx" * 5000)
        report = rig.seal().save(
            EntryFiles(model, data, TOKEN, BINDING), model=rig.program, data=rig.weights
        )
        assert report.saved
        os.lseek(model[0].fd, 1, os.SEEK_SET)
        assert rig.seal().load(EntryFiles(model, data, TOKEN, BINDING)).model[0] == rig.program[0]
        assert os.lseek(model[0].fd, 0, os.SEEK_CUR) == 1


@pytest.mark.parametrize(("models", "datas"), [(1, 1), (3, 1), (2, 0), (2, 2), (0, 0)])
def test_wrong_number_of_handles_is_refused(rig: Rig, models: int, datas: int) -> None:
    assert rig.saved()
    with opened(rig) as (seal, model, data):
        more_models, more_datas = (model * 2)[:models], (data * 2)[:datas]
        report = seal.save(
            EntryFiles(more_models, more_datas, TOKEN, BINDING), model=rig.program, data=rig.weights
        )
        assert report.reason is not None
        assert report.reason.startswith("InvalidArgument: ")
        with pytest.raises(errors.InvalidArgument):
            seal.load(EntryFiles(more_models, more_datas, TOKEN, BINDING))
    assert rig.hits()


@pytest.mark.parametrize("length", [0, 31, 33])
def test_tokens_have_32_bytes(rig: Rig, length: int) -> None:
    assert rig.saved()
    assert rig.save(token=bytes(length)).reason == (
        f"InvalidArgument: token and binding have {length} and 32 bytes, not 32 each"
    )
    with pytest.raises(errors.InvalidArgument):
        rig.load(binding=bytes(length))
    assert rig.hits()


def test_every_leaf_of_a_large_file_is_hashed(tmp_path: Path) -> None:
    weights = random.Random(5).randbytes(2_621_440)
    rig = Rig(tmp_path, weights=(weights,))
    assert rig.saved()
    path = rig.paths()[2]
    assert path.stat().st_size == HEADER_BYTES + len(weights)
    for start in range(0, len(weights), LEAF_BYTES):
        stop = min(start + LEAF_BYTES, len(weights))
        for place in (start, stop - 1, random.Random(start).randrange(start, stop)):
            assert rig.hits()
            with path.open("r+b") as file:
                file.seek(HEADER_BYTES + place)
                file.write(bytes([weights[place] ^ 0x10]))
            assert rig.refuses(errors.SealBroken)
            with path.open("r+b") as file:
                file.seek(HEADER_BYTES + place)
                file.write(weights[place : place + 1])
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write(weights[LEAF_BYTES : 2 * LEAF_BYTES] + weights[:LEAF_BYTES])
    assert rig.refuses(errors.SealBroken)
    assert rig.saved()


def test_the_loaded_payload_is_a_copy_that_nobody_writes(rig: Rig) -> None:
    assert rig.saved()
    loaded = rig.load()
    for path in rig.paths():
        path.write_bytes(bytes(4096))
    assert [bytes(view) for view in (*loaded.model, *loaded.data)] == [*rig.program, *rig.weights]
    with pytest.raises(TypeError):
        loaded.model[0][0] = 1


def reads(rig: Rig) -> int:
    counting = FaultyFiles()
    assert rig.hits(files=counting)
    return len(counting.log)


@pytest.mark.parametrize("number", FILES)
def test_a_file_replaced_at_any_moment_of_a_load(rig: Rig, number: int) -> None:
    """Its bytes become another entry's before each operation in turn: the right payload, or
    refused.
    """
    other = Rig(
        rig.root, program=(b"other programme.......", b"of equal leng."), weights=rig.weights
    )
    assert other.saved("other")
    assert rig.saved()
    path = rig.paths()[number]
    whole, theirs = path.read_bytes(), other.paths("other")[number].read_bytes()
    outcomes = set()
    for at in range(reads(rig)):
        assert rig.hits()
        try:
            assert rig.hits(files=FaultyFiles(at, lambda: rewrite(path, theirs)))
            outcomes.add("hit")
        except errors.CacheError as error:
            outcomes.add(type(error).__name__)
        rewrite(path, whole)
    assert outcomes <= {"hit", "ForeignEntry", "WrongLength", "SealBroken"}
    assert "hit" in outcomes
    assert "ForeignEntry" in outcomes
    assert rig.saved()


@pytest.mark.parametrize("number", FILES)
def test_a_file_replaced_at_any_moment_of_a_save(rig: Rig, number: int) -> None:
    """Whatever comes of it, the next load has the payload that was saved, or is refused."""
    other = Rig(
        rig.root, program=(b"other programme.......", b"of equal leng."), weights=rig.weights
    )
    assert other.saved("other")
    counting = FaultyFiles()
    assert rig.saved(files=counting)
    path = rig.paths()[number]
    theirs = other.paths("other")[number].read_bytes()
    refused = 0
    for at in range(len(counting.log)):
        assert rig.saved()
        rig.save(files=FaultyFiles(at, lambda: rewrite(path, theirs)))
        try:
            assert rig.hits()
        except errors.CacheError:
            refused += 1
    assert refused
    assert rig.saved()


def rewrite(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(content)


def test_a_name_with_a_link_in_it_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(
        errors.NotRegularFile, match=r"^NotRegularFile: /.*/link is a link or no file"
    ):
        open_cache_file(tmp_path / "link", create=True)
    with pytest.raises(FileNotFoundError):
        open_cache_file(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        open_cache_file(tmp_path / "no" / "folder", create=True)


def test_authentic_file_of_a_later_format_is_refused_by_name(rig: Rig) -> None:
    assert rig.saved()
    path = rig.paths()[0]
    whole = path.read_bytes()
    header = Header.unpack(whole[:HEADER_BYTES])
    assert header is not None
    later = replace(header, format=2).pack(rig.keys().key())
    path.write_bytes(later + whole[HEADER_BYTES:])
    assert rig.refuses(errors.OtherVersion)
    assert rig.saved()


@pytest.mark.parametrize("number", FILES)
def test_an_authentic_header_that_the_registry_does_not_list_is_refused(
    rig: Rig, number: int
) -> None:
    """Of the same entry, token and place, sealed with the key: only the row tells it from the one
    that was saved.
    """
    assert rig.saved()
    path = rig.paths()[number]
    whole = path.read_bytes()
    header = Header.unpack(whole[:HEADER_BYTES])
    assert header is not None
    other = replace(header, sequence=header.sequence + 1).pack(rig.keys().key())
    path.write_bytes(other + whole[HEADER_BYTES:])
    assert rig.refuses(errors.SealBroken)
    assert rig.saved()


@pytest.mark.parametrize("number", FILES)
@pytest.mark.parametrize("can_freeze", sorted({False, CAN_FREEZE}))
def test_a_file_cut_at_any_moment_of_a_load(
    rig: Rig, number: int, can_freeze: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sealed.payload.CAN_FREEZE", can_freeze)
    assert rig.saved()
    path = rig.paths()[number]
    whole = path.read_bytes()
    for length in (0, 100, HEADER_BYTES, len(whole) - 1):
        outcomes = set()
        for at in range(reads(rig)):
            assert rig.hits()
            try:
                assert rig.hits(files=FaultyFiles(at, partial(os.truncate, path, length)))
                outcomes.add("hit")
            except errors.CacheError as error:
                outcomes.add(type(error).__name__)
            path.write_bytes(whole)
        # Nothing follows the last read of the last file.
        assert outcomes == ({"WrongLength"} if number == 2 else {"hit", "WrongLength"})
    assert rig.saved()


def test_a_row_of_another_number_of_files_is_refused(rig: Rig) -> None:
    """Only the key's holder can write one; it is refused all the same."""
    assert rig.saved()
    registry = rig.registry()
    (row,) = registry.rows()
    registry.remove(row.token, row.entry)
    registry.begin(replace(row, datas=()))
    assert rig.refuses(errors.ForeignEntry)
    assert rig.saved()
