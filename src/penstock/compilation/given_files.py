"""Caching in files that the caller opened himself (`CacheInfo.from_fds`)."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.compilation.caching import Caching, Obtained, compiled, hit
from penstock.compilation.calls import call_driver_from_cache, report_of
from penstock.compilation.misses import named
from penstock.compilation.receipt import CacheOutcome, Recorder, fault_in
from penstock.errors import DriverError
from penstock.hal import CacheHandle, Device, PrepareConfig
from penstock.partitioning.plan import ExecutionStep


def obtain_in_given_files(
    device: Device,
    step: ExecutionStep,
    config: PrepareConfig,
    caching: Caching,
    recorder: Recorder,
) -> Obtained:
    """*step* loaded from the caller's descriptors, else compiled and saved in place."""
    if len(caching.plan.steps) > 1:
        reason = "files given by descriptor serve plans of one step"
        return compiled(device, step, config, CacheOutcome("off", reason), recorder)
    key = caching.key(device, step, config)
    config = replace(
        config,
        token=key.token,
        binding=key.binding,
        model_cache=tuple(map(CacheHandle, caching.info.model_cache)),
        data_cache=tuple(map(CacheHandle, caching.info.data_cache)),
    )
    try:
        with recorder.time("cache", f"load step {step.index}", device.name):
            prepared = call_driver_from_cache(device, config, step)
    except DriverError as error:
        fault = named(error)
        outcome = CacheOutcome("miss", fault.words, code=fault.code)
        made = compiled(device, step, config, outcome, recorder)
    else:
        return Obtained(prepared, hit(prepared), False)
    report = report_of(made.prepared)
    unsaved = fault_in(report.reason, later=report.later)
    outcome = replace(
        made.outcome,
        saved=report.save == "saved",
        not_saved=unsaved.words,
        not_saved_code=unsaved.code,
    )
    return replace(made, outcome=outcome)
