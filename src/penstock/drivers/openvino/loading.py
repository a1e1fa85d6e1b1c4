"""From the payloads of verified cache files to something that executes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.drivers.openvino import artefact, engine
from penstock.drivers.openvino.executable import Executable
from penstock.drivers.openvino.source import FORMS
from penstock.errors import GeneralFailure, OtherVersion
from penstock.hal import CacheReport
from penstock.ir import NDArray
from penstock.sealed import LoadedEntry, SaveReport

if TYPE_CHECKING:
    from penstock.drivers.openvino.device import OpenVinoDevice


def opened(
    device: OpenVinoDevice, entry: LoadedEntry
) -> tuple[artefact.Manifest, Sequence[NDArray]]:
    """What a verified entry holds; its private copies are given back. Raises `OtherVersion` for an
    artefact of another build of OpenVINO, `GeneralFailure` for what this driver does not write.
    """
    try:
        manifest, parts = artefact.unpack(entry.model[0], entry.data[0])
    finally:
        for content in (*entry.model, *entry.data):
            content.release()
    build = engine.build_of(device.plugin.name)
    if manifest.engine != build:
        raise OtherVersion(f"the artefact is of {manifest.engine}, and this is {build}")
    if manifest.form not in FORMS:
        raise GeneralFailure(f"the artefact is of the form {manifest.form!r}, which is not known")
    return manifest, parts


def imported(device: OpenVinoDevice, exported: NDArray, manner: engine.Manner) -> Executable:
    """OpenVINO's compiled model of exported bytes; counted."""
    chosen = engine.settings(device.plugin.name, manner)
    device.count(imports=1)
    compiled = engine.import_model(exported, device.plugin.name, chosen)
    return Executable(compiled, exported, exported)


def said(saved: SaveReport | None, form: str, *, later: bool = False) -> CacheReport:
    """What to say of a save; None is one that was not asked for."""
    if saved is None:
        return CacheReport(later=later, artefact=form)
    return CacheReport("saved" if saved.saved else "failed", saved.reason or "", later, form)
