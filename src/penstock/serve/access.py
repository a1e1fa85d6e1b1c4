"""Bearer tokens: who may ask, and who may load and unload models."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

from penstock.errors import InputError
from penstock.serve.errors import Forbidden, Unauthenticated

SCHEME: Final = "bearer "
LEAST: Final = 16
"""Fewest characters of a token."""


class Access:
    """Checks the `Authorization` header of requests.

    Without *token* everybody who reaches the server may ask. Without *admin* nobody may load,
    unload or list the models of the repository. The admin token is good for everything.
    """

    def __init__(self, token: str | None = None, admin: str | None = None) -> None:
        for given in (token, admin):
            if given is not None and len(given) < LEAST:
                raise InputError(f"a token needs at least {LEAST} characters")
        if token is not None and token == admin:
            raise InputError("the token and the admin token must differ")
        self._token = None if token is None else token.encode()
        self._admin = None if admin is None else admin.encode()

    @property
    def is_open(self) -> bool:
        """Whether requests need no token."""
        return self._token is None

    def check(self, header: str | None) -> None:
        """Raises `Unauthenticated` if a token is needed, and *header* has none that is known."""
        if self._token is None:
            return
        given = _token_in(header)
        is_token = hmac.compare_digest(given, self._token)
        is_admin = self._admin is not None and hmac.compare_digest(given, self._admin)
        if not (is_token or is_admin):
            raise Unauthenticated("this server needs a bearer token (Authorization: Bearer TOKEN)")

    def check_admin(self, header: str | None) -> None:
        """Raises `Forbidden` unless *header* has the admin token."""
        if self._admin is None:
            raise Forbidden("repository calls are off; the option --admin-token-file allows them")
        if not hmac.compare_digest(_token_in(header), self._admin):
            raise Forbidden("repository calls need the admin token")


def read_token(path: str | None) -> str | None:
    """The token in the first line of a file; None without a file. Raises `InputError`."""
    if path is None:
        return None
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from error
    token = text.partition("\n")[0].strip()
    if not token:
        raise InputError(f"{path}: the first line is empty; it must be the token")
    return token


def _token_in(header: str | None) -> bytes:
    """The token in *header*; empty if there is none."""
    if header is None or not header.lower().startswith(SCHEME):
        return b""
    return header[len(SCHEME) :].strip().encode("utf-8", "replace")
