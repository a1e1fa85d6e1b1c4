"""Whoever reads the types of the contract's structs, as a codec does, finds every name."""

from __future__ import annotations

import typing

import msgspec
import pytest

from penstock import hal

STRUCTS = [
    name
    for name in hal.__all__
    if isinstance(found := getattr(hal, name), type) and issubclass(found, msgspec.Struct)
]


@pytest.mark.parametrize("name", STRUCTS)
def test_the_fields_of_every_struct_have_types(name: str) -> None:
    kind = getattr(hal, name)
    assert set(kind.__struct_fields__) <= set(typing.get_type_hints(kind))


def test_a_role_is_among_them() -> None:
    assert "BufferRole" in STRUCTS
    assert typing.get_type_hints(hal.BufferRole)["prepared"] is hal.PreparedModel
