"""Lowers NNAPI's operations to the IR's, feature levels 1 to 8, with NNAPI's validation.

`lower` takes a whole model; `lower_traced` also returns what each operation became.
`registry.lowers` registers the lowering of one operation. docs/nnapi.md lists all of them.
"""

from penstock.nnapi.lowering.model import lower, lower_traced
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import Rule, lowers, rules

__all__ = ["OperationLowering", "Rule", "lower", "lower_traced", "lowers", "rules"]
