"""The execute stage: a compiled model, a request and a state become outputs and a receipt."""

from penstock.execution.compiled import CompiledModel
from penstock.execution.outputs import Outputs
from penstock.execution.state import State

__all__ = ["CompiledModel", "Outputs", "State"]
