"""Compiled models as the runtime sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.driverkit.engine_model import EngineModel, Profiler
from penstock.drivers.llvm.run.running import Compute, Executable
from penstock.errors import GeneralFailure
from penstock.hal import ExecutionConfig


def profiler_of(executable: Executable) -> Profiler[Any]:
    """The measured runs of *executable*."""
    from penstock.drivers.llvm.run.profiling import profiler

    return profiler(executable)


class LlvmPreparedModel(EngineModel[Executable]):
    """A model as code of the processor."""

    @property
    def compute(self) -> Compute | None:  # type: ignore[override]  # depends on the model
        """As `PreparedModelBase.compute`; None if an input is an output."""
        executable = self.executable
        return None if self._forwards or executable is None else executable.compute

    @property
    def kernels(self) -> Sequence[tuple[str, str, tuple[int, ...]]]:
        """The template, the name and the operations of each kernel, in their order."""
        return () if self.executable is None else self.executable.code.manifest.kernels

    def close(self) -> None:
        # No variable here may hold the code while the team's threads leave it.
        several = self.executable is not None and self.executable.code.threads > 1
        if self.executable is not None:
            self.executable.let_go()
        super().close()
        if several:
            from penstock.drivers.llvm.run import team

            team.settle()


class ElsewhereModel(LlvmPreparedModel):
    """Code that was compiled and saved for other processors. Here each run fails with *why*."""

    def __init__(self, *arguments: Any, why: str) -> None:
        super().__init__(*arguments)
        self._why = why

    @property
    def compute(self) -> None:  # type: ignore[override]  # there is none
        return None

    def current(self, config: ExecutionConfig) -> Executable:
        raise GeneralFailure(self._why)
