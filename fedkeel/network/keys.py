"""Certificates and keys of a network: who the server is, and who may join.

The server proves itself by a certificate that the network's own authority signed; every site has an EC key (P-384),
whose public half the server knows under the number of its client. Private files are readable by their owner alone.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedkeel.errors import DataError

EARLY = datetime.timedelta(hours=1)
"""Certificates are valid so long before they are made: clocks differ."""


def authority(days: int) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A new authority, which signs for this network only."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = _named("fedkeel network")
    made = _certificate(name, name, key.public_key(), days)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(usage, critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return key, made.sign(key, hashes.SHA256())


def server_certificate(
    hosts: Sequence[str], days: int, by: ec.EllipticCurvePrivateKey, authority: x509.Certificate
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A certificate for names and addresses under which sites reach the server; this machine's own are added."""
    key = ec.generate_private_key(ec.SECP384R1())
    known = dict.fromkeys([*hosts, "localhost", "127.0.0.1"])
    made = _certificate(_named(hosts[0]), authority.subject, key.public_key(), days)
    made = made.add_extension(x509.SubjectAlternativeName([_alternative(host) for host in known]), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False
    ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return key, made.sign(by, hashes.SHA256())


def site_key() -> tuple[bytes, bytes]:
    """A new key of a site, private and public, in OpenSSH's form."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key as PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def check_public(path: Path, content: bytes) -> None:
    """Refuse what is no public key of a site."""
    try:
        key = load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path} is no public key in OpenSSH's form: {error}.") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise DataError(f"{path} is no public key of the kind EC, as fedkeel network init makes it.")


def check_certificates(*paths: Path) -> None:
    """Refuse files that hold no certificate."""
    for path in paths:
        try:
            x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError as error:
            raise DataError(f"{path} is no certificate: {error}.") from None


def write_private(path: Path, content: bytes) -> None:
    """A new file that only its owner can read, from the first moment on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
