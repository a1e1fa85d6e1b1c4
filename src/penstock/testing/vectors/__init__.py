"""Operation vectors: recorded inputs and outputs of NNAPI operations, run on any device.

`load_directory` reads them. `run_vectors` runs each case unchanged, and each run that its `derive`
entry names (`penstock.testing.vectors.derive`).
"""

from penstock.testing.vectors.format import (
    FORMAT,
    Case,
    Specification,
    VectorError,
    load_directory,
    load_specification,
)
from penstock.testing.vectors.runner import Report, RunResult, run_case, run_vectors

__all__ = [
    "FORMAT",
    "Case",
    "Report",
    "RunResult",
    "Specification",
    "VectorError",
    "load_directory",
    "load_specification",
    "run_case",
    "run_vectors",
]
