"""The device `webgpu-software` in a host process, whose inputs tell it to lose its adapter, to run
a shader without an end, or to die.
"""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

import penstock
from penstock import CompiledModel, hal
from penstock.drivers.webgpu import WebGpuDevice
from penstock.drivers.webgpu.installation import SOFTWARE
from penstock.drivers.webgpu.running import Executable, ShaderModel
from penstock.drivers.webgpu.values import Argument
from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.memory import live_mappings
from penstock.runtime import isolation
from penstock.runtime.discovery import Manager
from penstock.runtime.entries import Entry

NAME: Final = "webgpu-software"
ENTRY: Final = Entry("webgpu", f"{__name__}:create", "penstock-nn")
SHAPE: Final = (4, 8)

LOSE, HANG, DIE = FAULTS = -1001, -1002, -1003
"""First elements of an input with which a process that has run before fails."""

ALWAYS: Final = -1000
"""Added to a fault: processes fail in their first run, too."""

ENDLESS: Final = """
@group(0) @binding(0) var<storage, read_write> x: array<atomic<u32>>;
@compute @workgroup_size(1)
fn main() {
    for (var i = 0u; i < 60000u; i++) { atomicAdd(&x[i & 63u], i); }
}
"""
"""lavapipe ends the loops of one thread after 65,535 turns: it is the number of threads for which
this takes hours.
"""


class Faulty(WebGpuDevice):
    """The device of software adapters, which obeys its inputs."""

    def compile(self, model: Model, config: hal.PrepareConfig) -> ShaderModel:
        return obedient(super().compile(model, config))

    def load(self, entry: Any, config: hal.PrepareConfig) -> ShaderModel:
        return obedient(super().load(entry, config))


class Obedient(Executable):
    """An executable that looks at its first input before it runs."""

    has_run = False

    def run(
        self,
        inputs: Sequence[Argument],
        outputs: Sequence[Argument | None],
        config: hal.ExecutionConfig,
    ) -> None:
        assert isinstance(inputs[0], np.ndarray)
        code = int(inputs[0].flat[0])
        is_first, Obedient.has_run = not Obedient.has_run, True
        if code - ALWAYS in FAULTS or (code in FAULTS and not is_first):
            fail(self, code if code in FAULTS else code - ALWAYS)
        super().run(inputs, outputs, config)


def obedient(prepared: ShaderModel) -> ShaderModel:
    assert prepared.executable is not None
    prepared.executable = Obedient(prepared.executable.code)
    return prepared


def fail(executable: Executable, code: int) -> None:
    """Does to the process what *code* says."""
    gpu = executable.code.gpu
    if code == LOSE:
        gpu.device.destroy()
    elif code == HANG:
        submit_endless(gpu.device)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def submit_endless(device: Any) -> None:
    """Submits a shader that does not end."""
    import wgpu

    words = device.create_buffer(size=256, usage=wgpu.BufferUsage.STORAGE)
    module = device.create_shader_module(code=ENDLESS)
    compute = {"module": module, "entry_point": "main"}
    pipeline = device.create_compute_pipeline(layout="auto", compute=compute)
    resource = {"binding": 0, "resource": {"buffer": words, "offset": 0, "size": 256}}
    layout = pipeline.get_bind_group_layout(0)
    group = device.create_bind_group(layout=layout, entries=[resource])
    encoder = device.create_command_encoder()
    work = encoder.begin_compute_pass()
    work.set_pipeline(pipeline)
    work.set_bind_group(0, group)
    work.dispatch_workgroups(65_535, 65_535)
    work.end()
    device.queue.submit([encoder.finish()])


def create() -> Faulty:
    """The driver's device."""
    return Faulty(SOFTWARE)


def network() -> Model:
    """A fully connected layer, then its absolute value, then one more to it."""
    builder, rng = ModelBuilder(), np.random.default_rng(1)
    x = builder.input(DType.FLOAT32, SHAPE, "x")
    w = builder.constant(rng.integers(-2, 3, (8, SHAPE[1])).astype(np.float32), "w")
    one = builder.constant(np.ones(1, np.float32), "one")
    out = [(DType.FLOAT32, (SHAPE[0], 8))]
    (y,) = builder.operation("FULLY_CONNECTED", [x, w, None], out)
    (z,) = builder.operation("ABS", [y], out)
    return builder.build(builder.operation("ADD", [z, one], out))


def order(code: int, seed: int = 0) -> NDArray:
    """Small integers, of which every sum is exact, behind *code*."""
    given = np.random.default_rng(seed).integers(-9, 10, SHAPE).astype(np.float32)
    given.flat[0] = code
    return given


class Found(Struct):
    """What a loop of faults found. *before* and *after* are counts of what the process holds."""

    faults: Counter[str]
    answered: Counter[str]
    notes: Counter[str]
    failures: list[str]
    seconds: float = 0.0
    before: Held | None = None
    after: Held | None = None

    def lines(self) -> list[str]:
        """A report."""
        text = ", ".join(f"{count} times {what}" for what, count in self.faults.items())
        where = ", ".join(f"{count} by {what}" for what, count in self.answered.items())
        lines = [f"{text}: {self.answered.total()} runs in {self.seconds:.0f} s, {where}"]
        lines += [f"  {count:5d} {note}" for note, count in self.notes.most_common()]
        if self.before and self.after:
            pairs = zip(Held.__struct_fields__, astuple(self.before), astuple(self.after),
                        strict=True)  # fmt: skip
            lines.append(", ".join(f"{name} {a} -> {b}" for name, a, b in pairs))
        return [*lines, *self.failures[:20], f"{len(self.failures)} failures"]


class Held(Struct, frozen=True):
    """What this process holds, and how many processes descend from it."""

    descriptors: int
    mappings: int
    threads: int
    processes: int
    resident_kib: int


def held() -> Held:
    gc.collect()
    status = Path("/proc/self/status").read_text("ascii")
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return Held(
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        live_mappings(),
        threading.active_count(),
        len(descendants(os.getpid())),
        int(resident.split()[1]),
    )


def descendants(pid: int) -> list[int]:
    """The processes that *pid* has started, and theirs."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text("ascii").split()):
                found += [child, *descendants(child)]
    return found


GROWTH_KIB: Final = 32 * 1024
"""By how much this process may grow in memory: allocators keep some for later."""

TIMEOUT_MS: Final = "1500"
"""`submit_timeout_ms` of the hosts: how long an endless shader is waited for."""

PROGRESS: Final = 20
"""Faults between two lines of progress."""

NAMES: Final = {LOSE: "lost", HANG: "hung", DIE: "killed"}
ORDINARY: Final = 3
"""Runs after each fault."""


def rounds(count: int, seed: int, report: Callable[[str], object] = lambda _: None) -> Found:
    """*count* rounds of each fault in a random order, each followed by ordinary runs. In one round
    of five the process that is started in the place of the first one fails, too. *report* gets
    lines of progress.
    """
    draw = random.Random(seed)
    order_of = [fault for fault in FAULTS for _ in range(count)]
    draw.shuffle(order_of)
    found = Found(Counter(), Counter(), Counter(), [])
    with (
        knobs_of_the_loop(),
        penstock.compile(network(), devices=[NAME], isolate=True, cache=False) as model,
        penstock.compile(network(), devices=["reference"], cache=False) as wanted,
    ):
        for warm in range(ORDINARY):
            checked(model, wanted, order(0, warm), found)
        found.before, began = held(), time.monotonic()
        for number, fault in enumerate(order_of):
            again = draw.random() < 0.2
            found.faults[f"{NAMES[fault]}{' twice' * again}"] += 1
            why = checked(model, wanted, order(fault + again * ALWAYS, number), found)
            if not why:
                found.failures.append(f"round {number}: the receipt says nothing of {NAMES[fault]}")
            for further in range(ORDINARY):
                checked(model, wanted, order(0, number * ORDINARY + further), found)
            if (number + 1) % PROGRESS == 0:
                report(f"{number + 1} of {len(order_of)} faults, {len(found.failures)} failures")
        found.seconds = time.monotonic() - began
        found.after = settled(found.before)
    isolation.close_hosts()
    if left := descendants(os.getpid()):
        found.failures.append(f"processes are left: {left}")
    for name in Held.__struct_fields__:
        spare = GROWTH_KIB if name == "resident_kib" else 0
        if getattr(found.after, name) > getattr(found.before, name) + spare:
            found.failures.append(f"{name} grew")
    return found


def checked(
    model: CompiledModel, wanted: CompiledModel, given: NDArray, found: Found
) -> tuple[str, ...]:
    """Runs *model*, and compares. Returns what the receipt says of faults."""
    # Without a deadline: a machine may be stopped for any time.
    outputs = model.run([given])
    (step,) = outputs.receipt.steps
    found.answered[step.device] += 1
    if not np.array_equal(outputs[0], wanted(given)[0]):
        found.failures.append(f"wrong result of {step.device} for {given.flat[0]}")
    notes = (*outputs.receipt.notes, *((step.error,) if step.error else ()))
    for note in notes:
        found.notes[re.sub(r"\b\d+\b(?! s)", "#", note)[:200]] += 1
    return notes


def settled(before: Held) -> Held:
    """What is held once the last process that ended is reaped."""
    until = time.monotonic() + 20
    while True:
        now = held()
        names = Held.__struct_fields__[:-1]
        if all(getattr(now, n) <= getattr(before, n) for n in names) or time.monotonic() > until:
            return now
        time.sleep(0.2)


@contextmanager
def knobs_of_the_loop() -> Iterator[None]:
    """A state directory, a short watchdog, and a manager that knows the faulty driver alone."""
    entries = ENTRY, Entry("reference", "penstock.drivers.reference:create", "penstock-nn")
    with tempfile.TemporaryDirectory() as state:
        settings = {
            "PENSTOCK_STATE_DIR": state,
            "PENSTOCK_KEY_STORE": "file",
            "PENSTOCK_SUBMIT_TIMEOUT_MS": TIMEOUT_MS,
        }
        kept = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            with patch("penstock.runtime.session.manager", Manager(lambda: entries)):
                yield
        finally:
            isolation.close_hosts()
            for name, value in kept.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value
