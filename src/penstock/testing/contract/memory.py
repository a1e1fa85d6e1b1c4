"""Pools of every kind, and driver-managed buffers (NNAPI sections 6.3 to 6.7)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, Literal

import numpy as np
from msgspec.structs import replace

from penstock import hal
from penstock.errors import GeneralFailure, InvalidArgument
from penstock.memory import PROT_READ, PROT_WRITE, MappedFd, MemoryPool
from penstock.testing.contract.cases import Case, one_case, static_cases
from penstock.testing.contract.promise import NotCovered, Suite, allowed, refused, require
from penstock.testing.contract.trial import PLAIN, Trial, check_run, each_prepared, prepare, ready

SUITE: Final = Suite("memory", "memory", "Buffer")
Role = tuple[Literal["input", "output"], int, float]


@SUITE.values
def check_pools_in_files(device: hal.Device) -> None:
    """`mmap_fd` accepts any offset into a file, page-aligned or not."""
    for case, prepared in each_prepared(device, static_cases(device)):
        for offset in (0, 8, 4096, 65536 + 24):
            with Trial(case) as trial, _in_file(trial, offset) as (memory, content):
                result = prepared.execute(replace(trial.request, pools=(memory,)), PLAIN)
                trial.take(content())
                trial.expect(device, result, f"at byte {offset} of a file")


@SUITE.values
def check_read_only_pools_for_inputs(device: hal.Device) -> None:
    """A pool of inputs may be read-only."""
    with ready(device, one_case(device)) as (prepared, trial):
        with _in_file(trial, 0, PROT_READ) as (memory, _):
            result = prepared.execute(_two_pools(trial, memory), PLAIN)
        trial.expect(device, result, "from a read-only pool")


@SUITE.values
def check_read_only_pools_for_outputs(device: hal.Device) -> None:
    """An output in read-only memory raises an error of the HAL."""
    with (
        ready(device, one_case(device)) as (prepared, trial),
        _in_file(trial, 0, PROT_READ) as (memory, content),
    ):
        before = content()
        with refused("an output in read-only memory", InvalidArgument, GeneralFailure):
            prepared.execute(replace(trial.request, pools=(memory,)), PLAIN)
        require(content() == before, "read-only memory was written")


@SUITE.values
def check_pools_may_be_closed_after_a_run(device: hal.Device) -> None:
    """After a call has returned, the driver does not access its pools."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared:
        for _ in range(3):
            check_run(device, case, prepared, "of a pool of its own")


@SUITE.check
def check_allocate_without_domains(device: hal.Device) -> None:
    """A device without memory domains rejects valid requests for buffers: `GeneralFailure`."""
    case = one_case(device)
    with closing(prepare(device, case)) as prepared:
        with allowed("a valid role", GeneralFailure) as refusals:
            _, buffer = device.allocate(hal.BufferDesc(), [hal.BufferRole(prepared, "input", 0)])
        if not refusals:
            buffer.close()
            raise NotCovered("it has memory domains")


@SUITE.check
def check_allocate_refuses_bad_roles(device: hal.Device) -> None:
    """Invalid roles are `InvalidArgument` (or `GeneralFailure` for a device without domains).

    Tried: no roles, unknown models, indexes out of range, frequencies outside (0, 1], a repeated
    role, contradictory dimensions.
    """
    case = one_case(device)
    with closing(prepare(device, case)) as prepared:
        inputs, outputs = len(case.inputs), len(case.outputs)
        shape = case.inputs[0].shape
        good: Role = ("input", 0, 1.0)
        wrong: tuple[tuple[str, tuple[int, ...], list[Role]], ...] = (
            ("no roles", (), []),
            ("input out of range", (), [("input", inputs, 1.0)]),
            ("output out of range", (), [("output", outputs, 1.0)]),
            ("negative index", (), [("input", -1, 1.0)]),
            ("frequency 10", (), [("input", 0, 10.0)]),
            ("frequency 0", (), [("input", 0, 0.0)]),
            ("frequency -0.5", (), [("input", 0, -0.5)]),
            ("a role twice", (), [good, good]),
            ("another rank", (1, *shape), [good]),
            ("another dimension", (*shape[:-1], shape[-1] + 1), [good]),
        )
        for what, dimensions, roles in wrong:
            with refused(f"a buffer for {what}", InvalidArgument, GeneralFailure):
                device.allocate(
                    hal.BufferDesc(dimensions), [hal.BufferRole(prepared, *r) for r in roles]
                )


@SUITE.check
def check_tokens_of_live_buffers_differ(device: hal.Device) -> None:
    """Tokens are positive; no two live buffers have the same token."""
    with _buffers(device) as (_, _, allocate):
        tokens = [allocate([("input", 0, 1.0)])[0] for _ in range(4)]
        require(all(t > 0 for t in tokens), f"tokens {tokens}")
        require(len(set(tokens)) == len(tokens), f"live buffers share a token: {tokens}")


@SUITE.check
def check_buffers_start_uninitialised(device: hal.Device) -> None:
    """Reading an unwritten buffer is `GeneralFailure`, by `copy_to` and as an input."""
    with _buffers(device) as (case, prepared, allocate), Trial(case) as trial:
        token, buffer = allocate([("input", 0, 1.0)])
        size = case.inputs[0].nbytes
        with MemoryPool.anonymous(size) as pool, refused("copy_to", GeneralFailure):
            buffer.copy_to(pool.memory)
        with refused("an uninitialised input", GeneralFailure):
            prepared.execute(trial.with_argument(0, hal.TokenArgument(token)), PLAIN)


@SUITE.values
def check_buffers_carry_values(device: hal.Device) -> None:
    """A value copied in can be copied out and used as an input, and so can an output."""
    with _buffers(device) as (case, prepared, allocate), Trial(case) as trial:
        token, buffer = allocate([("input", 0, 1.0)])
        _fill(buffer, case)
        with _pool_of(case.inputs[0] * 0) as back:
            buffer.copy_to(back.memory)
            same = back.view(np.uint8, back.nbytes).tobytes() == case.inputs[0].tobytes()
            require(same, "other bytes come out than went in")
        result = prepared.execute(trial.with_argument(0, hal.TokenArgument(token)), PLAIN)
        trial.expect(device, result, "from a device buffer")


@SUITE.values
def check_buffers_carry_state(device: hal.Device) -> None:
    """An output in a buffer is an input of the next run, without leaving the device."""
    with _buffers(device, _feedback) as (case, prepared, allocate), Trial(case) as trial:
        token, _ = allocate([("output", 0, 1.0), ("input", 0, 1.0)])
        prepared.execute(trial.with_argument(len(trial.inputs), hal.TokenArgument(token)), PLAIN)
        trial.check_unwritten("instead of the buffer")
        result = prepared.execute(trial.with_argument(0, hal.TokenArgument(token)), PLAIN)
        with Trial(case, inputs=case.outputs) as other:
            wanted = other.run(prepared)
        trial.expect(device, result, "of a run on the output of another", wanted)


@SUITE.check
def check_buffers_that_are_written_serve_one_argument(device: hal.Device) -> None:
    """One buffer as input and output of a request is `InvalidArgument`."""
    with _buffers(device, _feedback) as (case, prepared, allocate), Trial(case) as trial:
        token, buffer = allocate([("output", 0, 1.0), ("input", 0, 1.0)])
        _fill(buffer, case)
        both = hal.TokenArgument(token)
        request = hal.Request((both,), (both,), trial.request.pools)
        with refused("a buffer as input and output of one run", InvalidArgument):
            prepared.execute(request, PLAIN)


@SUITE.check
def check_failed_runs_leave_buffers_uninitialised(device: hal.Device) -> None:
    """After a failed run its output buffer cannot be read."""
    with _buffers(device, _feedback) as (case, prepared, allocate), Trial(case) as trial:
        token, buffer = allocate([("output", 0, 1.0)])
        missing = (hal.Memory("no_such_memory", 0, trial.request.pools[0].size),)
        request = hal.Request(trial.request.inputs, (hal.TokenArgument(token),), missing)
        with refused("a run on unknown memory", GeneralFailure):
            prepared.execute(request, PLAIN)
        size = case.outputs[0].nbytes
        with MemoryPool.anonymous(size) as pool, refused("copy_to", GeneralFailure):
            buffer.copy_to(pool.memory)


@SUITE.check
def check_buffers_refuse_wrong_sizes(device: hal.Device) -> None:
    """Wrong sizes are `InvalidArgument`. A failed `copy_from` leaves the buffer without a value."""
    with _buffers(device) as (case, _, allocate):
        _, buffer = allocate([("input", 0, 1.0)])
        array = case.inputs[0]
        with MemoryPool.anonymous(array.nbytes + 4) as long, _pool_of(array) as right:
            buffer.copy_from(right.memory, array.shape)
            with refused("copy_to of another size", InvalidArgument):
                buffer.copy_to(long.memory)
            with refused("copy_from of another size", InvalidArgument):
                buffer.copy_from(long.memory, array.shape)
            with refused("copy_to after a failed copy_from", GeneralFailure):
                buffer.copy_to(right.memory)


@SUITE.check
def check_buffers_serve_their_roles_only(device: hal.Device) -> None:
    """A buffer for input 0 cannot be an output. One argument of a request may write a buffer."""
    with _buffers(device) as (case, prepared, allocate), Trial(case) as trial:
        token, buffer = allocate([("input", 0, 1.0)])
        _fill(buffer, case)
        argument = hal.TokenArgument(token)
        with refused("a buffer of an input as an output", InvalidArgument):
            prepared.execute(trial.with_argument(len(trial.inputs), argument), PLAIN)


@SUITE.check
def check_freed_tokens_are_refused(device: hal.Device) -> None:
    with _buffers(device) as (case, prepared, allocate), Trial(case) as trial:
        token, buffer = allocate([("input", 0, 1.0)])
        buffer.close()
        buffer.close()
        with refused("the token of a closed buffer", InvalidArgument):
            prepared.execute(trial.with_argument(0, hal.TokenArgument(token)), PLAIN)


def _feedback(device: hal.Device) -> Case:
    """A case with one input and one output of the same shape."""
    for case in static_cases(device):
        shapes = [a.shape for a in (*case.inputs, *case.outputs)]
        if len(shapes) == 2 and shapes[0] == shapes[1]:
            return case
    raise NotCovered("it supports no model of this suite with an output like its only input")


@contextmanager
def _buffers(
    device: hal.Device, choose: Callable[[hal.Device], Case] = one_case
) -> Iterator[tuple[Case, hal.PreparedModel, Callable[[Sequence[Role]], tuple[int, hal.Buffer]]]]:
    """A case, its prepared model, and a function that allocates buffers; closed at the end."""
    case = choose(device)
    made: list[hal.Buffer] = []
    with closing(prepare(device, case)) as prepared:

        def allocate(roles: Sequence[Role]) -> tuple[int, hal.Buffer]:
            wanted = [hal.BufferRole(prepared, kind, index, often) for kind, index, often in roles]
            try:
                token, buffer = device.allocate(hal.BufferDesc(), wanted)
            except GeneralFailure as error:
                raise NotCovered(f"it has no memory domains: {error}") from error
            made.append(buffer)
            return token, buffer

        try:
            yield case, prepared, allocate
        finally:
            for buffer in made:
                buffer.close()


def _fill(buffer: hal.Buffer, case: Case) -> None:
    """Copies the first input of *case* into *buffer*."""
    with _pool_of(case.inputs[0]) as pool:
        buffer.copy_from(pool.memory, case.inputs[0].shape)


@contextmanager
def _pool_of(array: Any) -> Iterator[MemoryPool]:
    with MemoryPool.anonymous(array.nbytes) as pool:
        pool.view(array.dtype, array.shape)[...] = array
        yield pool


@contextmanager
def _in_file(
    trial: Trial, offset: int, protection: int = PROT_READ | PROT_WRITE
) -> Iterator[tuple[hal.Memory, Callable[[], bytes]]]:
    """The pool of *trial* in a file at *offset*, and a function that reads its bytes."""
    content = trial.pool_bytes()
    with tempfile.TemporaryFile() as file:
        file.write(b"\xc3" * offset + content)
        file.flush()

        def read() -> bytes:
            file.seek(offset)
            return file.read()

        handle = MappedFd(file.fileno(), offset, protection)
        yield hal.Memory("mmap_fd", handle, len(content)), read


def _two_pools(trial: Trial, inputs: hal.Memory) -> hal.Request:
    """The request with its inputs in a separate pool."""
    moved = tuple(
        a for a in trial.request.inputs if isinstance(a, hal.PoolArgument | hal.HostMemory)
    )
    outputs = []
    for argument in trial.request.outputs:
        if isinstance(argument, hal.PoolArgument):
            place = replace(argument.location, pool=1)
            outputs.append(hal.PoolArgument(place, argument.dimensions))
    return hal.Request(moved, tuple(outputs), (inputs, *trial.request.pools))
