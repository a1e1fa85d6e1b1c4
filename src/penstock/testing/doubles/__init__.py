"""Stand-ins that misbehave on purpose: devices around devices, the device `lab`, and files.

`FaultyDevice`, `SlowDevice`, `RecordingDevice`, `LyingDevice`, `ScribblingDevice`,
`SimulatedDevice`, `SubsetDevice` and `WrongDevice` are each a `Device` and hold another, so that
they stack: `RecordingDevice(FaultyDevice(mine, {"execute": 3}))` sees what the faulty one answers.
One of your own is an `InterceptingDevice` with another `intercept`. Counting and scripting are
deterministic: nothing depends on time but `SlowDevice`, whose clock and sleep are given to it.

`LabDevice` is a device with every optional feature of the contract, `FaultyFiles` and
`SteppedFiles` stand for the operating system's files.
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
