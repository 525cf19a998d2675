"""Certificates and keys: an authority and a certificate for the hub, a key pair for each branch.

A branch makes its own pair and hands over the public half; the hub hands over ca.crt. Private
halves are readable by their owner alone from the moment they exist, and nothing that is there is
overwritten.
"""

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedglean.errors import ConfigError, StorageError
from fedglean.sealed import make_folder

DAYS = 825


def make_hub_keys(folder: Path, hosts: Sequence[str], days: int = DAYS) -> Path:
    """The authority of a certificate for the names under which branches reach the hub.

    The hub's own machine reaches it as 127.0.0.1. The authority's own key is forgotten: a new
    certificate means a new authority.
    """
    names = [_host(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    signer, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _name("fedglean authority")
    root = (
        _builder(authority, authority, signer, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(signer, hashes.SHA256())
    )
    server = (
        _builder(_name("fedglean hub"), authority, own, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    private = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _put(folder / "server.key", private, secret=True)
    _put(folder / "server.pem", server.public_bytes(Encoding.PEM))
    _put(folder / "ca.crt", root.public_bytes(Encoding.PEM))
    return folder / "ca.crt"


def make_branch_key(path: Path) -> Path:
    """The public half; the private one is at `path`."""
    own = ec.generate_private_key(ec.SECP384R1())
    _put(path, own.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), secret=True)
    public = path.with_name(path.name + ".pub")
    _put(public, own.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def public_key(path: Path) -> bytes:
    """A branch's public key in the form in which Flower names a node by it."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} is not a public key ({error}); use the branch's branch.key.pub"
        ) from error
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _put(path: Path, content: bytes, secret: bool = False) -> None:
    make_folder(path.parent)
    try:
        place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    except FileExistsError:
        raise StorageError(
            f"{path} already exists and is not overwritten; choose another folder"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(place, "wb") as file:
        file.write(content)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", text):
            return x509.DNSName(text)
        example = "hub.example.org or 10.0.0.7"
        raise ConfigError(f"'{text}' is not a host name or an address, such as {example}") from None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1 if days > 0 else 1 - days))
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(False, False, False, False, False, signs, signs, False, False)
