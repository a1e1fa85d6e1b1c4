"""The scenarios that NNAPI's VTS has for executions with a buffer (MemoryDomainExecutionTest),
under its names, in every way to execute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final, Literal, TypeAlias

from penstock.errors import DriverError, GeneralFailure, InvalidArgument
from penstock.hal import Device, PreparedModel, Request, RequestArgument, TokenArgument
from penstock.testing.contract.memory_domains.bench import (
    KINDS,
    LIMIT,
    Bench,
    adding,
    bench,
    prepare,
)
from penstock.testing.contract.promise import Check, NotCovered, refused, require
from penstock.testing.contract.trial import PLAIN

Mode: TypeAlias = Literal["sync", "async", "fenced", "burst", "reusable"]

MODES: Final[tuple[Mode, ...]] = ("sync", "async", "fenced", "burst", "reusable")

Scenario: TypeAlias = Callable[[Bench, Callable[[Request], None]], None]


def _invalid_token(on: Bench, run: Callable[[Request], None]) -> None:
    token, buffer = on.allocate([on.input()])
    on.write(buffer, on.values())
    for wrong in (0, -1, token + 1, 1 << 30):
        _refuse_run(on, run, f"token {wrong}", TokenArgument(wrong), None, None)
        _refuse_run(on, run, f"token {wrong}", None, None, TokenArgument(wrong))


def _invalid_prepared_model(on: Bench, run: Callable[[Request], None]) -> None:
    # Of a model that is the same a driver may have one prepared form for everybody.
    model = adding(on.dtype, dict(KINDS)[on.dtype], on.shape, "MUL")
    with closing(prepare(on.device, model)) as other:
        token, buffer = on.allocate([(other, "input", 0)])
        on.write(buffer, on.values())
        _refuse_run(on, run, "another model's buffer", TokenArgument(token), None, None)
        token, _ = on.allocate([(other, "output", 0)])
        _refuse_run(on, run, "another model's buffer", None, None, TokenArgument(token))


def _invalid_io_index(on: Bench, run: Callable[[Request], None]) -> None:
    token, buffer = on.allocate([on.input(0)])
    on.write(buffer, on.values())
    _refuse_run(on, run, "the buffer of input 0 as input 1", None, TokenArgument(token), None)


def _invalid_io_type(on: Bench, run: Callable[[Request], None]) -> None:
    for_output, buffer = on.allocate([on.output])
    on.write(buffer, on.values())
    _refuse_run(on, run, "an output's buffer as an input", TokenArgument(for_output), None, None)
    for_input, _ = on.allocate([on.input()])
    _refuse_run(on, run, "an input's buffer as an output", None, None, TokenArgument(for_input))


def _uninitialized_memory(on: Bench, run: Callable[[Request], None]) -> None:
    token, buffer = on.allocate([on.input()])
    never = "a buffer never written"
    _refuse_run(on, run, never, TokenArgument(token), None, None, error=GeneralFailure)
    on.write(buffer, on.values())
    with on.request(TokenArgument(token), None, None) as request:
        run(request)


def _same_request_multiple_roles(on: Bench, run: Callable[[Request], None]) -> None:
    token, buffer = on.allocate([on.input(0), on.input(1), on.output])
    on.write(buffer, on.values())
    same = TokenArgument(token)
    _refuse_run(on, run, "a buffer as input 0 and output", same, None, same)
    _refuse_run(on, run, "a buffer as input 1 and output", None, same, same)
    with on.request(same, same, None) as request:
        run(request)


def _invalid_dimensions(on: Bench, run: Callable[[Request], None]) -> None:
    token, buffer = on.allocate([on.input()])
    on.write(buffer, on.values())
    other, _ = on.allocate([on.output])
    for dimensions in ((*on.shape[:-1], on.shape[-1] // 2), on.shape[1:]):
        _refuse_run(on, run, "other dimensions", TokenArgument(token, dimensions), None, None)
        _refuse_run(on, run, "other dimensions", None, None, TokenArgument(other, dimensions))
    with on.request(
        TokenArgument(token, on.shape), None, TokenArgument(other, on.shape)
    ) as request:
        run(request)


def _refuse_run(
    on: Bench,
    run: Callable[[Request], None],
    what: str,
    *arguments: RequestArgument | None,
    error: type[DriverError] = InvalidArgument,
) -> None:
    with on.request(*arguments) as request, refused(f"{on.dtype.value}, {what}", error):
        run(request)


SCENARIOS: Final[dict[str, Scenario]] = {
    "invalid_token": _invalid_token,
    "invalid_prepared_model": _invalid_prepared_model,
    "invalid_io_index": _invalid_io_index,
    "invalid_io_type": _invalid_io_type,
    "uninitialized_memory": _uninitialized_memory,
    "same_request_multiple_roles": _same_request_multiple_roles,
    "invalid_dimensions": _invalid_dimensions,
}
"""VTS's MemoryDomainExecutionTest, by name."""


def _execution_check(name: str, mode: Mode) -> Check:
    def check(device: Device) -> None:
        reason: NotCovered | None = None
        covered = False
        for kind in KINDS:
            try:
                with bench(device, kind) as on:
                    SCENARIOS[name](on, partial(_run, on.prepared, mode))
                    covered = True
            except NotCovered as why:
                reason = why
        if not covered and reason is not None:
            raise reason

    upstream = "".join(word.capitalize() for word in name.split("_")).replace("Io", "IO")
    check.__name__ = check.__qualname__ = f"check_execution_{name}_{mode}"
    check.__doc__ = (
        f"MemoryDomainExecutionTest.{upstream} ({mode}), in every element type that it supports."
    )
    return check


def _run(prepared: PreparedModel, mode: Mode, request: Request) -> None:
    """Executes *request* in that manner; raises its error."""
    if mode == "sync":
        prepared.execute(request, PLAIN)
    elif mode == "async":
        _run_in_a_thread(prepared, request)
    elif mode == "fenced":
        fence = prepared.execute_fenced(request, [], PLAIN)
        require(fence.wait(int(LIMIT * 1e9)), "the fence never signals")
        if (error := fence.error()) is not None:
            raise error
    elif mode == "burst":
        with closing(prepared.configure_burst()) as burst:
            burst.execute(request, PLAIN)
    else:
        with closing(prepared.create_reusable_execution(request)) as execution:
            execution.execute(PLAIN)


def _run_in_a_thread(prepared: PreparedModel, request: Request) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            prepared.execute(request, PLAIN)
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    require(not thread.is_alive(), "an execution did not end")
    if raised:
        raise raised[0]


CHECKS: Final[tuple[Check, ...]] = tuple(
    _execution_check(name, mode) for name in SCENARIOS for mode in MODES
)
