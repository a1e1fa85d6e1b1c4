"""What devices declare, held to on inputs that nobody recorded: a few here, 150 of each network in
the soak.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden.cases import Entry, entries
from tests.golden.crop_rules import SETS, check_operations_on_crops, check_whole_on_crops
from tests.golden.crops import drawn, is_of_pictures
from tests.golden.engine_grid import ENGINES, needs

COUNT = 2
"""Inputs of each network here."""

LARGEST_HERE = 15_000_000
"""Multiply-accumulates of the largest network that is run outside the grid."""


def quantized() -> list[Any]:
    """The corpus's 8-bit networks."""
    return [
        pytest.param(
            entry,
            id=entry["id"],
            marks=[pytest.mark.grid] if (entry["macs"] or 0) > LARGEST_HERE else [],
        )
        for entry in entries("network")
        if entry["dtype_scheme"] in {"int8", "uint8"}
    ]


@pytest.mark.parametrize("entry", quantized())
def test_every_operation_keeps_the_class_that_its_device_declares(entry: Entry) -> None:
    needs(*ENGINES)
    found = check_operations_on_crops(entry, COUNT)
    assert found.departures == []
    assert found.compared > 0


@pytest.mark.parametrize("entry", quantized())
def test_faithful_plans_lie_no_farther_off_than_litert(entry: Entry) -> None:
    needs(*ENGINES)
    found = check_whole_on_crops(entry, COUNT)
    assert found.departures == []
    assert found.compared == COUNT * len(SETS)


def test_crops_of_a_network_are_distinct_and_the_same_again() -> None:
    every = [entry for entry in entries("network") if is_of_pictures(entry)]
    if not every:
        pytest.skip("no test corpus (PENSTOCK_CORPUS)")
    for entry in every[:3]:
        crops = [drawn(entry, number)[0].tobytes() for number in range(COUNT)]
        assert len(set(crops)) == COUNT
        assert crops == [drawn(entry, number)[0].tobytes() for number in range(COUNT)]
