"""Random models on generated code or a device, and on the device `reference`: how the two compare.

Models come in families: layers around the widths of vectors (tests/support_layers.py), single
operations of each family of generators of tests/differential, graphs of these, and loops.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
from msgspec import Struct

import penstock
from penstock.compiler.legalise import judge
from penstock.driverkit.site import Refused, make_sites
from penstock.drivers.llvm.isa import Isa
from penstock.errors import PenstockError
from penstock.hal import Device, ExecutionConfig, HostMemory, PrepareConfig, Request
from penstock.ir import Model, NDArray, infer_shapes
from penstock.ir.types import static_shape
from tests.differential.graphs import draw_graph
from tests.differential.registry import draw_unusual, every_case
from tests.support_compiler import (
    bound_of,
    differences,
    is_hybrid,
    random_inputs,
    reference,
    without_state,
)
from tests.support_generated import Runner, compiled
from tests.support_layers import FAMILIES, draw_layer
from tests.support_loops import scanning

GRAPHS: Final = "graphs"
LAYERS: Final = "layers of "
OPERATIONS: Final = "operations of "
LOOPS: Final = "loops"


def families() -> list[str]:
    """The names of all families."""
    modules = sorted({case.family for case in every_case().values()})
    return [*(LAYERS + f for f in FAMILIES), *(OPERATIONS + m for m in modules), GRAPHS, LOOPS]


class Trial(Struct, frozen=True):
    """A model's outcome: whether the compiler takes it, what it is, and what differs."""

    taken: bool
    what: str = ""
    wrong: tuple[str, ...] = ()


def draw(family: str, seed: int) -> tuple[Model, list[NDArray]]:
    """The model number *seed* of *family*, with its inputs. Raises `PenstockError` or `ValueError`
    where the numbers give no model.
    """
    if family.startswith(LAYERS):
        return draw_layer(family.removeprefix(LAYERS), seed)
    if family == LOOPS:
        scan = scanning(1 + seed % 6, seed, grids=False)
        return scan, random_inputs(scan, seed)
    if family == GRAPHS:
        drawn = draw_graph([seed])
    else:
        module = family.removeprefix(OPERATIONS)
        keys = sorted(key for key, case in every_case().items() if case.family == module)
        drawn = draw_unusual(keys[seed % len(keys)], [seed])
    loaded = penstock.load(drawn.file)
    model = without_state(loaded)
    inputs = with_states(loaded, drawn.inputs, seed)
    shapes = {number: array.shape for number, array in enumerate(inputs)}
    return infer_shapes(model, shapes), inputs


def with_states(model: Model, inputs: Sequence[NDArray], seed: int) -> list[NDArray]:
    """*inputs*, and random values for the states, which are inputs of `without_state(model)`."""
    states = {port.input for port in model.entry.states}
    given, values = iter(inputs), random_inputs(without_state(model), seed)
    indices = model.entry.inputs
    return [v if index in states else next(given) for index, v in zip(indices, values, strict=True)]


def judged(family: str, seed: int) -> tuple[Model, list[NDArray]] | None:
    """The model number *seed* of *family*, with its inputs; None where it is not judged.

    A layer that quantises its input converts NaN to an integer, which C leaves undefined.
    """
    try:
        model, inputs = draw(family, seed)
    except (PenstockError, ValueError):
        return None
    if is_hybrid(model) and any(a.dtype.kind == "f" and np.isnan(a).any() for a in inputs):
        return None
    return model, inputs


def tried(family: str, seed: int, sets: Sequence[Isa]) -> Trial:
    """The outcome of a model on generated code for each of *sets*."""
    if (drawn := judged(family, seed)) is None:
        return Trial(False)
    model, inputs = drawn
    try:
        for site in make_sites(model):
            judge(site)
        programs = [compiled(model, isa) for isa in sets]
    except (PenstockError, Refused, ValueError):
        return Trial(False)
    with quiet():
        try:
            wanted = reference(model, inputs)
        except PenstockError:
            return Trial(False)
        wrong = []
        for isa, program in zip(sets, programs, strict=True):
            runner = Runner(program, isa)
            # Flags of what may fail follow the model's outputs.
            got = runner(inputs)[: len(wanted)]
            found = differences(wanted, got, bound_of(model))
            wrong += [f"{isa.name}: {d}" for d in found]
            runner.close()
    return Trial(True, named(model), tuple(wrong))


def tried_on(device: Device, family: str, seed: int) -> Trial:
    """The outcome of a model on *device*. Not to compile what it supports is a fault of it."""
    if (drawn := judged(family, seed)) is None:
        return Trial(False)
    model, inputs = drawn
    answers = device.supported_operations(model)
    if not all(answer.supported for answer in answers):
        return Trial(False)
    with quiet():
        try:
            wanted = reference(model, inputs)
        except PenstockError:
            return Trial(False)
        try:
            got = run_on(device, model, inputs)
        except PenstockError as error:
            return Trial(True, named(model), (f"{type(error).__name__}: {error}",))
        return Trial(True, named(model), tuple(differences(wanted, got, bound_of(model))))


def run_on(device: Device, model: Model, inputs: Sequence[NDArray]) -> list[NDArray]:
    """What *device* computes of *model*, whose outputs have known shapes."""
    prepared = device.prepare_model(model, PrepareConfig())
    outputs = [np.full(static_shape(o.shape) or (), 77, o.dtype.numpy) for o in model.outputs]
    given = tuple(HostMemory(np.array(a, order="C")) for a in inputs)
    prepared.execute(Request(given, tuple(map(HostMemory, outputs))), ExecutionConfig())
    prepared.close()
    return outputs


def named(model: Model) -> str:
    """The operations of *model*."""
    return ", ".join(o.key for o in model.operations)


@contextmanager
def quiet() -> Iterator[None]:
    """A block in which neither NumPy nor the devices warn."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
