"""The way into the cluster that a process runs in, and what TLS is spoken."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import Connection, NotInCluster, in_cluster
from gpuplane.kube.errors import Unreachable
from gpuplane.kube.sessions import Session
from gpuplane.kube.tls import make_tls_context


def test_a_pod_finds_its_own_cluster(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("CA", encoding="ascii")
    (tmp_path / "token").write_text("t", encoding="ascii")
    (tmp_path / "namespace").write_text("gpuplane\n", encoding="ascii")
    variables = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = in_cluster(variables, tmp_path)
    assert found == Connection(
        server="https://[fd00::1]:443",
        ca_pem="CA",
        token_file=tmp_path / "token",
        namespace="gpuplane",
        context="in-cluster",
    )


@pytest.mark.parametrize("variables", [{}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}])
def test_outside_of_a_pod_it_says_what_is_missing(
    variables: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(NotInCluster):
        in_cluster(variables, tmp_path)


def test_tls_below_1_2_is_not_spoken(tmp_path: Path) -> None:
    context = make_tls_context(Connection("https://h"))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize(
    "connection",
    [
        Connection("https://127.0.0.1:1", tls_server_name=".a"),
        Connection("https://a\x7fb:1"),
        Connection(f"https://{'a' * 64}.test:1"),
    ],
    ids=["server name", "sign", "label"],
)
async def test_an_address_that_cannot_be_asked_is_out_of_reach(connection: Connection) -> None:
    async with KubeClient(connection) as client:
        with pytest.raises(Unreachable):
            await client.get(kinds.NODE, "n")
    session = Session(connection)
    with pytest.raises(Unreachable):
        async with session.stream("GET", "/api/v1/nodes"):
            pass
    await session.close()
