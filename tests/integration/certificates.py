"""
Certificates for tests: an authority, and what it signs.
"""

from __future__ import annotations

import datetime
import ipaddress
import os

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """
    Signs certificates, which it writes into a folder.

    @ivar folder: where C{ca.pem} is.
    """

    def __init__(self, folder: str, name: str = "test authority") -> None:
        os.makedirs(folder)
        self.folder = os.path.abspath(folder)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(self._name, self._key, True)
        self.ca = os.path.join(self.folder, "ca.pem")
        with open(self.ca, "wb") as file:
            file.write(self._certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, isAuthority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=isAuthority, path_length=None), critical=True)
        )
        if not isAuthority:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def issue(self, *names: str) -> str:
        """A key and its certificate for common names, in one file. Returns its path."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]), key, False
        )
        path = os.path.join(
            self.folder, f"{'-'.join(names) or 'nameless'}.key.pem".replace(" ", "_")
        )
        form = serialization.PrivateFormat.PKCS8
        with open(path, "wb") as file:
            file.write(
                key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
            )
            file.write(certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def trustFolder(self) -> str:
        """A folder with nothing but C{ca.pem}, as C{trustRoots=} wants it."""
        path = os.path.join(self.folder, "trusted")
        if not os.path.isdir(path):
            os.makedirs(path)
            os.link(self.ca, os.path.join(path, "ca.pem"))
        return path
