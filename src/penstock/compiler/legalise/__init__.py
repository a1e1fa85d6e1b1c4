"""Legalisation: a model becomes kernels, operation by operation."""

from __future__ import annotations

from penstock.compiler.legalise import elementwise, layers, matrices, moving, reductions
from penstock.compiler.legalise.builder import RULES, Builder, Operation, Rule, legal
from penstock.compiler.program import Program
from penstock.driverkit.site import Refused, Site, make_sites
from penstock.interrupts import polled
from penstock.ir import Model

__all__ = ["RULES", "Builder", "Operation", "judge", "legal", "legalise"]

_FAMILIES = elementwise, layers, matrices, moving, reductions


def rule_of(site: Site) -> Rule:
    """The rule of an operation; raises `Refused` if there is none."""
    rule = RULES.get(site.operation.key)
    if rule is None:
        raise Refused(f"{site.operation.key} has no kernels")
    return rule


def judge(site: Site) -> None:
    """Raises `Refused` unless there are kernels for *site*. Reads no large constants."""
    builder = Builder(site.model, judging=True)
    rule_of(site)(Operation(builder, site))


def legalise(model: Model) -> Program:
    """The program of *model*, kernels in the order of its operations."""
    builder = Builder(model)
    for site in polled(make_sites(model)):
        builder.begin(site.index)
        rule_of(site)(Operation(builder, site))
    return builder.finish()
