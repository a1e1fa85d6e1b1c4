"""Damaged messages, as tests/soak/soak_wire.py makes many more of."""

from __future__ import annotations

import logging
import random

import pytest

from tests.soak.wire_mutation import Device, try_decoders, try_host
from tests.support_waiting import descriptors, eventually, steady, tasks


def test_decoders_give_a_message_or_refuse() -> None:
    outcomes = {try_decoders(random.Random(f"test/{n}")) for n in range(3000)}
    assert outcomes == {"decoded", "refused"}


def test_a_dispatcher_answers_or_fails_by_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    device = Device()
    outcomes = {device.try_call(random.Random(f"test/{n}")) for n in range(1500)}
    device.close()
    assert outcomes == {"answered", "failed"}


def test_a_host_takes_or_ends_a_connection_and_leaves_nothing() -> None:
    try_host(random.Random("test"))
    threads, before = steady(tasks), steady(descriptors)
    for number in range(60):
        try_host(random.Random(f"test/{number}"))
    # A host's threads close what they have after the connection.
    assert eventually(lambda: tasks() <= threads)
    assert eventually(lambda: descriptors() <= before)
