"""The receipt of a run as parameters of the answer."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from penstock.compilation.receipt import Receipt
from penstock.serve.values import InferAnswer, Parameter

STARTED_AGAIN: Final = re.compile(r"device (\S+): (.*it was started again.*)", re.DOTALL)
"""The note of a run or a compile whose driver's process had ended."""


class Incident(Struct, frozen=True):
    """A device that failed in a run, or whose driver's process had to be started again for it."""

    device: str
    reason: str
    is_restart: bool = False


class Summary(Struct, frozen=True):
    """What an answer says of its run; times are in microseconds.

    *batch* is the number of requests in the run. *fallbacks* are devices that failed, with the
    error. *copied_bytes* is what the runtime copied, and *region_copied_bytes* what was copied from
    and to shared memory. *notes* are the receipt's, such as that a driver was started again.
    """

    devices: tuple[str, ...]
    run_us: float
    queue_us: float
    batch: int
    copied_bytes: int
    region_copied_bytes: int
    compiles: int
    fallbacks: tuple[str, ...]
    notes: tuple[str, ...]


def summary_of(answer: InferAnswer) -> Summary:
    """The summary of the run of *answer*."""
    receipt = answer.receipt
    return Summary(
        tuple(dict.fromkeys(step.device for step in receipt.steps)),
        round(receipt.wall_ns / 1000, 1),
        round(answer.queue_ns / 1000, 1),
        answer.batch,
        sum(copy.nbytes for copy in receipt.copies),
        answer.region_copied,
        receipt.compiles,
        fallbacks_of(receipt),
        receipt.notes,
    )


def fallbacks_of(receipt: Receipt) -> tuple[str, ...]:
    """Each device that failed in the run, with its error."""
    return tuple(
        f"{failure.device}: {failure.error}" for step in receipt.steps for failure in step.failures
    )


def incidents_of(receipt: Receipt) -> list[Incident]:
    """The failures and restarts in the run, which its answer does not show."""
    found = [
        Incident(failure.device, failure.error)
        for step in receipt.steps
        for failure in step.failures
    ]
    restarts = filter(None, map(STARTED_AGAIN.fullmatch, receipt.notes))
    return [*found, *(Incident(note[1], note[2], is_restart=True) for note in restarts)]


def parameters_of(answer: InferAnswer) -> dict[str, Parameter]:
    """The parameters of the answer: the summary as JSON, and the whole receipt if asked for."""
    found: dict[str, Parameter] = {"receipt": msgspec.json.encode(summary_of(answer)).decode()}
    if answer.full_receipt:
        found["full_receipt"] = answer.receipt.to_json()
    return found
