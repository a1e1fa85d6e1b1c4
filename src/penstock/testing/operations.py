"""Every operation of a network as a separate case, with the inputs that it receives in the network.

    for case in cases_of(model, inputs):
        assert not distance(case, run_case(case, "relu")).departs

`case.tflite()` is the same operation as a file, for running an engine directly. Every case starts
from the reference's values, so rounding errors do not propagate to other operations.
"""

from penstock.runtime.distance import Distance, Measure
from penstock.runtime.operations import OperationCase, cases_of, distance, run_case

__all__ = ["Distance", "Measure", "OperationCase", "cases_of", "distance", "run_case"]
