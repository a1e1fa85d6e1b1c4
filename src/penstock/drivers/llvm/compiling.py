"""From a model to object code and constants."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Final

import msgspec

from penstock.compiler import memory, pipeline
from penstock.compiler.batch import divided
from penstock.compiler.entry import legal
from penstock.compiler.outputs import with_own_outputs
from penstock.compiler.program import Program
from penstock.driverkit.artefact import ports_of
from penstock.driverkit.engine import check_limits, compiled_within
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

MOST_OBJECTS: Final = 8
"""Modules whose object code is kept; most have some hundred kilobytes."""


class Compiled(msgspec.Struct, frozen=True, eq=False):
    """A compile's result: what the cache files hold."""

    manifest: Manifest
    code: bytes
    constants: memoryview


class _Objects:
    """The object code of recent modules: batches of different sizes have the same code.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._codes: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()

    def get(self, text: str, isa: Isa) -> bytes:
        """The code of the module *text*."""
        key = isa.name, sha256(text.encode()).digest()
        # `pop` and assignments of a dictionary are atomic.
        code = self._codes.pop(key, None)
        if code is None:
            code = backend.compile_object(text, isa)
        self._codes[key] = code
        while len(self._codes) > MOST_OBJECTS:
            with suppress(KeyError):
                self._codes.popitem(last=False)
        return code


_objects: Final = _Objects()


def compile_model(model: Model, isa: Isa, engine: str, config: PrepareConfig) -> Compiled:
    """The code of *model*, whose operations are all supported, for *isa*. *engine* is the version
    of llvmlite.
    """
    check_limits(config)
    ports = ports_of(model)
    program, images = lowered_batch(model, isa, config)
    check_limits(config)
    program = with_own_outputs(program)
    planned = memory.plan(program)

    def unload() -> None:
        for pool in model.pools:
            pool.unload()

    made = generate(planned, isa, images=images > 1, packed=unload)
    check_limits(config)
    # LLVM looks at no deadline: a compile that is late, or cancelled, goes on without its caller.
    code = compiled_within(config, partial(_objects.get, made.text, isa))
    check_limits(config)
    kernels = tuple(
        (template, kernel.name, kernel.origin)
        for template, kernel in zip(made.templates, program.kernels, strict=True)
    )
    work = tuple((products(kernel), kernel.sums.value) for kernel in program.kernels)
    manifest = Manifest(
        artefact.SCHEMA, engine, ports, isa.name, isa.features, made.arena,
        len(made.constants), kernels, made.called, work, made.shared, images,
        made.estimate_ns * images, program.failures,
    )  # fmt: skip
    return Compiled(manifest, code, made.constants)


def lowered(model: Model, isa: Isa, config: PrepareConfig, last: str = LAST) -> Program:
    """The program of *model*, or of a part of its batch, after the pass *last*. Raises as
    `legal`.
    """
    return lowered_batch(model, isa, config, last)[0]


def lowered_batch(
    model: Model, isa: Isa, config: PrepareConfig, last: str = LAST
) -> tuple[Program, int]:
    """As `lowered`, and the number of parts of the batch."""
    program, images = legal(model, config), 1
    if (batch := divided(program)) is not None:
        program, images = batch.program, batch.parts
    try:
        return pipeline.upto(program, last, isa.target), images
    except Refused as refusal:
        raise GeneralFailure(f"the model cannot be compiled: {refusal}") from refusal
