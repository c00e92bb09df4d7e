"""The certificate of the API: read, taken over when it is renewed, kept when it cannot be."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuplane.entry.certificates import BadCertificate, Certificate, find_certificate
from tests.certificates import Authority, Pair


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority(datetime.now(UTC))


def write(folder: Path, pair: Pair, *, second: int = 0) -> tuple[str, str]:
    """Write a certificate and its key as of another second, and return their paths."""
    paths = (folder / "tls.crt", folder / "tls.key")
    for path, text in zip(paths, (pair.certificate, pair.key), strict=True):
        path.write_text(text)
        os.utime(path, (second, second))
    return str(paths[0]), str(paths[1])


def shown(certificate: Certificate, authority: Authority) -> str:
    """Return the name in the certificate that a caller is shown, by a handshake in memory."""
    trusting = ssl.create_default_context(cadata=authority.certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname="gpu.example.org")
    server = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    for each in (client, server, client, server):
        try:
            each.do_handshake()
        except ssl.SSLWantReadError:
            continue
    found = client.getpeercert()
    assert found is not None
    (((_, name),),) = found["subject"]
    return str(name)


def test_a_renewed_certificate_is_taken_over_and_a_broken_one_is_not(
    tmp_path: Path, authority: Authority
) -> None:
    hosts = ("gpu.example.org",)
    paths = write(tmp_path, authority.sign("first", hosts=hosts))
    certificate = find_certificate(*paths)
    assert certificate is not None
    assert shown(certificate, authority) == "first"
    assert not certificate.refresh()

    renewed = authority.sign("second", hosts=hosts)
    write(tmp_path, renewed, second=1)
    assert certificate.refresh()
    assert shown(certificate, authority) == "second"

    write(tmp_path, Pair(renewed.certificate, "cut o"), second=2)
    assert not certificate.refresh()
    assert shown(certificate, authority) == "second"


def test_one_without_the_other_and_files_that_are_none_are_refused(
    tmp_path: Path, authority: Authority
) -> None:
    certificate, key = write(tmp_path, authority.sign("one"))
    assert find_certificate("", "") is None
    with pytest.raises(BadCertificate, match="set together"):
        find_certificate(certificate, "")
    with pytest.raises(BadCertificate, match="No such file"):
        find_certificate(certificate, f"{key}.gone")
    other = authority.sign("two").key
    Path(key).write_text(other)
    with pytest.raises(BadCertificate, match=r"tls\.crt with"):
        find_certificate(certificate, key)
