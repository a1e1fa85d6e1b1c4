"""Sends what a test process reports of one test as one message.

With xdist a process reports the start, the three phases and the end of each test one by one, and
wakes the process that collects the reports each time. Most tests take less time than that. Here the
events of a test wait for its last one, which tells that the test is complete. Where the process
dies first, xdist names the test that was not complete.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pytest

Event: TypeAlias = tuple[str, dict[str, Any]]

FIRST: Final = {"logstart", "testreport", "logfinish"}
"""Events of a test before its last one."""

LAST: Final = "runtest_protocol_complete"
TOGETHER: Final = "together"


class Together:
    """In place of `WorkerInteractor.sendevent` of xdist: one message for all events of a test."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        self._send = send
        self._waiting: list[Event] = []

    def __call__(self, name: str, **values: Any) -> None:
        event = name, values
        if name in FIRST:
            self._waiting.append(event)
        elif name == LAST:
            # execnet sends values of Python's own types alone, and so can `marshal`, sooner.
            self._send((TOGETHER, {"events": marshal.dumps([*self._waiting, event])}))
            self._waiting = []
        else:
            self._send(event)


def apart(receive: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """*receive*, a method that takes one event, also of a message that has several."""

    def received(self: Any, event: Any) -> None:
        if isinstance(event, tuple) and event[0] == TOGETHER:
            for one in marshal.loads(event[1]["events"]):
                receive(self, one)
        else:
            receive(self, event)

    return received


def send_together(config: pytest.Config) -> None:
    """Lets a test process send the events of each test together, and its parent take them."""
    if hasattr(config, "workerinput"):
        for plugin in config.pluginmanager.get_plugins():
            # xdist sends the source of this class, which no module has here.
            if type(plugin).__name__ == "WorkerInteractor":
                vars(plugin)["sendevent"] = Together(vars(plugin)["channel"].send)
    elif config.pluginmanager.hasplugin("dsession"):
        from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

        received = apart(WorkerController.process_from_remote)
        WorkerController.process_from_remote = received
