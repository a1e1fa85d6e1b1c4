"""From a model to shaders and constants."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.compiler.entry import legal
from penstock.compiler.outputs import with_own_outputs
from penstock.compiler.pipeline import PASSES
from penstock.compiler.program import Program
from penstock.compiler.target import Target
from penstock.driverkit.artefact import ports_of
from penstock.driverkit.engine import check_limits
from penstock.driverkit.site import Refused
from penstock.drivers.webgpu import artefact, installation
from penstock.drivers.webgpu.artefact import Manifest
from penstock.drivers.webgpu.emit.module import generate
from penstock.drivers.webgpu.emit.parts import in_parts
from penstock.drivers.webgpu.emit.steps import with_steps
from penstock.errors import GeneralFailure
from penstock.hal import PrepareConfig
from penstock.ir import Model

TARGET: Final = Target(vector=16, halo=False)
STAGES: Final = ("fold", "fuse", "tabulate")
"""The passes of the front half that shaders profit from: they read tensors as they are laid out."""


def compile_model(model: Model, config: PrepareConfig) -> tuple[Manifest, np.ndarray]:
    """The shaders of *model*, whose operations are all supported, and the constants they read."""
    check_limits(config)
    ports = ports_of(model)
    program = lowered(model, config)
    check_limits(config)
    made = generate(with_own_outputs(program), is_relaxed=config.accuracy == "relaxed")
    check_limits(config)
    manifest = Manifest(
        artefact.SCHEMA, installation.engine_version(), ports, made.shaders, made.calls,
        made.layout, made.constants.nbytes, program.failures, made.numbers,
        made.sketch,
    )  # fmt: skip
    return manifest, made.constants


def lowered(model: Model, config: PrepareConfig, last: str = STAGES[-1]) -> Program:
    """The program of *model* after the pass *last*. Raises as `legal`."""
    program = legal(model, config)
    try:
        for stage in STAGES:
            program = PASSES[stage](program, TARGET)
            check_limits(config)
            if stage == last:
                break
    except Refused as refusal:
        raise GeneralFailure(f"the model cannot be compiled: {refusal}") from refusal
    return in_parts(with_steps(program))
