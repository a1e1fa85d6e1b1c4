"""Networks on engines: which devices share one, and its recorded cases run on them and judged."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pytest

import penstock
from penstock.hal import AccuracyClass, Device
from penstock.ir import Model
from penstock.ir.infer import infer_shapes
from penstock.partitioning.placement import place
from penstock.runtime.discovery import manager
from penstock.testing.doubles import SubsetDevice
from tests.conftest import CORPUS, NO_CORPUS
from tests.golden.arrays import golden
from tests.golden.cases import (
    Entry,
    Format,
    Kind,
    case_groups,
    entries,
    given_to_onnx,
    load,
    rule,
    shapes,
)
from tests.golden.detections import detecting
from tests.golden.engine_rules import judge, judged_of

ENGINES: Final = ("llvm", "xnnpack", "onnxruntime-cpu", "openvino-cpu")
ACCURACIES: Final[tuple[AccuracyClass, ...]] = ("exact", "faithful", "relaxed")
FORMATS: Final[tuple[Format, ...]] = ("tflite", "onnx")
REFERENCE: Final = "reference"

Arrangement: TypeAlias = Literal["first", "together", "alternating"]
"""One engine as the first choice with the reference behind it; all of them under the default
placement; or operations dealt out to the engines in turn, so that nearly every one is a boundary.
"""


def needs(*engines: str) -> None:
    """Skips the test where an engine is not usable here, saying why."""
    for engine in engines:
        device = manager.by_name(engine)
        if device is None:
            pytest.skip(f"the device {engine} is not usable here; `penstock devices` says why")


@dataclass(frozen=True)
class Arranged:
    """Devices in order of preference, and the placement rule that goes with the arrangement."""

    devices: tuple[Device, ...]
    placement: Literal["cost", "nnapi"]


def arranged(arrangement: Arrangement, engines: Sequence[str]) -> Arranged:
    found = [_device(name) for name in engines]
    reference = _device(REFERENCE)
    if arrangement == "alternating":
        return Arranged((*_in_turn(found), reference), "nnapi")
    placement: Literal["cost", "nnapi"] = "cost" if arrangement == "together" else "nnapi"
    return Arranged((*found, reference), placement)


def _device(name: str) -> Device:
    device = manager.by_name(name)
    if device is None:
        raise LookupError(name)
    return device


def _in_turn(devices: Sequence[Device]) -> list[Device]:
    """Each operation for one of *devices*, or for none of them: the reference runs it."""
    turns = len(devices) + 1

    def owner(model: Model, index: int) -> int:
        operation = model.operations[index]
        if operation.origin is not None:
            return operation.origin.index % turns
        # Operands keep their names when a model is cut, and their numbers not.
        return zlib.crc32(model.entry.operation_name(index).encode()) % turns

    return [
        SubsetDevice(device, device.name, lambda m, i, turn=turn: owner(m, i) == turn)  # type: ignore[misc]  # a default binds the loop's value
        for turn, device in enumerate(devices)
    ]


def check(entry: Entry, cases: list[dict[str, Any]], on: Arranged, accuracy: AccuracyClass) -> None:
    """Runs the cases of one group on *on*, without fallback, and judges each by the rule of
    *accuracy*.
    """
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    path = CORPUS / "models" / entry["file"]
    arrays = golden(CORPUS / "models" / entry["golden"]["file"])
    model, signature = load(path), cases[0].get("signature")
    lists = detecting(model) if accuracy == "faithful" else None
    model = model if lists is None else lists.model
    by_name = signature is not None or entry["format"] == "onnx"
    policy = penstock.Policy(accuracy=accuracy, placement=on.placement, allow_fallback=False)
    sizes = shapes(model, signature, cases[0].get("resize_inputs"))
    with penstock.compile(
        model,
        devices=on.devices,
        signature=signature,
        shapes=sizes,
        policy=policy,
        cache=False,
        num_threads=1,
    ) as net:
        for position, case in enumerate(cases):
            given = {k: arrays[f"{case['id']}/in/{k}"] for k in case["inputs"]}
            if entry["format"] == "onnx":
                given = {k: given_to_onnx(array) for k, array in given.items()}
            outputs = net.run(given if by_name else list(given.values()))
            got = [np.asarray(outputs[k if by_name else int(k)]) for k in case["outputs"]]
            judged = judged_of(entry, arrays, cases[: position + 1])
            try:
                judge(got, judged, accuracy)
            except AssertionError:
                if lists is None:
                    raise
                every = [[arrays[f"{c['id']}/in/{k}"] for k in c["inputs"]] for c in _all(entry)]
                results = [np.asarray(outputs[k]) for k in range(len(model.outputs))]
                lists.check(results, rule(entry), list(given.values()), every)


def _all(entry: Entry) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = entry["golden"]["cases"]
    return found


def shares(entry: Entry, engine: str, accuracy: AccuracyClass) -> Counter[str]:
    """How many operations of a network, in the shapes of its first case, the engine takes as first
    choice ("taken"), of how many ("all").
    """
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    model = load(CORPUS / "models" / entry["file"])
    cases = [c for c in entry["golden"]["cases"] if "signature" not in c]
    if cases:
        arrays = golden(CORPUS / "models" / entry["golden"]["file"])
        given = {int(k): arrays[f"{cases[0]['id']}/in/{k}"].shape for k in cases[0]["inputs"]}
        model = infer_shapes(model, given)
    devices = arranged("first", [engine]).devices
    plan = place(model, devices, penstock.Policy(accuracy=accuracy, placement="nnapi"))
    taken = sum(placement.device == engine for placement in plan.operations)
    return Counter({"taken": taken, "all": len(plan.operations)})


def groups_of(
    kind: Kind, formats: Sequence[Format] = FORMATS, most_macs: float = float("inf")
) -> Iterator[tuple[Entry, list[dict[str, Any]]]]:
    """Each group of cases of the files that are no larger."""
    for file_format in formats:
        for entry in entries(kind, file_format):
            if (entry.get("macs") or 0) <= most_macs:
                for cases in case_groups(entry).values():
                    yield entry, cases
