"""Loggers that wait for somebody who listens."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from penstock.logs import Log, keep_quiet
from tests.support_programs import run_python


@pytest.mark.parametrize("level", ["debug", "info", "warning"])
def test_a_record_has_its_logger_level_arguments_and_the_callers_place(
    level: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "penstock.here"):
        getattr(Log("penstock.here"), level)("%d of %s", 2, "three")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("penstock.here", level.upper())
    assert record.getMessage() == "2 of three"
    assert record.pathname == __file__
    assert record.funcName == ("test_a_record_has_its_logger_level_arguments_and_the_callers_place")


def test_an_unrequested_level_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock.here"):
        Log("penstock.here").info("dropped")
    assert caplog.records == []


def test_quiet_once_is_quiet() -> None:
    keep_quiet()
    keep_quiet()
    handlers = logging.getLogger("penstock").handlers
    assert sum(isinstance(handler, logging.NullHandler) for handler in handlers) == 1


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param("LOG.warning('x')", "", id="nobody listens"),
        pytest.param("import logging; LOG.warning('x')", "", id="nobody configured"),
        pytest.param(
            "import logging; logging.basicConfig(format='%(name)s %(message)s'); LOG.warning('x')",
            "penstock.here x",
            id="configured after Penstock's import",
        ),
    ],
)
def test_process_prints_warnings_to_stderr(program: str, printed: str) -> None:
    code = f"import penstock; from penstock.logs import Log; LOG = Log('penstock.here'); {program}"
    done = run_python("-c", code, check=True)
    assert (done.stdout, done.stderr.strip()) == ("", printed)


def test_logging_is_not_imported_for_the_sake_of_a_message() -> None:
    code = (
        "import penstock.logs as l, sys; l.Log('penstock').info('x'); assert 'logging' not in "
        "sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
