"""Legalisation: a model becomes kernels, operation by operation."""

from __future__ import annotations

from penstock.compiler.legalise import (
    activations,
    comparing,
    converting,
    elementwise,
    functions,
    halves,
    indexing,
    layers,
    lstm,
    lstm_forms,
    lstm_integer,
    matrices,
    moving,
    normalising,
    pooling,
    recurrent,
    reductions,
    resizing,
    shapes,
    softmaxes,
    svdf,
    transposed,
)
from penstock.compiler.legalise.builder import RULES, Builder, Operation, Rule, legal
from penstock.compiler.program import Program
from penstock.driverkit.site import Refused, Site, make_sites
from penstock.interrupts import polled
from penstock.ir import Model

__all__ = ["RULES", "Builder", "Operation", "judge", "legal", "legalise"]

_FAMILIES = (
    activations,
    comparing,
    converting,
    elementwise,
    functions,
    indexing,
    layers,
    lstm,
    lstm_forms,
    lstm_integer,
    matrices,
    moving,
    normalising,
    pooling,
    recurrent,
    reductions,
    resizing,
    shapes,
    softmaxes,
    svdf,
    transposed,
)


def rule_of(site: Site) -> Rule:
    """The rule of an operation; raises `Refused` if there is none."""
    rule = RULES.get(site.operation.key)
    if rule is None:
        raise Refused(f"{site.operation.key} has no kernels")
    return rule


def judge(site: Site) -> None:
    """Raises `Refused` unless there are kernels for *site*. Reads no large constants."""
    write(Builder(site.model, judging=True), site)


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


def legalise(model: Model) -> Program:
    """The program of *model*, kernels in the order of its operations."""
    builder = Builder(model)
    for site in polled(make_sites(model)):
        builder.begin(site.index)
        write(builder, site)
    return builder.finish()
