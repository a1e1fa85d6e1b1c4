"""What a driver declares of extensions, and the attributes that calls carry."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from penstock.errors import InvalidArgument
from penstock.hal import (
    Capabilities,
    ExecutionConfig,
    Extension,
    ExtensionAttribute,
    ExtensionOperandType,
    HostMemory,
    PrepareConfig,
    Request,
    validate_prepare_config,
    validate_request,
)
from penstock.hal.capabilities import MAX_ATTRIBUTES, MAX_EXTENSIONS, checked, fault_of
from penstock.runtime.examination import examined
from penstock.testing.contract.cases import case_named
from tests.checked import does_not_raise
from tests.support_extensions import Fibonacci

NAME: Final = "com.example.fixed"
GOOD: Final = ExtensionAttribute(NAME, 0, b"x")


def test_a_device_declares_extensions_among_its_capabilities() -> None:
    found = Capabilities(extensions=(Extension(NAME, (ExtensionOperandType(1, 8),)),))
    assert fault_of(found) is None
    assert checked(found) == found
    assert found.extensions[0].type_of(1) == ExtensionOperandType(1, 8)
    assert found.extensions[0].type_of(0) is None
    assert Capabilities().extensions == ()


@pytest.mark.parametrize(("extensions", "told"), [
    ((Extension("word"),), "'word' is no extension's name"),
    ((Extension(NAME), Extension(NAME)), "offered twice"),
    ((Extension(NAME, (ExtensionOperandType(0, 8), ExtensionOperandType(0, 8))),), ("declared "
        "twice")),
    ((Extension(NAME, (ExtensionOperandType(1 << 16, 8),)),), "numbers are 0 to 65535"),
    ((Extension(NAME, (ExtensionOperandType(-1, 8),)),), "numbers are 0 to 65535"),
    ((Extension(NAME, (ExtensionOperandType(0, 0),)),), "has 0 bytes"),
    ((Extension(NAME, (ExtensionOperandType(0, 1 << 32),)),), "bytes; 1 to"),
    (tuple(Extension(f"com.example.e{i}") for i in range(MAX_EXTENSIONS + 1)), "257 extensions"),
])  # fmt: skip
def test_a_device_that_declares_what_nobody_can_use_is_not_used(
    extensions: tuple[Extension, ...], told: str
) -> None:
    info = examined(Fibonacci("broken", extensions), "broken").info
    assert not info.usable
    assert told in info.reason


@pytest.mark.parametrize("extensions", [
    (Extension(7),),  # type: ignore[arg-type]  # the point
    (Extension(NAME, ("type",)),),  # type: ignore[arg-type]  # the point
    ("com.example.fixed",),
    None,
])  # fmt: skip
def test_declarations_of_wrong_types_are_refused(extensions: Any) -> None:
    with pytest.raises((msgspec.ValidationError, TypeError)):
        checked(Capabilities(extensions=extensions))
    assert not examined(Fibonacci("broken", extensions or [None]), "broken").info.usable


@pytest.mark.parametrize("attributes", [
    (GOOD, GOOD),
    (ExtensionAttribute("word", 0, b"x"),),
    (ExtensionAttribute(NAME, 1 << 16, b"x"),),
    (ExtensionAttribute(NAME, -1, b"x"),),
    (ExtensionAttribute(NAME, 0, b""),),
    (ExtensionAttribute(NAME, 0, bytes((1 << 20) + 1)),),
    (ExtensionAttribute(NAME, 0, "text"),),  # type: ignore[arg-type]  # the point
    (ExtensionAttribute(NAME, "0", b"x"),),  # type: ignore[arg-type]  # the point
    ("attribute",),
    tuple(ExtensionAttribute(NAME, code, b"x") for code in range(MAX_ATTRIBUTES + 1)),
])  # fmt: skip
def test_malformed_attributes_are_refused_in_both_configurations(attributes: Any) -> None:
    with pytest.raises(InvalidArgument):
        validate_prepare_config(PrepareConfig(attributes=attributes))
    case = case_named("relu")
    request = Request(
        tuple(map(HostMemory, case.inputs)), tuple(HostMemory(a.copy()) for a in case.outputs), ()
    )
    validate_request(case.model, request, ExecutionConfig(attributes=(GOOD,)))
    with pytest.raises(InvalidArgument):
        validate_request(case.model, request, ExecutionConfig(attributes=attributes))


def test_attributes_of_two_extensions_may_have_one_number() -> None:
    both = (GOOD, ExtensionAttribute("com.example.other", 0, b"x"))
    with does_not_raise():
        validate_prepare_config(PrepareConfig(attributes=both))
