"""Cache files for trying a driver alone: what the runtime would open and lend."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from penstock.hal import CacheHandle, CacheReport, Device, PrepareConfig
from penstock.testing.contract.cases import Case
from penstock.testing.contract.trial import Trial, kinds

TOKEN: Final = bytes(range(32))
BINDING: Final = bytes(range(32, 64))

READ_WRITE: Final = os.O_RDWR
NO_FILE: Final = -1
"""Instead of flags: the descriptor of no open file."""
CLOSED: Final = 1 << 20


class Entry:
    """The cache files of one entry in *directory*, empty at first, and its lock file.

    *counts* are the (model, data) files. Files have numbers: the model files' come first.
    """

    def __init__(
        self,
        directory: Path,
        counts: tuple[int, int],
        *,
        token: bytes = TOKEN,
        binding: bytes = BINDING,
    ) -> None:
        self.counts, self.token, self.binding = counts, token, binding
        directory.mkdir(exist_ok=True)
        self.paths = [directory / f"{n}.cache" for n in range(sum(counts))]
        self.lock = directory / "lock"
        for path in (*self.paths, self.lock):
            path.write_bytes(b"")

    @property
    def model_paths(self) -> list[Path]:
        return self.paths[: self.counts[0]]

    @property
    def data_paths(self) -> list[Path]:
        return self.paths[self.counts[0] :]

    @contextmanager
    def opened(
        self,
        flags: int = READ_WRITE,
        *,
        one: Mapping[int, int] | None = None,
        token: bytes | None = None,
        binding: bytes | None = None,
        base: PrepareConfig | None = None,
    ) -> Iterator[PrepareConfig]:
        """*base* with the files opened anew with *flags*; *one* has other flags for single files, by number."""
        with ExitStack() as stack:

            def handle(path: Path, how: int) -> CacheHandle:
                if how == NO_FILE:
                    return CacheHandle(CLOSED)
                fd = os.open(path, how | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
                stack.callback(os.close, fd)
                return CacheHandle(fd)

            how = dict(one or {})
            handles = tuple(
                handle(path, how.get(number, flags)) for number, path in enumerate(self.paths)
            )
            yield _with(
                base or PrepareConfig(),
                token=self.token if token is None else token,
                binding=self.binding if binding is None else binding,
                model_cache=handles[: self.counts[0]],
                data_cache=handles[self.counts[0] :],
                lock=handle(self.lock, READ_WRITE),
            )

    def contents(self) -> list[bytes]:
        """What each file holds."""
        return [path.read_bytes() for path in self.paths]

    def put(self, contents: list[bytes]) -> None:
        """Writes that into the files, in place."""
        for path, content in zip(self.paths, contents, strict=True):
            if path.read_bytes() != content:
                path.write_bytes(content)


def _with(config: PrepareConfig, **fields: object) -> PrepareConfig:
    changed: PrepareConfig = msgspec.structs.replace(config, **fields)
    return changed


@contextmanager
def entry_of(device: Device, counts: tuple[int, int] | None = None) -> Iterator[Entry]:
    """An empty entry of the files that *device* needs, or of other *counts*, for the time of a block."""
    with tempfile.TemporaryDirectory() as directory:
        yield Entry(Path(directory) / "entry", counts or device.cache_files_needed())


def save(device: Device, case: Case, config: PrepareConfig) -> CacheReport:
    """Compiles *case* into the files of *config*; what the device says of that.

    A device that compiles at the first run, and writes late, is run once.
    """
    with closing(device.prepare_model(case.model, config)) as prepared:
        report = prepared.cache_report
        if report.later and report.save == "none":
            with Trial(case, kinds(device)[0]) as trial:
                trial.run(prepared)
        return report
