"""Bearer tokens and their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InputError
from penstock.serve.access import Access, read_token
from penstock.serve.errors import Forbidden, Unauthenticated
from tests.checked import does_not_raise

TOKEN, ADMIN = "t" * 16, "a" * 16


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer \u00e9", f"Basic {TOKEN}", TOKEN])
def test_header_without_the_token_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthenticated):
        Access(TOKEN).check(header)
    with pytest.raises(Forbidden):
        Access(TOKEN, ADMIN).check_admin(header)


def test_either_token_may_ask_and_one_may_administer() -> None:
    access = Access(TOKEN, ADMIN)
    with does_not_raise():
        access.check(f"bearer {TOKEN}")
        access.check(f"Bearer {ADMIN}")
        access.check_admin(f"Bearer {ADMIN}")
    with pytest.raises(Forbidden):
        access.check_admin(f"Bearer {TOKEN}")


def test_repository_calls_are_off_without_an_admin_token() -> None:
    with pytest.raises(Forbidden, match="are off"):
        Access().check_admin("Bearer ")


@pytest.mark.parametrize("tokens", [("short", None), (None, "short"), (TOKEN, TOKEN)])
def test_short_or_equal_tokens_are_refused(tokens: tuple[str | None, str | None]) -> None:
    with pytest.raises(InputError):
        Access(*tokens)


def test_token_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\nmore\n")
    assert read_token(str(file)) == TOKEN
    assert read_token(None) is None
    file.write_text("\n")
    with pytest.raises(InputError, match="first line is empty"):
        read_token(str(file))
    with pytest.raises(InputError):
        read_token(str(tmp_path / "nix"))
