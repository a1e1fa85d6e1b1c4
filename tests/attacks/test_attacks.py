"""No attack crashes, hangs or exhausts the loader: each is refused by name, or loads cheaply."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from penstock import knobs, loaders
from penstock.errors import ModelError
from tests.attacks.attacks import ATTACKS

SECONDS = 5.0
"""Of the processor: what else the machine does does not count."""

BYTES_PER_BYTE = 48
ALLOWANCE = 4 << 20
"""What SECURITY.md promises of the memory that loading takes."""

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_by_name_or_loads_cheaply(name: str) -> None:
    build, errors = ATTACKS[name]
    content = build()
    with knobs.override(densify_limit_mib=1, metadata_limit_mib=1):
        begun = time.process_time()
        defect = defect_of(content)
        elapsed = time.process_time() - begun
        # What traces memory makes the load several times as slow.
        tracemalloc.start()
        try:
            defect_of(content)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (None if defect is None else type(defect)) in (errors or (None,)), defect
    assert elapsed < SECONDS
    assert peak < BYTES_PER_BYTE * len(content) + ALLOWANCE


def defect_of(content: bytes) -> ModelError | None:
    try:
        loaders.load(content)
    except ModelError as error:
        return error
    return None
