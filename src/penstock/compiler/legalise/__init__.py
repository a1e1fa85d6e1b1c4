"""Legalisation: a model becomes kernels, operation by operation."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from penstock.compiler.legalise.builder import RULES, Builder, Operation, legal
from penstock.compiler.legalise.writing import write
from penstock.compiler.program import Program
from penstock.driverkit.site import Site, make_sites
from penstock.interrupts import polled
from penstock.ir import Model

__all__ = ["RULES", "Builder", "Operation", "judge", "legal", "legalise"]

for _family in iter_modules(__path__):
    import_module(f"{__name__}.{_family.name}")


def judge(site: Site) -> None:
    """Raises `Refused` unless there are kernels for *site*. Reads no large constants."""
    builder = Builder(site.model, judging=True)
    write(builder, site)
    builder.require_types()


def legalise(model: Model) -> Program:
    """The program of *model*, kernels in the order of its operations."""
    builder = Builder(model)
    for site in polled(make_sites(model)):
        builder.begin(site.index)
        write(builder, site)
    return builder.finish()
