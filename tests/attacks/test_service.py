"""A host that runs as a user of its own: a client that rewrites every file it can reach gets a
refusal, never unverified code. Needs root, for three users beside it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support_ring import ROOT

SERVICE, CLIENT, OTHER = 64123, 64124, 64125
DRIVER = "penstock.drivers.sample:create"
REFUSALS = {"SealBroken", "WrongLength", "ForeignEntry", "RegistryMissing"}


class Stage:
    """Directories of two users, and programs run as them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.socket = self._made("service", SERVICE, 0o755) / "sample.sock"
        self.registry = self._made("registry", SERVICE, 0o700)
        self.home = self._made("client", CLIENT, 0o700)
        self.other = self._made("other", OTHER, 0o755)
        self.directories = self.socket.parent, self.registry, self.home
        self.cache, self.forged = self.home / "cache", self.home / "forged"

    def _made(self, name: str, user: int, mode: int) -> Path:
        path = self.root / name
        path.mkdir(mode=mode)
        os.chown(path, user, user)
        return path

    def command(self, user: int, program: list[str]) -> list[str]:
        """*program* as that user, who may find the way to Python barred: then it gets another view
        of that directory.
        """
        own = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups", *program]
        barred = _barred()
        if barred is None:
            return own
        below, inner = barred
        place = self.root / f"view-{user}"
        place.mkdir(exist_ok=True)
        script = (
            f"mount --make-rprivate / && mount --bind {inner} {place} && "
            f"mount -t tmpfs -o mode=755 none {below} && mkdir -p {inner} && "
            f"mount --bind {place} {inner} && exec {shlex.join(own)}"
        )
        return ["unshare", "--mount", "sh", "-c", script]

    def environment(self, state: Path) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(state),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PENSTOCK_STATE_DIR": str(state),
            "PENSTOCK_KEY_STORE": "file",
            "PENSTOCK_SERVICES": f"sample={self.socket}",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def client(self, *arguments: object, user: int = CLIENT) -> Any:
        """What the client program answers to that user."""
        program = [sys.executable, "-m", "tests.attacks.service_client", *map(str, arguments)]
        done = subprocess.run(
            self.command(user, program),
            cwd=ROOT,
            env=self.environment(self.home if user == CLIENT else self.other),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def serve(self) -> subprocess.Popen[bytes]:
        """The service, once it listens."""
        program = [sys.executable, "-m", "penstock.ipc.host", "--service", str(self.socket)]
        process = subprocess.Popen(
            self.command(SERVICE, [*program, "--users", f"{CLIENT},{OTHER}", "sample", DRIVER]),
            cwd=ROOT,
            env=self.environment(self.registry),
        )
        end = time.monotonic() + 30
        while not self.socket.exists():
            assert process.poll() is None, "the service ended"
            assert time.monotonic() < end, "the service does not listen"
            time.sleep(0.02)
        return process


def _barred() -> tuple[Path, Path] | None:
    """The directory that bars others from Python, and the one below it that they need; None where
    none does.
    """
    wanted = [Path(os.path.realpath(sys.executable)), Path(sys.base_prefix), ROOT]
    for path in wanted:
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & 0o001:
                return parent, parent / path.relative_to(parent).parts[0]
    return None


def _unable() -> str | None:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root, to run programs as three other users"
    if shutil.which("setpriv") is None:
        return "needs setpriv of util-linux"
    if _barred() is None:
        return None
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "Python lies where other users cannot go"


pytestmark = pytest.mark.skipif(_unable() is not None, reason=str(_unable()))


@pytest.fixture
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="penstock-service-") as name:
        root = Path(name)
        root.chmod(0o755)
        yield Stage(root)


def test_a_client_that_rewrites_what_it_can_reach_gets_a_refusal(stage: Stage) -> None:
    service = stage.serve()
    try:
        first = stage.client("run", stage.cache)
        assert (first["outcome"], first["right"], first["saved"]) == ("miss", True, True)
        assert stage.client("run", stage.cache)["outcome"] == "hit"
        # The same model sealed by the client itself, with its own key: as good a forgery as it can
        # make.
        assert stage.client("forge", stage.forged)["saved"]
        done = stage.client("rewrite", stage.cache, stage.forged, *stage.directories)
        assert any(Path(p).is_relative_to(stage.cache) for p in done["written"])
        assert not any(Path(p).is_relative_to(stage.registry) for p in done["written"])
        after = stage.client("run", stage.cache)
        assert (after["right"], after["outcome"]) == (True, "miss"), after
        assert after["reason"].partition(":")[0] in REFUSALS, after
        assert stage.client("run", stage.cache)["right"]
        kept = [str(p) for p in stage.registry.rglob("*")]
        assert len(kept) >= 3
        reached = stage.client("reach", stage.registry, *kept, f"/proc/{service.pid}/mem")
        assert set(reached.values()) == {"PermissionError"}, reached
        assert service.poll() is None
    finally:
        service.kill()
        service.wait()


def test_entries_sealed_for_other_models_and_flipped_bits_are_refused(stage: Stage) -> None:
    service = stage.serve()
    try:
        stage.client("run", stage.cache)
        # The service's own seal, for the same token and binding, and of another model.
        stage.home.chmod(0o755)
        for path in (stage.cache, *stage.cache.rglob("*")):
            path.chmod(0o777)
        done = stage.client("sow", stage.other / "cache", stage.cache, user=OTHER)
        assert (done["saved"], done["right"]) == (True, False), done
        assert len(done["written"]) >= 2
        after = stage.client("run", stage.cache)
        assert (after["right"], after["outcome"]) == (True, "miss"), after
        assert after["reason"].partition(":")[0] == "TokenCollision", after
        stage.client("rewrite", stage.cache, stage.forged, stage.cache)
        after = stage.client("run", stage.cache)
        assert (after["right"], after["outcome"]) == (True, "miss"), after
        assert after["reason"].partition(":")[0] in REFUSALS, after
    finally:
        service.kill()
        service.wait()


def test_service_refuses_other_users_and_clients_refuse_other_sockets(stage: Stage) -> None:
    from penstock.errors import DeviceUnavailable
    from penstock.ipc.host_sockets import connect_service, listen

    service = stage.serve()
    try:
        connect_service("sample", str(stage.socket)).close()
        stage.socket.parent.chmod(0o777)
        with pytest.raises(DeviceUnavailable, match="written by others"):
            connect_service("sample", str(stage.socket))
        stage.socket.parent.chmod(0o755)
        os.chown(stage.socket, CLIENT, CLIENT)
        with pytest.raises(DeviceUnavailable, match="belongs to another"):
            connect_service("sample", str(stage.socket))
        with pytest.raises(OSError, match="belongs to user"):
            listen(str(stage.socket))
    finally:
        service.kill()
        service.wait()
    with pytest.raises(DeviceUnavailable, match="refused"):
        connect_service("sample", str(stage.socket))
