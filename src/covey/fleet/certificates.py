"""Certificates and keys of a fleet: an authority, the server's certificate, and a key pair for each site.

All keys are NIST P-384. Private ones are written with mode 0600, and never over another.
"""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
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
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from covey.errors import Refusal, require
from covey.storage import replace_file, write_private

AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
"""Days for which certificates are valid."""

_BACKDATED = timedelta(minutes=10)
"""Tolerance for sites' clocks that are behind."""


@dataclass(frozen=True, eq=False)
class Authority:
    """The authority that signs a fleet's certificates."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, name: str = "Covey fleet", days: int = AUTHORITY_DAYS) -> "Authority":
        """Return a self-signed authority that may sign server certificates and nothing below them."""
        key = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")])
        usage = _usage(signs_certificates=True)
        certificate = (
            _builder(subject, subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA384())
        )
        return cls(key, certificate)

    def server(self, hosts: Collection[str], days: int = SERVER_DAYS) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
        """Return a key and a certificate (PEM) for a server with these names and addresses."""
        require(bool(hosts), "A server certificate needs a name or an address that the server is reached at.")
        key = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, next(iter(hosts))[:64])])
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        signer = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        certificate = (
            _builder(subject, self.certificate.subject, key.public_key(), days)
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer),
                critical=False,
            )
            .sign(self.key, hashes.SHA384())
        )
        return key, certificate.public_bytes(Encoding.PEM)

    @property
    def pem(self) -> bytes:
        """The authority's certificate as PEM."""
        return self.certificate.public_bytes(Encoding.PEM)


def write_server(folder: Path, hosts: Collection[str]) -> None:
    """Write `ca.crt`, `ca.key`, `server.crt` and `server.key` of a new authority and the server that it certifies."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority.new()
    key, certificate = authority.server(hosts)
    write_private(folder / "ca.key", private_pem(authority.key))
    (folder / "ca.crt").write_bytes(authority.pem)
    write_private(folder / "server.key", private_pem(key))
    (folder / "server.crt").write_bytes(certificate)


def write_node_keys(folder: Path, *, replace: bool = False) -> None:
    """Write `node.key` and `node.pub`, which identify a site; to `replace` a key, the new one is complete first."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    beside = folder / "node.key.part"
    beside.unlink(missing_ok=True)
    write_private(beside if replace else folder / "node.key", private)
    if replace:
        beside.replace(folder / "node.key")
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    replace_file(folder / "node.pub", public + b"\n")


def read_authority(path: Path) -> bytes:
    """Return an authority's certificate as PEM; one that cannot be read is refused."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.PEM)
    except (OSError, ValueError) as error:
        raise Refusal(
            f"The authority's certificate {path} cannot be read ({error}). It is the same file as server/ca.crt of the "
            "fleet, and as ca.crt of each site: copy it from there."
        ) from error


def require_server_files(folder: Path) -> None:
    """Refuse a server's certificate or key that cannot be read, or that do not belong together."""
    read_authority(folder / "ca.crt")
    for name in ("server.crt", "server.key"):
        try:
            content = (folder / name).read_bytes()
            if name == "server.crt":
                certified = x509.load_pem_x509_certificate(content).public_key()
            else:
                own = load_pem_private_key(content, None).public_key()
        except (OSError, ValueError, TypeError) as error:
            raise Refusal(f"The server's file {folder / name} cannot be read: {error}.") from error
    require(certified == own, f"The certificate {folder / 'server.crt'} is not one of the key {folder / 'server.key'}.")


def read_secret(path: Path) -> bytes:
    """Return a secret; one that is missing or empty is refused."""
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise Refusal(f"The secret {path} cannot be read: {error.strerror or error}.") from error
    require(bool(secret.strip()), f"The secret {path} is empty.")
    return secret


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, not encrypted."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
