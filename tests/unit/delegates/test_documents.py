"""docs/delegates: their code runs and prints what they show, and their tables have every option."""

from __future__ import annotations

import inspect
import re

import pytest

from penstock import delegates
from penstock.delegates import DriverDelegate
from penstock.drivers.reference import ReferenceDevice
from penstock.hal import Device, DeviceType
from penstock.testing.doubles import SimulatedDevice
from tests.conftest import ROOT
from tests.unit.delegates.test_kinds import only

__all__ = ["only"]

PAGES = {p.stem: p.read_text("utf-8") for p in sorted((ROOT / "docs" / "delegates").glob("*.md"))}
CLASSES: dict[str, type[DriverDelegate]] = {
    "gpu": delegates.GpuDelegate,
    "nnapi": delegates.NnapiDelegate,
    "hexagon": delegates.HexagonDelegate,
    "coreml": delegates.CoreMLDelegate,
}


def doubles() -> list[Device]:
    """What stands for the hardware on these pages."""
    made = ReferenceDevice()
    return [
        SimulatedDevice(made, "my-gpu", DeviceType.GPU, ("opencl",), {"float32": 0.1}),
        SimulatedDevice(made, "my-dsp", DeviceType.ACCELERATOR, ("hexagon",), {"int8": 0.1}),
        SimulatedDevice(made, "my-coreml", DeviceType.ACCELERATOR, ("coreml",), {"float32": 0.1}),
        made,
    ]


def test_every_delegate_has_a_page() -> None:
    assert set(PAGES) == {"index", *CLASSES}


@pytest.mark.parametrize("page", CLASSES)
def test_every_option_is_in_its_table_with_its_default(page: str) -> None:
    rows = dict(re.findall(r"(?m)^\| `(\w+)` \| `([^`]*)` \|", PAGES[page]))
    parameters = inspect.signature(CLASSES[page]).parameters
    assert list(rows) == list(parameters)
    for name, told in rows.items():
        default = parameters[name].default
        if name == "experimental_flags":
            assert default is delegates.GpuExperimentalFlags[told]
        else:
            assert told in (repr(default), f'"{default}"')


def test_the_guides_example_is_that_of_the_file() -> None:
    example = (ROOT / "examples" / "my_delegate.py").read_text("utf-8")
    code = next(
        c for c in re.findall(r"```python\n(.*?)```", PAGES["index"], re.DOTALL) if "conv_2d" in c
    )
    assert code.partition("\n\n\ninterpreter = ")[0] in example


@pytest.mark.parametrize("page", PAGES)
def test_pages_say_what_they_must(page: str) -> None:
    text = PAGES[page].lower()
    for words in (
        "experimental until 1.0",
        "## when to use",
        "## pitfalls",
        "many subgraphs",
        "not safe to share",
    ):
        assert words in text
