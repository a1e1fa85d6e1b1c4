"""The consumer process: wraps the camera's buffers and finds the brightest cell of every picture,
zero-copy.

    python -m examples.camera.consumer [--device NAME] [--isolate]
        [--camera /dev/video0] [--frames N]
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

import penstock
from examples.camera.frames import Numbers, Stream, receive_stream, send_number
from penstock.errors import PenstockError, PlacementError
from penstock.ir import DType, Model, ModelBuilder, Quantization
from penstock.memory import (
    HardwareBuffer,
    HardwareBufferDescription,
    HardwareBufferFormat,
    HardwareBufferUsage,
)

CELL = 8
UNIT = Quantization((1.0,), (0,))


def brightest_cell(stream: Stream) -> Model:
    """Finds the brightest cell: uint8 [1, height, width, channels] -> int32 [1].

    The result is the row-major number of the cell with the highest mean in the first channel (red,
    or the luminance of YUYV).
    """
    rows, columns, depth = stream.height // CELL, stream.width // CELL, stream.channels
    b = ModelBuilder()
    picture = b.input(DType.UINT8, (1, stream.height, stream.width, depth), "picture", UNIT)
    window = {"filter_height": CELL, "filter_width": CELL, "stride_h": CELL, "stride_w": CELL}
    (cells,) = b.operation(
        "AVERAGE_POOL_2D",
        [picture],
        [(DType.UINT8, (1, rows, columns, depth), UNIT)],
        {**window, "padding": "VALID"},
    )
    begin = b.constant(np.zeros(4, np.int32))
    size = b.constant(np.array([1, rows, columns, 1], np.int32))
    (one,) = b.operation(
        "SLICE", [cells, begin, size], [(DType.UINT8, (1, rows, columns, 1), UNIT)]
    )
    (flat,) = b.operation(
        "RESHAPE",
        [one, b.constant(np.array([1, rows * columns], np.int32))],
        [(DType.UINT8, (1, rows * columns), UNIT)],
    )
    axis = b.constant(np.ones(1, np.int32))
    return b.build(b.operation("ARG_MAX", [flat, axis], [(DType.INT32, (1,))]))


@contextmanager
def camera(path: str | None = None) -> Iterator[socket.socket]:
    """Starts a camera's process; returns it and its socket. Closing the socket ends it."""
    ours, its = socket.socketpair()
    command = [sys.executable, "-m", "examples.camera.producer", str(its.fileno())]
    with ours:
        process = subprocess.Popen(  # noqa: S603  # our own program
            command + ([path] if path else []), pass_fds=[its.fileno()], env=dict(os.environ)
        )
        its.close()
        try:
            yield ours
        finally:
            ours.close()
            process.wait()


def wrap(descriptors: list[int], stream: Stream) -> list[HardwareBuffer]:
    """Wraps the camera's buffers without a copy, and closes the descriptors."""
    usage = HardwareBufferUsage.CPU_READ_OFTEN
    description = HardwareBufferDescription(
        HardwareBufferFormat.BLOB, stream.nbytes, stride=stream.nbytes, usage=usage
    )
    try:
        return [HardwareBuffer.wrap(fd, description) for fd in descriptors]
    finally:
        for fd in descriptors:
            os.close(fd)


def watch(
    line: socket.socket, device: str, *, isolate: bool = False, frames: int = 10
) -> Iterator[tuple[int, int, int]]:
    """Sequence number, brightest cell and bytes copied to the driver, for each picture."""
    stream, descriptors = receive_stream(line)
    with ExitStack() as stack:
        buffers = [stack.enter_context(buffer) for buffer in wrap(descriptors, stream)]
        compiled = stack.enter_context(
            penstock.compile(brightest_cell(stream), devices=[device], isolate=isolate)
        )
        ready = Numbers(line)
        for _ in range(frames):
            told = ready.next()
            if told is None:
                return
            index, sequence = told
            outputs = compiled(buffers[index])
            send_number(line, index)
            copied = sum(c.nbytes for c in outputs.receipt.copies if c.destination != "host")
            yield sequence, int(outputs[0][0]), copied


def say(line: str) -> None:
    """Prints *line*. Ends the program quietly if the reader has closed the pipe (`| head`)."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # Otherwise Python reports the closed pipe again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="reference")
    parser.add_argument("--isolate", action="store_true", help="run the driver in its own process")
    parser.add_argument("--camera", metavar="PATH", help="a V4L2 device, /dev/video0 say")
    parser.add_argument("--frames", type=int, default=10)
    given = parser.parse_args()
    with camera(given.camera) as line:
        try:
            for sequence, cell, copied in watch(
                line, given.device, isolate=given.isolate, frames=given.frames
            ):
                say(
                    f"picture {sequence}: brightest in cell {cell}, {copied} bytes copied to the "
                    "driver"
                )
        except PlacementError as error:
            if not error.reasons:
                sys.exit(str(error))
            sys.exit(f"{given.device} cannot run this network; reference and xnnpack can\n{error}")
        except (PenstockError, EOFError) as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
