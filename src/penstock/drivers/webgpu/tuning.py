"""Which shapes of threads the kernels of a model are fastest with: measured on the device.

Results do not depend on the shapes: each sum is added in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final, NoReturn, TypeAlias

from msgspec.structs import replace

from penstock.driverkit.artefact import Ports
from penstock.driverkit.engine import POLL_SECONDS
from penstock.drivers.webgpu.artefact import Manifest
from penstock.drivers.webgpu.emit.form import DEFAULT, Shape
from penstock.drivers.webgpu.emit.sketch import Drawing, Printing, decoded, reshaped
from penstock.drivers.webgpu.engine import Gpu
from penstock.drivers.webgpu.profiling import TimedRun
from penstock.drivers.webgpu.running import Code
from penstock.drivers.webgpu.turns import Turns
from penstock.errors import DeadObject
from penstock.hal import CancelToken, ExecutionConfig, PrepareConfig

SHAPES: Final = (
    DEFAULT, Shape(8, 2), Shape(4, 1), Shape(4, 4), Shape(8, 1), Shape(4, 2, 256),
)  # fmt: skip
"""The shapes that are measured, the default first."""

ROUNDS: Final = 4
"""How often each kernel is measured in each shape. The least of the times counts."""

GAIN: Final = 0.95
"""The share of its time in the default shape that a kernel must take at most in another one."""

SECONDS: Final = 20.0
"""Seconds from which on no further shape of a model is compiled."""

PAUSE: Final = 4.0
"""How many times as long as a measurement the device is left to runs after it."""

MOST_VERDICTS: Final = 4096

Best: TypeAlias = dict[tuple[int, Shape], float]
"""The least nanoseconds of a drawing in a shape."""

_verdicts: Final[dict[tuple[str, bytes], Shape]] = {}
"""The shapes found in this process, by the adapter and the digest of the shader in the default
shape: equal kernels of several models are measured once.
"""


class Bench(Gpu):
    """A device for measurements: on it nothing waits for the runs of models. Its loss is no fault
    of theirs, so no process ends for it.
    """

    def lose(self, reason: str) -> NoReturn:
        self.lost = f"device {self.name} is lost while shapes are measured: {reason}"
        raise DeadObject(self.lost)


def tuned(gpu: Gpu, manifest: Manifest, cancel: CancelToken) -> Manifest:
    """*manifest* with the shapes that are fastest on the device of *gpu*. Raises `Cancelled`, and
    `DeadObject` if the device is lost.
    """
    drawings = decoded(manifest.sketch, len(manifest.calls))
    keys = [(gpu.adapter, _digest(manifest, drawing)) for drawing in drawings]
    unknown = [number for number, key in enumerate(keys) if key not in _verdicts]
    if unknown:
        bench = Bench(gpu.source, gpu.name)
        with bench.used():
            best = _measured(bench, gpu.turns, manifest, drawings, unknown, cancel)
        if len(_verdicts) > MOST_VERDICTS:
            _verdicts.clear()
        _verdicts.update((keys[number], _verdict(best, number)) for number in unknown)
    shapes = {n: _verdicts.get(key, DEFAULT) for n, key in enumerate(keys)}
    if not manifest.tuned:
        shapes = {number: shape for number, shape in shapes.items() if shape != DEFAULT}
    return replace(_with(manifest, reshaped(manifest, drawings, shapes)), tuned=gpu.adapter)


def _digest(manifest: Manifest, drawing: Drawing) -> bytes:
    text, _ = drawing.printed(manifest.calls[drawing.calls[0]], drawing.form.shaped(DEFAULT))
    return sha256(text.encode()).digest()


def _verdict(best: Best, number: int) -> Shape:
    own = {shape: ns for (drawing, shape), ns in best.items() if drawing == number}
    shape = min(own, key=lambda shape: own[shape], default=DEFAULT)
    return shape if shape in own and own[shape] <= GAIN * own.get(DEFAULT, 0.0) else DEFAULT


def _measured(
    bench: Bench, turns: Turns, manifest: Manifest, drawings: Sequence[Drawing],
    wanted: Sequence[int], cancel: CancelToken,
) -> Best:  # fmt: skip
    """The times of the *wanted* drawings, by number, in each shape that makes a difference."""
    best, began = Best(), time.monotonic()
    trials: dict[Shape, tuple[Manifest, Sequence[int]]] = {}
    tried = set[tuple[int, int, int, int]]()
    for shape in SHAPES:
        chosen = list[int]()
        for number in wanted:
            form = drawings[number].form.shaped(shape)
            if (key := (number, form.many, form.groups, form.threads)) not in tried:
                tried.add(key)
                chosen.append(number)
        if chosen and time.monotonic() - began < SECONDS:
            trials[shape] = _trial(manifest, drawings, dict.fromkeys(chosen, shape)), chosen
            # The system's driver compiles the shaders in the first run.
            _times(bench, trials[shape][0], cancel)
    for _ in range(ROUNDS):
        for shape, (trial, own) in trials.items():
            with turns.alone():
                start = time.monotonic()
                times = _times(bench, trial, cancel)
                spent = time.monotonic() - start
            for number, ns in zip(own, times, strict=True):
                best[number, shape] = min(best.get((number, shape), ns), ns)
            _wait(PAUSE * spent, cancel)
    return best


def _trial(
    manifest: Manifest, drawings: Sequence[Drawing], shapes: Mapping[int, Shape]
) -> Manifest:
    """A model without inputs and outputs that runs each of the drawings of *shapes* once."""
    printing = reshaped(manifest, drawings, shapes)
    calls = [printing.calls[drawings[number].calls[0]] for number in shapes]
    kept = {shader: place for place, shader in enumerate(dict.fromkeys(c.shader for c in calls))}
    printing = Printing(
        tuple(printing.shaders[shader] for shader in kept),
        tuple(replace(call, shader=kept[call.shader]) for call in calls),
        printing.numbers,
    )
    layout = replace(manifest.layout, inputs=(), outputs=(), results=(0, 4))
    bare = replace(manifest, ports=Ports((), (), ()), layout=layout, failures=())
    return _with(bare, printing)


def _with(manifest: Manifest, printing: Printing) -> Manifest:
    return replace(
        manifest, shaders=printing.shaders, calls=printing.calls, numbers=printing.numbers
    )


def _times(bench: Bench, trial: Manifest, cancel: CancelToken) -> list[float]:
    """The nanoseconds of each kernel of one run of *trial*, whose constants are zeros."""
    run = TimedRun(Code(bench, trial, None, PrepareConfig(cancel=cancel)))
    run.run((), (), ExecutionConfig(cancel=cancel))
    stamps = run.stamps()
    times: list[float] = ((stamps[:, 1] - stamps[:, 0]) * bench.ns_a_tick).tolist()
    return times


def _wait(seconds: float, cancel: CancelToken) -> None:
    """Sleeps. Raises `Cancelled` once *cancel* is set."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        cancel.check()
        time.sleep(min(left, POLL_SECONDS))
