"""Devices that are set apart because of what they are given."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.runtime import apart, isolation
from penstock.runtime.discovery import Manager


def test_only_the_deaths_of_the_devices_own_driver_are_forgiven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forgiven: list[str] = []

    def of(name: str) -> SimpleNamespace:
        return SimpleNamespace(
            place=SimpleNamespace(name=name), succeeded=lambda: forgiven.append(name)
        )

    monkeypatch.setattr(isolation, "supervisors", lambda: [of("refer"), of("reference")])
    apart._forgive_driver(Manager().driver_of("reference", isolate=False))
    assert forgiven == ["reference"]
