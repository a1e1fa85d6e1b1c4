"""Properties of a device, and its support answers for models."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from msgspec.structs import replace

from penstock.errors import DriverError, GeneralFailure, InvalidArgument
from penstock.hal import ACCURACY_RANK, HAL_VERSION, Device, DeviceType, PrepareConfig, Support
from penstock.hal.capabilities import fault_of
from penstock.hal.stages import dump, stages_of
from penstock.ir import ModelBuilder
from penstock.testing.contract import cases
from penstock.testing.contract.promise import (
    NotCovered,
    Suite,
    describe,
    refused,
    require,
)

SUITE: Final = Suite("support", "saying-no-with-a-reason", "Device.supported_operations")


@SUITE.check
def check_get_device_name(device: Device) -> None:
    """BasicTests.GetDeviceName: a constant, non-empty string."""
    _same_text(device, "name")


@SUITE.check
def check_get_device_version_string(device: Device) -> None:
    """BasicTests.GetDeviceVersionString: a constant, non-empty string."""
    _same_text(device, "version")


def _same_text(device: Device, label: str) -> None:
    value = getattr(device, label)
    require(isinstance(value, str) and value, f"{label} is {value!r}")
    require(getattr(device, label) == value, f"{label} changes from call to call")


@SUITE.check
def check_get_device_type(device: Device) -> None:
    """BasicTests.GetDeviceType: a `DeviceType` other than unknown."""
    require(isinstance(device.type, DeviceType), f"type is {device.type!r}")


@SUITE.check
def check_levels(device: Device) -> None:
    """A feature level of 1 to 8, and the HAL version of this Penstock."""
    level = device.feature_level
    require(level in range(1, 9), f"feature level is {level!r}")
    require(device.hal_version == HAL_VERSION, f"HAL version is {device.hal_version!r}")


@SUITE.check
def check_get_capabilities(device: Device) -> None:
    """BasicTests.GetCapabilitiesTest: costs are positive and named by element types other than
    subgraph.

    Counts are not negative; alignments are powers of two.
    """
    claims = device.capabilities
    fault = fault_of(claims)
    require(fault is None, f"of its capabilities, {fault}")
    require(device.capabilities == claims, "capabilities change from call to call")


@SUITE.check
def check_memory_kinds(device: Device) -> None:
    """Every driver maps `ashmem` and `mmap_fd`, from feature level 4 on also
    `hardware_buffer_blob`.

    Below level 3 a driver must not claim to map hardware buffers.
    """
    level, kinds = device.feature_level, set(device.capabilities.memory_kinds)
    needed = {"ashmem", "mmap_fd"} | ({"hardware_buffer_blob"} if level >= 4 else set())
    missing = needed - kinds
    require(not missing, f"memory kinds do not have {', '.join(sorted(missing))}")
    early = [kind for kind in sorted(kinds) if kind.startswith("hardware_buffer") and level < 3]
    require(not early, f"memory kinds have {', '.join(early)} at feature level {level}")


@SUITE.check
def check_check_gives_a_reason(device: Device) -> None:
    """`check()` is None, or a sentence."""
    reason = device.check()
    require(reason is None or reason.strip(), f"check() gave {reason!r}")


@SUITE.check
def check_stages_are_printed(device: Device) -> None:
    """The stages of a compile have distinct names; each is text, equal for equal models. A stage
    that the device does not name is refused.
    """
    stages = stages_of(device)
    if not stages:
        raise NotCovered("prints no stages of a compile")
    names = [str(s) == s and s.isprintable() and s.strip() == s != "" for s in stages]
    require(all(names), f"stages are {stages!r}")
    require(len(set(stages)) == len(stages), f"stages {', '.join(stages)}: one name twice")
    case = next(iter(cases.supported_cases(device)))
    config = PrepareConfig()
    for stage in stages:
        first = dump(device, case.model, config, stage)
        require(first.strip(), f"{case.name}: stage {stage} is empty")
        again = dump(device, replace(case.model), config, stage)
        require(first == again, f"{case.name}: stage {stage} has another text again")
    raised = ""
    try:
        dump(device, case.model, config, "no such stage")
    except DriverError as error:
        raised = describe(error)
    require(raised, "a stage that the device does not name is printed")


@SUITE.check
def check_support_has_one_answer_per_operation(device: Device) -> None:
    for case in cases.every_case():
        answers = device.supported_operations(case.model)
        require(
            len(answers) == len(case.model.operations),
            f"{case.name}: {len(answers)} answers for {len(case.model.operations)} operations",
        )
        for answer in answers:
            require(isinstance(answer, Support), f"{case.name}: the answer {answer!r}")


@SUITE.check
def check_support_gives_reasons(device: Device) -> None:
    """A rejection has a reason. An acceptance has none, and names an accuracy class."""
    for model in [*(c.model for c in cases.every_case()), cases.unheard_of()]:
        for answer in device.supported_operations(model):
            require(answer.supported or answer.reason, "a no without a reason")
            require(not answer.supported or not answer.reason, f"a yes with {answer.reason!r}")
            require(answer.accuracy in ACCURACY_RANK, f"accuracy {answer.accuracy!r}")


@SUITE.check
def check_support_is_pure(device: Device) -> None:
    """Equal models, whatever their names, get equal answers, and are not changed."""
    for case in cases.every_case():
        digest = case.model.digest
        first = list(device.supported_operations(case.model))
        require(first == list(device.supported_operations(case.model)), f"{case.name}: two answers")
        again = device.supported_operations(cases.renamed(case.model, "other_"))
        one, other = ([(a.supported, a.accuracy) for a in answers] for answers in (first, again))
        require(one == other, f"{case.name}: an equal model gets another answer")
        require(replace(case.model).digest == digest, f"{case.name}: the model was changed")


@SUITE.check
def check_support_from_many_threads(device: Device) -> None:
    """Answers do not depend on other threads' calls."""
    models = [case.model for case in cases.every_case()]
    alone = [list(device.supported_operations(m)) for m in models]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda m: list(device.supported_operations(m)), models * 8))
    require(together == alone * 8, "answers differ when threads ask at once")


@SUITE.check
def check_supported_models_prepare(device: Device) -> None:
    """A model whose every operation is supported can be prepared."""
    for case in cases.supported_cases(device):
        failure = ""
        try:
            device.prepare_model(case.model, PrepareConfig()).close()
        except DriverError as error:
            failure = describe(error)
        require(not failure, f"{case.name}: said yes, then {failure}")


@SUITE.check
def check_refused_models_do_not_prepare(device: Device) -> None:
    """A model with an unsupported operation is rejected, and the error names the operation."""
    refusing = 0
    for model in [*(c.model for c in cases.every_case()), cases.unheard_of()]:
        answers = device.supported_operations(model)
        wanted = [o for o, a in zip(model.operations, answers, strict=True) if not a.supported]
        if not wanted:
            continue
        refusing += 1
        what = f"{wanted[0].type}, which its answer refuses,"
        with refused(what, InvalidArgument, GeneralFailure) as refusals:
            device.prepare_model(model, PrepareConfig()).close()
        names, error = {o.type for o in wanted}, refusals[0]
        named = any(n in str(error) for n in names)
        require(named, f"the refusal of {', '.join(sorted(names))} does not name it: {error}")
    if not refusing:
        raise NotCovered("it supports everything")


@SUITE.check
def check_control_flow_needs_its_subgraphs(device: Device) -> None:
    """An IF with an unsupported branch is rejected, even if the device supports IF."""
    if not cases.is_supported(device, cases.branch()):
        raise NotCovered("it does not support IF")
    if any(answer.supported for answer in device.supported_operations(cases.unheard_of())):
        raise NotCovered("it supports everything")
    (answer,) = device.supported_operations(cases.branching(ModelBuilder(), "CUSTOM"))
    require(not answer.supported, "an IF is supported, one of whose branches cannot run")
