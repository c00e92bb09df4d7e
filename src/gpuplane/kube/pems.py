"""Certificates and keys as PEM texts: read, checked and written anew; nothing hides in them."""

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

CLOCK_SKEW = timedelta(minutes=5)
"""How far the clock of who signed may be ahead of ours; kubeadm dates back by as much."""

_ENCODED = "Encode the PEM text, which begins with `-----BEGIN`."


class BadPem(ValueError):
    """A PEM text that is not taken, with the reason and the fix."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


def read_authorities(data: bytes, now: datetime) -> str:
    """Return the certificates to trust, as PEM.

    Raises:
        BadPem: If there are none, or all have expired.
    """
    found = _certificates(data)
    if all(one.not_valid_after_utc <= now for one in found):
        when = max(one.not_valid_after_utc for one in found)
        raise BadPem(
            f"The authority's certificate has expired on {when:%Y-%m-%d %H:%M} UTC.",
            "Take the cluster's present one.",
        )
    return _written(found)


def read_chain(data: bytes, now: datetime) -> tuple[str, x509.Certificate]:
    """Return a client certificate with its chain, as PEM, and the certificate itself.

    Raises:
        BadPem: If there is none, or it is not valid now.
    """
    found = _certificates(data)
    first = found[0]
    if first.not_valid_after_utc <= now:
        raise BadPem(
            f"The certificate has expired on {first.not_valid_after_utc:%Y-%m-%d %H:%M} UTC.",
            "Have a new one signed, or use a token.",
        )
    if first.not_valid_before_utc > now + CLOCK_SKEW:
        raise BadPem(
            f"The certificate is valid only from {first.not_valid_before_utc:%Y-%m-%d %H:%M} UTC.",
            "Check the clocks, or have a new one signed.",
        )
    return _written(found), first


def read_key(data: bytes, certificate: x509.Certificate) -> str:
    """Return a private key as PEM, if it is the certificate's and not encrypted.

    Raises:
        BadPem: If it is not.
    """
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError:
        raise BadPem(
            "The key is encrypted, and there is nobody to ask for its password.",
            "Give it unencrypted; it is stored encrypted here.",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise BadPem("It holds no private key that can be read.", _ENCODED) from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise BadPem(
            "The key is not the certificate's.", "Give the key that belongs to the certificate."
        )
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii")


def _certificates(data: bytes) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(data)
    except ValueError:
        raise BadPem("It holds no certificate that can be read.", _ENCODED) from None
    if not found:
        raise BadPem("It holds no certificate.", _ENCODED)
    return found


def _written(certificates: list[x509.Certificate]) -> str:
    return "".join(one.public_bytes(Encoding.PEM).decode("ascii") for one in certificates)
