"""nginx with the lines that `docs/proxy.md` tells people to write, a certificate of its own, and no trace elsewhere."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
import ssl
import subprocess
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.e2e.up_kit import ROOT, eventually

PROGRAM = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
HOST = "127.0.0.1"


def documented() -> str:
    """The `location` that the page shows."""
    return (ROOT / "docs" / "proxy.md").read_text(encoding="utf-8").split("```nginx\n")[1].split("```")[0]


class Nginx:
    """Two servers with TLS in front of a panel: `port` passes the path on, `stripping` leaves `/ql` out."""

    def __init__(self, folder: Path, panel: int, port: int, stripping: int) -> None:
        self.folder = folder
        self.port, self.stripping = port, stripping
        self.certificate = folder / "certificate.pem"
        _certify(self.certificate)
        (folder / "nginx.conf").write_text(self._configuration(panel), encoding="utf-8")
        self.process = subprocess.Popen(
            [
                str(PROGRAM),
                "-p",
                str(folder),
                "-e",
                str(folder / "error.log"),
                "-c",
                str(folder / "nginx.conf"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(lambda: self.process.poll() is not None or (folder / "nginx.pid").exists(), "nginx is up")
        assert self.process.poll() is None, self.errors()

    def context(self) -> ssl.SSLContext:
        """Trusts this server and no other."""
        return ssl.create_default_context(cafile=str(self.certificate))

    def asked(self) -> list[tuple[int, str]]:
        """Status and address of every request so far."""
        lines = (self.folder / "access.log").read_text().splitlines()
        return [(int(status), address) for status, _, address in (line.partition(" ") for line in lines)]

    def errors(self) -> str:
        """What nginx complained about."""
        return (self.folder / "error.log").read_text()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)

    def _configuration(self, panel: int) -> str:
        location = documented().replace("127.0.0.1:5700;", f"127.0.0.1:{panel};")
        stripped = location.replace(f":{panel};", f":{panel}/;")
        assert location != documented() and stripped != location
        folders = "".join(
            f"{kind}_temp_path {self.folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        servers = "".join(
            f"server {{ listen {HOST}:{port} ssl;\n{inner}}}\n"
            for port, inner in ((self.port, location), (self.stripping, stripped))
        )
        return f"""daemon off; master_process off; pid {self.folder}/nginx.pid; error_log {self.folder}/error.log warn;
events {{}}
http {{
log_format asked '$status $request_uri';
access_log {self.folder}/access.log asked;
{folders}
ssl_certificate {self.certificate};
ssl_certificate_key {self.certificate};
{servers}}}
"""


def _certify(path: Path) -> None:
    """Key and certificate of `HOST` in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    path.touch(0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
