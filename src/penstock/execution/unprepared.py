"""The form of a model with unknown dimensions while its steps are planned, but not prepared."""

from __future__ import annotations

from collections.abc import Callable

from penstock.compilation.prepared import Compilation
from penstock.execution.variant import Variant
from penstock.hal import PrepareConfig


class Unprepared:
    """Stands for the `Variant` that *prepare* makes. *compilation* has its plan and no step.

    A run has the form of its own shapes. Only memory of a device, bound runs and bound state use
    the form whose dimensions are unknown, so most programs never prepare it.
    """

    shadow = None
    absence = None

    def __init__(
        self, compilation: Compilation, config: PrepareConfig, prepare: Callable[[], Variant]
    ) -> None:
        self.compilation, self.config, self.prepare = compilation, config, prepare
        self.model = compilation.plan.model

    def close(self) -> None:
        """Does nothing: no driver has prepared anything."""
