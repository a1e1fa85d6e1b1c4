"""Where delegates keep what their devices compiled. Experimental until 1.0."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import InputError
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.cache.info import CacheInfo
    from penstock.compilation import Receipt
    from penstock.delegates.context import PartitionModel

log = Log(__name__)


class Kept:
    """The caller's *directory*, and his *token* (text or bytes of any length) where he has one;
    *names* are what the delegate calls the two. None for both keeps nothing. `InputError` for a
    token without a directory, for an empty one, and for what is neither a path nor a token.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        token: str | bytes | None,
        names: tuple[str, str],
    ) -> None:
        place, label = names
        self._directory, self._token, self._place = directory, None, place
        if directory is not None and not isinstance(directory, str | os.PathLike):
            raise InputError(f"{place} must be a directory, not {directory!r}")
        if directory is not None and Path(directory).exists() and not Path(directory).is_dir():
            raise InputError(f"{place} must be a directory, and {os.fspath(directory)!r} is none")
        if token is None:
            return
        if not isinstance(token, str | bytes):
            raise InputError(f"{label} must be text or bytes, not {token!r}")
        text = token.encode("utf-8") if isinstance(token, str) else token
        if not text:
            raise InputError(f"{label} is empty")
        if directory is None:
            raise InputError(f"{label} names entries in {place}, which is not given")
        self._token = hashlib.sha256(text).digest()

    def tell(self, receipt: Receipt) -> None:
        """Logs why a compile could not be kept in the caller's directory."""
        for step in receipt.steps:
            told = step.cache
            if self._directory is not None and told.not_saved and not told.is_to_be_written:
                log.warning(
                    "%s %s keeps nothing: %s",
                    self._place,
                    os.fspath(self._directory),
                    told.not_saved,
                )

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
