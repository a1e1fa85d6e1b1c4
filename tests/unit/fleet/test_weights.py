"""What actors of one network hold of its weights."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[ray]'")

from benchmarks.fleet_ray import SIDE, dense, hosts, pss
from penstock.ipc.starting import unavailable

WEIGHTS_MB = SIDE * SIDE * 4 / 1e6

ACTOR = """
import sys
from benchmarks.fleet_ray import Weighty
actor = Weighty(sys.argv[1], False if sys.argv[2] == "alone" else None)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(bool(unavailable()), reason=str(unavailable()))
def test_actors_of_a_machine_hold_the_weights_once(tmp_path: Path) -> None:
    cache, model = tmp_path / "cache", dense(tmp_path)
    settings = {"PENSTOCK_CACHE_DIR": str(cache), "PENSTOCK_STATE_DIR": str(tmp_path / "state")}
    with ExitStack() as stack:

        def actor(manner: str) -> float:
            """The memory of an actor's own process."""
            started = subprocess.Popen(
                [sys.executable, "-c", ACTOR, model, manner],
                env={**os.environ, **settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(started)
            stack.callback(started.kill)
            assert started.stdout is not None
            assert started.stdout.readline() == "ready\n"
            return pss(started.pid)

        def drivers() -> float:
            return sum(pss(process) for process in hosts(cache))

        def until_drivers_end() -> None:
            stack.pop_all().close()
            while hosts(cache):
                time.sleep(0.05)

        # Who compiles a network holds what it made, beside what others load.
        actor("together")
        until_drivers_end()
        actor("together")
        before = drivers()
        own = actor("together")
        assert drivers() - before < WEIGHTS_MB / 4
        assert before > WEIGHTS_MB
        assert actor("alone") - own > WEIGHTS_MB * 3 / 4
