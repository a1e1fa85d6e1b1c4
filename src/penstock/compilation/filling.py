"""What happens on a miss: one process compiles and publishes, the others wait for it."""

from __future__ import annotations

import time
from typing import Final

from msgspec.structs import replace

from penstock import knobs
from penstock.cache.lease import Lease
from penstock.cache.store import LEASE_SHARE, OpenFiles, seconds_left
from penstock.compilation.caching import Entry, Obtained, compiled, with_files
from penstock.compilation.calls import call_driver, report_of
from penstock.compilation.misses import explained
from penstock.compilation.patience import patience
from penstock.compilation.receipt import (
    TO_BE_WRITTEN,
    CacheCode,
    CacheFault,
    CacheOutcome,
    fault_in,
    fault_of,
)
from penstock.errors import CacheError, DriverError, NotYetWritten, Unreadable
from penstock.hal import NO_TOKEN, CacheReport, ProgressEvent
from penstock.logs import Log

log = Log(__name__)

NO_FAULT: Final = CacheFault(None, "")


def fill(entry: Entry, missed: CacheError | DriverError) -> Obtained:
    """*entry*, which *missed*, compiled and published, or loaded after somebody else did both."""
    step, device = entry.step, entry.device
    reason = explained(entry, missed)
    log.info("step %d on %s: cache miss: %s", step.index, device.name, reason.words)
    try:
        with entry.recorder.time("cache", f"lease for step {step.index}"):
            lease, waited = _lease(entry)
    except CacheError as error:
        return _compile_without_saving(entry, reason, fault_of(error))
    if lease is None:
        held = entry.directory.why_not_leased(entry.key.token)
        return _compile_without_saving(entry, reason, CacheFault(None, held))
    # Nobody has to wait for a compile that saves nothing: it comes after the lease.
    with lease:
        if waited:
            loaded = entry.load()
            if isinstance(loaded, Obtained):
                return loaded
            missed, reason = loaded, explained(entry, loaded)
        if isinstance(missed, NotYetWritten) and (writer := lease.late_writer()) is not None:
            why = CacheFault(None, f"{writer} is still to write it")
        else:
            files, why = _files(entry, lease)
            if files is not None:
                return _compile(entry, lease, files, reason)
    return _compile_without_saving(entry, reason, why)


def _lease(entry: Entry) -> tuple[Lease | None, bool]:
    """The lease, None where somebody else keeps it for too long; and whether it had to be waited
    for.
    """
    config, token = entry.config, entry.key.token
    lease = entry.directory.lease(token, wait_ns=0, cancel=config.cancel)
    if lease is not None:
        return lease, lease.waited
    wait_ns = int(seconds_left(config.deadline_ns, knobs.lease_seconds(), LEASE_SHARE) * 1e9)
    log.info("step %d on %s: another process compiles it", entry.step.index, entry.device.name)
    if config.progress is not None:
        config.progress(ProgressEvent("lease", entry.device.name, 0, 1))
    lease = entry.directory.lease(token, wait_ns=wait_ns, cancel=patience(config.cancel))
    if config.progress is not None:
        config.progress(ProgressEvent("lease", entry.device.name, 1, 1))
    return lease, True


def _files(entry: Entry, lease: Lease) -> tuple[OpenFiles | None, CacheFault]:
    """New files for the driver, or why there can be none."""
    try:
        return lease.create(entry.needed), NO_FAULT
    except CacheError as error:
        return None, fault_of(error)


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
        "miss",
        reason.words,
        not not_saved.words,
        not_saved.words,
        reason.code,
        not_saved.code,
    )
    if not outcome.saved:
        tell = log.info if outcome.is_to_be_written else log.warning
        tell("step %d on %s: not saved: %s", entry.step.index, entry.device.name, not_saved.words)
    return Obtained(prepared, outcome, True)


def _publish(
    entry: Entry, lease: Lease, files: OpenFiles, report: CacheReport, compile_ns: int
) -> CacheFault:
    """Why nothing that loads was published; without words when the entry stands."""
    try:
        written = all(files.sizes())
    except OSError as error:
        lease.discard(files)
        words = f"a cache file went while its driver had it: {error.strerror}"
        return fault_of(Unreadable(words))
    if report.save == "failed" or not (written or report.later):
        lease.discard(files)
        return _placed(report.reason, entry)
    try:
        lease.publish(
            files,
            entry.record(compile_ns),
            late=not written,
            deadline_ns=entry.config.deadline_ns,
            cancel=entry.config.cancel,
        )
    except CacheError as error:
        return fault_of(error)
    return NO_FAULT if written else TO_BE_WRITTEN


def _compile_without_saving(entry: Entry, reason: CacheFault, why: CacheFault) -> Obtained:
    log.info("step %d on %s: will not be saved: %s", entry.step.index, entry.device.name, why.words)
    bare = replace(entry.config, token=NO_TOKEN, binding=NO_TOKEN)
    outcome = CacheOutcome(
        "miss",
        reason.words,
        not_saved=why.words,
        code=reason.code,
        not_saved_code=why.code,
    )
    return compiled(entry.device, entry.step, bare, outcome, entry.recorder)


def _placed(reason: str, entry: Entry) -> CacheFault:
    """The driver's *reason*, with the directory, which drivers do not know, where the system failed
    with one of its files.
    """
    fault = fault_in(reason or f"device {entry.device.name} wrote nothing")
    if fault.code is not CacheCode.UNREADABLE:
        return fault
    return fault._replace(words=f"{reason} (in {entry.directory.path})")
