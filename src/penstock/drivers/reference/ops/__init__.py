"""The operations of the reference driver, one file an operation family; importing registers them all."""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
