"""Names the kernel and its operations when generated code faults (Linux on x86-64).

It is done in processes that ask for Python's `faulthandler`, as the host process of an isolated
driver does: the line precedes what that prints, and is in the record of the crash.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import weakref
from typing import Any, Final

import numpy as np

from penstock.drivers.llvm.artefact import Manifest
from penstock.drivers.llvm.emit import fault
from penstock.drivers.llvm.load import Image
from penstock.drivers.llvm.load.memory import Executable, page_size
from penstock.drivers.llvm.run.addresses import address_of
from penstock.errors import PenstockError
from penstock.ir import NDArray
from penstock.logs import Log

log = Log(__name__)

SIGNALS: Final = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")

SA_SIGINFO, SA_ONSTACK, SA_NODEFER = 4, 0x08000000, 0x40000000
ACTION_BYTES: Final = 256
"""More than the size of `struct sigaction`."""

THUNKS: Final = {
    # mov rcx, register; mov rax, handler; jmp rax
    "x86_64": (b"\x48\xb9", b"\x48\xb8", b"\xff\xe0"),
}
"""The instructions around two addresses, by architecture. They pass the register's address."""


class Registered:
    """The kernels of one image, as long as this object lives."""

    def __init__(self, image: Image, manifest: Manifest) -> None:
        self._image = image
        self._kernels = np.zeros((max(1, len(manifest.kernels)), 4), np.uint64)
        self._texts = []
        for number, (function, (_, name, operations)) in enumerate(
            zip(manifest.functions, manifest.kernels, strict=True)
        ):
            begin, size = image.functions[function]
            places = ", ".join(map(str, operations)) or "none"
            said = f"penstock: fault in kernel {function} ({name}), of operation {places}\n"
            text = np.frombuffer(said.encode(), np.uint8)
            self._texts.append(text)
            self._kernels[number] = begin, begin + size, address_of(text), text.nbytes
        self.node = np.zeros(fault.IMAGE_BYTES // 8, np.uint64)
        self.node[fault.Image.KERNELS // 8] = address_of(self._kernels)
        self.node[fault.Image.COUNT // 8] = len(manifest.kernels)
        self._words = self.node[fault.Image.WORDS // 8 :]
        self._lock = threading.Lock()

    def watch(self, run: object, frame: NDArray, places: tuple[int, ...]) -> None:
        """The words of *frame* at *places* name the running kernel, as long as *run* lives."""
        with self._lock:
            free = np.flatnonzero(self._words == 0)[: len(places)]
            for place, index in zip(places, free, strict=False):
                self._words[index] = address_of(frame[place:])
        weakref.finalize(run, _clear, self._words, free)

    def forget(self) -> None:
        """Ends the use of the image: its kernels are not named any more."""
        _process.forget(self)


def _clear(words: NDArray, taken: NDArray) -> None:
    words[taken] = 0


class _Process:
    """The handler of this process, and the images that it knows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._head: NDArray | None = None
        self._kept: list[object] = []
        self._known: list[Registered] = []

    def register(self, image: Image, manifest: Manifest) -> Registered | None:
        """Names the kernels of *image* from now on; None if that cannot be done here."""
        with self._lock:
            if self._head is None and not self._install(image):
                return None
            made = Registered(image, manifest)
            self._known.append(made)
            self._link()
        return made

    def forget(self, registered: Registered) -> None:
        """Ends the use of *registered*."""
        with self._lock:
            self._known.remove(registered)
            self._link()

    def _link(self) -> None:
        if self._head is None:
            return
        following = 0
        for each in reversed(self._known):
            each.node[0] = following
            following = address_of(each.node)
        self._head[fault.Head.FIRST // 8] = following

    def _install(self, image: Image) -> bool:
        """Installs the handler of *image*, which stays mapped. Returns whether it did."""
        library: Any = ctypes.CDLL(None)
        head = np.zeros(fault.HEAD_BYTES // 8, np.uint64)
        head[fault.Head.WRITE // 8] = _address(library.write)
        head[fault.Head.SIGACTION // 8] = _address(library.sigaction)
        thunk = _thunk(address_of(head), image)
        if thunk is None:
            return False
        self._head = head
        self._kept += [image, thunk]
        for name in SIGNALS:
            number = getattr(signal, name)
            before, action = (np.zeros(ACTION_BYTES, np.uint8) for _ in range(2))
            self._kept += [before, action]
            if library.sigaction(number, None, ctypes.c_void_p(address_of(before))):
                continue
            head[fault.Head.BEFORE // 8 + number] = address_of(before)
            # struct sigaction of the C library: the handler, a mask of 128 bytes, the flags.
            action[:8].view(np.uint64)[0] = thunk.address
            flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER
            action[136:140].view(np.int32)[0] = flags
            library.sigaction(number, ctypes.c_void_p(address_of(action)), None)
        return True


def _thunk(register: int, image: Image) -> Executable | None:
    """Code that calls the handler of *image* with the address of the *register*."""
    import platform

    parts = THUNKS.get(platform.machine().lower().replace("amd64", "x86_64"))
    if parts is None:
        return None
    try:
        handler = image.address("fault")
        code = b"".join(
            (parts[0], register.to_bytes(8, "little"), parts[1], handler.to_bytes(8, "little"))
        )
        content = np.zeros(page_size(), np.uint8)
        made = np.frombuffer(code + parts[2], np.uint8)
        content[: made.size] = made
        return Executable(content.size, content.size, lambda _: content)
    except PenstockError as error:
        log.debug("faults of generated code are not named: %s", error)
        return None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_process: Final = _Process()
register: Final = _process.register
