"""What `penstock cache explain` says of a shared store."""

from __future__ import annotations

from typing import Any

from penstock import knobs
from penstock.cli.failures import message
from penstock.errors import CacheError, InputError


def explain_shared(url: str | None, each: dict[str, Any]) -> str | None:
    """What a compile of the described step would get from the store at *url*; None without one, and
    for a step that needs none.
    """
    if not (url or knobs.cache_store()) or each["outcome"] != "miss":
        return None
    from penstock.remotecache.explaining import explain
    from penstock.remotecache.settings import remote_at

    try:
        return explain(remote_at(url), each["ingredients"])
    except (CacheError, InputError) as error:
        return message(error)
