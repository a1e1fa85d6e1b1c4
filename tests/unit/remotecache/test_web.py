"""A store that a web server shows: machines read it, and nobody publishes there."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.errors import CacheError, InputError
from penstock.remotecache.publishing import Publisher
from penstock.remotecache.stores import open_store
from tests.support_stores import Fleet, parcel

TOKEN = bytes(range(32))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a web server that shows the store of `fleet`."""
    handler = partial(Quiet, directory=str(tmp_path / "store"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path, f"file://{tmp_path}/store")
    fleet.publish(TOKEN)
    return fleet


def test_a_machine_reads_a_store_by_its_web_address(fleet: Fleet, address: str) -> None:
    assert fleet.machine(open_store(address)).look_up(TOKEN).parcel == parcel()


def test_a_web_server_is_refused_for_publishing(fleet: Fleet, address: str) -> None:
    with pytest.raises((InputError, CacheError), match=address):
        Publisher(fleet.machine(open_store(address)), fleet.keys["ci"])
