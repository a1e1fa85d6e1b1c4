"""A test that checks nothing fails by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checked import NOTHING_CHECKED

ROOT = Path(__file__).resolve().parents[2]

HELPER = """
def same(found, wanted):
    assert found == wanted
"""

SUBJECTS = """
import numpy as np
import pytest
from tests.checked import does_not_raise
from helper import same

def test_loop_over_nothing_is_hollow():
    for one in []:
        assert one

def test_early_return_is_hollow():
    try:
        raise ValueError
    except ValueError:
        return
    assert False

@pytest.mark.parametrize("values", [[], [1]], ids=["hollow", "checked"])
def test_parameters(values):
    for value in values:
        assert value == 1

def test_assertion_is_checked():
    assert 1 + 1 == 2

def test_helper_is_checked():
    same([], [])

def test_raises_is_checked():
    with pytest.raises(ZeroDivisionError):
        1 / 0

def test_numpy_is_checked():
    np.testing.assert_array_equal([1], [1])

def test_accepting_is_checked():
    with does_not_raise():
        int("1")

def test_skipped():
    pytest.skip("no judge")

@pytest.mark.xfail(strict=True, reason="a gap")
def test_gap_is_xfailed():
    raise ValueError
"""


@pytest.fixture
def outcomes(tmp_path: Path) -> dict[str, str]:
    """Runs the tests above in a process of their own; what became of each."""
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "test_subjects.py").write_text(SUBJECTS)
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        f"sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
        "import pytest\n"
        "from tests.checked import count_checks, pytest_configure, pytest_runtest_call\n"
        "pytest.register_assert_rewrite('helper')\n"
        "count_checks()\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nenable_assertion_pass_hook = true\n")
    done = pytest_in(tmp_path, "-rA")
    assert NOTHING_CHECKED in done.stdout, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if "test_subjects.py::" in line]
    return {words[1].partition("::")[2]: words[0] for words in lines}


def pytest_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        [*command, *options, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
    )


def test_passing_without_a_check_fails(outcomes: dict[str, str]) -> None:
    assert outcomes == {
        "test_loop_over_nothing_is_hollow": "FAILED",
        "test_early_return_is_hollow": "FAILED",
        "test_parameters[hollow]": "FAILED",
        "test_parameters[checked]": "PASSED",
        "test_assertion_is_checked": "PASSED",
        "test_helper_is_checked": "PASSED",
        "test_raises_is_checked": "PASSED",
        "test_numpy_is_checked": "PASSED",
        "test_accepting_is_checked": "PASSED",
        "test_gap_is_xfailed": "XFAIL",
    }


def test_checks_that_would_not_be_counted_stop_the_session(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.checked import pytest_configure\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = pytest_in(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "enable_assertion_pass_hook = true is missing" in done.stderr
