"""A driver without a key has its cache entries sealed by its parent, for what it was started for
and for nobody else.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from penstock.distribution import made_by
from penstock.errors import ForeignEntry, RolledBack, SealBroken, Unreadable
from penstock.ipc.host import sealing
from penstock.ipc.host.sealing import ParentKeeper, Sealer
from penstock.sealed import EntryFiles, FileRecord, Owner, Row, Seal, entry as keepers
from penstock.sealed.header import HEADER_BYTES, Header

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="hosts need Unix sockets")

TOKEN, BINDING = b"t" * 32, b"b" * 32
OWN, OTHER = "mine:one=m:d", "theirs:one=t:d"
ROW = Row(TOKEN, b"e" * 16, (FileRecord(b"d" * 32, 5),), ())


class Held:
    """An open file, as a runtime lends it."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "file")
    monkeypatch.setattr(keepers, "_keepers", [])


@pytest.fixture
def started() -> Iterator[Callable[[str], ParentKeeper]]:
    """Starts a parent for an origin, and gives the driver's end."""
    ends: list[tuple[socket.socket, threading.Thread]] = []

    def start(origin: str) -> ParentKeeper:
        theirs, ours = socket.socketpair()
        thread = threading.Thread(target=Sealer(theirs, origin).serve)
        thread.start()
        ends.append((ours, thread))
        return ParentKeeper(ours, origin)

    yield start
    for sock, thread in ends:
        sock.close()
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[Held]:
    held = Held(tmp_path / "model")
    yield held
    os.close(held.fd)


def sealed_here(origin: str) -> Seal:
    """A seal as a driver in the program itself has it."""
    with made_by(origin):
        return Seal("d", "1", files=(1, 0))


def test_entry_sealed_by_the_parent_loads_in_both_processes(
    started: Callable[[str], ParentKeeper], handle: Held
) -> None:
    keepers.kept_by(started(OWN))
    seal = Seal("d", "1", files=(1, 0))
    assert seal.save(EntryFiles([handle], [], TOKEN, BINDING), model=[b"program"]).saved
    loaded = seal.load(EntryFiles([handle], [], TOKEN, BINDING))
    assert bytes(loaded.model[0]) == b"program"
    assert [row.entry for row in seal.registry.rows()] == [loaded.entry]
    keepers._keepers.clear()
    assert sealed_here(OWN).load(EntryFiles([handle], [], TOKEN, BINDING)).entry == loaded.entry
    with pytest.raises(ForeignEntry):
        sealed_here(OTHER).load(EntryFiles([handle], [], TOKEN, BINDING))


def test_parent_seals_for_the_origin_of_the_driver(
    started: Callable[[str], ParentKeeper], handle: Held
) -> None:
    genuine = sealed_here(OWN)
    assert genuine.save(EntryFiles([handle], [], TOKEN, BINDING), model=[b"program"]).saved
    liar = started(OTHER)
    registry, signer = liar.trust(Owner("d", "1", OWN))
    header = Header.unpack(os.pread(handle.fd, HEADER_BYTES, 0))
    assert header is not None
    with pytest.raises(Unreadable, match="another driver, version or origin"):
        signer.sign(header)
    assert registry.rows() == ()
    assert registry.find(header.token, header.entry) is None
    registry.remove(header.token, header.entry)
    assert genuine.load(EntryFiles([handle], [], TOKEN, BINDING)).entry == header.entry


def test_driver_cannot_take_the_name_of_another(
    started: Callable[[str], ParentKeeper], handle: Held
) -> None:
    keepers.kept_by(started(OTHER))
    poisoned = sealed_here(OWN)
    assert poisoned.save(EntryFiles([handle], [], TOKEN, BINDING), model=[b"poison"]).saved
    keepers._keepers.clear()
    with pytest.raises(ForeignEntry):
        sealed_here(OWN).load(EntryFiles([handle], [], TOKEN, BINDING))


def test_an_altered_file_is_refused_by_name(
    started: Callable[[str], ParentKeeper], handle: Held
) -> None:
    keepers.kept_by(started(OWN))
    seal = Seal("d", "1", files=(1, 0))
    assert seal.save(EntryFiles([handle], [], TOKEN, BINDING), model=[b"program"]).saved
    os.pwrite(handle.fd, b"\xff", 100)
    with pytest.raises(SealBroken, match="header of model file 0"):
        seal.load(EntryFiles([handle], [], TOKEN, BINDING))
    os.truncate(handle.fd, 0)
    assert seal.save(EntryFiles([handle], [], TOKEN, BINDING), model=[b"program"]).saved
    os.pwrite(handle.fd, b"\xff", HEADER_BYTES)
    with pytest.raises(SealBroken, match="payload"):
        seal.load(EntryFiles([handle], [], TOKEN, BINDING))


def test_an_entry_that_was_forgotten_is_refused(
    started: Callable[[str], ParentKeeper], handle: Held
) -> None:
    keepers.kept_by(started(OWN))
    seal = Seal("d", "1", files=(1, 0))
    report = seal.save(EntryFiles([handle], [], TOKEN, BINDING), model=[b"program"])
    assert report.entry is not None
    seal.forget(TOKEN, report.entry)
    with pytest.raises(RolledBack):
        seal.load(EntryFiles([handle], [], TOKEN, BINDING))


def test_every_call_of_a_registry_goes_to_the_parent(
    started: Callable[[str], ParentKeeper],
) -> None:
    registry, _ = started(OWN).trust(Owner("d", "1", OWN))
    assert registry.state() is None
    made = registry.open()
    registry.begin(ROW)
    found = registry.find(ROW.token, ROW.entry)
    assert found is not None
    assert (found.models, found.datas) == (ROW.models, ())
    second = Row(TOKEN, b"f" * 16, (), ROW.models)
    registry.begin(second)
    registry.publish(TOKEN, second.entry, [ROW.entry])
    assert [row.entry for row in registry.rows()] == [second.entry]
    registry.clear()
    assert registry.rows() == ()
    now = registry.state()
    assert now is not None
    assert now.registry == made.registry
    assert now.changes > made.changes


def test_broker_bounds_the_versions_it_seals_for(
    started: Callable[[str], ParentKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "MOST_OWNERS", 2)
    keeper = started(OWN)
    for version in "12":
        keeper.trust(Owner("d", version, OWN))[0].open()
    with pytest.raises(Unreadable, match="2 versions of drivers at most"):
        keeper.trust(Owner("d", "3", OWN))[0].open()
    with pytest.raises(Unreadable, match="2 versions"):
        keeper.trust(Owner("d" * 2000, "1", OWN))[0].open()


def test_without_the_parent_nothing_is_sealed_and_nothing_raw_is_raised(handle: Held) -> None:
    theirs, ours = socket.socketpair()
    theirs.close()
    keepers.kept_by(ParentKeeper(ours, OWN))
    seal = Seal("d", "1", files=(1, 0))
    for _ in range(2):
        reason = seal.save(EntryFiles([handle], [], TOKEN, BINDING), model=[b"program"]).reason
        assert reason is not None
        assert reason.startswith("Unreadable: the process that holds the key does not answer")
    ours.close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"\xc0", b"\xff" * 9, struct.pack("<I", 1 << 31), b"\x05\x00\x00\x00abc"],
    ids=["nothing", "nil", "noise", "too long", "half"],
)
def test_an_answer_that_is_none_is_unreadable(answer: bytes) -> None:
    theirs, ours = socket.socketpair()
    theirs.sendall(answer if len(answer) != 1 else struct.pack("<I", 1) + answer)
    theirs.shutdown(socket.SHUT_WR)
    registry, _ = ParentKeeper(ours, OWN).trust(Owner("d", "1", OWN))
    with pytest.raises(Unreadable, match="does not answer"):
        registry.state()
    theirs.close()
    ours.close()


def questions() -> st.SearchStrategy[bytes]:
    """Whole messages of any bytes, questions with any fields, and questions cut or altered."""
    ids = st.binary(max_size=80)
    record = st.fixed_dictionaries({"digest": ids, "length": st.integers(-1, 2**63)})
    records = st.lists(record, max_size=40)
    field: dict[str, st.SearchStrategy[Any]] = {
        "driver": st.sampled_from(["d", "", "x" * 2000]) | st.integers(-5, 5),
        "version": st.text(max_size=5),
    }
    more: dict[str, st.SearchStrategy[Any]] = {
        "token": ids,
        "entry": ids,
        "header": st.binary(min_size=256, max_size=256) | ids,
        "models": records,
        "datas": records,
        "replaced": st.lists(ids, max_size=80),
        "other": st.none(),
    }
    kinds = [
        "state",
        "open",
        "begin",
        "publish",
        "find",
        "remove",
        "rows",
        "clear",
        "sign",
        "is_sealed",
        "none",
    ]
    form = st.fixed_dictionaries({"ask": st.sampled_from(kinds), **field}, optional=more)
    encoded = form.map(msgspec.msgpack.encode)
    damaged = st.builds(
        lambda content, at, byte: content[: at % (len(content) + 1)] + byte, encoded,
        st.integers(0, 10_000), st.binary(max_size=3),
    )  # fmt: skip
    return st.binary(max_size=300) | encoded | encoded | damaged


@settings(max_examples=300, deadline=None)
@given(st.lists(questions(), max_size=6))
def test_no_question_ends_the_parent_but_by_hanging_up(
    tmp_path_factory: pytest.TempPathFactory, asked: list[bytes]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_STATE_DIR", str(tmp_path_factory.getbasetemp() / "fuzzed"))
        patch.setenv("PENSTOCK_KEY_STORE", "file")
        theirs, ours = socket.socketpair()
        sealer = threading.Thread(target=Sealer(theirs, OWN).serve)
        sealer.start()
        ours.settimeout(30)
        try:
            for content in asked:
                ours.sendall(sealing.LENGTH.pack(len(content)) + content)
                told = msgspec.msgpack.decode(
                    sealing.receive(ours, sealing.MOST_ANSWERED), type=sealing.Answer
                )
                assert told.error in {"", "Unreadable", "WireError", "SealBroken", "RolledBack"}
        except (EOFError, OSError):
            pass
        ours.close()
        sealer.join(30)
        assert not sealer.is_alive()
