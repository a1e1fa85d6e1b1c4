"""Devices around devices: faulty, slow, recording, lying, scribbling, and ones that support less.

Each is a `Device` and holds another, so that they stack: `RecordingDevice(FaultyDevice(mine, {"execute": 3}))` sees
what the faulty one answers. One of your own is an `InterceptingDevice` with another `intercept`. Counting and
scripting are deterministic: nothing depends on time but `SlowDevice`, whose clock and sleep are given to it.
"""

from penstock.testing.doubles.faulty import FaultyDevice, When
from penstock.testing.doubles.intercepting import (
    METHODS,
    InterceptedBurst,
    InterceptedExecution,
    InterceptedModel,
    InterceptingDevice,
)
from penstock.testing.doubles.lying import LIES, Lie, LyingDevice
from penstock.testing.doubles.recording import Call, RecordingDevice
from penstock.testing.doubles.scribbling import ScribblingDevice, Where
from penstock.testing.doubles.slow import SlowDevice
from penstock.testing.doubles.subset import SubsetDevice

__all__ = [
    "LIES",
    "METHODS",
    "Call",
    "FaultyDevice",
    "InterceptedBurst",
    "InterceptedExecution",
    "InterceptedModel",
    "InterceptingDevice",
    "Lie",
    "LyingDevice",
    "RecordingDevice",
    "ScribblingDevice",
    "SlowDevice",
    "SubsetDevice",
    "When",
    "Where",
]
