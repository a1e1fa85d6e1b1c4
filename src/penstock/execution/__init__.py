"""The execute stage: a compiled model, a request and a state become outputs and a receipt."""

from typing import TYPE_CHECKING

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.execution.compiled import CompiledModel
    from penstock.execution.interface import Outputs
    from penstock.execution.state import State

__all__ = ["CompiledModel", "Outputs", "State"]

__getattr__ = lazily(
    __name__, {"compiled": "CompiledModel", "interface": "Outputs", "state": "State"}
)
