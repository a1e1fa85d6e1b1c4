"""Runs scenarios, each in a forked process of its own, and prints one JSON line for each.

python tests/compat/recorder.py MODULE DIRECTORY [NAME...]

A scenario that kills its process is recorded as `{"crashed": signal}`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

SECONDS = 60
"""After which a scenario that hangs is ended."""


def main(module: str, directory: str, *names: str) -> None:
    from tests.compat.observe import SCENARIOS
    from tests.compat.scenarios import load_all

    load_all()
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    tflite = importlib.import_module(module)
    for name in names or SCENARIOS:
        place = Path(directory) / f"{len(list(Path(directory).iterdir()))}"
        place.mkdir()
        sys.stdout.write(json.dumps({"scenario": name, **apart(name, tflite, place)}) + "\n")
        sys.stdout.flush()


def apart(name: str, tflite: Any, directory: Path) -> dict[str, Any]:
    """One scenario's observation, made in a child process."""
    from tests.compat.observe import observe

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(SECONDS)
        with os.fdopen(writer, "w") as pipe:
            pipe.write(json.dumps(observe(name, tflite, directory)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        return {"crashed": signal.Signals(-code).name if code < 0 else code}
    observed: dict[str, Any] = json.loads(text)
    return observed


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main(*sys.argv[1:])
