"""Dependencies that cannot be waited for leave an execution as it was."""

from __future__ import annotations

import numpy as np

from penstock.drivers.reference import ReferenceDevice
from penstock.nnapi import Compilation, Execution, ResultCode
from tests.unit.nnapi.building import answers, finished


def test_a_closed_dependency_is_refused_before_the_execution_begins() -> None:
    x, z = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    with Compilation.create_for_devices(finished(), [ReferenceDevice()]) as compilation:
        compilation.finish()
        with Execution(compilation) as first, Execution(compilation) as second:
            for execution in (first, second):
                execution.set_input(0, x)
                execution.set_input(1, x)
            first.set_output(0, np.zeros((2, 3), np.float32))
            second.set_output(0, z)
            event = first.start_compute_with_dependencies([])
            event.wait()
            event.close()
            with answers(ResultCode.BAD_STATE, "closed"):
                second.start_compute_with_dependencies([event])
            second.compute()
    assert np.array_equal(z, x * 2)
