"""Networks of the corpus on the device `webgpu-software`: whether it runs one whole, and right."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import penstock
from penstock.errors import PenstockError
from tests.conftest import CORPUS, NO_CORPUS
from tests.golden.arrays import Golden, golden
from tests.golden.cases import Entry, case_groups, entries, given_to_onnx, load, shapes
from tests.golden.engine_gaps import ONNX_GAPS
from tests.golden.engine_grid import FORMATS, arranged
from tests.golden.engine_rules import judge, judged_of

DEVICE: Final = "webgpu-software"
SEED: Final = 10
HERE: Final = 12
LARGEST_HERE: Final = 8_000_000
"""Multiply-accumulates of the largest network that is tried outside the grid."""


def networks() -> list[Entry]:
    """Every network of the corpus that lowers, the smallest first."""
    found = [e for f in FORMATS for e in entries("network", f) if e["id"] not in ONNX_GAPS]
    return sorted(found, key=lambda e: ((e["macs"] or 0), e["id"]))


def parameters() -> Iterator[Any]:
    """A parameter for each network; a seeded dozen of the small ones outside the grid."""
    found = networks()
    small = [e["id"] for e in found if (e["macs"] or 0) <= LARGEST_HERE]
    drawn = sorted(small, key=lambda name: zlib.crc32(f"{SEED} {name}".encode()))[:HERE]
    for entry in found:
        marks = [] if entry["id"] in drawn else [pytest.mark.grid]
        yield pytest.param(entry, id=entry["id"], marks=marks)


def refusal(entry: Entry, *, cases: int | None = None) -> str | None:
    """Runs the first *cases* of each group of recorded cases (None: all) on the device alone, in
    the shapes of the first of them, and judges them by the rule of the class `exact`. Returns why
    the device does not take the network whole; None if it is whole and right. Raises
    `AssertionError` where an output is off.
    """
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    arrays = golden(CORPUS / "models" / entry["golden"]["file"])
    for group in case_groups(entry).values():
        first = group[0]
        sizes = {k: [*arrays[f"{first['id']}/in/{k}"].shape] for k in first["inputs"]}
        try:
            with compiled(entry, first.get("signature"), sizes) as net:
                for position in range(len(group[:cases])):
                    _judge(net, entry, arrays, group[: position + 1])
        except PenstockError as error:
            return f"{type(error).__name__}: {error}"
    return None


def compiled(
    entry: Entry, signature: str | None, sizes: dict[str, list[int]]
) -> penstock.CompiledModel:
    """A network on the device alone, for inputs of *sizes*."""
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    model = load(CORPUS / "models" / entry["file"])
    named = {k: tuple(size) for k, size in sizes.items()}
    return penstock.compile(
        model,
        devices=arranged("first", [DEVICE]).devices[:1],
        signature=signature,
        shapes=named if entry["format"] == "onnx" else shapes(model, signature, sizes),
        policy=penstock.Policy(accuracy="exact", allow_fallback=False),
        cache=False,
    )


def _judge(
    net: penstock.CompiledModel, entry: Entry, arrays: Golden, cases: list[dict[str, Any]]
) -> None:
    """Runs the last of *cases*, which follow each other, and judges it."""
    case = cases[-1]
    by_name = "signature" in case or entry["format"] == "onnx"
    given = {k: arrays[f"{case['id']}/in/{k}"] for k in case["inputs"]}
    if entry["format"] == "onnx":
        given = {k: given_to_onnx(array) for k, array in given.items()}
    outputs = net.run(given if by_name else list(given.values()))
    got = [np.asarray(outputs[k if by_name else int(k)]) for k in case["outputs"]]
    judge(got, judged_of(entry, arrays, cases), "exact")
