"""Why an entry missed, in one sentence."""

from __future__ import annotations

from penstock.cache.ingredients import MODEL_INGREDIENTS, changed_ingredients, describe_changes
from penstock.cache.reasons import no_entry
from penstock.compilation.caching import Entry
from penstock.compilation.calls import describe
from penstock.errors import (
    CacheError,
    DriverError,
    IngredientChanged,
    NoEntry,
    TokenCollision,
)


def explained(entry: Entry, error: CacheError | DriverError) -> str:
    """The reason, `<Name>: sentence`; where the key is the cause, with the ingredient that differs."""
    now = entry.key.ingredients
    text = named(error)
    if isinstance(error, NoEntry):
        nearest = entry.directory.nearest(now)
        if nearest is None or not changed_ingredients(nearest.ingredients, now):
            return text
        return str(no_entry(nearest, now))
    if not text.startswith(f"{TokenCollision.__name__}:"):
        return text
    config = entry.config
    record = entry.directory.record(
        entry.key.token, deadline_ns=config.deadline_ns, cancel=config.cancel
    )
    if record is None:
        return text
    if ("structure" in now) != ("structure" in record.ingredients):
        other = "with" if "structure" in record.ingredients else "without"
        return str(IngredientChanged(f"the token's entry was sealed {other} the model in its key"))
    changes = describe_changes(record.ingredients, now)
    if MODEL_INGREDIENTS.isdisjoint(changed_ingredients(record.ingredients, now)):
        return str(IngredientChanged(f"the token's entry differs in {changes}"))
    return str(TokenCollision(f"the token was given to another model: {changes}"))


def named(error: CacheError | DriverError) -> str:
    """*error* as `<Name>: sentence`; a driver that passes a `CacheError`'s text on keeps its name."""
    text = str(error)
    passed_on = any(text.startswith(f"{kind.__name__}:") for kind in CacheError.__subclasses__())
    return text if passed_on or isinstance(error, CacheError) else describe(error)
