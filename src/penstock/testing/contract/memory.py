"""Pools of every kind, and driver-managed buffers (NNAPI sections 6.3 to 6.7)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock import hal
from penstock.errors import GeneralFailure, InvalidArgument
from penstock.memory import PROT_READ, PROT_WRITE, MappedFd, MemoryPool
from penstock.testing.contract.cases import Case, first_case, static_cases
from penstock.testing.contract.promise import NotCovered, Suite, allowed, refused, require
from penstock.testing.contract.trial import Trial, each_prepared, prepare, ready

SUITE: Final = Suite("memory", "memory", "Buffer", shares=True)

Side: TypeAlias = Literal["input", "output"]
Allocate: TypeAlias = Callable[..., tuple[hal.TokenArgument, hal.Buffer]]
"""Allocates a buffer for the first input, the first output, or both; closed with the model."""


@SUITE.values
def check_pools_in_files(device: hal.Device) -> None:
    """`mmap_fd` accepts any offset into a file, page-aligned or not."""
    for on in each_prepared(device, static_cases(device)):
        for offset in (0, 8, 4096, 65536 + 24):
            with on.trial() as trial, _in_file(trial, offset) as (memory, content):
                result = trial.execute(replace(trial.request, pools=(memory,)))
                trial.take(content())
                trial.expect(result, f"at byte {offset} of a file")


@SUITE.values
def check_read_only_pools_for_inputs(device: hal.Device) -> None:
    """A pool of inputs may be read-only."""
    with ready(device) as trial, _in_file(trial, 0, PROT_READ) as (memory, _):
        outputs = tuple(
            hal.PoolArgument(replace(a.location, pool=1), a.dimensions)
            for a in trial.request.outputs
            if isinstance(a, hal.PoolArgument)
        )
        pools = memory, *trial.request.pools
        request = replace(trial.request, outputs=outputs, pools=pools)
        trial.check("from a read-only pool", request)


@SUITE.values
def check_read_only_pools_for_outputs(device: hal.Device) -> None:
    """An output in read-only memory raises an error of the HAL."""
    with ready(device) as trial, _in_file(trial, 0, PROT_READ) as (memory, content):
        before = content()
        with refused("an output in read-only memory", InvalidArgument, GeneralFailure):
            trial.execute(replace(trial.request, pools=(memory,)))
        require(content() == before, "read-only memory was written")


@SUITE.values
def check_pools_may_be_closed_after_a_run(device: hal.Device) -> None:
    """After a call has returned, the driver does not access its pools."""
    with prepare(device) as on:
        for _ in range(3):
            on.check("of a pool of its own")


@SUITE.check
def check_allocate_without_domains(device: hal.Device) -> None:
    """A device without memory domains rejects valid requests for buffers: `GeneralFailure`."""
    with prepare(device) as on:
        with allowed("a valid role", GeneralFailure) as refusals:
            _, buffer = device.allocate(hal.BufferDesc(), [hal.BufferRole(on.prepared, "input", 0)])
        if not refusals:
            buffer.close()
            raise NotCovered("it has memory domains")


@SUITE.check
def check_allocate_refuses_bad_roles(device: hal.Device) -> None:
    """Invalid roles are `InvalidArgument` (or `GeneralFailure` for a device without domains).

    Tried: no roles, unknown models, indexes out of range, frequencies outside (0, 1], a repeated
    role, contradictory dimensions.
    """
    with prepare(device) as on:
        inputs, outputs, shape = len(on.case.inputs), len(on.case.outputs), on.case.inputs[0].shape
        good = hal.BufferRole(on.prepared, "input", 0)
        for what, dimensions, roles in (
            ("no roles", (), ()),
            ("input out of range", (), (replace(good, index=inputs),)),
            ("output out of range", (), (replace(good, kind="output", index=outputs),)),
            ("negative index", (), (replace(good, index=-1),)),
            ("frequency 10", (), (replace(good, frequency=10.0),)),
            ("frequency 0", (), (replace(good, frequency=0.0),)),
            ("frequency -0.5", (), (replace(good, frequency=-0.5),)),
            ("a role twice", (), (good, good)),
            ("another rank", (1, *shape), (good,)),
            ("another dimension", (*shape[:-1], shape[-1] + 1), (good,)),
        ):
            with refused(f"a buffer for {what}", InvalidArgument, GeneralFailure):
                device.allocate(hal.BufferDesc(dimensions), roles)


@SUITE.check
def check_tokens_of_live_buffers_differ(device: hal.Device) -> None:
    """Tokens are positive; no two live buffers have the same token."""
    with _buffers(device) as (_, allocate):
        tokens = [allocate("input")[0].token for _ in range(4)]
        require(all(t > 0 for t in tokens), f"tokens {tokens}")
        require(len(set(tokens)) == len(tokens), f"live buffers share a token: {tokens}")


@SUITE.check
def check_buffers_start_uninitialised(device: hal.Device) -> None:
    """Reading an unwritten buffer is `GeneralFailure`, by `copy_to` and as an input."""
    with _buffers(device) as (trial, allocate):
        token, buffer = allocate("input")
        _refuse_copy_to(buffer, trial.case.inputs[0].nbytes)
        with refused("an uninitialised input", GeneralFailure):
            trial.execute(trial.with_argument(0, token))


@SUITE.values
def check_buffers_carry_values(device: hal.Device) -> None:
    """A value copied in can be copied out and used as an input, and so can an output."""
    with _buffers(device) as (trial, allocate):
        value = trial.case.inputs[0]
        token, buffer = allocate("input")
        _fill(buffer, trial.case)
        with _pool_of(value * 0) as back:
            buffer.copy_to(back.memory)
            same = back.view(np.uint8, back.nbytes).tobytes() == value.tobytes()
            require(same, "other bytes come out than went in")
        trial.check("from a device buffer", trial.with_argument(0, token))


@SUITE.values
def check_buffers_carry_state(device: hal.Device) -> None:
    """An output in a buffer is an input of the next run, without leaving the device."""
    with _buffers(device, _feedback(device)) as (trial, allocate):
        token, _ = allocate("output", "input")
        trial.execute(trial.with_argument(len(trial.inputs), token))
        trial.check_unwritten("instead of the buffer")
        result = trial.execute(trial.with_argument(0, token))
        with trial.on.trial(inputs=trial.case.outputs) as other:
            wanted = other.run(trial.on.prepared)
        trial.expect(result, "of a run on the output of another", wanted)


@SUITE.check
def check_buffers_that_are_written_serve_one_argument(device: hal.Device) -> None:
    """One buffer as input and output of a request is `InvalidArgument`."""
    with _buffers(device, _feedback(device)) as (trial, allocate):
        token, buffer = allocate("output", "input")
        _fill(buffer, trial.case)
        with refused("a buffer as input and output of one run", InvalidArgument):
            trial.execute(replace(trial.request, inputs=(token,), outputs=(token,)))


@SUITE.check
def check_failed_runs_leave_buffers_uninitialised(device: hal.Device) -> None:
    """After a failed run its output buffer cannot be read."""
    with _buffers(device, _feedback(device)) as (trial, allocate):
        token, buffer = allocate("output")
        missing = (hal.Memory("no_such_memory", 0, trial.request.pools[0].size),)
        with refused("a run on unknown memory", GeneralFailure):
            trial.execute(replace(trial.request, outputs=(token,), pools=missing))
        _refuse_copy_to(buffer, trial.case.outputs[0].nbytes)


@SUITE.check
def check_buffers_refuse_wrong_sizes(device: hal.Device) -> None:
    """Wrong sizes are `InvalidArgument`. A failed `copy_from` leaves the buffer without a value."""
    with _buffers(device) as (trial, allocate):
        _, buffer = allocate("input")
        array = trial.case.inputs[0]
        with MemoryPool.anonymous(array.nbytes + 4) as long:
            _fill(buffer, trial.case)
            with refused("copy_to of another size", InvalidArgument):
                buffer.copy_to(long.memory)
            with refused("copy_from of another size", InvalidArgument):
                buffer.copy_from(long.memory, array.shape)
        _refuse_copy_to(buffer, array.nbytes)


@SUITE.check
def check_buffers_serve_their_roles_only(device: hal.Device) -> None:
    """A buffer for input 0 cannot be an output. One argument of a request may write a buffer."""
    with _buffers(device) as (trial, allocate):
        token, buffer = allocate("input")
        _fill(buffer, trial.case)
        with refused("a buffer of an input as an output", InvalidArgument):
            trial.execute(trial.with_argument(len(trial.inputs), token))


@SUITE.check
def check_freed_tokens_are_refused(device: hal.Device) -> None:
    with _buffers(device) as (trial, allocate):
        token, buffer = allocate("input")
        buffer.close()
        buffer.close()
        with refused("the token of a closed buffer", InvalidArgument):
            trial.execute(trial.with_argument(0, token))


def _feedback(device: hal.Device) -> Case:
    return first_case(device, _feeds_back, "with an output like its only input")


def _feeds_back(case: Case) -> bool:
    """Whether it has one input and one output, of the same shape."""
    shapes = [a.shape for a in (*case.inputs, *case.outputs)]
    return len(shapes) == 2 and shapes[0] == shapes[1]


@contextmanager
def _buffers(device: hal.Device, case: Case | None = None) -> Iterator[tuple[Trial, Allocate]]:
    """A trial of *case*, and a function that allocates buffers."""
    made: list[hal.Buffer] = []
    with ready(device, case) as trial:

        def allocate(*sides: Side) -> tuple[hal.TokenArgument, hal.Buffer]:
            roles = [hal.BufferRole(trial.on.prepared, side, 0) for side in sides]
            try:
                token, buffer = device.allocate(hal.BufferDesc(), roles)
            except GeneralFailure as error:
                raise NotCovered(f"it has no memory domains: {error}") from error
            made.append(buffer)
            return hal.TokenArgument(token), buffer

        try:
            yield trial, allocate
        finally:
            for buffer in made:
                buffer.close()


def _fill(buffer: hal.Buffer, case: Case) -> None:
    """Copies the first input of *case* into *buffer*."""
    with _pool_of(case.inputs[0]) as pool:
        buffer.copy_from(pool.memory, case.inputs[0].shape)


def _refuse_copy_to(buffer: hal.Buffer, nbytes: int) -> None:
    """*buffer* must have no value."""
    with MemoryPool.anonymous(nbytes) as pool, refused("copy_to of nothing", GeneralFailure):
        buffer.copy_to(pool.memory)


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
