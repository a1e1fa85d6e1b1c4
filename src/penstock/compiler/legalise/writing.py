"""Writes the kernels of one operation by its rule."""

from __future__ import annotations

from penstock.compiler.legalise import halves
from penstock.compiler.legalise.builder import RULES, Builder, Operation, Rule
from penstock.driverkit.site import Refused, Site


def rule_of(site: Site) -> Rule:
    """The rule of an operation; raises `Refused` if there is none."""
    rule = RULES.get(site.operation.key)
    if rule is None:
        raise Refused(f"{site.operation.key} has no kernels")
    return rule


def write(builder: Builder, site: Site) -> None:
    """Writes the kernels of *site*. An operation without kernels for float16 is computed in
    float32.
    """
    rule, before = rule_of(site), builder.mark()
    try:
        rule(Operation(builder, site))
    except Refused:
        if not halves.has_halves(site):
            raise
        builder.undo(before)
        wide = halves.WideOperation(builder, site)
        rule(wide)
        wide.finish()
