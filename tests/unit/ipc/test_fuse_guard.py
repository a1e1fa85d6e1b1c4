"""Descriptors on which any call may last for ever: they are told without a call on them, refused,
and closed aside.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.drivers.sample import SampleDevice
from penstock.errors import DeadObject, InvalidArgument
from penstock.hal import PrepareConfig
from penstock.ipc import forms, system, wire
from penstock.ipc.channel import Session
from penstock.ipc.codec import Packer, encode
from penstock.ipc.system import may_block
from penstock.ipc.transport import Connection, close_all
from penstock.ir import DType, ModelBuilder
from penstock.memory import MemoryPool
from tests.support_fuse import stuck_file, unable
from tests.unit.ipc.test_hostile_lifetimes import HeldDevice, Served


def not_in_memory(_: int) -> bool:
    """Files of tests may lie in memory."""
    return False


needs_fuse = pytest.mark.skipif(unable() is not None, reason=str(unable()))


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with stuck_file(tmp_path_factory.mktemp("fuse") / "file") as fd:
        yield fd


@needs_fuse
def test_fuse_file_is_recognised_without_asking_its_program(stuck: int) -> None:
    assert may_block(stuck)


def test_descriptors_of_the_kernel_are_accepted(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    fds = [*os.pipe(), os.open(os.devnull, os.O_RDONLY), os.eventfd(0)]
    fds.append(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
    with ours, theirs, MemoryPool.anonymous(64) as pool:
        assert not any(map(may_block, [*fds, ours.fileno(), pool.memory.handle, -1, 1 << 20]))
    close_all(fds)


def test_kinds_of_file_systems_of_other_programs_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "is_memory", not_in_memory)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    for kind, lasts in (("fuse", True), ("fuse.sshfs", True), ("fuseblk", True), ("ext4", False)):
        monkeypatch.setattr(system, "_kind_of_mount", lambda _, kind=kind: kind)
        assert may_block(fd) is lasts
    os.close(fd)


def test_a_file_of_a_mount_that_is_not_seen_is_taken_where_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a client in a container, or of a service with a view of its own."""
    monkeypatch.setattr(system, "is_memory", not_in_memory)
    monkeypatch.setattr(system, "_kind_of_mount", lambda _: None)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert not may_block(fd)
    monkeypatch.setattr(system, "filesystem_of", lambda _: system.FUSE_MAGIC)
    assert may_block(fd)
    os.close(fd)


@needs_fuse
def test_a_file_of_a_mount_that_is_not_seen_and_does_not_answer_is_not_taken(
    stuck: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "_kind_of_mount", lambda _: None)
    monkeypatch.setattr(system, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(system, "_asking", threading.BoundedSemaphore(1))
    # The second is not asked any more.
    assert may_block(stuck)
    monkeypatch.setattr(system, "ANSWER_SECONDS", 60.0)
    began = time.monotonic()
    assert may_block(stuck)
    assert time.monotonic() - began < 30


@needs_fuse
@pytest.mark.parametrize("form", [forms.FenceForm(0), forms.ConstantsForm(0, 8)])
def test_calls_that_name_a_stuck_file_are_refused(stuck: int, form: forms.HandleForm) -> None:
    with Served(HeldDevice()) as client:
        with pytest.raises(InvalidArgument, match="FUSE"):
            client.ask(wire.Check(), [stuck], [form])
        client.connection.send(encode(wire.Lend(1, 8)), [stuck])
        array = forms.ArrayForm(1, 0, DType.UINT8, (1,), False)
        with pytest.raises(InvalidArgument, match="FUSE"):
            client.ask(wire.Check(), (), [array])
        assert isinstance(client.ask(wire.Check()), wire.Reason)


@needs_fuse
def test_a_model_whose_cache_files_are_stuck_is_prepared_without_them(
    stuck: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "file")
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (2,), "x")
    packer = Packer()
    model = packer.model(b.build(b.operation("RELU", [x], [(DType.FLOAT32, (2,))])))
    config = PrepareConfig()
    assert not packer.handles
    cached = replace(config, model_cache=(0,), data_cache=(0,))
    with Served(SampleDevice()) as client:
        made = client.ask(wire.Prepare(model, cached), [stuck], [forms.DescriptorForm(0)])
        assert made.cache.save == "failed"


@needs_fuse
def test_a_fence_of_a_host_that_is_a_stuck_file_ends_the_session(stuck: int) -> None:
    ours, theirs = map(Connection, socket.socketpair())
    session = Session(ours)
    body = encode(wire.Fenced(0))
    theirs.send(encode(wire.Answer(1, body, (forms.FenceForm(0),))), [stuck])
    pack = Packer()
    with pytest.raises(DeadObject, match="FUSE"):
        session.call(0, pack.frame(wire.Check()))
    session.close()
    theirs.close()
