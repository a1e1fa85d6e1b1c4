"""docs/execution-modes.md: its code runs and prints what it says, and it speaks of what there
is.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import penstock
from penstock.execution.burst import Burst
from penstock.nnapi import get_default_loop_timeout, get_maximum_loop_timeout
from penstock.testing.devices import find_devices

PAGE_OF_DOMAINS = Path(__file__).resolve().parents[3] / "docs" / "memory-domains.md"
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "execution-modes.md").read_text("utf-8")


def test_every_argument_of_a_run_is_explained() -> None:
    bursts = set(inspect.signature(Burst.run).parameters) - {"self", "inputs", "named"}
    assert bursts == set(inspect.signature(penstock.CompiledModel.run).parameters) - {
        "self",
        "inputs",
    }
    for name in bursts:
        assert f"`{name}=" in PAGE or f"`{name}`" in PAGE, name


def test_the_numbers_are_those_of_the_code() -> None:
    assert (get_default_loop_timeout(), get_maximum_loop_timeout()) == (2 * 10**9, 15 * 10**9)
    assert "NNAPI's: 2 s unless set, 15 s at most" in PAGE


@pytest.mark.parametrize("driver", ["null", "sample", "reference", "lab"])
def test_no_built_in_driver_makes_runs_wait(driver: str) -> None:
    for device in find_devices(driver):
        assert device.capabilities.concurrent_executions == 0


def test_page_of_memory_domains_says_what_to_prefer() -> None:
    page = PAGE_OF_DOMAINS.read_text("utf-8")
    assert "For what the host reads or writes often, prefer a pool" in page
