"""TLS on both ports, and ports that are taken."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest

from penstock.errors import InputError
from penstock.serve import Address, Server, Service
from penstock.serve.rpc.schema import SERVICE, protocol
from tests.support_serving import PATIENCE_S, relu_file, repository_of, settings_on

OPENSSL = shutil.which("openssl")


def make_certificate(place: Path) -> tuple[Path, Path]:
    """A certificate of `localhost` that signs itself, and its key."""
    certificate, key = place / "localhost.crt", place / "localhost.key"
    words = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    )
    names = ["-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        [str(OPENSSL), *words.split(), *names, *files], check=True, capture_output=True, timeout=60
    )
    return certificate, key


@pytest.mark.skipif(OPENSSL is None, reason="the certificate is made by openssl")
def test_both_transports_are_encrypted(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    settings = settings_on()
    service = Service(repository_of(tmp_path, {"relu": relu_file()}, settings), settings)
    address = Address(port=0, grpc_port=0, certificate=str(certificate), key=str(key))
    with Server(service, address) as server:
        trusting = ssl.create_default_context(cafile=str(certificate))
        url = f"https://localhost:{server.port}/v2/health/ready"
        with urllib.request.urlopen(url, timeout=PATIENCE_S, context=trusting) as reply:
            assert reply.read() == b'{"ready":true}'
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE"):
            urllib.request.urlopen(url, timeout=PATIENCE_S)
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        found = protocol()
        call = found.calls["ServerReady"]
        with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
            stub = channel.unary_unary(
                f"/{found.package}.{SERVICE}/ServerReady",
                request_serializer=call.request.SerializeToString,
                response_deserializer=call.response.FromString,
            )
            assert stub(call.request(), timeout=PATIENCE_S).ready


def test_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(InputError, match="both"):
        Address(certificate="localhost.crt")


def test_port_in_use_is_named(tmp_path: Path) -> None:
    settings = settings_on()
    service = Service(repository_of(tmp_path, {"relu": relu_file()}, settings), settings)
    with Server(service, Address(port=0, grpc_port=None)) as server:
        assert server.grpc_port is None
        with pytest.raises(InputError, match=f"port {server.port}"):
            Server(service, Address(port=server.port, grpc_port=None))
