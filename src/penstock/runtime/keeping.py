"""Plans that are kept between starts: what loading and partitioning decided for a file.

A kept plan is used only if everything that decided it is the same: the file's content, the
arguments, the settings, the installed distributions with their drivers, the processor, and
Penstock's own code. Then no device is asked what it supports, nothing is partitioned, the file is
read and hashed but not decoded, and only the drivers of the plan's devices are loaded. Each of
these devices must still be the one that the plan was made with.

A plan is not kept if it rests on more than that: on device objects of the program, on a driver that
did not answer, on verdicts of shadow verification, or on a device of another distribution that was
unusable, which may be usable at the next start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock import errors, knobs, loaders
from penstock.cache.ingredients import cpu_features
from penstock.cache.naming import CALIBRATIONS, LEARNED, VERDICTS
from penstock.cache.plans import PLAN_SCHEMA, KeptPlan, KeptPlans, no_plan, plan_key
from penstock.compilation.step_receipt import CacheOutcome
from penstock.distribution import DISTRIBUTION
from penstock.hal import Device
from penstock.interrupts import polled
from penstock.ir import ConstantPool, Model
from penstock.logs import Log
from penstock.partitioning.encoding import decode, encode
from penstock.partitioning.plan import ExecutionPlan
from penstock.partitioning.policy import Policy
from penstock.runtime.compile_arguments import CompileArguments, Occasion, Shapes
from penstock.runtime.discovery import Manager
from penstock.runtime.examination import DeviceInfo
from penstock.runtime.installed import distributions, is_checkout, loaded_files, state_of
from penstock.runtime.planning import has_driver_verdicts, has_small_runs
from penstock.threads import allowed_threads

if TYPE_CHECKING:
    from penstock.partitioning.placements import Placement

log = Log(__name__)

CHUNK: Final = 1 << 24
"""Number of bytes that are hashed between two checks of the deadline."""

EVERY_DEVICE: Final = "every usable one"

MEASURED: Final = "\nmeasured placement"
COSTS: Final = "\nmeasured costs"
RUNS: Final = "\nruns"
CODE: Final = "\ncode"
"""Names in `KeptPlan.rests_on` beside those of devices, which are one line."""

UNRELATED: Final = frozenset({
    "cache_dir", "cache_limit_mib", "cache_store", "calibrate", "keep_failure_data",
    "keep_failures", "key_store", "late_write_seconds", "lease_seconds", "random_seed",
    "sandbox_log", "state_dir", "store_check_hours", "store_jitter_seconds", "store_key",
    "store_root", "store_seconds", "store_wait_seconds",
})  # fmt: skip
"""Settings that decide nothing about a plan."""

UNSETTLED: Final = frozenset({
    errors.RefusalCode.NO_ANSWER, errors.RefusalCode.WRONG_RESULTS, errors.RefusalCode.UNUSABLE,
})  # fmt: skip
"""Reasons against a device that may not hold at the next start."""


class PlanCase(Struct, frozen=True):
    """A compile whose plan may be kept: the *file*, and the *ingredients* of its key."""

    directory: str
    file: ConstantPool
    ingredients: dict[str, str]

    @property
    def key(self) -> str:
        return plan_key(self.ingredients)

    def at(self, shapes: Mapping[int, Sequence[int]]) -> PlanCase:
        """The same compile for the shapes of a run, by input position."""
        text = f"of a run: {_shapes_text(shapes)}"
        return replace(self, ingredients={**self.ingredients, "shapes": text})


class RestoredPlan(Struct, frozen=True):
    """A kept *plan*, the *model* before shapes were put into it, and the plan's *devices* by name.

    *is_small* says that the values of a run fit every machine's memory limit. *learned_key* is the
    key of what runs of the network took; empty if nothing is learned from them.
    """

    plan: ExecutionPlan
    model: Model
    devices: dict[str, Device]
    is_small: bool
    learned_key: str = ""


def kept_plan(
    file: ConstantPool, arguments: CompileArguments, manager: Manager, deadline_ns: int | None
) -> tuple[PlanCase | None, RestoredPlan | None, CacheOutcome]:
    """The case of a compile of *file*, the plan that is kept for it, and the outcome.

    The case is None if its plan is not kept, and the plan if there is none that can be used.
    """
    try:
        case = case_of(file, arguments, manager)
    except NotKept as reason:
        return None, None, CacheOutcome("off", str(reason))
    except (errors.InputError, OSError) as error:
        # The compile raises the error of an argument, after those of the model.
        return None, None, CacheOutcome("off", str(error))
    return kept_for(case, arguments, manager, deadline_ns)


def kept_for(
    case: PlanCase, arguments: CompileArguments, manager: Manager, deadline_ns: int | None
) -> tuple[PlanCase | None, RestoredPlan | None, CacheOutcome]:
    """As `kept_plan`, for a known *case*."""
    try:
        restored = look_up(case, arguments, manager, deadline_ns)
    except (errors.InputError, errors.NotAvailable, errors.PlacementError) as error:
        return None, None, CacheOutcome("off", str(error))
    except (TypeError, ValueError) as error:  # a driver declares anything
        return None, None, CacheOutcome("off", f"a device cannot be compared: {error}")
    except errors.CacheError as error:
        from penstock.compilation.cache_faults import fault_of

        fault = fault_of(error)
        log.info("no kept plan is used: %s", fault.words)
        return case, None, CacheOutcome("miss", fault.words, code=fault.code)
    return case, restored, CacheOutcome("hit")


class NotKept(Exception):  # an answer
    """Why the plan of a compile is not kept."""


def case_of(file: ConstantPool, arguments: CompileArguments, manager: Manager) -> PlanCase:
    """The case of a compile of *file* with *arguments*. Raises `NotKept` if its plan is not kept.

    Raises `InputError` for invalid settings.
    """
    directory = _directory_of(arguments)
    if has_driver_verdicts():
        raise NotKept("shadow verification has verdicts on drivers of this machine")
    devices = _devices_text(arguments.devices)
    if (installed := distributions()) is None:
        raise NotKept("what is installed is not known without an import")
    names, times = installed
    ingredients = {
        "file": _digest(file),
        "signature": arguments.signature or "",
        "shapes": _shapes_text(arguments.shapes),
        "devices": devices,
        "isolate": str(arguments.isolate),
        "preference": arguments.preference,
        "policy": _policy_text(arguments.policy),
        "portable": arguments.portable or "",
        "num_threads": str(allowed_threads(arguments.num_threads)),
        "settings": _settings_text(),
        "drivers": " ".join(manager.origins()),
        "distributions": names,
        "installed": times,
        "penstock": sys.modules["penstock"].__version__,
        "cpu_features": cpu_features(),
        "schema": PLAN_SCHEMA,
    }
    return PlanCase(directory, file, ingredients)


def _directory_of(arguments: CompileArguments) -> str:
    """The directory in which plans of a compile with *arguments* are kept. Raises `NotKept`."""
    info = arguments.cache
    if info is None:
        raise NotKept(arguments.uncached)
    if info.place is None:
        raise NotKept("the cache is files given by descriptor")
    if info.trust_token:
        raise NotKept("the token is trusted, so the model is not hashed")
    if arguments.tune:
        raise NotKept("placements are to be measured")
    if arguments.variants is not None:
        raise NotKept("runs are verified")
    return info.place


def look_up(
    case: PlanCase, arguments: CompileArguments, manager: Manager, deadline_ns: int | None
) -> RestoredPlan:
    """The kept plan of *case*. Raises the `CacheError` that says why there is none to be used."""
    plans = KeptPlans(case.directory)
    found = plans.load(case.key)
    if found is None:
        raise no_plan(plans.nearest(case.ingredients), case.ingredients)
    devices: dict[str, Device] = {}
    learned_key = ""
    for name, was in found.rests_on.items():
        if name == CODE:
            state, *files = was.split("\n")
            if _state_of(files) != state:
                raise errors.IngredientChanged("Penstock's own code changed")
            continue
        if name == MEASURED:
            key, _, mark = was.partition(" ")
            if mark != _mark(case.directory, VERDICTS, key):
                raise errors.IngredientChanged("the measured placement is another")
            continue
        if name == RUNS:
            learned_key = was.partition(" ")[0]
            if was != _runs_text(case.directory, learned_key, was):
                raise errors.IngredientChanged("runs of the network showed what it takes")
            continue
        if name == COSTS:
            if was != _costs_text(case.directory, [one.split(" ")[0] for one in was.split("\n")]):
                raise errors.IngredientChanged("the measured costs of operations are others")
            continue
        driver, _, identity = was.partition("\n")
        one = manager.of_driver(driver, name, arguments.isolate, deadline_ns)
        if one is None:
            raise errors.IngredientChanged(f"device {name} cannot be used any more")
        if changed := _differences(identity, _identity(one.info)):
            raise errors.IngredientChanged(f"device {name} has another {changed}")
        devices[name] = one.device
    try:
        plan, model = decode(found.content, case.file, loaders.decode)
    except (TypeError, ValueError, LookupError) as error:
        raise errors.Unreadable(f"the kept plan cannot be read: {error}") from error
    return RestoredPlan(plan, model, devices, found.is_small, learned_key)


def keep(
    case: PlanCase,
    occasion: Occasion,
    plan: ExecutionPlan,
    isolate: bool | None,
    manager: Manager,
) -> str:
    """Keeps *plan*, made on *occasion*. Returns why it is not kept, or an empty text."""
    try:
        if reason := _why_not_kept(case, plan, isolate, manager):
            return reason
        content = encode(plan, occasion.source, case.file)
        rests_on = {name: _rests_on(name, isolate, manager) for name in _used(plan)}
        if is_checkout():
            files = loaded_files()
            rests_on[CODE] = "\n".join([state_of(files), *files])
        verdict = occasion.verdict_key
        rests_on[MEASURED] = f"{verdict} {_mark(case.directory, VERDICTS, verdict)}"
        if keys := _costs_keys(occasion):
            rests_on[COSTS] = _costs_text(case.directory, keys)
            rests_on[RUNS] = _runs_text(case.directory, verdict)
        kept = KeptPlan(
            key=case.key,
            ingredients=case.ingredients,
            rests_on=rests_on,
            summary=plan.summary(),
            content=content,
            is_small=has_small_runs(occasion.model),
            penstock=case.ingredients["penstock"],
        )
        KeptPlans(case.directory).save(kept)
    except (errors.CacheError, OSError, TypeError, ValueError, LookupError) as error:
        return str(error)
    return ""


def _why_not_kept(
    case: PlanCase, plan: ExecutionPlan, isolate: bool | None, manager: Manager
) -> str:
    if plan.apart:
        return "a device runs in a process of its own for this compile only"
    if manager.absent(isolate):
        return "a driver was unavailable"
    everything = manager.infos(isolate) if case.ingredients["devices"] == EVERY_DEVICE else ()
    for info in everything:
        if not info.usable and info.source.distribution != DISTRIBUTION:
            return f"device {info.name} is unusable now: {info.reason}"
    if any(map(_is_unsettled, _placements(plan))):
        return "a device did not answer"
    return ""


def _is_unsettled(placement: Placement) -> bool:
    return any(why.code in UNSETTLED for why in placement.refusals.values())


def _placements(plan: ExecutionPlan) -> Iterator[Placement]:
    yield from plan.operations
    for step in plan.steps:
        for branch in () if step.control is None else step.control.branches:
            yield from _placements(branch)


def _used(plan: ExecutionPlan) -> list[str]:
    """The names of the devices of the plan's steps and of the branches that they enter."""
    names: dict[str, None] = {}
    for step in plan.steps:
        names[step.device] = None
        for branch in () if step.control is None else step.control.branches:
            names |= dict.fromkeys(_used(branch))
    return list(names)


def _rests_on(name: str, isolate: bool | None, manager: Manager) -> str:
    found = manager.found(name, isolate)
    if found is None:
        raise LookupError(f"no driver has device {name}")
    return f"{found.info.driver}\n{_identity(found.info)}"


def _identity(info: DeviceInfo) -> str:
    """What must be the same for a kept plan to hold for the device of *info*, a line for each."""
    claims = sha256(msgspec.json.encode(info.capabilities)).hexdigest()
    values = info.version, info.source.origin, info.feature_level, info.isolated, claims
    return "\n".join(map(str, values))


_PARTS: Final = ("version", "origin", "feature level", "process", "set of capabilities")


def _differences(before: str, now: str) -> str:
    """The parts of two identities that differ, with their values if they are short."""
    pairs = zip(_PARTS, before.split("\n"), now.split("\n"), strict=False)
    return ", ".join(
        part if part == _PARTS[-1] else f"{part} ({old} -> {new})"
        for part, old, new in pairs
        if old != new
    )


def _state_of(files: Sequence[str]) -> str:
    """`state_of`, or an empty text if a file cannot be read."""
    try:
        return state_of(files)
    except OSError:
        return ""


def _costs_keys(occasion: Occasion) -> list[str]:
    """The keys of the costs that the plan is made with, whether there are any."""
    from penstock.cache.ingredients import calibration_key
    from penstock.runtime.calibration.tables import MODES

    if occasion.policy.placement != "cost":
        return []
    mode, threads = MODES[occasion.policy.accuracy], occasion.config.num_threads or 1
    return [calibration_key(device, mode, threads) for device in occasion.devices]


def _costs_text(directory: str, keys: Sequence[str]) -> str:
    return "\n".join(f"{key} {_mark(directory, CALIBRATIONS, key)}" for key in keys)


def _runs_text(directory: str, key: str, was: str = "") -> str:
    """The key, the mark of the file of what runs took, and what that says.

    *was* is an earlier text, which is returned unless the file says something else.
    """
    mark = _mark(directory, LEARNED, key).replace(" ", "/")
    if was.startswith(f"{key} {mark} "):
        return was
    from penstock.runtime.learning import learned_plans, mark_of

    said = mark_of(learned_plans(directory, key)) if mark != "none" else ""
    return was if was and was.split(" ", 2)[2] == said else f"{key} {mark} {said}"


def _mark(directory: str, records: str, key: str) -> str:
    """Size and time of the file of that key among the *records*; "none" without one."""
    try:
        status = os.stat(os.path.join(directory, records, f"{key}.json"))
    except OSError:
        return "none"
    return f"{status.st_size} {status.st_mtime_ns}"


def _digest(file: ConstantPool) -> str:
    """The digest of the bytes of *file*, which are unmapped once they are read: what runs from the
    cache needs few of them.
    """
    digest = sha256()
    for start in polled(range(0, len(file), CHUNK)):
        digest.update(file.view[start : start + CHUNK])
        file.unload()
    return digest.hexdigest()


def _devices_text(devices: object) -> str:
    """The listed devices, as words. Raises `NotKept` if one is an object, whose answers may
    change.
    """
    if devices is None:
        return knobs.devices() or EVERY_DEVICE
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise NotKept("devices is no list")
    names = [one.name if isinstance(one, DeviceInfo) else one for one in devices]
    if not all(isinstance(name, str) for name in names):
        raise NotKept("a device is an object of the program")
    return " ".join(map(repr, names))


def _shapes_text(shapes: Shapes | Mapping[int, Sequence[int]] | None) -> str:
    try:
        named = {repr(name): "x".join(map(str, shape)) for name, shape in (shapes or {}).items()}
    except TypeError:  # the compile reports it
        return "invalid"
    return " ".join(f"{name}:{shape}" for name, shape in sorted(named.items()))


def _policy_text(policy: Policy) -> str:
    """The demands of *policy* on a placement, as words."""
    demands: dict[str, object] = {
        name: getattr(policy, name)
        for name in policy.__struct_fields__
        if name not in {"require", "forbid", "shadow", "while_compiling"}
    }
    for name, rules in (("require", policy.require), ("forbid", policy.forbid)):
        demands[name] = {key: sorted(names) for key, names in sorted(rules.items())}
    return " ".join(f"{k}={msgspec.json.encode(v).decode()}" for k, v in demands.items())


def _settings_text() -> str:
    """The settings that are not at their defaults, as words."""
    given = {
        name: found[0]
        for name, knob in knobs.KNOBS.items()
        if name not in UNRELATED and (found := knob.source())[1] != "default"
    }
    return " ".join(f"{name}={value}" for name, value in given.items())
