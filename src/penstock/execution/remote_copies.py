"""What runs on devices in other processes leave in a receipt: copies between the processes, and
what happened to them.
"""

from __future__ import annotations

from penstock.compilation.prepared import PreparedStep
from penstock.compilation.receipt import CopyReceipt
from penstock.errors import DriverError
from penstock.execution.run import Run
from penstock.hal import CarriedResult, ExecutionResult


def note_lost(prepared: PreparedStep, error: DriverError, run: Run) -> None:
    """Adds to the receipt of *run* what was copied for an execution that failed by *error*."""
    if error.copies:
        note_remote(prepared, CarriedResult(copies=error.copies), run)


def note_remote(prepared: PreparedStep, result: ExecutionResult, run: Run) -> None:
    """Adds to the receipt of *run* what *result* says of the way to its device, if it does."""
    if not isinstance(result, CarriedResult):
        return
    step, device = prepared.step, prepared.device.name
    reason = f"device {device} lives in another process"
    for copy in result.copies:
        operands = step.outputs if copy.out else step.inputs
        places = (device, "host") if copy.out else ("host", device)
        operand = operands[copy.argument] if copy.argument < len(operands) else None
        run.copies.append(
            CopyReceipt(
                copy.nbytes,
                *places,
                reason,
                step.index,
                operand,
                copy.start_ns,
                copy.wall_ns,
            )
        )
    for incident in result.incidents:
        # Of one death each model of the process has the same to tell.
        if (note := f"device {device}: {incident}") not in run.notes:
            run.notes += (note,)
