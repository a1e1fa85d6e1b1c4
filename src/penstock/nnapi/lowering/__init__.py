"""NNAPI's operations into the IR's, feature levels 1 to 8, with NNAPI's validation.

`lower` takes a whole model; `lower_traced` also says what became of each operation.
`registry.lowers` registers how one operation is lowered; the families stand in modules of their
own. What becomes of each operation is in docs/nnapi.md.
"""

from penstock.nnapi.lowering.model import lower, lower_traced
from penstock.nnapi.lowering.registry import Rule, lowers, rules
from penstock.nnapi.lowering.site import Site

__all__ = ["Rule", "Site", "lower", "lower_traced", "lowers", "rules"]
