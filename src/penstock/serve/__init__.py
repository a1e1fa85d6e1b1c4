"""Serves models over the network: the Open Inference Protocol, version 2 (docs/serving.md).

Needs the extra `serve`. `penstock serve` is the program; from Python:

    from penstock.serve import ModelRepository, Server, Service, Settings, sources_of

    settings = Settings()
    repository = ModelRepository(sources_of(["net.tflite"]), settings)
    for name in repository.names:
        repository.load(name)
    with Server(Service(repository, settings)) as server:
        ...
"""

from typing import TYPE_CHECKING, Final

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.serve.access import Access as Access
    from penstock.serve.repository import ModelRepository as ModelRepository
    from penstock.serve.server import Address as Address, Server as Server
    from penstock.serve.service import Service as Service
    from penstock.serve.settings import (
        Batching as Batching,
        CompileSettings as CompileSettings,
        Limits as Limits,
        MemoryLimits as MemoryLimits,
        Settings as Settings,
    )
    from penstock.serve.sources import Source as Source, sources_of as sources_of

NAMES: Final = {
    "access": "Access",
    "repository": "ModelRepository",
    "server": "Address Server",
    "service": "Service",
    "settings": "Batching CompileSettings Limits MemoryLimits Settings",
    "sources": "Source sources_of",
}

__getattr__ = lazily(__name__, NAMES)
