"""The methods of wgpu's structs are made when one is first used."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from penstock.drivers.webgpu.structs import MODULE, structs_made_later
from tests.support_programs import run_python
from tests.support_webgpu import needs_webgpu


def test_dataclasses_of_other_modules_are_made_at_once() -> None:
    own = dataclasses.dataclass
    with structs_made_later():

        @dataclasses.dataclass(frozen=True)
        class Other:
            size: int

        assert dataclasses.is_dataclass(Other)
        assert Other(3) == Other(3)
    assert dataclasses.dataclass is own


def test_a_struct_has_its_fields_and_their_checks_from_the_first_use_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, MODULE, sys.modules[__name__])
    with structs_made_later():

        @dataclasses.dataclass(kw_only=True)
        class Late:
            __module__ = MODULE
            size: int
            name: str = "x"

    made = Late(size=3)
    assert (made.size, made.name) == (3, "x")
    assert made == Late(size=3)
    with pytest.raises(TypeError, match="other"):
        Late(size=3, other=4)  # type: ignore[call-arg]
    assert [field.name for field in dataclasses.fields(Late)] == ["size", "name"]


@needs_webgpu
def test_users_of_wgpu_make_structs_with_all_methods() -> None:
    code = (
        "from penstock.drivers.webgpu import engine\n"
        "engine.adapters()\n"
        "import wgpu\n"
        "binding = wgpu.BufferBinding(buffer=None, offset=4)\n"
        "print(binding['offset'], dict(binding), wgpu.structs.Struct in type(binding).__mro__)\n"
    )
    printed = run_python("-c", code, check=True).stdout
    assert printed.strip() == "4 {'buffer': None, 'offset': 4, 'size': None} True"
