"""Legalisation: a model becomes kernels, operation by operation."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from penstock.compiler.legalise.builder import RULES, Builder, Operation, legal
from penstock.compiler.legalise.writing import write
from penstock.compiler.program import Program
from penstock.driverkit.site import Site, make_sites
from penstock.interrupts import polled
from penstock.ir import Model
from penstock.ir.rounding import Sums, sums_of

__all__ = ["RULES", "Builder", "Operation", "judge", "legal", "legalise"]

for _family in iter_modules(__path__):
    import_module(f"{__name__}.{_family.name}")


def judge(site: Site) -> None:
    """Raises `Refused` unless there are kernels for *site*. Reads no large constants."""
    builder = Builder(site.model, judging=True)
    write(builder, site)
    builder.require_types()


def legalise(model: Model, later: Mapping[int, Sums] | None = None) -> Program:
    """The program of *model*, kernels in the order of its operations. *later* has the order of sums
    for operands that are rounded outside the model.
    """
    builder = Builder(model, orders=sums_of(model.entry, later))
    for site in polled(make_sites(model)):
        builder.begin(site.index)
        write(builder, site)
    return builder.finish()
