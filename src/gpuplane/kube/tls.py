"""TLS to API servers: certificates are always checked, and keys leave no file behind."""

import os
import ssl
import tempfile
from pathlib import Path

from gpuplane.kube.credentials import Connection


def make_tls_context(connection: Connection) -> ssl.SSLContext:
    """Return a context that trusts the cluster's authority alone and shows our certificate.

    Raises:
        ssl.SSLError: If the certificates or the key cannot be used.
    """
    if connection.ca_pem is None:
        context = ssl.create_default_context()
    else:
        context = ssl.create_default_context(cadata=connection.ca_pem)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if connection.certificate_pem is not None and connection.key_pem is not None:
        _load_chain(context, f"{connection.certificate_pem}\n{connection.key_pem}\n".encode())
    return context


def _load_chain(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a certificate and its key; OpenSSL reads files only, so one in memory is made."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
        try:
            os.fchmod(number, 0o600)
            os.write(number, pem)
            context.load_cert_chain(f"/proc/self/fd/{number}", password=_no_password)
        finally:
            os.close(number)
        return
    number, name = tempfile.mkstemp()  # mode 0600
    path = Path(name)
    try:
        os.write(number, pem)
        context.load_cert_chain(path, password=_no_password)
    finally:
        os.close(number)
        path.unlink()


def _no_password() -> str:
    """Answer OpenSSL, which would otherwise ask the terminal."""
    return ""
