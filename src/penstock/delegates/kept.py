"""Where delegates keep what their devices compiled. Experimental until 1.0."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from penstock.errors import InputError

if TYPE_CHECKING:
    from penstock.cache.info import CacheInfo
    from penstock.delegates.context import PartitionModel


class Kept:
    """The caller's *directory*, and his *token* (text or bytes of any length) where he has one; *names* are what the
    delegate calls the two. None for both keeps nothing. `InputError` for a token without a directory, and an empty one.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        token: str | bytes | None,
        names: tuple[str, str],
    ) -> None:
        place, label = names
        self._directory, self._token = directory, None
        if token is None:
            return
        text = token.encode("utf-8") if isinstance(token, str) else bytes(token)
        if not text:
            raise InputError(f"{label} is empty")
        if directory is None:
            raise InputError(f"{label} names entries in {place}, which is not given")
        self._token = hashlib.sha256(text).digest()

    def entry_of(self, part: PartitionModel) -> bool | CacheInfo:
        """An entry of its own for each subset."""
        from penstock.cache.info import CacheInfo

        if self._directory is None:
            return False
        if self._token is None:
            return CacheInfo(self._directory)
        nodes = ",".join(map(str, part.nodes))
        return CacheInfo(
            self._directory, hashlib.sha256(self._token + nodes.encode("ascii")).digest()
        )
