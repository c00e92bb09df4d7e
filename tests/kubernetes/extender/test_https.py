"""The extender over HTTPS: kube-scheduler checks it, and renewed certificates are taken over."""

from __future__ import annotations

import shutil
import ssl
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from rig.certificates import Authority
from tests.kubernetes.extender.running import Scheduling
from tests.kubernetes.rigged import RunningCluster
from tests.waiting import wait_until


def served_by(url: str) -> str:
    """Return the certificate that a new connection is shown."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return ssl.get_server_certificate((parts.hostname, parts.port))


def test_kube_scheduler_asks_over_https_and_renewed_certificates_are_served(
    rig: RunningCluster, namespace: str, tmp_path: Path, add_nodes: Callable[..., list[str]]
) -> None:
    (tmp_path / "authority").mkdir()
    authority = Authority(tmp_path / "authority", "test")
    pair = authority.server("first")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(pair.certificate, certificate)
    shutil.copy(pair.key, key)
    scheduling = Scheduling(rig, namespace, f"x-{uuid.uuid4().hex[:8]}", tmp_path)
    add_nodes("h100", 1, scheduling.name, **{scheduling.name: "yes"})
    options = ("--bind", "--tls-cert", str(certificate), "--tls-key", str(key))
    with (
        scheduling.extender(*options) as url,
        scheduling.scheduler(url, binds=True, ca_file=str(authority.pair.certificate)),
    ):
        scheduling.make_pod("a", 2)
        wait_until(lambda: scheduling.gpus_of("a"), "it has its GPUs")
        before = served_by(url)
        renewed = authority.server("second")
        shutil.copy(renewed.key, key)
        shutil.copy(renewed.certificate, certificate)
        wait_until(lambda: served_by(url) != before, "new connections see the new certificate")
        scheduling.make_pod("b", 2)
        wait_until(lambda: scheduling.gpus_of("b"), "it has its GPUs")
    assert not set(scheduling.gpus_of("a")) & set(scheduling.gpus_of("b"))
    scheduling.api.close()
