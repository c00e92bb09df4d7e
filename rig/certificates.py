"""The rig's own certificate authority: one for each cluster, made at start, kept in its folder."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=30)  # a rig lives for a test run or a working day
SKEW = datetime.timedelta(hours=1)  # tests of clock skew look at the same certificates
SERVICE_ACCOUNT_BITS = 2048  # RS256, which every verifier of service-account tokens knows


@dataclass(frozen=True)
class Pair:
    """Files with a certificate and its private key, PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates of servers and clients, and writes them into one folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(self._name, self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
        self.pair = self._write("ca", builder, self._key)

    @property
    def certificate_pem(self) -> bytes:
        return self.pair.certificate.read_bytes()

    def server(self, name: str, hosts: Sequence[str] = ("127.0.0.1", "localhost")) -> Pair:
        """Make a server's certificate for these names and addresses."""
        names: list[x509.GeneralName] = []
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_subject(name, ()), self._name, key)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        return self._write(name, builder.add_extension(usage, critical=False), key)

    def client(self, name: str, groups: Sequence[str] = ()) -> Pair:
        """Make a client's certificate: Kubernetes reads the user from CN, the groups from O."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = _builder(_subject(name, groups), self._name, key)
        return self._write(
            name.replace(":", "-"), builder.add_extension(usage, critical=False), key
        )

    def _write(
        self, name: str, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey
    ) -> Pair:
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(pair.key, key)
        return pair


def make_service_account_keys(folder: Path) -> Pair:
    """Write the pair that signs and checks service-account tokens; the first is a public key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=SERVICE_ACCOUNT_BITS)
    pair = Pair(folder / "service-accounts.pub", folder / "service-accounts.key")
    pair.certificate.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    _write_key(pair.key, key)
    return pair


def _subject(name: str, groups: Sequence[str]) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + VALID)
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
