"""The certificate of the API's socket: read at the start, and again whenever its files change.

Owns which files and when. Connections that stand keep what they were opened with.
"""

import asyncio
import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""How often the files are looked at: certificates are renewed days before they end."""


class BadCertificate(Exception):
    """A certificate or its key cannot be used; the text says which and why."""


@dataclass(slots=True)
class Certificate:
    """A certificate with its key, both PEM files, and the context that shows it."""

    certificate: Path
    key: Path
    context: ssl.SSLContext = field(init=False)
    _stamps: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Read both.

        Raises:
            BadCertificate: If they cannot be used.
        """
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._stamps = self._load()

    async def follow(self) -> None:
        """Take over what is renewed, until this is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.refresh()

    def refresh(self) -> bool:
        """Read the files again where they changed; return whether they were taken over."""
        try:
            if self._stamp() == self._stamps:
                return False
            self._stamps = self._load()
        except (OSError, BadCertificate) as error:
            log.warning("the certificate is kept as it was: %s", error)
            return False
        return True

    def _load(self) -> tuple[int, ...]:
        try:
            stamps = self._stamp()
            self.context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            why = error.strerror or error
            raise BadCertificate(f"{self.certificate} with {self.key}: {why}") from error
        return stamps

    def _stamp(self) -> tuple[int, ...]:
        return tuple(each.stat().st_mtime_ns for each in (self.certificate, self.key))


def _no_password() -> str:
    """Answer OpenSSL, which would otherwise ask the terminal."""
    return ""


def find_certificate(certificate: str, key: str) -> Certificate | None:
    """Return the certificate that settings name, None where they name none.

    Raises:
        BadCertificate: If only one of the two is named, or they cannot be used.
    """
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise BadCertificate(
            "GPUPLANE_HTTP_TLS_CERTIFICATE and GPUPLANE_HTTP_TLS_KEY are set together or not at all"
        )
    return Certificate(Path(certificate).expanduser(), Path(key).expanduser())
