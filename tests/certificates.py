"""Certificates for tests: an authority, and what it signs, valid from and to when a test says."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, PEM."""

    certificate: str
    key: str


class Authority:
    """Signs for one test."""

    def __init__(self, now: datetime.datetime, days: int = 30) -> None:
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
        builder = self._builder(self._name, self._key, now - DAY, now + days * DAY)
        builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
        self.certificate = _pem(builder.sign(self._key, hashes.SHA256()))

    def sign(
        self,
        name: str,
        *,
        begins: datetime.timedelta = -DAY,
        ends: datetime.timedelta = DAY,
        hosts: tuple[str, ...] = (),
        password: str | None = None,
    ) -> Pair:
        """Return a certificate of this name, valid between two moments counted from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key, self._now + begins, self._now + ends)
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        locked: KeySerializationEncryption = NoEncryption()
        if password is not None:
            locked = BestAvailableEncryption(password.encode())
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked).decode()
        return Pair(_pem(builder.sign(self._key, hashes.SHA256())), text)

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        begins: datetime.datetime,
        ends: datetime.datetime,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
        )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
