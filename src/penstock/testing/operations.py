"""Every operation of a network, cut out and fed what it really gets: the subjects of tests of
drivers.

    for case in cases_of(model, inputs):
        assert not distance(case, run_case(case, "relu")).departs

`case.tflite()` is the same operation as a file, for an engine that is asked directly. Nothing is
compared twice: every case starts from the reference's values, so that no operation answers for
another's rounding.
"""

from penstock.runtime.distance import Distance, Measure
from penstock.runtime.operations import OperationCase, cases_of, distance, run_case

__all__ = ["Distance", "Measure", "OperationCase", "cases_of", "distance", "run_case"]
