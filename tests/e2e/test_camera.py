"""examples/camera: another process fills the buffers; nothing of a picture is copied on its way to
the driver.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest

import penstock
from examples.camera import v4l2
from examples.camera.consumer import brightest_cell, camera, main, say, watch, wrap
from examples.camera.frames import Numbers, receive_stream
from examples.camera.producer import HEIGHT, WIDTH, StandIn, open_source, serve, where
from penstock.testing import assert_no_copies
from penstock.testing.resources import Resources
from tests.conftest import ROOT
from tests.support_programs import run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are passed on Linux")

CELLS = WIDTH // 8


def cell(sequence: int) -> int:
    row, column = where(sequence, WIDTH, HEIGHT)
    return row * CELLS + column


@pytest.mark.parametrize("device", ["reference", "xnnpack"])
@pytest.mark.parametrize("isolate", [False, True])
def test_the_network_reads_the_cameras_own_buffers(device: str, isolate: bool) -> None:
    if not any(d.name == device and d.usable for d in penstock.devices()):
        pytest.skip(f"{device} cannot run here")
    with camera() as line:
        seen = list(watch(line, device, isolate=isolate, frames=6))
    assert seen == [(n, cell(n), 0) for n in range(6)]


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("sample", "^sample cannot run this network; reference and xnnpack can\n"),
        ("nope", "^no device is named 'nope'; found: "),
    ],
)
def test_a_device_that_cannot_ends_the_example_in_a_sentence(
    device: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["consumer", "--device", device])
    with pytest.raises(SystemExit, match=words):
        main()


def test_closed_pipe_ends_the_camera_example_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as ended:
            say("picture 0")
    assert ended.value.code == 1


def test_an_array_for_a_driver_in_another_process_is_copied_and_shows() -> None:
    """What the example would cost without the camera's buffers."""
    with ExitStack() as stack:
        line = stack.enter_context(camera())
        stream, descriptors = receive_stream(line)
        for buffer in wrap(descriptors, stream):
            stack.enter_context(buffer)
        compiled = stack.enter_context(
            penstock.compile(brightest_cell(stream), devices=["reference"], isolate=True)
        )
        picture = np.zeros((1, stream.height, stream.width, 3), np.uint8)
        copies = compiled(picture).receipt.copies
    assert [c.nbytes for c in copies if c.destination != "host"] == [stream.nbytes]


def test_camera_example_copies_no_byte_in_process() -> None:
    with camera() as line, ExitStack() as stack:
        stream, descriptors = receive_stream(line)
        buffers = [stack.enter_context(b) for b in wrap(descriptors, stream)]
        compiled = stack.enter_context(
            penstock.compile(brightest_cell(stream), devices=["reference"], cache=None)
        )
        told = Numbers(line).next()
        assert told is not None
        with assert_no_copies():
            compiled(buffers[told[0]])


def test_camera_stream_leaves_nothing_open() -> None:
    with Resources.unchanged("a camera"):
        with camera() as line:
            list(watch(line, "reference", frames=2))
        # One that goes away in the middle ends the pictures.
        ours, its = socket.socketpair()
        with ours, its:
            source, name = open_source(None)
            ours.close()
            with pytest.raises(OSError, match=r"Broken pipe|reset"):
                serve(its, source, name)
            source.close()


def test_page_of_the_camera_example_shows_its_output() -> None:
    page = (ROOT / "examples" / "camera" / "README.md").read_text("utf-8")
    command, _, rest = page.partition("$ python -m examples.camera.consumer --frames 3\n")
    assert command != page
    result = run_python("-m", "examples.camera.consumer", "--frames", "3", cwd=ROOT, check=True)
    assert result.stderr == ""
    assert rest.startswith(result.stdout)


class PlayedCamera:
    """`ioctl` of a camera of RGB3 pictures, by the structures of `linux/videodev2.h`."""

    def __init__(self, formats: tuple[bytes, ...] = (b"RGB3",), capabilities: int = 0x04000001):
        self.formats, self.capabilities = formats, capabilities
        self.buffers: list[int] = []
        self.queue: list[int] = []
        self.streaming = False
        self.sequence = 0

    def __call__(self, fd: int, request: int, argument: bytearray) -> int:
        match request:
            case v4l2.QUERYCAP:
                struct.pack_into("=I", argument, 88, self.capabilities)
            case v4l2.S_FMT:
                assert len(argument) == 208
                kind, width, _, name = struct.unpack_from("=I4xII4s", argument)
                assert kind == v4l2.CAPTURE
                if name not in self.formats:
                    struct.pack_into("=4s", argument, 16, self.formats[0])
                else:
                    struct.pack_into("=I", argument, 24, width * v4l2.FORMATS[name])
            case v4l2.REQBUFS:
                assert len(argument) == 20
            case v4l2.EXPBUF:
                assert len(argument) == 64
                made = os.memfd_create("picture")
                os.ftruncate(made, 1 << 16)
                struct.pack_into("=i", argument, 16, made)
            case v4l2.QBUF:
                assert len(argument) == 88
                self.queue.append(struct.unpack_from("=I", argument)[0])
            case v4l2.DQBUF:
                assert self.streaming
                struct.pack_into("=I", argument, 0, self.queue.pop(0))
                struct.pack_into("=I", argument, 56, self.sequence)
                self.sequence += 1
            case v4l2.STREAMON:
                self.streaming = True
        return 0


@pytest.fixture
def device(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("dev") / "video0"
    path.write_bytes(b"")
    return str(path)


def test_camera_fills_its_buffers_in_order(device: str) -> None:
    with Resources.unchanged("a camera"):
        source = v4l2.Camera(device, 32, 16, 3, PlayedCamera())
        assert (source.width, source.height, source.channels, source.count) == (32, 16, 3, 3)
        assert [source.capture() for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
        source.give_back(1)
        assert source.capture() == (1, 3)
        source.close()


@pytest.mark.parametrize(
    ("played", "complaint"),
    [
        (PlayedCamera(formats=(b"MJPG",)), "neither RGB3 nor YUYV"),
        (PlayedCamera(capabilities=0x04000002), "captures no streams"),
    ],
)
def test_unsuitable_camera_is_refused(device: str, played: PlayedCamera, complaint: str) -> None:
    with Resources.unchanged("a refusal"), pytest.raises(OSError, match=complaint):
        v4l2.Camera(device, 32, 16, 3, played)


def test_stand_in_serves_when_no_camera_is_named() -> None:
    source, name = open_source(None)
    assert isinstance(source, StandIn)
    assert name.startswith("stand-in (")
    source.close()


def test_a_camera_that_is_named_and_not_there_ends_the_example(device: str) -> None:
    command = [
        sys.executable,
        "-m",
        "examples.camera.consumer",
        "--camera",
        device,
        "--frames",
        "1",
    ]
    found = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 1
    assert f"no camera at {device}: " in found.stderr
    assert found.stdout == ""
