"""A cache miss: one process compiles and publishes the entry, other processes wait for it.

A failed save does not fail the compile; the receipt reports it.
"""

from __future__ import annotations

import time
from typing import Final

from msgspec.structs import replace

from penstock import errors, knobs
from penstock.cache import ingredients
from penstock.cache.lease import Lease
from penstock.cache.store import LEASE_SHARE, OpenFiles, seconds_left
from penstock.compilation.cache_faults import (
    TO_BE_WRITTEN,
    CacheCode,
    CacheFault,
    fault_in,
    fault_of,
)
from penstock.compilation.calls import (
    call_driver,
    call_driver_from_cache,
    describe,
    report_of,
    token_while_waiting,
)
from penstock.compilation.entry import Caching, Entry, Obtained, compiled, hit, with_files
from penstock.compilation.step_receipt import CacheOutcome, Recorder
from penstock.hal import NO_TOKEN, CacheHandle, CacheReport, Device, PrepareConfig, ProgressEvent
from penstock.logs import Log
from penstock.partitioning.plan import ExecutionStep

log = Log(__name__)

NO_FAULT: Final = CacheFault(None, "")


def obtain_in_given_files(
    device: Device, step: ExecutionStep, config: PrepareConfig, caching: Caching, recorder: Recorder
) -> Obtained:
    """Loads *step* from the caller's file descriptors; on a miss compiles it and saves it there."""
    if len(caching.plan.steps) > 1:
        reason = "files given by descriptor serve plans of one step"
        return compiled(device, step, config, CacheOutcome("off", reason), recorder)
    key = caching.key(device, step, config)
    models, datas = caching.info.model_cache, caching.info.data_cache
    files = {"model_cache": models, "data_cache": datas}
    handles = {name: tuple(map(CacheHandle, given)) for name, given in files.items()}
    config = replace(config, token=key.token, binding=key.binding, **handles)
    try:
        with recorder.time("cache", f"load step {step.index}", device.name):
            prepared = call_driver_from_cache(device, config, step)
    except errors.DriverError as error:
        fault = named(error)
        outcome = CacheOutcome("miss", fault.words, code=fault.code)
        made = compiled(device, step, config, outcome, recorder)
    else:
        return Obtained(prepared, hit(prepared), False)
    report = report_of(made.prepared)
    unsaved = fault_in(report.reason, later=report.later)
    why = {"not_saved": unsaved.words, "not_saved_code": unsaved.code}
    return replace(made, outcome=replace(made.outcome, saved=report.save == "saved", **why))


def fill(entry: Entry, missed: errors.CacheError | errors.DriverError) -> Obtained:
    """Compiles and publishes *entry* after a miss, or loads it if another process published it."""
    step, device = entry.step, entry.device
    reason = explained(entry, missed)
    log.info("step %d on %s: cache miss: %s", step.index, device.name, reason.words)
    try:
        with entry.recorder.time("cache", f"lease for step {step.index}"):
            lease, waited = _lease(entry)
    except errors.CacheError as error:
        return _compile_without_saving(entry, reason, fault_of(error))
    if lease is None:
        held = entry.directory.why_not_leased(entry.key.token)
        return _compile_without_saving(entry, reason, CacheFault(None, held))
    # A compile whose result is not saved runs after the lease ends, so no process waits for it.
    with lease:
        if waited:
            loaded = entry.load()
            if isinstance(loaded, Obtained):
                return loaded
            missed, reason = loaded, explained(entry, loaded)
        if isinstance(missed, errors.NotYetWritten) and (writer := lease.late_writer()) is not None:
            why = CacheFault(None, f"{writer} is still to write it")
        else:
            if entry.store:
                return _share(entry, lease, reason)
            try:
                files = lease.create(entry.needed)
            except errors.CacheError as error:
                why = fault_of(error)
            else:
                return _compile(entry, lease, files, reason)
    return _compile_without_saving(entry, reason, why)


def _share(entry: Entry, lease: Lease, reason: CacheFault) -> Obtained:
    """Takes *entry* from the shared store, or compiles it."""
    from penstock.compilation.sharing import Sharing

    with Sharing(entry, lease) as sharing:
        if (fetched := sharing.fetch()) is not None:
            return fetched
        try:
            files = lease.create(entry.needed)
        except errors.CacheError as error:
            return sharing.noted(_compile_without_saving(entry, reason, fault_of(error)))
        return sharing.publish(_compile(entry, lease, files, reason))


def _lease(entry: Entry) -> tuple[Lease | None, bool]:
    """The lease, and whether it was waited for. None if another process holds it for too long."""
    config, token = entry.config, entry.key.token
    lease = entry.directory.lease(token, wait_ns=0, cancel=config.cancel)
    if lease is not None:
        return lease, lease.waited
    wait_ns = int(seconds_left(config.deadline_ns, knobs.lease_seconds(), LEASE_SHARE) * 1e9)
    log.info("step %d on %s: another process compiles it", entry.step.index, entry.device.name)
    if config.progress is not None:
        config.progress(ProgressEvent("lease", entry.device.name, 0, 1))
    lease = entry.directory.lease(token, wait_ns=wait_ns, cancel=token_while_waiting(config.cancel))
    if config.progress is not None:
        config.progress(ProgressEvent("lease", entry.device.name, 1, 1))
    return lease, True


def _compile(entry: Entry, lease: Lease, files: OpenFiles, reason: CacheFault) -> Obtained:
    with files:
        began = time.perf_counter_ns()
        try:
            with entry.recorder.time("compile", f"step {entry.step.index}", entry.device.name):
                prepared = call_driver(entry.device, entry.step, with_files(entry.config, files))
        except BaseException:
            lease.discard(files)
            raise
        spent = time.perf_counter_ns() - began
        try:
            with entry.recorder.time("cache", f"save step {entry.step.index}"):
                not_saved = _publish(entry, lease, files, report_of(prepared), spent)
        except BaseException:
            prepared.close()
            raise
    outcome = CacheOutcome(
        "miss", reason.words, not not_saved.words, not_saved.words, reason.code, not_saved.code
    )
    if not outcome.saved:
        record = log.info if outcome.is_to_be_written else log.warning
        record("step %d on %s: not saved: %s", entry.step.index, entry.device.name, not_saved.words)
    return Obtained(prepared, outcome, True)


def _publish(
    entry: Entry, lease: Lease, files: OpenFiles, report: CacheReport, compile_ns: int
) -> CacheFault:
    try:
        written = all(files.sizes())
    except OSError as error:
        lease.discard(files)
        words = f"a cache file went while its driver had it: {error.strerror}"
        return fault_of(errors.Unreadable(words))
    if report.save == "failed" or not (written or report.later):
        lease.discard(files)
        fault = fault_in(report.reason or f"device {entry.device.name} wrote nothing")
        if fault.code is CacheCode.UNREADABLE:
            fault = replace(fault, words=f"{report.reason} (in {entry.directory.path})")
        return fault
    until, cancel = entry.config.deadline_ns, entry.config.cancel
    record, is_late = entry.record(compile_ns), not written
    try:
        lease.publish(files, record, late=is_late, deadline_ns=until, cancel=cancel)
    except errors.CacheError as error:
        return fault_of(error)
    return NO_FAULT if written else TO_BE_WRITTEN


def _compile_without_saving(entry: Entry, reason: CacheFault, why: CacheFault) -> Obtained:
    log.info("step %d on %s: will not be saved: %s", entry.step.index, entry.device.name, why.words)
    bare = replace(entry.config, token=NO_TOKEN, binding=NO_TOKEN)
    outcome = CacheOutcome(
        "miss", reason.words, not_saved=why.words, code=reason.code, not_saved_code=why.code
    )
    return compiled(entry.device, entry.step, bare, outcome, entry.recorder)


def explained(entry: Entry, error: errors.CacheError | errors.DriverError) -> CacheFault:
    """The reason of a miss, `<Name>: sentence` with its code, and the ingredient that changed."""
    now = entry.key.ingredients
    fault = named(error)
    if isinstance(error, errors.NoEntry):
        nearest = entry.directory.nearest(now)
        if nearest is None or not ingredients.changed_ingredients(nearest.ingredients, now):
            return fault
        return fault_of(ingredients.no_entry(nearest.ingredients, now))
    if fault.code is not CacheCode.TOKEN_COLLISION:
        return fault
    config = entry.config
    record = entry.directory.record(
        entry.key.token, deadline_ns=config.deadline_ns, cancel=config.cancel
    )
    if record is None:
        return fault
    if ("structure" in now) != ("structure" in record.ingredients):
        other = "with" if "structure" in record.ingredients else "without"
        words = f"the token's entry was sealed {other} the model in its key"
        return fault_of(errors.IngredientChanged(words))
    changes = ingredients.describe_changes(record.ingredients, now)
    changed = ingredients.changed_ingredients(record.ingredients, now)
    if ingredients.MODEL_INGREDIENTS.isdisjoint(changed):
        return fault_of(errors.IngredientChanged(f"the token's entry differs in {changes}"))
    return fault_of(errors.TokenCollision(f"the token was given to another model: {changes}"))


def named(error: errors.CacheError | errors.DriverError) -> CacheFault:
    """*error* as `<Name>: sentence` with its code, also for a `CacheError` text of a driver."""
    if isinstance(error, errors.CacheError):
        return fault_of(error)
    passed_on = fault_in(str(error), later=True)
    return CacheFault(CacheCode.DRIVER, describe(error)) if passed_on.code is None else passed_on
