from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.drivers.reference.index import MODULES
from penstock.drivers.reference.kernel import KERNELS, kernel


def test_no_row_has_two_builders() -> None:
    assert len(" ".join(MODULES.values()).split()) == len(KERNELS)
    with pytest.raises(ValueError, match="ADD has a builder already"):
        kernel("ADD")(KERNELS["ADD"])
    assert KERNELS.get("NO_SUCH_OPERATION") is None


def test_only_the_modules_of_a_models_operations_are_imported() -> None:
    code = (
        "import sys, numpy as np, penstock\n"
        "from penstock.ir import DType, ModelBuilder\n"
        "b = ModelBuilder()\n"
        "x = b.input(DType.FLOAT32, (2, 2), 'x')\n"
        "model = b.build(b.operation('RELU', [x], [(DType.FLOAT32, (2, 2))]))\n"
        "penstock.compile(model, devices=['reference'], cache=False)(np.zeros((2, 2), np.float32))\n"
        "from penstock.drivers.reference.index import MODULES\n"
        "prefix = 'penstock.drivers.reference.'\n"
        "print([m for m in MODULES if prefix + m in sys.modules], 'ml_dtypes' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['elements.relu'] False"
