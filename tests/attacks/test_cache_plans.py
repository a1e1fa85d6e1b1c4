"""Kept plans whose writers are killed, whose files are exchanged and altered, and which eight
processes use at once: never a wrong answer, and a plan is kept again afterwards.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.cache.naming import PLANS
from penstock.cache.plans import KeptPlans
from penstock.export import tflite
from penstock.ir import DType, ModelBuilder

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

PROCESSES = 8
STARTS = 12
X = np.ones((1, 4), np.float32)

# Compiles once, and is killed at the file operation number `at` of keeping the plan.
KILLED = """
import os, signal, sys
import penstock
from penstock.cache.plans import KeptPlans
from penstock.sealed.files import SYSTEM_FILES

model, cache, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
done, armed = 0, False

def wrapped(method):
    def call(*arguments, **more):
        global done
        if armed:
            if done == at:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
        return method(*arguments, **more)
    return call

kind = type(SYSTEM_FILES)
for name, method in list(vars(kind).items()):
    if callable(method) and not name.startswith("_"):
        setattr(kind, name, wrapped(method))

save = KeptPlans.save
def saving(self, record):
    global armed
    armed = True
    save(self, record)
    armed = False
KeptPlans.save = saving
penstock.compile(model, devices=["sample"], cache=cache).close()
"""

# Starts again and again, in cases of its own and of others, and says what came of it.
WORKER = """
import json, sys
import numpy as np
import penstock

models, cache, number, starts = sys.argv[1:3], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
print("ready", flush=True)
sys.stdin.readline()
told = []
for at in range(starts):
    which = (number + at) % 2
    with penstock.compile(
        models[which], devices=["sample"], cache=cache, num_threads=1 + at % 2
    ) as compiled:
        output = compiled(np.ones((1, 4), np.float32))[0]
        told.append((which, output.tolist(), str(compiled.receipt.plan)))
print(json.dumps(told), flush=True)
"""


def write_model(path: Path, addend: int) -> Path:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 4), "x")
    weights = builder.constant(np.full((64, 4), addend, np.float32), "w")
    made = (DType.FLOAT32, (1, 64))
    hidden = builder.operation("FULLY_CONNECTED", [x, weights, None], [made])
    path.write_bytes(tflite.write(builder.build(builder.operation("RELU", hidden, [made]))))
    return path


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Two networks of one structure, whose outputs are all 4 and all 8."""
    return [write_model(tmp_path / f"{addend}.tflite", addend) for addend in (1, 2)]


def answer(model: Path, cache: Path) -> tuple[float, str]:
    """The one value of all outputs, and what the cache did for the plan."""
    with penstock.compile(model, devices=["sample"], cache=cache) as compiled:
        (value,) = set(compiled(X)[0].ravel().tolist())
        return value, str(compiled.receipt.plan)


def kept(cache: Path) -> list[Path]:
    return sorted((cache / PLANS).glob("*.json"))


def test_a_process_killed_while_it_keeps_a_plan(models: list[Path], tmp_path: Path) -> None:
    at, died, cache = 0, True, tmp_path
    while died:
        cache = tmp_path / f"cache-{at}"
        command = [sys.executable, "-c", KILLED, str(models[0]), str(cache), str(at)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        died = done.returncode != 0
        assert not died or done.returncode == -9, done.stderr
        before = len(kept(cache))
        value, outcome = answer(models[0], cache)
        assert value == 4
        assert (outcome == "hit") == (before == 1)
        assert answer(models[0], cache) == (4, "hit")
        assert len(kept(cache)) == 1
        assert KeptPlans(cache).untrusted() == []
        at += 1
    assert at > 4
    # What the dead left is no plan, and goes with the rest.
    KeptPlans(cache).clear()
    assert list((cache / PLANS).iterdir()) == []


def test_exchanged_plans_are_refused(models: list[Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for model in models:
        answer(model, cache)
    first, second = kept(cache)
    aside = tmp_path / "aside"
    shutil.copyfile(first, aside)
    shutil.copyfile(second, first)
    shutil.copyfile(aside, second)
    for value, model in ((4, models[0]), (8, models[1])):
        found, outcome = answer(model, cache)
        assert found == value
        assert outcome.startswith("miss: NoEntry")
        assert answer(model, cache) == (value, "hit")


@pytest.mark.parametrize("link", ["symbolic link", "hard link", "directory"])
def test_a_plan_in_an_unusual_file_is_refused(
    models: list[Path], tmp_path: Path, link: str
) -> None:
    cache = tmp_path / "cache"
    answer(models[0], cache)
    (file,) = kept(cache)
    aside = file.rename(tmp_path / "aside")
    if link == "symbolic link":
        file.symlink_to(aside)
    elif link == "hard link":
        file.hardlink_to(aside)
    else:
        file.mkdir()
    content = aside.read_bytes()
    value, outcome = answer(models[0], cache)
    assert value == 4
    assert outcome.startswith("miss: NoEntry")
    assert aside.read_bytes() == content
    again = answer(models[0], cache)
    assert again == (4, "hit") or link == "directory"


@contextmanager
def workers(models: Sequence[Path], cache: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that wait to begin."""
    started = []
    try:
        for number in range(PROCESSES):
            command = [sys.executable, "-c", WORKER, *map(str, models), str(cache), str(number)]
            started.append(
                subprocess.Popen(
                    [*command, str(STARTS)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("damaged", [False, True])
def test_eight_processes_use_the_plans_of_one_directory(
    models: list[Path], tmp_path: Path, damaged: bool
) -> None:
    cache, draw = tmp_path / "cache", random.Random(21)
    with workers(models, cache) as started:
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        while damaged and any(process.poll() is None for process in started):
            for path in kept(cache):
                content = bytearray(path.read_bytes())
                if len(content) > 1:
                    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
                    path.write_bytes(content[: draw.choice([len(content), len(content) // 2])])
            try:
                started[0].wait(0.01)
            except subprocess.TimeoutExpired:
                continue
        outcomes = []
        for process in started:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            for which, output, outcome in json.loads(out):
                assert output == [[4.0 + 4 * which] * 64]
                outcomes.append(outcome.partition(":")[0])
    assert set(outcomes) <= {"hit", "miss"}
    if not damaged:
        assert outcomes.count("miss") <= 4 * PROCESSES
        assert KeptPlans(cache).untrusted() == []
        assert len(kept(cache)) == 4
    for value, model in ((4, models[0]), (8, models[1])):
        answer(model, cache)
        assert answer(model, cache) == (value, "hit")
