"""Limits that `doctor` reads, and statistics that `bench` makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.application import app
from penstock.cli.bench import peak_memory, summarise, table_rows
from penstock.cli.doctor import installed, limits
from penstock.cli.inspect import describe
from penstock.ir import DType, ModelBuilder


def write(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        path = directory / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def test_cgroup_v2_limits(tmp_path: Path) -> None:
    found = limits(write(tmp_path, cpu_dot_max="150000 100000\n", memory_dot_max="1073741824\n"))
    assert found["cgroup_cpus"] == 1.5
    assert found["cgroup_memory_bytes"] == 2**30


def test_cgroup_v2_without_limits(tmp_path: Path) -> None:
    found = limits(write(tmp_path, cpu_dot_max="max 100000\n", memory_dot_max="max\n"))
    assert found["cgroup_cpus"] is None
    assert found["cgroup_memory_bytes"] is None


def test_cgroup_v1_limits(tmp_path: Path) -> None:
    directory = write(
        tmp_path,
        cpu__cpu_dot_cfs_quota_us="200000\n",
        cpu__cpu_dot_cfs_period_us="100000\n",
        memory__memory_dot_limit_in_bytes="536870912\n",
    )
    assert limits(directory)["cgroup_cpus"] == 2.0
    assert limits(directory)["cgroup_memory_bytes"] == 2**29


def test_cgroup_v1_without_limits(tmp_path: Path) -> None:
    directory = write(
        tmp_path,
        cpu__cpu_dot_cfs_quota_us="-1\n",
        cpu__cpu_dot_cfs_period_us="100000\n",
        memory__memory_dot_limit_in_bytes="9223372036854771712\n",
    )
    assert limits(directory)["cgroup_cpus"] is None
    assert limits(directory)["cgroup_memory_bytes"] is None


def test_no_cgroup_at_all(tmp_path: Path) -> None:
    found = limits(tmp_path)
    assert (found["cgroup_cpus"], found["cgroup_memory_bytes"]) == (None, None)
    assert found["processors"] >= found["affinity"] >= 1
    assert found["threads"] >= 1


def test_packages_that_are_not_there_have_no_version() -> None:
    assert installed("numpy")
    assert installed("surely-not-a-distribution") is None


def test_statistics_of_known_durations() -> None:
    found = summarise([n * 1_000_000 for n in range(1, 101)])
    assert found["runs"] == 100
    assert found["median_ns"] == 50.5e6
    assert found["p90_ns"] == pytest.approx(90.1e6)
    assert found["p99_ns"] == pytest.approx(99.01e6)
    assert (found["min_ns"], found["max_ns"]) == (1e6, 100e6)
    assert found["runs_per_second"] == pytest.approx(100 / 5.05)


def test_unknown_peak_memory_is_shown_as_unknown() -> None:
    data = summarise([1]) | {"load_ns": 1, "compile_ns": 1, "warmup": 0, "peak_memory_bytes": None}
    assert ("peak memory", "not known on this system") in table_rows(data)
    known = peak_memory()
    assert known is None or known > 2**20


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "inspect",
        "plan",
        "dump",
        "bench",
        "compare",
        "replay",
        "devices",
        "doctor",
        "knobs",
        "cache",
    ],
)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert command in result.stdout


def test_the_shape_of_a_state_is_a_list_as_every_shape_in_words() -> None:
    builder = ModelBuilder()
    builder.variable("count", DType.INT32, ())
    builder.variable("open", DType.INT32, None)
    states = describe(builder.build([]))["states"]
    assert [state["shape"] for state in states] == [[], None]
