from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from penstock.cache import naming
from penstock.errors import InputError

tokens = st.binary(min_size=32, max_size=32)


def test_letters_are_half_bytes_the_low_one_first() -> None:
    """NNAPI section 2.3."""
    assert naming.letters_of(bytes([0x00, 0x0F, 0xF0, 0x21]) + bytes(28)) == "AAPAAPBC" + "AA" * 28


def test_files_are_named_by_letters_kind_and_index() -> None:
    letters = naming.letters_of(bytes(32))
    names = naming.file_names(bytes(32), 32, 1)
    assert names[0] == f"{letters}10"
    assert names[31:] == [f"{letters}131", f"{letters}20"]
    assert naming.file_names(bytes(32), 0, 0) == []


@pytest.mark.parametrize("token", [b"", bytes(31), bytes(33)])
def test_a_token_has_32_bytes(token: bytes) -> None:
    with pytest.raises(InputError, match="32 bytes"):
        naming.file_names(token, 1, 0)


@given(tokens, st.integers(0, 32), st.integers(0, 32))
def test_every_name_says_whose_it_is(token: bytes, models: int, datas: int) -> None:
    expected = [("model", n) for n in range(models)] + [("data", n) for n in range(datas)]
    for (role, number), name in zip(expected, naming.file_names(token, models, datas), strict=True):
        parsed = naming.parse_name(name)
        assert parsed is not None
        assert (parsed.token, parsed.role, parsed.number) == (token, role, number)
        assert not parsed.temporary
        temporary = naming.parse_name(naming.temporary_name(name))
        assert temporary is not None
        assert temporary.temporary
        assert (temporary.token, temporary.role) == (token, role)


@given(tokens)
def test_the_files_beside_an_entry_say_whose_they_are(token: bytes) -> None:
    found = [
        naming.parse_name(name(token))
        for name in (naming.index_name, naming.lock_name, naming.lease_name)
    ]
    assert [p and (p.token, p.role) for p in found] == [
        (token, "index"),
        (token, "lock"),
        (token, "lease"),
    ]


LETTERS = naming.letters_of(bytes(32))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "README",
        LETTERS,
        LETTERS[1:] + "10",
        LETTERS.lower() + "10",
        LETTERS.replace("A", "Q") + "10",
        LETTERS + "30",
        LETTERS + "1",
        LETTERS + "132",
        LETTERS + "101",
        LETTERS + "10\n",
        LETTERS + ".yaml",
        LETTERS + "10.tmp",
        LETTERS + "10.0123456789abcdeg.tmp",
    ],
)
def test_names_of_other_forms_are_not_cache_files(name: str) -> None:
    assert naming.parse_name(name) is None


def test_temporary_names_differ() -> None:
    assert naming.temporary_name("a") != naming.temporary_name("a")
