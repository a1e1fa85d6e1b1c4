"""Why an entry missed, in one sentence."""

from __future__ import annotations

from penstock.cache.ingredients import MODEL_INGREDIENTS, changed_ingredients, describe_changes
from penstock.cache.reasons import no_entry
from penstock.compilation.caching import Entry
from penstock.compilation.calls import describe
from penstock.compilation.receipt import CacheCode, CacheFault, fault_in, fault_of
from penstock.errors import (
    CacheError,
    DriverError,
    IngredientChanged,
    NoEntry,
    TokenCollision,
)


def explained(entry: Entry, error: CacheError | DriverError) -> CacheFault:
    """The reason, `<Name>: sentence`, with its code; where the key is the cause, with the
    ingredient that differs.
    """
    now = entry.key.ingredients
    fault = named(error)
    if isinstance(error, NoEntry):
        nearest = entry.directory.nearest(now)
        if nearest is None or not changed_ingredients(nearest.ingredients, now):
            return fault
        return fault_of(no_entry(nearest, now))
    if fault.code is not CacheCode.TOKEN_COLLISION:
        return fault
    config = entry.config
    record = entry.directory.record(
        entry.key.token, deadline_ns=config.deadline_ns, cancel=config.cancel
    )
    if record is None:
        return fault
    if ("structure" in now) != ("structure" in record.ingredients):
        other = "with" if "structure" in record.ingredients else "without"
        return fault_of(
            IngredientChanged(f"the token's entry was sealed {other} the model in its key")
        )
    changes = describe_changes(record.ingredients, now)
    if MODEL_INGREDIENTS.isdisjoint(changed_ingredients(record.ingredients, now)):
        return fault_of(IngredientChanged(f"the token's entry differs in {changes}"))
    return fault_of(TokenCollision(f"the token was given to another model: {changes}"))


def named(error: CacheError | DriverError) -> CacheFault:
    """*error* as `<Name>: sentence`, with its code; a driver that passes a `CacheError`'s text on
    keeps its name.
    """
    if isinstance(error, CacheError):
        return fault_of(error)
    passed_on = fault_in(str(error), later=True)
    return CacheFault(CacheCode.DRIVER, describe(error)) if passed_on.code is None else passed_on
