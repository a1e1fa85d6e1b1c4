"""Promises of a device that offers vendor extensions (NNAPI sections 5.2 and 8.6)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock import hal
from penstock.errors import DriverError, InvalidArgument
from penstock.hal.capabilities import fault_of_extensions
from penstock.ir import AttributeValue, DType, ExtensionType, Model, ModelBuilder, NDArray, Operand
from penstock.ir.operand import MAX_CODE
from penstock.testing.contract.cases import Case, renamed, unheard_of
from penstock.testing.contract.promise import (
    NotCovered,
    Suite,
    Violation,
    allowed,
    describe,
    refused,
    require,
)
from penstock.testing.contract.trial import PreparedCase, Trial, prepare

SUITE: Final = Suite("extensions", "extensions", "Extension")

ELSEWHERE: Final = "org.penstock.contract.unheard_of"
PROBED: Final = range(8)
"""How many operation numbers are tried; vendors count from 0."""

LENGTHS: Final = (0, 4, 16)
"""Sizes of extension data, all zeros, that operands are tried with: none, and usual sizes."""

DIMENSIONS: Final = ((1,), (2, 3))
"""Dimensions that all tensors of an operation are tried with."""

MOST_TYPES: Final = 4
"""Operand types of one extension that are tried."""

MOST_CASES: Final = 4
"""How many supported signatures of one operation are run."""

NONSENSE: Final = b"\x00\xffpenstock contract"


Kind: TypeAlias = "DType | ExtensionType"
"""The type of an operand: an NNAPI type or an extension's."""

Signature: TypeAlias = "tuple[tuple[Kind, ...], Kind, tuple[int, ...]]"
"""The types of an operation's inputs and of its one output, and the dimensions of all tensors."""


@SUITE.check
def check_extensions_are_well_formed(device: hal.Device) -> None:
    """Names are unique reversed domain names. Operand types have unique 16-bit numbers and a size.

    Nothing of it changes.
    """
    offered = _offered(device)
    fault = fault_of_extensions(offered)
    require(fault is None, f"of its extensions, {fault}")
    device.supported_operations(_probes(offered[0])[0])
    require(device.capabilities.extensions == offered, "its extensions change from call to call")


@SUITE.check
def check_extension_support_is_pure(device: hal.Device) -> None:
    """Equal models get equal answers, whatever their names. A rejection has a reason."""
    for extension in _offered(device):
        model, _ = _probes(extension)
        first = list(device.supported_operations(model))
        require(
            len(first) == len(model.operations),
            f"{extension.name}: {len(first)} answers for {len(model.operations)} operations",
        )
        for again in (model, renamed(model, "other_")):
            answers = list(device.supported_operations(again))
            require(answers == first, f"{extension.name}: an equal model gets another answer")
        for answer in first:
            require(answer.supported or answer.reason, f"{extension.name}: a no without a reason")


@SUITE.check
def check_other_extensions_are_refused(device: hal.Device) -> None:
    """The device rejects an operation of an extension that it does not offer.

    It also rejects an operation on an operand type that its extension does not have.
    """
    offered = _offered(device)
    if any(answer.supported for answer in device.supported_operations(unheard_of())):
        raise NotCovered("it supports everything")
    for answer in device.supported_operations(_probes(hal.Extension(ELSEWHERE))[0]):
        require(not answer.supported, "an operation of an extension that is not offered has a yes")
    for extension in offered:
        known = {kind.code for kind in extension.operand_types}
        unknown = next(code for code in range(MAX_CODE, -1, -1) if code not in known)
        foreign = ExtensionType(extension.name, unknown, 8)
        model, _ = _model(extension, [((foreign,), foreign, DIMENSIONS[0])])
        for answer in device.supported_operations(model):
            require(not answer.supported, f"{foreign.name}, which is not declared, has a yes")


@SUITE.check
def check_supported_extension_operations_run(device: hal.Device) -> None:
    """A supported extension operation is prepared and runs, or fails with a `DriverError`.

    A run leaves its inputs and the memory around its outputs unchanged. Equal inputs give equal
    outputs. The driver may fail for values.
    """
    succeeded = 0
    for case in _supported(device):
        with _prepared(device, case) as on:
            for inputs in (case.inputs, _ones(case)):
                for trial in on.trials(inputs=inputs):
                    succeeded += _check_runs(trial)
    if not succeeded:
        raise NotCovered("it refuses the values that this suite makes up")


@SUITE.check
def check_attributes_are_checked(device: hal.Device) -> None:
    """Compiles and runs ignore unknown attributes and invalid values.

    Malformed and repeated attributes are `InvalidArgument`.
    """
    case = _supported(device)[0]
    (extension, *_) = _offered(device)
    odd = tuple(hal.ExtensionAttribute(extension.name, code, NONSENSE) for code in (0, 1, MAX_CODE))
    with _prepared(device, case, odd) as on, on.trial() as trial:
        outcomes = set()
        for attributes in ((), odd):
            with allowed(case.name, DriverError) as errors:
                trial.run(on.prepared, hal.ExecutionConfig(attributes=attributes))
            outcomes.add(tuple(map(type, errors)))
        require(len(outcomes) == 1, f"{case.name}: attributes of no sense change a run")
    for name, bad in (
        ("an attribute twice", (odd[0], odd[0])),
        ("an attribute without a value", (replace(odd[0], value=b""),)),
        ("an attribute of no extension", (replace(odd[0], extension="no name"),)),
        ("an attribute beyond 16 bits", (replace(odd[0], code=MAX_CODE + 1),)),
    ):
        with refused(name, InvalidArgument):
            device.prepare_model(case.model, hal.PrepareConfig(attributes=bad)).close()


@SUITE.check
def check_extensions_are_the_same_through_messages(device: hal.Device) -> None:
    """A driver in another process shares no objects with its caller, and answers the same."""
    from penstock.testing.loopback import LoopbackDevice

    offered = _offered(device)
    far = LoopbackDevice(device)
    require(far.capabilities.extensions == offered, "other extensions through messages")
    for extension in offered:
        model, _ = _probes(extension)
        near: list[hal.Support] = list(device.supported_operations(model))
        require(list(far.supported_operations(model)) == near, "other answers through messages")


def _offered(device: hal.Device) -> tuple[hal.Extension, ...]:
    if not (offered := device.capabilities.extensions):
        raise NotCovered("it offers no extension")
    return offered


def _supported(device: hal.Device) -> list[Case]:
    """Models of one operation each: the probes that *device* supports."""
    found: list[Case] = []
    for extension in _offered(device):
        model, signatures = _probes(extension)
        answers = device.supported_operations(model)
        for operation, signature, answer in zip(model.operations, signatures, answers, strict=True):
            code = operation.attributes.integer("code")
            if answer.supported and sum(operation.key in c.name for c in found) < MOST_CASES:
                alone, _ = _model(extension, [signature], codes=[code])
                found.append(_case(f"{operation.key} {len(found)}", alone))
    if not found:
        raise NotCovered("it supports none of the extension operations that this suite makes up")
    return found


def _ones(case: Case) -> list[NDArray]:
    """Inputs like the case's: numbers are 1, extension elements a little-endian 1."""
    made = [np.ones_like(zeros) for zeros in case.inputs]
    for array, operand in zip(made, case.model.inputs, strict=True):
        if operand.extension is not None:
            array[..., 1:] = 0
    return made


def _check_runs(trial: Trial) -> bool:
    """Whether its runs succeed. Raises `Violation` if they differ."""
    name = trial.case.name
    found: list[list[NDArray]] = []
    for _ in range(2):
        trial.fill()
        with suppress(DriverError):
            found.append(trial.run(trial.on.prepared))
    require(len(found) != 1, f"{name}: of two equal runs one failed")
    if found:
        same = all(map(np.array_equal, *found))
        require(same, f"{name}: equal requests give other outputs")
    return bool(found)


def _case(name: str, model: Model) -> Case:
    """*model* with zero inputs, which every type has, and outputs of the right sizes."""
    given, wanted = (
        tuple(np.zeros([d or 1 for d in o.shape or ()], o.dtype.numpy) for o in operands)
        for operands in (model.inputs, model.outputs)
    )
    return Case(name, model, given, wanted)


def _probes(extension: hal.Extension) -> tuple[Model, list[Signature]]:
    """A model with many operations of *extension*.

    Each number occurs with each signature of one input, and of two inputs of one type.
    """
    types: list[Kind] = [DType.FLOAT32, DType.INT32]
    for kind in extension.operand_types[:MOST_TYPES]:
        types += [
            ExtensionType(extension.name, kind.code, kind.byte_size, kind.is_tensor, bytes(n))
            for n in LENGTHS
        ]
    signatures: list[Signature] = [
        (taken, given, dimensions)
        for kind, given in product(types, types)
        for taken, dimensions in (
            *(((kind,), dimensions) for dimensions in DIMENSIONS),
            ((kind, kind), DIMENSIONS[0]),
        )
    ]
    every = [(signature, code) for signature in signatures for code in PROBED]
    return _model(extension, [s for s, _ in every], [c for _, c in every])


def _model(
    extension: hal.Extension, signatures: Sequence[Signature], codes: Sequence[int] = (0,)
) -> tuple[Model, list[Signature]]:
    builder = ModelBuilder()
    outputs = []
    for at, ((taken, given, dimensions), code) in enumerate(zip(signatures, codes, strict=True)):
        inputs = []
        for n, kind in enumerate(taken):
            x = _operand(kind, dimensions, f"x{at}_{n}")
            inputs.append(builder.input(x.dtype, x.shape, x.name, extension=x.extension))
        made = _operand(given, dimensions, f"y{at}")
        attributes: dict[str, AttributeValue] = {"extension": extension.name, "code": code}
        outputs += builder.operation("EXTENSION", inputs, [made], attributes)
    return builder.build(outputs), list(signatures)


def _operand(kind: Kind, dimensions: tuple[int, ...], name: str) -> Operand:
    if isinstance(kind, DType):
        return Operand(kind, dimensions, name=name)
    shape = (*(dimensions if kind.is_tensor else ()), kind.byte_size)
    return Operand(DType.UINT8, shape, name=name, extension=kind)


def _prepared(
    device: hal.Device, case: Case, attributes: tuple[hal.ExtensionAttribute, ...] = ()
) -> PreparedCase:
    try:
        return prepare(device, case, hal.PrepareConfig(attributes=attributes))
    except DriverError as error:
        raise Violation(f"{case.name}: said yes, then {describe(error)}") from error
