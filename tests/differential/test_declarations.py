"""What drivers declare holds on drawn operations: a short seeded share of
`tests/soak/soak_declarations.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.hal import Device, Support
from penstock.ir import DType, Model
from penstock.runtime.discovery import manager
from tests.differential import declarations
from tests.differential.declarations import Declarations, judged
from tests.differential.draw import Draw
from tests.differential.kinds import GENERAL, Kind
from tests.differential.registry import draw_single, every_case
from tests.golden.engine_grid import ENGINES
from tests.support_litert import q

MODELS = 30
"""Judged in each kind; of operations in turn."""


@pytest.fixture(scope="module")
def engines() -> Iterator[Declarations]:
    if missing := [engine for engine in ENGINES if manager.by_name(engine) is None]:
        pytest.skip(f"not usable here: {', '.join(missing)}")
    with Declarations() as running:
        yield running


@pytest.mark.parametrize("kind", [None, *GENERAL], ids=lambda kind: kind.name if kind else "usual")
def test_operations_keep_the_class_that_is_declared(
    engines: Declarations, kind: Kind | None
) -> None:
    keys = sorted(every_case())
    compared = 0
    for at in np.random.default_rng(1).permutation(len(keys))[:MODELS]:
        drawn = draw_single(keys[at], [1], kind=kind)
        count, broken = engines.ask(drawn)
        assert broken == [], f"{keys[at]}\n{drawn.listing}"
        compared += count
    assert compared > MODELS // 6


class Boasting:
    """A device that declares every operation `faithful`."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def supported_operations(self, model: Model) -> list[Support]:
        answers = self._device.supported_operations(model)
        return [replace(answer, accuracy="faithful") for answer in answers]


def test_a_declaration_that_is_false_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    device = manager.by_name("openvino-cpu")
    if device is None:
        pytest.skip("openvino-cpu is not usable here")
    draw = Draw(np.random.default_rng(0), zeros=False)
    stored = np.arange(-128, 128, dtype=np.int8).reshape(2, 128)
    x = draw.value(DType.INT8, (2, 128), q(0.4), array=stored, constant=False)
    draw.operation("RELU_N1_TO_1", [x], [draw.output(DType.INT8, q(0.0155))])
    drawn = draw.finish()
    assert judged(drawn.file, drawn.inputs, "openvino-cpu") == (0, [])
    monkeypatch.setattr(declarations, "_device", lambda _: Boasting(device))
    compared, (line,) = judged(drawn.file, drawn.inputs, "openvino-cpu")
    assert compared == 1
    assert line.startswith("openvino-cpu, faithful: output 0 is off by ")


def test_an_engine_that_ends_its_process_has_broken_its_declaration() -> None:
    drawn = draw_single("ABS", [0])
    with Declarations() as engines:
        assert engines.ask(drawn, ["nobody"]) == (1, ["nobody: its process ended with 1"])
        assert engines.ask(drawn, ENGINES)[1] == []
