"""The code of a model is generated once in a process: its tests compile it through many doors, on
many arrangements of engines.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import pytest

from penstock.drivers.llvm import compiling
from penstock.drivers.llvm.isa import Isa
from penstock.hal import PrepareConfig
from penstock.ir import Digest, Model

Key: TypeAlias = "tuple[Digest, Isa, str, tuple[tuple[str, str], ...]]"

LARGEST_KEPT: Final = 1 << 20
"""Bytes of constants."""

_generate: Final = compiling.compile_model
_made: Final[dict[Key, compiling.Compiled]] = {}


def generated_once(
    model: Model, isa: Isa, engine: str, config: PrepareConfig
) -> compiling.Compiled:
    """As `compile_model` of the device `llvm`, whose result depends on these alone."""
    key = model.digest, isa, engine, config.options
    made = _made.get(key) or _generate(model, isa, engine, config)
    if len(made.constants) <= LARGEST_KEPT:
        _made[key] = made
    return made


@pytest.fixture(autouse=True)
def code_is_generated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compile_model", generated_once)
