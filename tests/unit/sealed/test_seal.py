"""What a driver sees: payloads come back, failures are reasons, and the pieces lie where the knobs
say.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock.sealed
from penstock import knobs
from penstock.errors import InputError, RolledBack, Unreadable
from penstock.hal import CacheHandle, PrepareConfig
from penstock.sealed import (
    EntryFiles,
    FileRegistry,
    Header,
    Kind,
    Owner,
    Seal,
    read_header,
    state_directory,
)
from penstock.sealed.private_memory import CAN_FREEZE, PrivateMemory
from penstock.testing.doubles import FaultyFiles, failing
from tests.support_programs import run_python
from tests.support_sealed import BINDING, PROGRAM, TOKEN, Opened, Rig

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

MIB = 1 << 20


def test_payloads_come_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    report = rig.save()
    assert report.saved
    assert report.reason is None
    loaded = rig.load()
    assert loaded.entry == report.entry
    assert tuple(map(bytes, loaded.model)) == rig.program
    assert tuple(map(bytes, loaded.data)) == rig.weights
    assert all(view.readonly for view in (*loaded.model, *loaded.data))


@pytest.mark.skipif(not CAN_FREEZE, reason="memory of views alone is not shared")
def test_equal_payloads_lie_in_one_memory(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.save()
    first, second = rig.load(), rig.load()
    for one, other in zip((*first.model, *first.data), (*second.model, *second.data), strict=True):
        assert one.obj is other.obj
    first.model[0].release()
    assert bytes(second.model[0]) == rig.program[0]


@pytest.mark.skipif(not CAN_FREEZE, reason="memory of views alone is not shared")
def test_a_saved_private_payload_is_the_memory_of_later_loads(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    first, second = (private_of(rig.weights[0]) for _ in range(2))
    kept = [save(rig, weights) for weights in (first, second)]
    assert kept[0].obj is first.obj
    assert kept[1].obj is first.obj
    assert rig.load().data[0].obj is first.obj
    assert bytes(first) == rig.weights[0]
    assert first.readonly


@pytest.mark.skipif(not CAN_FREEZE, reason="memory of views alone is not shared")
def test_a_payload_that_can_be_written_or_is_a_part_of_another_is_not_shared(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path)
    (wanted,) = rig.weights
    region = PrivateMemory(len(wanted))
    region.view()[:] = wanted
    longer = private_of(wanted + b"more")
    for weights in (memoryview(bytearray(wanted)), region.view(), longer[: len(wanted)]):
        assert save(rig, weights) is weights
        assert rig.load().data[0].obj is not weights.obj


def test_a_private_payload_of_no_bytes_is_empty() -> None:
    def fill(_target: memoryview) -> None:
        raise AssertionError("there is nothing to fill")

    assert bytes(penstock.sealed.private_payload(0, fill)) == b""


def private_of(content: bytes) -> memoryview:
    def fill(target: memoryview) -> None:
        target[:] = content

    return penstock.sealed.private_payload(len(content), fill)


def save(rig: Rig, weights: memoryview) -> Any:
    """Saves *weights* with the rig's program; how this process keeps them."""
    with rig.handles(create=True) as (model, data):
        given = EntryFiles(model, data, TOKEN, BINDING)
        report = rig.seal().save(given, model=rig.program, data=[weights])
    assert report.saved
    return report.payloads[-1]


@pytest.mark.parametrize(("models", "datas"), [(0, 1), (1, 0), (32, 32)])
def test_any_number_of_files_that_nnapi_allows(tmp_path: Path, models: int, datas: int) -> None:
    rig = Rig(
        tmp_path,
        program=[bytes([i]) * i for i in range(models)],
        weights=[bytes([i]) * 3 for i in range(datas)],
    )
    assert rig.saved()


@pytest.mark.parametrize("files", [(33, 0), (0, 33), (-1, 0)])
def test_no_driver_has_other_numbers_of_files(files: tuple[int, int]) -> None:
    with pytest.raises(InputError):
        Seal("lab", "1", files=files)


def test_a_driver_without_files_has_no_cache() -> None:
    report = Seal("lab", "1", files=(0, 0)).save(EntryFiles([], [], TOKEN, BINDING))
    assert report.reason == "InvalidArgument: the driver has no cache files"


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=5000), min_size=3, max_size=3))
def test_any_payloads_come_back(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes]
) -> None:
    rig = Rig(tmp_path_factory.mktemp("any"), program=payloads[:2], weights=payloads[2:])
    assert rig.saved()


@pytest.mark.parametrize(
    "length", [1, MIB, 2 * MIB, 2 * MIB + 1, 4 * MIB - 1, 7 * MIB // 2, 5 * MIB]
)
@pytest.mark.parametrize("can_freeze", sorted({False, CAN_FREEZE}))
def test_copies_of_any_length_are_whole_and_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, can_freeze: bool
) -> None:
    monkeypatch.setattr("penstock.sealed.payload.CAN_FREEZE", can_freeze)
    content = (bytes(range(251)) * (length // 251 + 1))[:length]
    rig = Rig(tmp_path, weights=(content,))
    assert rig.saved()
    loaded, again = rig.load(), rig.load()
    for view in (*loaded.data, *again.data):
        assert view.readonly
        assert bytes(view) == content
    assert (loaded.data[0].obj is again.data[0].obj) is can_freeze


@pytest.mark.skipif(sys.platform != "linux", reason="reads the mappings of /proc")
@pytest.mark.parametrize("length", [1, 5 * MIB])
def test_pages_of_a_copy_cannot_be_written_or_executed(tmp_path: Path, length: int) -> None:
    rig = Rig(tmp_path, weights=(bytes(length),))
    assert rig.saved()
    view = rig.load().data[0]
    at = np.frombuffer(view, np.uint8).ctypes.data
    covered = 0
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        place, protection, *_ = line.split()
        start, end = (int(p, 16) for p in place.split("-"))
        if start < at + length and end > at:
            assert protection == "r--p"
            covered += min(end, at + length) - max(start, at)
    assert covered == length


@pytest.mark.skipif(not CAN_FREEZE, reason="memory is protected by views alone")
def test_memory_that_cannot_be_made_read_only_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    assert rig.saved()

    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "refused")

    monkeypatch.setattr("penstock.sealed.private_memory.PrivateMemory.freeze", refuse)
    with pytest.raises(Unreadable):
        rig.load()


def test_two_directories_with_the_same_model_both_hit(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.saved("one")
    assert rig.saved("two")
    assert rig.hits("one")
    assert len(rig.registry().rows()) == 2


def test_saving_over_an_entry_forgets_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for _ in range(3):
        assert rig.saved()
    assert len(rig.registry().rows()) == 1


def test_saving_over_another_token_s_entry_leaves_its_row(tmp_path: Path) -> None:
    """A stranger's header in a file never makes this driver forget anything."""
    rig = Rig(tmp_path)
    assert rig.saved()
    assert rig.saved(token=bytes(32))
    assert len(rig.registry().rows()) == 2


def test_save_reports_the_id_of_the_replaced_entry(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    report = rig.save()
    with rig.handles() as (model, data):
        assert rig.seal().entry_of(data[0], TOKEN) == report.entry
        assert rig.seal().entry_of(model[1], TOKEN) == report.entry
        assert rig.seal().entry_of(model[0], bytes(32)) is None
        rig.paths()[0].write_bytes(b"")
        assert rig.seal().entry_of(model[0], TOKEN) is None
        with pytest.raises(Unreadable):
            rig.seal(FaultyFiles(0, failing(5))).entry_of(model[0], TOKEN)
    assert rig.saved()


def test_headers_can_be_read_without_a_key(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    report = rig.save()
    with rig.handles() as (_, data):
        header = read_header(data[0])
        assert isinstance(header, Header)
        assert (header.kind, header.number, header.models, header.datas) == (Kind.DATA, 0, 2, 1)
        assert (header.token, header.binding, header.entry) == (TOKEN, BINDING, report.entry)
        assert header.length == len(rig.weights[0])
        assert header.version == rig.owner.version_digest
        rig.paths()[2].write_bytes(b"short")
        assert read_header(data[0]) is None


def test_a_save_never_raises(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    payload: Any = "not bytes"
    with rig.handles(create=True) as (model, data):
        report = rig.seal().save(
            EntryFiles(model, data, TOKEN, BINDING), model=[payload] * 2, data=rig.weights
        )
        assert (report.reason or "").startswith("TypeError: ")
        report = rig.seal().save(
            EntryFiles(model, data, TOKEN, BINDING), model=[b""], data=rig.weights
        )
        assert report.reason == "InvalidArgument: 1 model and 1 data payloads for (2, 1) files"
        report = rig.seal().save(
            EntryFiles([Opened(-1)] * 2, data, TOKEN, BINDING), model=rig.program, data=rig.weights
        )
        assert (report.reason or "").startswith("Unreadable: model file 0 cannot be read: ")
        assert rig.registry().rows() == ()


def test_save_rejects_one_file_given_twice(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.saved()
    with rig.handles() as (model, data):
        again = os.open(rig.paths()[0], os.O_RDWR)
        try:
            for models in ([model[0], model[0]], [model[0], Opened(again)]):
                report = rig.seal().save(
                    EntryFiles(models, data, TOKEN, BINDING), model=rig.program, data=rig.weights
                )
                assert (
                    report.reason == "InvalidArgument: model file 0 and model file 1 are one file"
                )
        finally:
            os.close(again)
    assert rig.hits()


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere what is written at a place goes there"
)
def test_a_file_opened_to_append_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, program=PROGRAM[:1], weights=())
    rig.paths()[0].touch()
    fd = os.open(rig.paths()[0], os.O_RDWR | os.O_APPEND)
    try:
        report = rig.seal().save(EntryFiles([Opened(fd)], [], TOKEN, BINDING), model=rig.program)
    finally:
        os.close(fd)
    assert not report.saved
    assert report.emptied
    assert (report.reason or "").startswith("WrongLength: model file 0 has 23 bytes")
    assert rig.registry().rows() == ()


def test_an_entry_of_which_one_file_cannot_be_written_stays_as_it_is(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("descriptors are opened again by /proc, which Linux has")
    rig = Rig(tmp_path)
    assert rig.save().saved
    with rig.handles() as (models, datas):
        flags = [os.O_RDWR] * (len(models) - 1) + [os.O_RDONLY]
        for handle, flag in zip(models, flags, strict=True):
            again = os.open(f"/proc/self/fd/{handle.fd}", flag)
            os.dup2(again, handle.fd)
            os.close(again)
        report = rig.seal().save(
            EntryFiles(models, datas, TOKEN, BINDING), model=rig.program, data=rig.weights
        )
    assert report.reason is not None
    assert report.reason.startswith("Unreadable: model file")
    assert not report.emptied
    assert rig.hits()


def test_a_save_that_cannot_even_be_imported_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    monkeypatch.setitem(sys.modules, "penstock.sealed.writing", None)
    assert (rig.save().reason or "").startswith("ModuleNotFoundError: ")
    monkeypatch.undo()
    assert rig.saved()


def test_a_late_writer_that_cannot_even_be_imported_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    monkeypatch.setitem(sys.modules, "penstock.sealed.late", None)
    with rig.handles(create=True) as (model, data), rig.lock() as lock:
        config = PrepareConfig(
            token=TOKEN,
            binding=BINDING,
            model_cache=tuple(CacheHandle(handle.fd) for handle in model),
            data_cache=tuple(CacheHandle(handle.fd) for handle in data),
            lock=CacheHandle(lock.fd),
        )
        assert rig.seal().late_writer(config, expected=None) is None
        monkeypatch.undo()
        writer = rig.seal().late_writer(config, expected=None)
        assert writer is not None
        writer.close()


def test_a_state_directory_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    rig = Rig(tmp_path)
    with (
        knobs.override(state_dir=str(tmp_path / "file")),
        rig.handles(create=True) as (model, data),
    ):
        report = Seal("lab", "1", files=(2, 1)).save(
            EntryFiles(model, data, TOKEN, BINDING), model=rig.program, data=rig.weights
        )
    assert (report.reason or "").startswith("Unreadable: ")


def test_everything_lies_where_the_knob_says_and_is_its_owner_s_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with (
        knobs.override(state_dir=str(tmp_path / "chosen"), key_store="file"),
        rig.handles(create=True) as (model, data),
    ):
        for version in ("1", "2"):
            seal = Seal("a driver/..", version, files=(2, 1))
            entry = EntryFiles(model, data, TOKEN, BINDING)
            assert seal.save(entry, model=rig.program, data=rig.weights).saved
            assert bytes(seal.load(entry).data[0]) == rig.weights[0]
            assert isinstance(seal.registry, FileRegistry)
    folder = tmp_path / "chosen" / "seals"
    assert folder.stat().st_mode & 0o777 == 0o700
    names = sorted(path.name for path in folder.iterdir())
    assert [name.split("-")[0] for name in names] == [*["a_driver___"] * 4, "key"]
    assert [Path(name).suffix for name in names] == [*[".registry", ".lock"] * 2, ""]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())


def test_the_default_is_the_user_s_state_directory() -> None:
    import platformdirs

    with knobs.override(state_dir=""):
        assert state_directory() == platformdirs.user_state_dir("penstock", appauthor=False)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other rights")
def test_no_directory_that_is_made_for_the_state_can_be_written_by_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with knobs.override(state_dir=str(tmp_path / "deep" / "er"), key_store="file"):
            assert Seal("lab", "1", files=(1, 0)).registry.rows() == ()
    finally:
        os.umask(before)
    made = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert sorted(path.name for path in made) == ["deep", "er", "seals"]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other rights")
def test_a_state_directory_that_others_can_write_is_closed_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with knobs.override(state_dir=str(state), key_store="file"):
        for mode, closed in ((0o777, 0o755), (0o775, 0o755), (0o755, 0o755), (0o1777, 0o1777)):
            state.chmod(mode)
            assert Seal("lab", "1", files=(1, 0)).registry.rows() == ()
            assert state.stat().st_mode & 0o7777 == closed
        state.chmod(0o777)
        monkeypatch.setattr(os, "chmod", lambda *_: failing(1)())
        with pytest.raises(Unreadable, match="cannot be kept to its owner"):
            Seal("lab", "1", files=(1, 0)).registry  # noqa: B018  # finding it is what is refused


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root gives directories away"
)
def test_another_user_s_state_directory_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 4321, -1)
    with (
        knobs.override(state_dir=str(state), key_store="file"),
        pytest.raises(Unreadable, match="state belongs to another user"),
    ):
        Seal("lab", "1", files=(1, 0)).registry  # noqa: B018  # finding it is what is refused


def test_a_relative_state_directory_is_refused() -> None:
    with (
        knobs.override(state_dir="relative"),
        pytest.raises(
            InputError, match=r"knob state_dir .* must be an absolute path, not 'relative'"
        ),
    ):
        state_directory()


def test_owners_are_told_apart_by_digests_of_whole_names() -> None:
    assert Owner("ab", "c").driver_digest != Owner("a", "bc").driver_digest
    assert Owner("d\ud800", "1").driver_digest != Owner("d", "1").driver_digest


def test_the_facade_lists_its_names() -> None:
    public = {
        name
        for name, value in vars(penstock.sealed).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    late = {"FileRegistry", "LateWriter"}
    assert public - {"TYPE_CHECKING", "lazily"} - late == set(penstock.sealed.__all__) - late
    for name in late:
        assert getattr(penstock.sealed, name).__name__ == name
    missing = "Seals"
    with pytest.raises(AttributeError, match="no attribute 'Seals'"):
        getattr(penstock.sealed, missing)


HIT = """
import sys
from pathlib import Path
from penstock.sealed import EntryFiles, FileKeyStore, FileRegistry, Owner, Seal
from penstock.sealed import open_cache_file, registry_path
from tests.support_sealed import BINDING, PROGRAM, TOKEN, Opened
state, path = map(Path, sys.argv[1:])
keys = FileKeyStore(state / "key")
owner = Owner("lab", "1")
registry = FileRegistry(registry_path(state, owner, keys), owner, keys)
handle = Opened(open_cache_file(path))
seal = Seal("lab", "1", files=(1, 0), registry=registry, keys=keys)
loaded = seal.load(EntryFiles([handle], [], TOKEN, BINDING))
assert bytes(loaded.model[0]) == PROGRAM[0]
print({"penstock.sealed.writing", "penstock.sealed.replacing"} & set(sys.modules))
"""


def test_a_hit_does_not_import_what_saving_needs(tmp_path: Path) -> None:
    rig = Rig(tmp_path, program=PROGRAM[:1], weights=())
    assert rig.saved()
    root = Path(__file__).parents[3]
    done = run_python("-c", HIT, str(rig.state), str(rig.paths()[0]), cwd=root)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_importing_it_loads_neither_numpy_nor_a_key_store_nor_the_blob_cache() -> None:
    script = (
        "import sys, penstock.sealed; "
        "print(sorted({'numpy', 'keyring', 'penstock.blobcache'} & set(sys.modules)))"
    )
    done = run_python("-c", script, check=True)
    assert done.stdout == "[]\n"


def test_forgotten_entries_are_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    report = rig.save()
    assert report.entry is not None
    assert rig.hits()
    rig.seal().forget(TOKEN, report.entry)
    assert rig.refuses(RolledBack)
    assert rig.saved()


def test_the_hal_s_handles_are_handles(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with rig.handles(create=True) as (model, data):
        models = tuple(CacheHandle(handle.fd) for handle in model)
        datas = tuple(CacheHandle(handle.fd) for handle in data)
        config = PrepareConfig(token=TOKEN, binding=BINDING, model_cache=models, data_cache=datas)
        seal = rig.seal()
        report = seal.save(config, model=rig.program, data=rig.weights)
        assert report.saved
        loaded = seal.load(config)
        assert bytes(loaded.data[0]) == rig.weights[0]


def test_another_state_directory_has_another_registry_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "file")
    seal = Seal("driver", "1", files=(1, 0))
    for name in ("one", "other", "one"):
        monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / name))
        assert isinstance(seal.registry, FileRegistry)
        assert Path(seal.registry.path).is_relative_to(tmp_path / name)
