"""Every operation of a network, cut out, with the inputs that it gets in the network.

    for case in cases_of(model, inputs):
        assert not distance(case, run_case(case, "relu")).departs

`case.tflite()` is the same operation as a file, for an engine that is asked directly. Nothing is
compared twice: every case starts from the reference's values, so that rounding errors do not
carry over to other operations.
"""

from penstock.runtime.distance import Distance, Measure
from penstock.runtime.operations import OperationCase, cases_of, distance, run_case

__all__ = ["Distance", "Measure", "OperationCase", "cases_of", "distance", "run_case"]
