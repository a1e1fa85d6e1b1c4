"""`penstock cache` and a shared store, as those who look after a fleet use it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from benchmarks.cache import small
from penstock.cli.application import app
from penstock.errors import GeneralFailure
from penstock.testing.lab import LabDevice

pytest.importorskip("tuf")

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command on a machine, which is called "reader" if it is not named.

    The machine "ci" publishes with its key.
    """
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("PENSTOCK_CACHE_STORE", f"file://{tmp_path}/store")
    monkeypatch.setenv("PENSTOCK_STORE_ROOT", str(tmp_path / "root.json"))
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "file")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.tflite").write_bytes(small())

    def on(*words: str, machine: str = "reader", fails: bool = False) -> Result:
        monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / machine / "cache"))
        monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / machine / "state"))
        key = str(tmp_path / f"{machine}.pem") if machine in {"ci", "dev"} else ""
        monkeypatch.setenv("PENSTOCK_STORE_KEY", key)
        result = CliRunner().invoke(app, ["cache", *words])
        assert (result.exit_code != 0) == fails, result.output
        return result

    return on


@pytest.fixture
def store(run: Run) -> None:
    """A store with two root keys, both of which must sign, and the publishers ci and dev."""
    for name in ("root1.pem", "root2.pem", "ci.pem", "dev.pem"):
        run("keygen", name)
    roots = ["--root-key", "root1.pem.pub", "--root-key", "root2.pem.pub", "--threshold", "2"]
    publishers = ["--publisher", "ci=ci.pem.pub", "--publisher", "dev=dev.pem.pub"]
    run("draft", "draft", *roots, *publishers)
    run("sign", "draft", "--key", "root1.pem")
    run("sign", "draft", "--key", "root2.pem")
    run("apply", "draft", "--root", "root.json", machine="ci")


PUBLISH = ("publish", "m.tflite", "-d", "lab", "--threads", "1")
EXPLAIN = ("explain", "m.tflite", "-d", "lab", "--threads", "1")


def explained(result: Result) -> str:
    """What `explain --json` says of the store for the first step."""
    said: str = json.loads(result.stdout)["steps"][0]["shared"]
    return said


@pytest.mark.usefixtures("store")
def test_a_published_model_is_found_by_another_machine(run: Run) -> None:
    assert explained(run("--json", *EXPLAIN)).startswith("NoEntry: ")
    first = run(*PUBLISH, machine="ci").stdout
    assert "published" in first
    assert "was there" in run(*PUBLISH, machine="ci").stdout
    assert explained(run("--json", *EXPLAIN)).startswith("would be fetched: ci published ")
    run("prewarm", "m.tflite", "-d", "lab", "--threads", "1")
    assert json.loads(run("--json", *EXPLAIN).stdout)["steps"][0]["outcome"] == "hit"


@pytest.mark.usefixtures("store")
def test_explain_names_what_differs_from_a_published_entry(run: Run) -> None:
    run(*PUBLISH, machine="ci")
    said = explained(run("--json", *EXPLAIN, "--preference", "low_power"))
    assert said.endswith(
        "; the nearest entry, of ci, differs in preference (fast_single_answer -> low_power)"
    )
    assert said in run(*EXPLAIN, "--preference", "low_power").stdout.replace("\n", " ")


@pytest.mark.usefixtures("store")
def test_baselines_of_other_machines_are_published(run: Run) -> None:
    words = ("publish", "m.tflite", "-d", "llvm", "--for", "x86-64-v3,armv8.2-a+dotprod")
    steps = json.loads(run("--json", *words, machine="ci").stdout)["steps"]
    assert [(s["for"], s["new"]) for s in steps] == [
        ("x86-64-v3", True),
        ("armv8.2-a+dotprod", True),
    ]
    for baseline in ("x86-64-v3", "armv8.2-a+dotprod"):
        found = run("--json", "explain", "m.tflite", "-d", "llvm", "--portable", baseline)
        assert explained(found).startswith("would be fetched")
    other = run("--json", "explain", "m.tflite", "-d", "llvm", "--portable", "armv8-a")
    assert "differs in cpu_features (" in explained(other)


@pytest.mark.usefixtures("store")
def test_a_model_that_does_not_compile_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise GeneralFailure("the engine cannot do this")

    monkeypatch.setattr(LabDevice, "prepare_model", fail)
    refused = run("--json", *PUBLISH, machine="ci", fails=True)
    (step,) = json.loads(refused.stdout)["steps"]
    assert step["problem"] == "it was not saved: GeneralFailure: the engine cannot do this"


@pytest.mark.usefixtures("store")
def test_a_revoked_publisher_is_refused(run: Run) -> None:
    run(*PUBLISH, machine="ci")
    run("prewarm", "m.tflite", "-d", "lab", "--threads", "1")
    run("draft", "second", "--revoke", "ci")
    for key in ("root1.pem", "root2.pem"):
        run("sign", "second", "--key", key)
    run("apply", "second", machine="dev")
    said = json.loads(run("--json", "refresh").stdout)
    assert said == {"publishers": ["dev"], "refused_copies": 1}
    after = json.loads(run("--json", *EXPLAIN).stdout)["steps"][0]
    assert after["outcome"] == "miss"
    assert after["reason"].startswith("RolledBack: ")
    assert "not that of a publisher" in run(*PUBLISH, machine="ci", fails=True).output


@pytest.mark.usefixtures("store")
def test_a_draft_needs_every_signature_of_the_threshold(run: Run) -> None:
    run("draft", "second", "--revoke", "ci")
    run("sign", "second", "--key", "root1.pem")
    refused = run("apply", "second", machine="dev", fails=True)
    assert "not signed by enough keys" in refused.output.replace("\n", " ")


@pytest.mark.usefixtures("store")
def test_root_keys_are_rotated(run: Run) -> None:
    run(*PUBLISH, machine="ci")
    assert explained(run("--json", *EXPLAIN)).startswith("would be fetched")
    run("keygen", "root3.pem")
    keys = ("--root-key", "root2.pem.pub", "--root-key", "root3.pem.pub")
    said = run("rotate", "second", *keys, "--threshold", "2").stdout
    assert said.count(", new") == said.count(", leaves") == 1
    for key in ("root1.pem", "root2.pem"):
        run("sign", "second", "--key", key)
    refused = run("apply", "second", machine="dev", fails=True)
    assert "not signed by enough keys" in " ".join(refused.output.split())
    assert run("sign", "second", "--key", "root3.pem").stdout.count(", signed") == 4
    run("apply", "second", machine="dev")
    assert explained(run("--json", *EXPLAIN)).startswith("would be fetched")
    run("draft", "third", "--revoke", "ci")
    refused = run("sign", "third", "--key", "root1.pem", fails=True)
    assert "is not one of the root keys" in " ".join(refused.output.split())


@pytest.mark.usefixtures("store")
def test_a_publisher_renews_a_store(run: Run) -> None:
    assert "renewed by dev" in run("renew", machine="dev").stdout


@pytest.mark.usefixtures("store")
def test_a_publisher_prunes_a_store(run: Run, tmp_path: Path) -> None:
    run(*PUBLISH, machine="ci")
    orphan = tmp_path / "store" / "entries" / ("a" * 64)
    orphan.write_bytes(b"orphan")
    os.utime(orphan, (0, 0))
    said = json.loads(run("prune", "--unlist-days", "30", "--json", machine="dev").stdout)
    assert (said["unlisted"], said["entries"], said["nbytes"], said["needed"]) == (0, 1, 6, [])
    assert not orphan.exists()
    assert "was there" in run(*PUBLISH, machine="ci").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("publish", "m.tflite", "--portable", "x86-64-v3"), "--portable is spelled --for here"),
        (("publish", "m.tflite", "--for", "a,,b"), "it must be names with commas between"),
        (("publish", "m.tflite"), "trusted root"),
        (("renew", "--store", "ftp://x"), "a shared store begins with one of"),
        (("draft", "d", "--publisher", "ci"), "it must be NAME=FILE"),
        (("draft", "d", "--root-key", "k", "--revoke", "ci"), "--root-key begins a new one"),
        (("sign", "missing", "--key", "k"), "cannot be read"),
    ],
)
def test_a_wrong_line_is_named(words: tuple[str, ...], said: str, run: Run) -> None:
    assert said in " ".join(run(*words, fails=True).output.split())


def test_a_key_is_private_and_never_overwritten(run: Run, tmp_path: Path) -> None:
    run("keygen", "a.pem")
    assert (tmp_path / "a.pem").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "a.pem").read_bytes()
    run("keygen", "a.pem", fails=True)
    assert (tmp_path / "a.pem").read_bytes() == before
