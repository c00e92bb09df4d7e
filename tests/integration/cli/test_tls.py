"""A control plane with a certificate is reached over HTTPS, by whoever trusts its authority."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tests.certificates import Authority
from tests.integration.cli.conftest import CommandLine, start_server


def test_a_server_with_a_certificate_speaks_https_alone(tmp_path: Path) -> None:
    authority = Authority(datetime.now(UTC))
    pair = authority.sign("gpuplane", hosts=("127.0.0.1",))
    files = {"ca.crt": authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    server = start_server(
        tmp_path / "home",
        GPUPLANE_HTTP_TLS_CERTIFICATE=str(tmp_path / "tls.crt"),
        GPUPLANE_HTTP_TLS_KEY=str(tmp_path / "tls.key"),
    )
    try:
        assert server.address.startswith("https://127.0.0.1:")
        cli = CommandLine(server.home, tmp_path)
        trusting = {"SSL_CERT_FILE": str(tmp_path / "ca.crt")}
        assert "local" in cli.ok("clusters", "ls", env=trusting).out
        untrusted = cli("clusters", "ls")
        assert (untrusted.code, "CERTIFICATE_VERIFY_FAILED" in untrusted.err) == (5, True)
        plain = {"GPUPLANE_URL": server.address.replace("https", "http"), "GPUPLANE_TOKEN": "t"}
        assert cli("clusters", "ls", env=plain).code == 5
    finally:
        server.stop()
