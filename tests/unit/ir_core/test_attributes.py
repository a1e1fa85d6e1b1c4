from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from penstock.errors import InvalidAttribute
from penstock.ir import Attributes, AttributeValue, Operation

VALUES: dict[str, AttributeValue] = {
    "flag": True,
    "integer": 7,
    "real": 0.5,
    "text": "SAME",
    "blob": b"\x01",
    "integers": (1, 2),
    "reals": (0.5,),
    "nothing": None,
}
ATTRIBUTES = Attributes(VALUES)

GETTERS: dict[str, Callable[[str], object]] = {
    "flag": ATTRIBUTES.flag,
    "integer": ATTRIBUTES.integer,
    "text": ATTRIBUTES.text,
    "blob": ATTRIBUTES.blob,
    "integers": ATTRIBUTES.integers,
}


@pytest.mark.parametrize("kind", GETTERS)
def test_a_getter_gives_its_kind_and_refuses_every_other(kind: str) -> None:
    assert GETTERS[kind](kind) == VALUES[kind]
    for name in {*VALUES} - {kind}:
        with pytest.raises(InvalidAttribute, match=f"attribute '{name}' must be"):
            GETTERS[kind](name)


@pytest.mark.parametrize("kind", GETTERS)
def test_getter_of_an_absent_name_lists_the_names(kind: str) -> None:
    there = ", ".join(sorted(VALUES))
    with pytest.raises(
        InvalidAttribute, match=f"^no attribute is named 'betta'; the attributes are {there}$"
    ):
        GETTERS[kind]("betta")
    with pytest.raises(InvalidAttribute, match=r"^no attribute is named 'betta'; there are none$"):
        getattr(Attributes(), GETTERS[kind].__name__)("betta")


def test_a_number_is_an_integer_or_a_real_and_no_flag() -> None:
    assert ATTRIBUTES.number("integer") == 7.0
    assert isinstance(ATTRIBUTES.number("integer"), float)
    assert ATTRIBUTES.number("real") == 0.5
    for name in ("flag", "text", "absent", "nothing"):
        with pytest.raises(InvalidAttribute):
            ATTRIBUTES.number(name)


def test_order_of_giving_does_not_matter() -> None:
    one, other = Attributes(a=1, b=2), Attributes({"b": 2}, a=1)
    assert one == other
    assert hash(one) == hash(other)
    assert list(one) == list(other) == ["a", "b"]
    assert repr(one) == "Attributes(a=1, b=2)"
    assert one != {"a": 1, "b": 2}


def test_attributes_are_an_immutable_mapping() -> None:
    assert len(ATTRIBUTES) == len(VALUES)
    assert dict(ATTRIBUTES) == VALUES
    assert "flag" in ATTRIBUTES
    assert ATTRIBUTES.get("absent", 3) == 3
    with pytest.raises(TypeError):
        ATTRIBUTES["flag"] = False  # type: ignore[index]  # the point
    assert pickle.loads(pickle.dumps(ATTRIBUTES)) == ATTRIBUTES  # noqa: TID251  # our own bytes


def test_the_key_of_a_custom_operation_has_its_code() -> None:
    assert Operation("ADD", (0, 1), (2,)).key == "ADD"
    custom = Operation("CUSTOM", (0,), (1,), Attributes(custom_code="Mine"))
    assert custom.key == "CUSTOM:Mine"
    with pytest.raises(InvalidAttribute, match="custom_code"):
        _ = Operation("CUSTOM", (0,), (1,)).key
