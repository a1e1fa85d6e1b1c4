"""The only place that constructs things: finds devices, and puts the four stages together."""

from penstock.runtime.discovery import DeviceInfo, Manager, manager
from penstock.runtime.session import compile_model
from penstock.threads import allowed_threads

__all__ = ["DeviceInfo", "Manager", "allowed_threads", "compile_model", "manager"]
