"""Every recorded case through every door, judged by the accuracy class that the door promises.

Each unit goes through every sixth door here, each time through others, and through the rest in the
grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.golden.cases import Entry
from tests.golden.doors import DOORS, Door, check_door
from tests.golden.engine_gaps import ONNX_GAPS
from tests.golden.engine_grid import ENGINES, groups_of, needs

LARGEST_HERE: Final = 20_000_000
"""Multiply-accumulates of the largest network that is run outside the grid."""

TURNS: Final = 6
"""Of as many doors, a unit goes through one outside the grid."""


def _parameters() -> Iterator[Any]:
    for kind in ("unit", "network"):
        for number, (entry, cases) in enumerate(groups_of(kind)):
            if entry["id"] in ONNX_GAPS:
                continue
            is_large = (entry.get("macs") or 0) > LARGEST_HERE
            for position, door in enumerate(DOORS):
                if door.takes(entry, cases):
                    is_dealt = kind == "network" or (number + position) % TURNS == 0
                    marks = [pytest.mark.grid] if is_large or not is_dealt else []
                    name = f"{entry['id']}-{cases[0]['group']}-{door.name}"
                    yield pytest.param(entry, cases, door, id=name, marks=marks)


@pytest.mark.parametrize(("entry", "cases", "door"), [*_parameters()])
def test_recorded_cases(entry: Entry, cases: list[dict[str, Any]], door: Door) -> None:
    needs(*ENGINES)
    assert check_door(door, entry, cases) > 0
