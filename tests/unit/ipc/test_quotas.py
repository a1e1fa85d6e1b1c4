"""Room for the models that one client has prepared: their number, their threads, and what they read
of constants.
"""

from __future__ import annotations

import fcntl
import gc
import os

import pytest

from penstock.drivers.reference import create
from penstock.errors import InvalidArgument, ResourceExhaustedTransient
from penstock.hal import BufferDesc, BufferRole, PrepareConfig
from penstock.ipc import pools, quotas, system
from penstock.ipc.client import RemoteDevice
from penstock.ipc.codec import Frame
from penstock.ipc.quotas import MOST_THREADS, Account, Lease, Preparations, threads_of_all
from penstock.ir import ConstantPool, DataLocation, DType, Model, Operation, Subgraph
from penstock.ir.operand import Lifetime, Operand
from tests import support_isolated as support
from tests.checked import does_not_raise
from tests.unit.ipc.test_hostile_sizes import Local


def test_prepared_models_of_a_client_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_PREPARED", 2)
    device = RemoteDevice(Local(create()))
    held = [device.prepare_model(support.add_one(), PrepareConfig()) for _ in range(2)]
    with pytest.raises(ResourceExhaustedTransient, match="2 prepared models at a time"):
        device.prepare_model(support.add_one(), PrepareConfig())
    held.pop().close()
    with pytest.raises(InvalidArgument):
        device.prepare_model(support.add_one(), PrepareConfig(num_threads=-5))
    held.append(device.prepare_model(support.add_one(), PrepareConfig()))
    with pytest.raises(ResourceExhaustedTransient):
        device.prepare_model_from_cache(PrepareConfig())


def test_threads_of_prepared_models_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_THREADS", 2 * MOST_THREADS)
    device = RemoteDevice(Local(create()))
    held = [
        device.prepare_model(support.add_one(), PrepareConfig(num_threads=n))
        for n in (None, 1 << 40)
    ]
    with pytest.raises(ResourceExhaustedTransient, match="threads at a time"):
        device.prepare_model(support.add_one(), PrepareConfig(num_threads=1))
    held.pop().close()
    device.prepare_model(support.add_one(), PrepareConfig(num_threads=1))


@pytest.mark.parametrize("processors", [1, 32, 256])
def test_hundreds_of_models_may_take_all_processors(
    processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MOST_THREADS", processors)
    monkeypatch.setattr(quotas, "MAX_THREADS", threads_of_all(processors))
    room = Preparations()
    with does_not_raise():
        for _ in range(512):
            room.place(None, None, 0)
    if processors >= 32:
        with pytest.raises(ResourceExhaustedTransient, match="threads at a time"):
            room.place(None, None, 0)


def with_constants(pool: ConstantPool, *places: tuple[int, int]) -> Model:
    """An ADD of values at these offsets and lengths of *pool*."""
    operands = [
        Operand(
            DType.UINT8, (length,), Lifetime.CONSTANT_POOL, location=DataLocation(0, offset, length)
        )
        for offset, length in places
    ]
    x = Operand(DType.FLOAT32, (1,), Lifetime.SUBGRAPH_INPUT, "x")
    made = Operand(DType.FLOAT32, (1,), Lifetime.SUBGRAPH_OUTPUT)
    graph = Subgraph((x, made, *operands), (Operation("NEG", (0,), (1,)),), (0,), (1,))
    return Model((graph,), (pool,))


def test_constants_of_models_count_after_the_pool_is_closed() -> None:
    mine = Account(1 << 20, "one connection")
    fd = os.memfd_create("constants", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, 4096)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, system.SEALS)
    pool = pools.mapped(fd, 4096, account=mine)
    os.close(fd)
    room = Preparations()
    # Parts of one file, as partitions are, are no more than the file.
    halves = [room.place(mine, 1, 10, with_constants(pool, (at, 2048))) for at in (0, 2048)]
    assert mine.used == 4096 + 2 * 10
    # Named twice, they are one constant.
    again = room.place(mine, 1, 10, with_constants(pool, (0, 2048), (0, 2048)))
    assert mine.used == 4096 + 2048 + 3 * 10
    del pool
    gc.collect()
    # The driver may have copied them.
    assert mine.used == 4096 + 2048 + 3 * 10
    for give_back in (*halves, again):
        give_back()
        give_back()
    assert mine.used == mine.mapped == 0
    assert (room._count, room._threads) == (0, 0)


def test_a_model_for_which_there_is_no_room_is_not_prepared() -> None:
    mine = Account(100, "one connection")
    room = Preparations()
    with pytest.raises(ResourceExhaustedTransient, match="101 bytes more"):
        room.place(mine, 1, 101)
    assert (room._count, room._threads, mine.used) == (0, 0, 0)
    room.place(mine, 1, 100)()


def test_buffers_of_known_shape_count_until_they_are_closed() -> None:
    mine = Account(200, "one connection")

    class Counted(Local):
        def call(self, frame: Frame) -> Frame:
            lease = Lease(account=mine)
            reply = self.dispatcher.answer(frame, lease)
            lease.close()
            return reply

    channel = Local(support.domains())
    device = RemoteDevice(channel)
    prepared = device.prepare_model(support.add_one(), PrepareConfig())
    channel.call = Counted.call.__get__(channel)  # type: ignore[method-assign]  # from now on
    role = BufferRole(prepared, "input", 0)
    held = [device.allocate(BufferDesc(), [role])[1] for _ in range(3)]
    assert mine.used == 3 * 64
    with pytest.raises(ResourceExhaustedTransient, match="64 bytes more"):
        device.allocate(BufferDesc(), [role])
    with pytest.raises(InvalidArgument):
        device.allocate(BufferDesc(), [])
    held.pop().close()
    device.allocate(BufferDesc(), [role])[1].close()
    for buffer in held:
        buffer.close()
    assert mine.used == 0
