"""From a model to object code and constants."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.compiler import memory, pipeline
from penstock.compiler.legalise import legalise
from penstock.compiler.outputs import with_own_outputs
from penstock.compiler.program import Program
from penstock.driverkit.artefact import ports_of
from penstock.driverkit.engine import check_limits
from penstock.driverkit.site import Refused
from penstock.drivers.llvm import artefact, backend
from penstock.drivers.llvm.artefact import Manifest
from penstock.drivers.llvm.emit.cost import products
from penstock.drivers.llvm.emit.module import generate
from penstock.drivers.llvm.isa.record import Isa
from penstock.errors import GeneralFailure
from penstock.hal import PrepareConfig
from penstock.ir import Model

LAST: Final = "tabulate"


class Compiled(msgspec.Struct, frozen=True, eq=False):
    """A compile's result: what the cache files hold."""

    manifest: Manifest
    code: bytes
    constants: bytes


def compile_model(model: Model, isa: Isa, engine: str, config: PrepareConfig) -> Compiled:
    """The code of *model*, whose operations are all supported, for *isa*. *engine* is the version
    of llvmlite.
    """
    check_limits(config)
    ports = ports_of(model)
    program = lowered(model, isa)
    check_limits(config)
    program = with_own_outputs(program)
    planned = memory.plan(program)
    made = generate(planned, isa)
    check_limits(config)
    code = backend.compile_object(made.text, isa)
    check_limits(config)
    kernels = tuple(
        (template, kernel.name, kernel.origin)
        for template, kernel in zip(made.templates, program.kernels, strict=True)
    )
    work = tuple((products(kernel), kernel.sums.value) for kernel in program.kernels)
    manifest = Manifest(
        artefact.SCHEMA, engine, ports, isa.name, isa.features, made.arena,
        len(made.constants), kernels, work, made.shared, made.images, made.estimate_ns,
        program.failures,
    )  # fmt: skip
    return Compiled(manifest, code, made.constants)


def legal(model: Model) -> Program:
    """The program of *model*, with the outputs that code computes: runs copy outputs that are
    inputs. Raises `GeneralFailure` for an operation without kernels.
    """
    ports = ports_of(model)
    try:
        program = legalise(model)
    except Refused as refusal:
        raise GeneralFailure(f"the model cannot be compiled: {refusal}") from refusal
    pairs = zip(program.results, ports.forwards, strict=True)
    computed = tuple(tensor for tensor, source in pairs if source < 0)
    return replace(program, outputs=(*computed, *program.flags))


def lowered(model: Model, isa: Isa, last: str = LAST) -> Program:
    """The program of *model* after the pass *last*. Raises as `legal` does."""
    try:
        return pipeline.upto(legal(model), last, isa.target)
    except Refused as refusal:
        raise GeneralFailure(f"the model cannot be compiled: {refusal}") from refusal
