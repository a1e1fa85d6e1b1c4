"""A plugin for pytest: imports the modules of the tests, which compiles them, and collects no test.

python -m pytest -p tests.importing --collect-only -qq
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem() -> list[pytest.Item]:
    """No item, whatever a module has under a name."""
    return []
