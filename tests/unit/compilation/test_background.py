"""Compiles in the background whose drivers do not stop when they are told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock import Policy
from penstock.compilation import prepared
from penstock.compilation.prepared import PendingStep
from penstock.execution import executable
from penstock.hal import PrepareConfig
from tests.support_caching import CachingDevice
from tests.unit.partitioning.models import chain

PATIENCE_S = 30
MODEL = chain(("ADD",))
MEANWHILE = Policy(while_compiling="reference")


class Stubborn:
    """A compile that looks at no token, until it is let go; each made is kept, with whether it was
    closed.
    """

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self.closed = threading.Event()

    def __call__(self, _: PrepareConfig) -> Any:
        self.begun.release()
        assert self.go_on.wait(PATIENCE_S)
        return self

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def stubborn() -> Iterator[Stubborn]:
    made = Stubborn()
    yield made
    made.go_on.set()


def takes(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_closing_leaves_what_does_not_stop_and_closes_what_it_makes_later(
    stubborn: Stubborn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prepared, "CLOSE_SECONDS", 0.05)
    pending = PendingStep(stubborn, PrepareConfig(), "0-stubborn")
    assert 0.04 <= takes(pending.close) < 5
    assert "goes on" in caplog.text
    assert not stubborn.closed.is_set()
    stubborn.go_on.set()
    assert pending.wait(PATIENCE_S)
    assert stubborn.closed.is_set()


def test_stop_waits_at_most_until_its_deadline(stubborn: Stubborn) -> None:
    pending = PendingStep(stubborn, PrepareConfig(), "0-stubborn")
    pending.stop(time.monotonic() + 0.05)
    pending.stop(time.monotonic() + PATIENCE_S)
    assert takes(pending.close) < 5


def test_stop_closes_a_finished_step_at_once(stubborn: Stubborn) -> None:
    stubborn.go_on.set()
    pending = PendingStep(stubborn, PrepareConfig(), "0-stubborn")
    assert pending.wait(PATIENCE_S)
    assert pending.result is stubborn  # type: ignore[comparison-overlap]  # a double
    pending.close()
    assert stubborn.closed.is_set()


def test_a_compiled_model_is_closed_while_its_compile_goes_on(
    stubborn: Stubborn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its compiles have that long together."""
    monkeypatch.setattr(executable, "CLOSE_SECONDS", 0.2)
    device = CachingDevice(on_prepare=stubborn, kinds=frozenset({"ADD"}))
    model = penstock.compile(
        chain(("ADD", "RELU", "ADD")), devices=[device, "reference"], cache=False, policy=MEANWHILE
    )
    pendings = [step.pending for step in model.executable.base.compilation.steps if step.pending]
    assert len(pendings) == 2
    for _ in pendings:
        assert stubborn.begun.acquire(timeout=PATIENCE_S)
    assert 0.1 <= takes(model.close) < 5
    assert not any(pending.done for pending in pendings)
    stubborn.go_on.set()
    assert all(pending.wait(PATIENCE_S) for pending in pendings)
    assert all(pending.result is not None for pending in pendings)


def test_a_compile_that_fails_leaves_what_it_began(
    stubborn: Stubborn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "CLOSE_SECONDS", 0.1)
    device = CachingDevice(on_prepare=stubborn)

    class Mine(Exception):
        pass

    def complain(event: penstock.ProgressEvent) -> None:
        if event.done == event.total:
            raise Mine

    def compile_it() -> None:
        with pytest.raises(Mine):
            penstock.compile(
                MODEL, devices=[device], cache=False, policy=MEANWHILE, progress=complain
            )

    assert takes(compile_it) < 5
