"""A measured run tells what each of LiteRT's kernel sets took, by the operations that it
computes.
"""

from __future__ import annotations

import numpy as np

import penstock
from penstock.drivers.xnnpack.prepared import NAMES
from tests.support_measured import X, lies_within, network
from tests.support_xnnpack import needs_litert

pytestmark = needs_litert


def test_segment_is_timed_as_one_kernel_with_its_operations() -> None:
    with penstock.compile(network(), devices=["xnnpack"], cache=False) as model:
        plain = np.array(model.run([X])[0])
        outputs = model.run([X], measure=True)
        (unasked,) = model.run([X]).receipt.steps
    assert np.array_equal(outputs[0], plain)
    (step,) = outputs.receipt.steps
    (kernel,) = step.kernels
    assert kernel.kernel == NAMES["xnnpack"]
    assert kernel.operations == tuple(range(7))
    assert [name.split()[0] for name in kernel.names] == [o.type for o in network().operations]
    assert 0 < kernel.duration_ns <= (step.driver_ns or 0)
    assert lies_within(step)
    assert unasked.kernels == ()
