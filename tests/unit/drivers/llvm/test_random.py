"""Random models on generated code, on every instruction set of this machine, against `reference`.

The long version is tests/soak/soak_compiler.py.
"""

from __future__ import annotations

import pytest

from tests.support_compiler_trials import families, tried
from tests.support_generated import sets_here

pytestmark = pytest.mark.slow

FIRST = 1_000_000
"""Beyond the numbers of the long version."""

DRAWN = 5


@pytest.mark.parametrize("family", families())
def test_generated_code_computes_what_the_reference_device_does(family: str) -> None:
    trials = [tried(family, FIRST + number, sets_here()) for number in range(DRAWN)]
    wrong = {FIRST + n: (t.what, t.wrong) for n, t in enumerate(trials) if t.wrong}
    assert wrong == {}
