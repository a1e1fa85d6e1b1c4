"""Whatever engine a process has used, a child that it forks goes on."""

from __future__ import annotations

import os
from typing import Final

import pytest

import penstock
from tests.support_programs import run_python

ENGINES: Final = ("xnnpack", "onnxruntime-cpu", "openvino-cpu")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_child_goes_on(engine: str) -> None:
    usable = {d.name for d in penstock.devices() if d.usable}
    if engine not in usable:
        pytest.skip(f"{engine} cannot be used here")
    done = run_python("-W", "ignore", "-m", "tests.unit.tflite.forked", engine)
    assert done.stdout.split("\n") == [
        "engine True True", "refused True", "interpreter True", "named True", "anew True",
            "child 0", "parent True", "",
    ], done.stderr  # fmt: skip
