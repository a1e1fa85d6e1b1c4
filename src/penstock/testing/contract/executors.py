"""The ways in which a prepared model executes a request (NNAPI section 5.4: executor x reusable)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.hal import ExecutionConfig, ExecutionResult, PreparedModel, Request
from penstock.testing.contract.promise import require

Execute: TypeAlias = Callable[[PreparedModel, Request, ExecutionConfig], ExecutionResult]

PATIENCE_NS: Final = 60 * 10**9
"""How long a fence may take on a loaded machine before it counts as never signalled."""


class Executor(Struct, frozen=True):
    """One way to execute: its *name*, and what does it, raising the driver's error. *fenced* ones
    take no outputs of unknown shape, and tell no times.
    """

    name: str
    execute: Execute
    fenced: bool = False


def _sync(prepared: PreparedModel, request: Request, config: ExecutionConfig) -> ExecutionResult:
    return prepared.execute(request, config)


def _burst(prepared: PreparedModel, request: Request, config: ExecutionConfig) -> ExecutionResult:
    with closing(prepared.configure_burst()) as burst:
        return burst.execute(request, config)


def _reusable(
    prepared: PreparedModel, request: Request, config: ExecutionConfig
) -> ExecutionResult:
    """Twice, so that it is one that was used."""
    with closing(prepared.create_reusable_execution(request)) as execution:
        execution.execute(config)
        return execution.execute(config)


def _fenced(prepared: PreparedModel, request: Request, config: ExecutionConfig) -> ExecutionResult:
    fence = prepared.execute_fenced(request, [], config)
    require(fence.wait(PATIENCE_NS), "the fence of an execution never signals")
    if (error := fence.error()) is not None:
        raise error
    return ExecutionResult()


def _elsewhere(execute: Execute) -> Execute:
    """*execute* in a thread of its own, as an asynchronous execution."""

    def run(prepared: PreparedModel, request: Request, config: ExecutionConfig) -> ExecutionResult:
        found: list[ExecutionResult] = []
        raised: list[BaseException] = []

        def work() -> None:
            try:
                found.append(execute(prepared, request, config))
            except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
                raised.append(error)

        thread = threading.Thread(target=work, name="contract-executor")
        thread.start()
        thread.join()
        if raised:
            raise raised[0]
        return found[0]

    return run


SYNC: Final = Executor("sync", _sync)
ASYNC: Final = Executor("async", _elsewhere(_sync))
BURST: Final = Executor("burst", _burst)
FENCED: Final = Executor("fenced", _fenced, fenced=True)
REUSABLE: Final = Executor("reusable", _reusable)
REUSABLE_ASYNC: Final = Executor("reusable async", _elsewhere(_reusable))

EXECUTORS: Final = (SYNC, ASYNC, BURST, FENCED, REUSABLE, REUSABLE_ASYNC)
