"""What stands in for a device whose driver's process is not there, and could not be asked yet what
its devices are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from penstock.compilation.failing import with_last_crash
from penstock.errors import DeadObject, DriverError
from penstock.hal import (
    Buffer,
    BufferDesc,
    BufferRole,
    DeviceBase,
    PrepareConfig,
    PreparedModel,
    Support,
)
from penstock.hal.device import NO_VERSION
from penstock.ir import Model

if TYPE_CHECKING:
    from penstock.ipc.supervision import Supervisor


class AbsentDevice(DeviceBase):
    """Answers every call with *error*, a `DeadObject` or `MissedDeadlineTransient`, and is found
    anew once *supervisor* has the process (`there`).
    """

    isolated: Final = True
    absent: Final = True

    def __init__(self, name: str, supervisor: Supervisor, error: DriverError) -> None:
        self.name, self.version, self.supervisor, self.error = name, NO_VERSION, supervisor, error

    def named(self, name: str) -> AbsentDevice:
        """The same under another name."""
        return AbsentDevice(name, self.supervisor, self.error)

    def check(self) -> str | None:
        told = str(self.error)
        return with_last_crash(told) if isinstance(self.error, DeadObject) else told

    def there(self) -> bool:
        """Whether the process is there now; it is started where it may be."""
        try:
            self.supervisor.link()
        except DriverError:
            return False
        return True

    def supported_operations(self, model: Model) -> Sequence[Support]:
        self._refuse()

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        self._refuse()

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModel:
        self._refuse()

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise type(self.error)(str(self.error))
