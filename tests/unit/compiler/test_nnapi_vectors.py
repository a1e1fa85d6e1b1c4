"""The NNAPI vectors through the compiler's front half: programs give the recorded outputs after
legalisation and after every pass.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from penstock import errors
from penstock.compiler import interpreter, pipeline
from penstock.compiler.legalise import judge, legalise
from penstock.compiler.program import Program
from penstock.compiler.target import Target
from penstock.driverkit.site import Refused, make_sites
from penstock.ir import Model, infer_shapes
from penstock.nnapi.lowering import lower
from penstock.testing.vectors import load_directory
from penstock.testing.vectors.derive import Run, runs_of
from penstock.testing.vectors.runner import difference

SEED: Final = 20
CASES: Final = 160
LEAST_TAKEN: Final = CASES * 2600 // 3429
"""The share of the vectors that the compiler is to take."""


def model_of(run: Run) -> Model | None:
    """The model of *run*, if every operation has kernels."""
    try:
        model = lower(run.model, run.feature_level, run.omitted)
        model = infer_shapes(model, {p: a.shape for p, a in enumerate(run.fed)})
        for site in make_sites(model):
            judge(site)
    except (Refused, errors.NotLowerable, errors.ModelError, errors.InputError):
        return None
    return model


def fault_of(run: Run, program: Program) -> str | None:
    """What is wrong with the outputs of *program*; None if nothing is."""
    fails = run.case.entry.expect_failure
    try:
        outputs = interpreter.run(program, run.fed)
    except errors.GeneralFailure as failure:
        return None if fails else str(failure)
    return "the run must fail" if fails else difference(run, outputs)


@pytest.mark.slow
def test_recorded_outputs_are_those_of_programs(corpus: Path) -> None:
    cases = [c for s in load_directory(corpus / "conformance" / "nnapi") for c in s.cases]
    taken, faults = 0, []
    for case in random.Random(SEED).sample(cases, CASES):
        run = next(iter(runs_of(case)))
        model = model_of(run)
        if model is None:
            continue
        taken += 1
        program = legalise(model)
        target = Target(bytes="signed" if taken % 2 else "unsigned")
        for stage, staged in (
            ("legalise", program),
            *((name, pipeline.upto(program, name, target)) for name in pipeline.PASSES),
        ):
            fault = fault_of(run, staged)
            if fault is not None:
                faults.append(f"{case.name} after {stage}: {fault}")
    assert faults == []
    assert taken >= LEAST_TAKEN
