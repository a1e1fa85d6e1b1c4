"""Processes that write and read the same files at once, with nobody to order them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support_sealed import Rig

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from penstock.errors import CacheError
from tests.support_sealed import Rig
number, root = int(sys.argv[1]), Path(sys.argv[2])
def payloads(n):
    return [bytes([n]) * (1000 + n), bytes([n + 100]) * 77], [bytes([n]) * 5000]
rig = Rig(root, program=payloads(number)[0], weights=payloads(number)[1])
known = [payloads(n) for n in range(4)]
seen = {"right": 0}
sys.stdin.read(1)
for _ in range(40):
    rig.save()
    try:
        loaded = rig.load()
        found = [list(map(bytes, loaded.model)), list(map(bytes, loaded.data))]
        assert tuple(found) in [tuple(k) for k in known], "a mixture"
        seen["right"] += 1
    except CacheError as error:
        seen[type(error).__name__] = seen.get(type(error).__name__, 0) + 1
print(json.dumps(seen))
"""


def four_at_once(program: str, root: Path) -> list[subprocess.Popen[str]]:
    """Four processes of *program*, let go together once all have been started."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(number), str(root), str(ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("x")
        worker.stdin.flush()
    return workers


def test_writers_and_readers_without_order_never_see_a_mixture(tmp_path: Path) -> None:
    """Four processes save different payloads into the same files in place, and load after each
    save.
    """
    rig = Rig(tmp_path)
    assert rig.saved()
    workers = four_at_once(WORKER, tmp_path)
    seen: dict[str, int] = {}
    for worker in workers:
        said, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
        for name, count in json.loads(said).items():
            seen[name] = seen.get(name, 0) + count
    assert sum(seen.values()) == 160
    assert set(seen) <= {
        "right",
        "SealBroken",
        "WrongLength",
        "NotYetWritten",
        "ForeignEntry",
        "RolledBack",
        "Unreadable",
    }, seen
    assert rig.saved()


LATE = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from penstock.errors import CacheError
from tests.support_sealed import TOKEN, Rig
number, root = int(sys.argv[1]), Path(sys.argv[2])
def payloads(n):
    return [bytes([n]) * (1000 + n), bytes([n + 100]) * 77], [bytes([n]) * 5000]
rig = Rig(root, program=payloads(number)[0], weights=payloads(number)[1])
known = [payloads(n) for n in range(4)]
said = {"saved": 0, "late": 0}
sys.stdin.read(1)
with rig.late(rig.entry()) as writer:
    for _ in range(25):
        report = rig.write(writer, timeout=60.0)
        said["saved" if report.saved else "late"] += 1
        assert report.saved or report.reason.startswith("ForeignEntry: "), report.reason
        loaded = writer.load(timeout=60.0)
        assert (list(map(bytes, loaded.model)), list(map(bytes, loaded.data))) in known
        assert loaded.entry == writer.expected
print(json.dumps(said))
"""


def test_late_writers_that_lock_never_miss(tmp_path: Path) -> None:
    """Each of four processes writes late and reads, in no order: every read is a hit, every write
    whole or dropped.
    """
    rig = Rig(tmp_path, program=[bytes(1000), bytes([100]) * 77], weights=[bytes(5000)])
    assert rig.saved()
    workers = four_at_once(LATE, tmp_path)
    saved = 0
    for worker in workers:
        said, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
        counts = json.loads(said)
        assert sum(counts.values()) == 25
        saved += counts["saved"]
    assert saved >= 25
    assert len(rig.registry().rows()) == 1
