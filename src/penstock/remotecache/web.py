"""Reads over HTTP whose failures say when the server wants to be asked again: `Retry-After`, which
`obstore` does not hand on.
"""

from __future__ import annotations

import base64
import time
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from penstock.errors import StoreUnavailable, WrongLength
from penstock.remotecache.patience import Refusal, patiently
from penstock.remotecache.stores import Named, Stored, Unconditional, checked_name

_CHUNK: Final = 1 << 16
_MISSING: Final = 404


def read(url: str, name: str, most: int, seconds: float, version: str = "ETag") -> Stored | None:
    """The object *name* at *url*; None if there is none. The header *version* has its ETag.

    Raises `WrongLength` for more than *most* bytes, `StoreUnavailable`, `Refusal` if the server
    answers with an error of its own.
    """
    until = time.monotonic() + seconds
    try:
        # The caller has checked the scheme.
        with urlopen(_request(url), timeout=seconds) as answer:  # noqa: S310
            size = answer.headers.get("Content-Length", "")
            if size.isdecimal() and int(size) > most:
                raise WrongLength(f"{name} has {size} bytes in the store, more than {most}")
            content = bytearray()
            while chunk := answer.read1(_CHUNK):
                content += chunk
                if len(content) > most:
                    raise WrongLength(f"{name} goes on beyond {most} bytes in the store")
                if time.monotonic() > until:
                    raise StoreUnavailable(f"{name} was not read within {seconds:.3g} s")
            if size.isdecimal() and len(content) < int(size):
                raise StoreUnavailable(f"{name} cannot be read: the answer ended early")
            return Stored(bytes(content), answer.headers.get(version, ""))
    except HTTPError as error:
        with error:
            if error.code == _MISSING:
                return None
            said = f"{name} cannot be read: the server answered {error.code}"
            raise Refusal(said, error.code, _retry_after(error.headers["Retry-After"])) from None
    except (OSError, HTTPException, ValueError) as error:
        raise StoreUnavailable(f"{name} cannot be read: {str(error)[:200]}") from None


class WebStore:
    """An `ObjectStore` that a web server shows at *url*: for reading alone."""

    def __init__(self, url: str, seconds: float) -> None:
        self.url, self._seconds = url, seconds

    def get(self, name: str, most: int) -> Stored | None:
        address = f"{self.url.rstrip('/')}/{checked_name(name)}"
        return patiently(lambda _: read(address, name, most, self._seconds), self._seconds)

    def listed(self, prefix: str, most: int) -> list[Named]:
        raise StoreUnavailable(f"{prefix} of {self.url} cannot be listed: it is a web server")

    def unfinished(self, most: int) -> list[Named]:
        return self.listed("leases", most)

    def create(self, name: str, content: bytes) -> str | None:
        raise Unconditional(f"{name} of {self.url} cannot be written: it is a web server")

    def update(self, name: str, content: bytes, etag: str) -> str | None:
        return self.create(name, content)

    def delete(self, name: str) -> None:
        self.create(name, b"")


def _request(url: str) -> Request:
    """The request for *url*, whose user and password are sent as those of HTTP's basic scheme."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    request = Request(urlunsplit(parts._replace(netloc=host)))  # noqa: S310
    if at:
        encoded = base64.b64encode(unquote(login).encode()).decode()
        request.add_header("Authorization", f"Basic {encoded}")
    return request


def _retry_after(header: str | None) -> float:
    """The seconds of the header `Retry-After`, which may also be a date; 0 without."""
    text = (header or "").strip()
    if text.isdecimal():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return 0.0
