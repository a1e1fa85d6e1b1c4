"""What tests of the compiler share: the corpus's models as programs, after every pass, and their
distance from the reference device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

import penstock
from penstock.compiler import interpreter, pipeline
from penstock.compiler.checks import check, check_plan
from penstock.compiler.legalise import judge, legalise
from penstock.compiler.memory import plan
from penstock.compiler.outputs import with_own_outputs
from penstock.compiler.program import Program
from penstock.compiler.target import Target
from penstock.driverkit.site import Refused, make_sites
from penstock.errors import GeneralFailure, ModelError
from penstock.ir import DType, Model, NDArray
from penstock.runtime.distance import HYBRID_SHARE

if TYPE_CHECKING:
    from tests.golden.cases import Entry

TARGETS: Final = (Target(vector=64, bytes="unsigned"), Target(vector=16, bytes="signed"))
"""Two targets that have little in common."""

FLOAT_BOUND: Final = 2e-5
"""The greatest difference of a float, over the greatest output. Networks whose layers quantise
floats when they run are held to `HYBRID_SHARE`: a rounding error moves a value by a whole step.
"""


def corpus_entries() -> list[Entry]:
    """Networks and units of the corpus, the smallest first."""
    # Processes that tests start for generated code need no pytest and no Hypothesis.
    from tests.golden.cases import entries

    found = [*entries("network"), *entries("unit")]
    found += [*entries("network", "onnx"), *entries("unit", "onnx")]
    return sorted(found, key=lambda e: ((e["macs"] or 0), e["size"]))


def model_of(entry: Entry) -> Model | None:
    """The model of an entry; None if the compiler does not take all of it."""
    from tests.conftest import CORPUS

    if CORPUS is None:
        return None
    try:
        model = without_state(penstock.load(Path(CORPUS) / "models" / entry["file"]))
        for site in make_sites(model):
            judge(site)
        legalise(model)
    except (ModelError, Refused):
        return None
    return model


def without_state(model: Model) -> Model:
    """*model*, whose states are inputs and outputs like others."""
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = replace(model.entry, states=())
    return replace(model, subgraphs=tuple(subgraphs), variables=(), signatures={})


def stages(model: Model, target: Target) -> Iterator[tuple[str, Program]]:
    """(name, program) after each pass."""
    program = legalise(model)
    yield "legalise", program
    for name, step in pipeline.PASSES.items():
        program = step(program, target)
        yield name, program


def check_stages(model: Model) -> int:
    """Checks the invariants of every program between two passes, and of the plan of memory, for
    both targets. Returns how many were checked.
    """
    checked = 0
    for target in TARGETS:
        for _, program in stages(model, target):
            check(program)
            checked += 1
        last = with_own_outputs(program)
        check(last)
        check_plan(plan(last))
    return checked


def random_inputs(model: Model, seed: int = 0) -> list[NDArray]:
    """Arrays for the inputs: integers over the whole range of small types, floats about 0."""
    rng = np.random.default_rng(seed)
    return [_array(rng, o.dtype.numpy, tuple(d or 1 for d in o.shape or ())) for o in model.inputs]


def _array(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray:
    if dtype == np.bool_:
        return rng.random(shape) > 0.5
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype) if dtype.itemsize < 4 else None
        low, high = (0, 5) if bounds is None else (int(bounds.min), int(bounds.max))
        return rng.integers(low, high + 1, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def reference(model: Model, inputs: Sequence[NDArray]) -> list[NDArray]:
    """What the device `reference` computes."""
    with penstock.compile(model, devices=["reference"], cache=None) as compiled:
        results = compiled.run(list(inputs))
        return [np.array(results[k]) for k in range(len(model.outputs))]


def is_hybrid(model: Model) -> bool:
    """Whether a layer multiplies floats by integers."""
    operands = model.operands
    return any(
        len(o.inputs) > 1
        and operands[o.inputs[0]].dtype is DType.FLOAT32
        and any(operands[i].dtype in {DType.INT8, DType.INT4, DType.UINT8} for i in o.inputs[1:])
        for o in model.operations
    )


def bound_of(model: Model) -> float:
    """The bound of floats for *model*."""
    return HYBRID_SHARE if is_hybrid(model) else FLOAT_BOUND


def differences(
    wanted: Sequence[NDArray], got: Sequence[NDArray], bound: float = FLOAT_BOUND
) -> list[str]:
    """Where *got* is not *wanted*: integers bit for bit, floats within *bound*."""
    found = []
    for number, (w, g) in enumerate(zip(wanted, got, strict=True)):
        if (w.dtype, w.shape) != (g.dtype, g.shape):
            found.append(f"output {number} is {g.dtype} {g.shape}, not {w.dtype} {w.shape}")
        elif w.dtype.kind not in "fc":
            if wrong := int(np.count_nonzero(w != g)):
                found.append(f"output {number}: {wrong} of {w.size} elements differ")
        elif not np.array_equal(np.isfinite(w), np.isfinite(g)):
            found.append(f"output {number}: other elements are finite")
        else:
            finite = np.isfinite(w)
            largest = np.max(np.abs(w[finite]), initial=1e-9)
            if (far := float(np.max(np.abs(w - g)[finite], initial=0) / largest)) > bound:
                found.append(f"output {number} is off by {far:.2g} of its largest element")
    return found


def departures(model: Model, seed: int = 0) -> list[str]:
    """Where programs after each pass, for both targets, differ from the reference device; nothing
    where that refuses to run.
    """
    inputs = random_inputs(model, seed)
    try:
        wanted = reference(model, inputs)
    except GeneralFailure:
        return []
    found: list[str] = []
    for target in TARGETS:
        for name, program in stages(model, target):
            if target is not TARGETS[0] and name in {"legalise", "fold", "fuse"}:
                continue  # These passes do not know the target.
            faults = differences(wanted, interpreter.run(program, inputs), bound_of(model))
            found += [f"after {name} for {target.bytes} bytes: {fault}" for fault in faults]
    return found
