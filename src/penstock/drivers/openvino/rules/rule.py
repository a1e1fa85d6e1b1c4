"""The table of rules, and what fills it."""

from __future__ import annotations

from typing import Final

from penstock.drivers.openvino.graph import Graph
from penstock.engines.rules import Rules

RULES: Final = Rules[Graph]()
"""Filled by the modules of this package."""

rule: Final = RULES.add
