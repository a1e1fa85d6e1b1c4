"""Why a machine would not use an entry of a store: the words of `penstock cache explain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from penstock.cache.ingredients import derived_token
from penstock.errors import CacheError, NoEntry
from penstock.logs import printable
from penstock.remotecache.bins import Lists
from penstock.remotecache.fetching import Remote
from penstock.remotecache.sealing import why_not_shared

DESCRIBED: Final = (
    *("structure", "constants", "step", "partition", "shapes", "device", "version"),
    *("cpu_features", "preference", "priority", "accuracy", "num_threads"),
)
"""The ingredients that a list has of each entry, shortened."""

_MOST: Final = 24
_DEFAULTS: Final = {"shapes": "", "accuracy": "", "priority": "medium"}


def described(ingredients: Mapping[str, str]) -> dict[str, str]:
    """What a list says of an entry of these *ingredients*: enough to name what differs."""
    found = {}
    for name in DESCRIBED:
        text = ingredients.get(name, "")
        if text != _DEFAULTS.get(name):
            found[name] = _short(text)
    return found


def explain(remote: Remote, ingredients: Mapping[str, str]) -> str:
    """What a compile of these *ingredients* would get from the store of *remote*.

    "would be fetched ...", "off: ..." or `<Name>: sentence`. The entry itself is fetched and
    verified too. Nothing is kept, but for the history of the store.
    """
    if reason := why_not_shared(dict(ingredients)):
        return f"off: {reason}"
    try:
        found = remote.look_up(derived_token(ingredients))
    except NoEntry as error:
        return f"{error}{_nearest(remote, ingredients)}"
    except CacheError as error:
        return str(error)
    return (
        f"would be fetched: {found.listed.publisher} published {found.listed.target.length} bytes"
    )


def _nearest(remote: Remote, ingredients: Mapping[str, str]) -> str:
    """What differs from the most similar entry of the same model, as text; empty without one."""
    now = described(ingredients)
    best: tuple[int, str, list[str]] | None = None
    for publisher, before in _listed(remote, now.get("structure", "")):
        names = [n for n in DESCRIBED if _text(before.get(n)) != now.get(n, "")]
        changes = [f"{n} ({_word(n, before)} -> {_word(n, now)})" for n in names if n != "step"]
        if best is None or len(changes) < best[0]:
            best = len(changes), publisher, changes
    if best is None or not best[2]:
        return ""
    return f"; the nearest entry, of {best[1]}, differs in {', '.join(best[2])}"


def _listed(remote: Remote, structure: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The descriptions of the entries of the model *structure*, with their publishers."""
    for publisher in remote.metadata.publishers():
        # What cannot be read explains nothing.
        with suppress(CacheError):
            for target in Lists(remote.metadata, publisher).entries():
                custom = target.custom
                if isinstance(custom, dict) and custom.get("structure") == structure:
                    yield publisher, custom


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _word(name: str, of: Mapping[str, object]) -> str:
    return printable(_text(of.get(name)))[:_MOST] or str(_DEFAULTS.get(name) or "none")


def _short(text: str) -> str:
    """*text*, or the beginning of its digest if it is long."""
    if len(text) <= _MOST:
        return text
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()[:16]
