"""Generated code touches nothing outside its buffers: it runs between pages without access, in
another process, on every instruction set of this machine.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support_generated import sets_here
from tests.support_guard import tried
from tests.support_layers import FAMILIES

pytestmark = pytest.mark.slow

SEEDS = 5


@pytest.mark.parametrize("family", FAMILIES)
def test_code_touches_nothing_outside_its_buffers(family: str) -> None:
    counts, failure = tried(family, SEEDS, timeout=300)
    assert failure == ""
    assert [*counts] == [isa.name for isa in sets_here()]
    assert all(count >= SEEDS // 2 for count in counts.values())


def test_touching_a_guard_page_is_a_failure_that_names_the_case() -> None:
    script = (
        "import ctypes\nfrom tests.support_guard import Guarded, say\n"
        "for first in (False, True):\n"
        "    buffer = Guarded(100, first=first)\n"
        "    ctypes.memset(buffer.address, 1, 100)\n"
        "say('inside')\n"
        "ctypes.memset(Guarded(100, first=False).address, 1, 101)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "inside\n"
    assert done.returncode < 0
