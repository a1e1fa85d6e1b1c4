"""GeneratedTest, by operation, on every driver that computes, in this process and in one of their
own: a case of float32 and one of 8 bits, or of another type where there is neither.
`tests/soak/soak_vectors.py` has every run of every case.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from penstock.hal import Device
from penstock.nnapi.lowering.registry import rules
from penstock.testing.vectors import Case, load_directory
from penstock.testing.vectors.derive import plain_run
from penstock.testing.vectors.runner import run_one
from tests.conformance.drivers import QUICK, WRAPPERS, unusable

SEED = 1
KINDS = ("TENSOR_FLOAT32", "TENSOR_QUANT8")


@pytest.fixture(scope="module")
def cases(corpus: Path) -> dict[str, list[Case]]:
    """By operation, a case of each kind of its first input; nothing else occurs there, where there
    is such a case.
    """
    directory = corpus / "conformance" / "nnapi"
    if not directory.is_dir():
        pytest.skip("the corpus has no conformance/nnapi")
    found: dict[str, dict[str, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for specification in load_directory(directory):
        for case in specification.cases:
            main = case.entry.main
            first = main.operands[main.inputs[0]].type if main.inputs else ""
            kind = next((k for k in KINDS if first.startswith(k)), "")
            for operation in case.operations:
                found[operation][kind].append(case)
    return {
        operation: [
            min(alike, key=lambda c: (len(c.operations), zlib.crc32(f"{SEED} {c.name}".encode())))
            for kind, alike in kinds.items()
            if kind or len(kinds) == 1
        ]
        for operation, kinds in found.items()
    }


@pytest.fixture(scope="module")
def opened() -> Iterator[Callable[[str, str], Device]]:
    """The device of a wrapper and a driver, opened at its first use."""
    with ExitStack() as stack:
        yield cache(lambda wrapper, driver: stack.enter_context(WRAPPERS[wrapper](driver)))


@pytest.mark.parametrize("operation", sorted(rules()))
@pytest.mark.parametrize("driver", QUICK)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_generated(
    wrapper: str,
    driver: str,
    operation: str,
    cases: dict[str, list[Case]],
    opened: Callable[[str, str], Device],
) -> None:
    if (reason := unusable(driver)) is not None:
        pytest.skip(reason)
    device = opened(wrapper, driver)
    pools = not device.capabilities.accepts_host_memory
    results = [run_one(plain_run(case), device, pools=pools) for case in cases[operation]]
    assert results
    assert [f"{r.case}: {r.message}" for r in results if r.outcome == "failed"] == []
    if all(result.outcome == "not_covered" for result in results):
        pytest.skip("; ".join(dict.fromkeys(result.message for result in results)))
