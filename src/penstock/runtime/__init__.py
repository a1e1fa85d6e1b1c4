"""The composition root: finds devices and connects the four stages."""

from penstock.runtime.compiling import compile_model
from penstock.runtime.discovery import DeviceInfo, Manager, manager
from penstock.threads import allowed_threads

__all__ = ["DeviceInfo", "Manager", "allowed_threads", "compile_model", "manager"]
