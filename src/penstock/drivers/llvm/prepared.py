"""Compiled models as the runtime sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.driverkit.engine_model import EngineModel, Profiler
from penstock.drivers.llvm.run import team
from penstock.drivers.llvm.run.running import Executable


def profiler_of(executable: Executable) -> Profiler[Any]:
    """The measured runs of *executable*."""
    from penstock.drivers.llvm.run.profiling import profiler

    return profiler(executable)


class LlvmPreparedModel(EngineModel[Executable]):
    """A model as code of the processor."""

    @property
    def kernels(self) -> Sequence[tuple[str, str, tuple[int, ...]]]:
        """The template, the name and the operations of each kernel, in their order."""
        return () if self.executable is None else self.executable.code.manifest.kernels

    def close(self) -> None:
        super().close()
        team.settle()
