"""Where a driver enters the compiler: the program of a model that it prepares."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.compiler.legalise import legalise
from penstock.compiler.program import Program
from penstock.driverkit.artefact import ports_of
from penstock.driverkit.site import Refused
from penstock.errors import GeneralFailure
from penstock.hal import PrepareConfig
from penstock.ir import Model
from penstock.ir.rounding import sums_of_options


def legal(model: Model, config: PrepareConfig) -> Program:
    """The program of *model*, with the outputs that code computes: runs copy outputs that are
    inputs. Raises `GeneralFailure` for an operation without kernels.
    """
    ports, outputs = ports_of(model), model.entry.outputs
    orders = sums_of_options(config.options)
    try:
        program = legalise(model, {outputs[k]: s for k, s in orders.items() if k < len(outputs)})
    except Refused as refusal:
        raise GeneralFailure(f"the model cannot be compiled: {refusal}") from refusal
    pairs = zip(program.results, ports.forwards, strict=True)
    computed = tuple(tensor for tensor, source in pairs if source < 0)
    return replace(program, outputs=(*computed, *program.flags))
