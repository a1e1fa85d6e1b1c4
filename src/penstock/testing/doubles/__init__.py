"""Test doubles that fail on purpose: devices around devices, the device `lab`, and files.

`FaultyDevice`, `SlowDevice`, `RecordingDevice`, `LyingDevice`, `ScribblingDevice`,
`SimulatedDevice`, `SubsetDevice` and `WrongDevice` are devices that wrap a device, so that they
stack. `RecordingDevice(FaultyDevice(mine, {"execute": 3}))` records what the faulty device answers.
To write another double, derive from `InterceptingDevice` and override `intercept`. Doubles are
deterministic. Only `SlowDevice` depends on time, and its clock and sleep are arguments.

`LabDevice` is a device with every optional feature of the contract. `FaultyFiles` and
`SteppedFiles` replace the operating system's files.
"""

from penstock.testing.doubles.faulty import FaultyDevice, SlowDevice, When
from penstock.testing.doubles.files import (
    QUICK_FILES,
    Crash,
    FaultyFiles,
    QuickFiles,
    ReadOnlyFiles,
    SteppedFiles,
    crash,
    failing,
)
from penstock.testing.doubles.intercepting import (
    METHODS,
    Call,
    InterceptedBurst,
    InterceptedExecution,
    InterceptedModel,
    InterceptingDevice,
    RecordingDevice,
    SimulatedDevice,
    SubsetDevice,
)
from penstock.testing.doubles.lying import (
    LIES,
    Lie,
    LyingDevice,
    ScribblingDevice,
    Where,
    WrongDevice,
)
from penstock.testing.lab import LabDevice

__all__ = [
    "LIES",
    "METHODS",
    "QUICK_FILES",
    "Call",
    "Crash",
    "FaultyDevice",
    "FaultyFiles",
    "InterceptedBurst",
    "InterceptedExecution",
    "InterceptedModel",
    "InterceptingDevice",
    "LabDevice",
    "Lie",
    "LyingDevice",
    "QuickFiles",
    "ReadOnlyFiles",
    "RecordingDevice",
    "ScribblingDevice",
    "SimulatedDevice",
    "SlowDevice",
    "SteppedFiles",
    "SubsetDevice",
    "When",
    "Where",
    "WrongDevice",
    "crash",
    "failing",
]
