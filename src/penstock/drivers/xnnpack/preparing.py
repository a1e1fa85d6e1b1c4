"""Prepares a model: writes the files for LiteRT, opens their interpreters, saves what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock import errors, hal
from penstock.driverkit.engine import check_limits, report_of
from penstock.driverkit.unrolling import flattened
from penstock.drivers.xnnpack import artefact
from penstock.drivers.xnnpack.engine import last_line
from penstock.drivers.xnnpack.interpreter import DEFAULT_THREADS, File
from penstock.drivers.xnnpack.part import DETECTION
from penstock.drivers.xnnpack.prepared import XnnpackPreparedModel
from penstock.drivers.xnnpack.segments import Segment, make_segments
from penstock.drivers.xnnpack.state_copies import state_copies
from penstock.drivers.xnnpack.static_shapes import fold_shapes, has_static_shapes
from penstock.drivers.xnnpack.support import classify
from penstock.export.tflite.writer import write
from penstock.ir import Model

if TYPE_CHECKING:
    from penstock.drivers.xnnpack.device import XnnpackDevice

MOST_KEPT_BYTES: Final = 64 << 20
"""Greatest size of a file that the cache keeps. A load has it in memory twice, and packing the
weights of a larger one takes longer than writing it.
"""


def prepare(device: XnnpackDevice, model: Model, config: hal.PrepareConfig) -> XnnpackPreparedModel:
    """Writes each segment of *model* as a file for one of the device's kernel sets, opens an
    interpreter of it, and saves the file. Raises `GeneralFailure` with the operation's name, or
    with LiteRT's message.
    """
    check_limits(config)
    shaped = fold_shapes(flattened(model))
    segments = make_segments(shaped.model, classify(shaped.model, device.kernels), config.accuracy)
    threads = config.num_threads or DEFAULT_THREADS
    files, runners = [], []
    for planned in segments:
        places = dict.fromkeys(shaped.origins[i] for i in planned.part.operations)
        part = replace(planned.part, operations=tuple(places))
        file = File(part, _written(planned), threads, has_static_shapes(planned.model))
        check_limits(config)
        files.append(file)
        runners.append(file.open())
    check_limits(config)
    detections = [o.outputs for o in model.entry.operations if o.key == DETECTION]
    made = XnnpackPreparedModel(model, files, runners, state_copies(model), detections)
    made.cache_report = _saved(device, made, model, files, config)
    return made


def _saved(
    device: XnnpackDevice,
    made: XnnpackPreparedModel,
    model: Model,
    files: Sequence[File],
    config: hal.PrepareConfig,
) -> hal.CacheReport:
    """The report of the save of *files*, of which the cache takes one."""
    if not config.model_cache:
        return hal.NO_CACHE_REPORT
    entry = model.entry
    apart = any(entry.operands[i].is_constant for i in entry.outputs)
    apart |= not {i for found in made.detections for i in found} <= set(entry.outputs)
    if not made.is_whole or apart:
        reason = "a model of several files, or whose shapes are known only in a run, is not kept"
        return hal.CacheReport("failed", reason)
    (file,) = files
    if len(file.content) > MOST_KEPT_BYTES:
        return hal.CacheReport("failed", f"a file of {len(file.content)} bytes is not kept")
    packed = artefact.pack(model, file, device.version, made.detections)
    return report_of(device.save(config, lambda: ([packed], ())))


def _written(segment: Segment) -> bytes:
    try:
        # LiteRT allocates tensors that live throughout a run in the order of the file. With this
        # order the tensors of a state are adjacent, and one copy moves them all (`state_copies`).
        content = write(segment.model, outputs_first=True)
    except errors.PenstockError as error:
        text = f"the model cannot be written for LiteRT: {last_line(error)}"
        raise errors.GeneralFailure(text) from error
    # The constants are in the file now.
    for pool in segment.model.pools:
        pool.unload()
    return content
