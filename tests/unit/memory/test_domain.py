"""A driver's own memory: tokens, the state table, and executions that use, or lose, buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import GeneralFailure, InvalidArgument, ResourceExhaustedTransient
from penstock.hal import NO_VALUE_ARGUMENT, BufferDesc, BufferRole, Memory, Request, TokenArgument
from penstock.hal.buffer import AFTER, BufferState, validate_allocate
from penstock.ir import DType, Model, ModelBuilder, NDArray, Shape
from penstock.memory import MappedFd, MemoryPool
from penstock.memory.domain import ManagedBuffer, MemoryDomain, has_tokens

F32 = DType.FLOAT32
VALUE = np.arange(6, dtype=np.float32).reshape(2, 3)


class Prepared:
    """A model that a driver has prepared."""

    def __init__(self, shape: Shape = (2, 3)) -> None:
        b = ModelBuilder()
        u, v = b.input(F32, shape, "u"), b.input(F32, shape, "v")
        self.model: Model = b.build(b.operation("ADD", [u, v], [(F32, shape)]))


def domain_of(prepared: Any, **more: Any) -> MemoryDomain:
    return MemoryDomain(lambda p: p.model if p is prepared else None, **more)


def every_role(prepared: Any) -> list[BufferRole]:
    return [
        BufferRole(prepared, "input", 0),
        BufferRole(prepared, "input", 1),
        BufferRole(prepared, "output", 0),
    ]


@contextmanager
def pool_of(value: NDArray) -> Iterator[Memory]:
    with MemoryPool.anonymous(value.nbytes) as pool:
        pool.view(value.dtype, value.shape)[...] = value
        yield pool.memory


def write(buffer: ManagedBuffer, value: NDArray = VALUE) -> None:
    with pool_of(value) as memory:
        buffer.copy_from(memory, value.shape)


def read(buffer: ManagedBuffer, value: NDArray = VALUE) -> NDArray:
    with MemoryPool.anonymous(value.nbytes) as pool:
        buffer.copy_to(pool.memory)
        return pool.view(value.dtype, value.shape).copy()


def request(
    u: int | None, v: int | None, total: int | None, **dimensions: tuple[int, ...]
) -> Request:
    """Buffers for u, v and the total; *dimensions* by u_, v_ and total_."""
    given = {"u_": u, "v_": v, "total_": total}
    u_, v_, t_ = (
        NO_VALUE_ARGUMENT if token is None else TokenArgument(token, dimensions.get(name, ()))
        for name, token in given.items()
    )
    return Request((u_, v_), (t_,))


def test_tokens_count_from_1_and_the_one_freed_last_comes_next() -> None:
    prepared = Prepared()
    domain = domain_of(prepared)
    made = [domain.allocate(BufferDesc(), every_role(prepared)) for _ in range(5)]
    assert [token for token, _ in made] == [1, 2, 3, 4, 5]
    for place in (1, 3, 0):
        made[place][1].close()
        made[place][1].close()
    assert domain.live == 2
    again = [domain.allocate(BufferDesc(), every_role(prepared))[0] for _ in range(4)]
    assert again == [1, 4, 2, 6]


def test_claim_of_unusable_buffers_is_refused_without_change() -> None:
    prepared: Any = Prepared()
    other: Any = Prepared()
    domain = domain_of(prepared)
    token, buffer = domain.allocate(BufferDesc(), every_role(prepared))
    only, _ = domain.allocate(BufferDesc(), [BufferRole(prepared, "output", 0)])
    write(buffer)
    for who, asked in (
        (prepared, request(99, None, None)),
        (prepared, request(only, None, None)),
        (other, request(token, None, None)),
        (prepared, request(token, None, token)),
        (prepared, request(token, None, only, u_=(3, 2))),
        (prepared, request(token, None, only, total_=(2, 3, 1))),
    ):
        with pytest.raises(InvalidArgument):
            domain.claim(who, asked)
    assert np.array_equal(read(buffer), VALUE)
    fresh, _ = domain.allocate(BufferDesc(), every_role(prepared))
    with pytest.raises(GeneralFailure, match="never written"):
        domain.claim(prepared, request(token, fresh, None))
    with domain.claim(prepared, request(token, token, None)) as claim:
        assert sorted(claim.inputs) == [0, 1]
    assert has_tokens(request(token, None, None))
    assert not has_tokens(request(None, None, None))


def test_an_execution_publishes_what_it_put_and_loses_what_it_did_not() -> None:
    prepared = Prepared()
    domain = domain_of(prepared)
    token, buffer = domain.allocate(BufferDesc(), every_role(prepared))
    with domain.claim(prepared, request(None, None, token)) as claim:
        assert tuple(claim.outputs) == (0,)
        room = claim.room(0, (2, 3))
        room[...] = VALUE
        claim.put(0, room, (2, 3))
        assert not buffer.is_initialized
    assert np.array_equal(read(buffer), VALUE)
    claim = domain.claim(prepared, request(None, None, token))
    with pytest.raises(GeneralFailure, match="was not computed"), claim:
        pass
    assert not buffer.is_initialized
    write(buffer)
    claim = domain.claim(prepared, request(None, None, token))
    with pytest.raises(GeneralFailure, match="does not fit"), claim:
        claim.put(0, VALUE.T, (3, 2))
    assert not buffer.is_initialized


def test_reader_keeps_its_value_while_others_write() -> None:
    prepared = Prepared((None, 3))
    domain = domain_of(prepared)
    token, buffer = domain.allocate(BufferDesc(), every_role(prepared))
    write(buffer)
    with domain.claim(prepared, request(token, None, None)) as claim:
        before = claim.inputs[0]
        write(buffer, np.zeros((5, 3), np.float32))
        assert np.array_equal(before.content, VALUE)
        assert before.shape == (2, 3)
        buffer.close()
        assert np.array_equal(before.content, VALUE)
    with pytest.raises(GeneralFailure, match="closed"):
        buffer.begin("input")
    assert domain.used == 0


def test_room_has_an_end_and_unknown_sizes_may_be_refused() -> None:
    prepared = Prepared()
    domain = domain_of(prepared, capacity=24)
    _, buffer = domain.allocate(BufferDesc(), every_role(prepared))
    with pytest.raises(ResourceExhaustedTransient, match="exceed"):
        domain.allocate(BufferDesc(), every_role(prepared))
    buffer.close()
    domain.allocate(BufferDesc(), every_role(prepared))[1].close()
    loose = Prepared((None, 3))
    with pytest.raises(GeneralFailure, match="unknown size"):
        domain_of(loose, dynamic=False).allocate(BufferDesc(), every_role(loose))
    small = domain_of(loose, capacity=60)
    _, grown = small.allocate(BufferDesc(), every_role(loose))
    write(grown)
    with pytest.raises(ResourceExhaustedTransient):
        write(grown, np.zeros((9, 3), np.float32))
    assert not grown.is_initialized
    write(grown, np.zeros((5, 3), np.float32))
    assert small.used == 60


def test_copies_to_memory_that_cannot_be_written_or_mapped(tmp_path: Any) -> None:
    prepared = Prepared()
    _, buffer = domain_of(prepared).allocate(BufferDesc(), every_role(prepared))
    write(buffer)
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(24))
        file.flush()
        with pytest.raises(GeneralFailure, match="cannot be written"):
            buffer.copy_to(Memory("mmap_fd", MappedFd(file.fileno(), 0, 1), 24))
    with pytest.raises(GeneralFailure):
        buffer.copy_from(Memory("unheard_of", 0, 24), (2, 3))
    assert not buffer.is_initialized


def test_a_buffer_of_unknown_rank_needs_dimensions() -> None:
    prepared = Prepared(None)
    _, buffer = domain_of(prepared).allocate(BufferDesc(), every_role(prepared))
    with pytest.raises(InvalidArgument), pool_of(VALUE) as memory:
        buffer.copy_from(memory, ())
    write(buffer)
    with MemoryPool.anonymous(20) as pool, pytest.raises(InvalidArgument, match="20 bytes"):
        buffer.copy_to(pool.memory)
    assert np.array_equal(read(buffer), VALUE)


def test_buffers_refuse_strings_and_unknown_sizes() -> None:
    b = ModelBuilder()
    x = b.input(DType.STRING, (2,), "x")
    model = b.build([x])

    words: Any = object()
    for match, error, kind in (
        ("string", GeneralFailure, "input"),
        ("neither input nor output", InvalidArgument, "both"),
    ):
        role = BufferRole(words, kind, 0)  # type: ignore[arg-type]
        with pytest.raises(error, match=match):
            validate_allocate(BufferDesc(), [role], lambda _: model)


class StateTable(RuleBasedStateMachine):
    """A buffer is in the state that `AFTER` says, whatever happens to it, and has the value that
    was written last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.prepared = Prepared((None, 3))
        self.domain = domain_of(self.prepared)
        self.token, self.buffer = self.domain.allocate(BufferDesc(), every_role(self.prepared))
        self.state: BufferState = "uninitialized"
        self.value = VALUE

    def after(self, event: Any) -> bool:
        """Whether *event* is legal; the state is then the one after it."""
        if (self.state, event) not in AFTER:
            return False
        self.state = AFTER[self.state, event]
        return True

    @rule(rows=st.integers(0, 5))
    def copy_from(self, rows: int) -> None:
        self.value = np.full((rows, 3), rows, np.float32)
        write(self.buffer, self.value)
        assert self.after("copy_from ok")

    @rule()
    def copy_from_fails(self) -> None:
        with pytest.raises(InvalidArgument), pool_of(VALUE) as memory:
            self.buffer.copy_from(memory, (3, 3))
        assert self.after("copy_from failed")

    @rule(rows=st.integers(0, 5))
    def output(self, rows: int) -> None:
        with self.domain.claim(self.prepared, request(None, None, self.token)) as claim:
            self.value = np.full((rows, 3), -rows, np.float32)
            claim.put(0, self.value, (rows, 3))
        assert self.after("output ok")

    @rule()
    def output_fails(self) -> None:
        claim = self.domain.claim(self.prepared, request(None, None, self.token))
        with suppress(ZeroDivisionError), claim:
            raise ZeroDivisionError
        assert self.after("output failed")

    @rule()
    def input(self) -> None:
        asked = request(self.token, None, None)
        if self.after("input"):
            with self.domain.claim(self.prepared, asked) as claim:
                assert np.array_equal(claim.inputs[0].content, self.value)
        else:
            with pytest.raises(GeneralFailure):
                self.domain.claim(self.prepared, asked)

    @rule()
    def copy_to(self) -> None:
        if self.after("copy_to"):
            assert np.array_equal(read(self.buffer, self.value), self.value)
        else:
            with pytest.raises(GeneralFailure):
                read(self.buffer, self.value)

    @precondition(lambda self: self.state == "initialized")
    @rule()
    def a_refused_request_is_no_event(self) -> None:
        with pytest.raises(InvalidArgument):
            self.domain.claim(self.prepared, request(self.token, None, self.token))

    @invariant()
    def the_states_agree(self) -> None:
        assert self.buffer.is_initialized == (self.state == "initialized")


TestStateTable = StateTable.TestCase
TestStateTable.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
