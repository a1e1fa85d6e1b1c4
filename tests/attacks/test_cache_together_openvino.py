"""Late compilation with a real engine across processes: what one writes after its preparation, the
next one hits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.drivers.openvino.device import USES
from tests.support_openvino import needs_openvino
from tests.support_together import Child, children

pytestmark = needs_openvino

HIT = ("hit", "optimised", 0)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Child]]:
    with children(tmp_path, 3) as started:
        yield started


def opened(child: Child, mode: str) -> tuple[Any, ...]:
    found = child.ask("open", mode=mode, openvino=True)
    return found["outcome"], found["compiles"]


def test_openvino_next_process_hits_the_program_of_a_first_run(three: list[Child]) -> None:
    first, second, third = three
    assert opened(first, "first_run") == ("miss", 0)
    found = second.ask("compile", mode="first_run", openvino=True)
    assert (found["outcome"], found["compiles"], found["right"]) == ("miss", 1, True)
    assert found["reason"].startswith("NotYetWritten: ")
    assert f"process {first.pid}" in found["not_saved"]
    ran = first.ask("run")
    assert (ran["right"], ran["compiles"]) == (True, 1)
    assert second.compiled(mode="first_run", openvino=True) == HIT
    assert third.compiled(openvino=True) == HIT


def test_openvino_next_process_hits_the_program_that_use_improved(three: list[Child]) -> None:
    """Two improve one baseline at once; the third process hits what one of them wrote."""
    first, second, third = three
    assert opened(first, "staged") == ("miss", 1)
    assert opened(second, "staged") == ("hit", 0)
    assert third.compiled(mode="staged", openvino=True) == ("hit", "baseline", 0)
    for child in (first, second):
        child.send("run", times=USES)
    ran = [child.hear() for child in (first, second)]
    assert all(found["right"] for found in ran)
    assert third.compiled(mode="staged", openvino=True) == HIT
    assert third.compiled(openvino=True) == HIT


def test_a_dead_writer_is_taken_over(three: list[Child]) -> None:
    first, second, third = three
    assert opened(first, "first_run") == ("miss", 0)
    first.kill()
    outcome, reason, compiles = second.compiled(openvino=True)
    assert (outcome, compiles) == ("miss", 1)
    assert reason.startswith("NotYetWritten: ")
    assert third.compiled(openvino=True) == HIT
