"""The table of rules, and what fills it."""

from __future__ import annotations

from typing import Final

from penstock.driverkit.rules import Rules
from penstock.drivers.openvino.graph import Graph

RULES: Final = Rules[Graph]()
"""Filled by the modules of this package."""

rule: Final = RULES.add
