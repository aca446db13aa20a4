"""TLS in front of a local server, with a certificate from a private authority, as in a company's proxy."""

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

YESTERDAY = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)


def _certificate(name: str, key: ec.EllipticCurvePrivateKey, by: tuple[str, ec.EllipticCurvePrivateKey]) -> bytes:
    """Return a PEM certificate of a key, signed by another key; signed by itself, it is an authority."""
    named, signs = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, by[0]))
    made = (
        x509.CertificateBuilder(signs, named, key.public_key(), x509.random_serial_number())
        .not_valid_before(YESTERDAY)
        .not_valid_after(YESTERDAY + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=key is by[1], path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by[1].public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
    )
    if key is by[1]:
        others = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
        not_for = dict.fromkeys([*others, "encipher_only", "decipher_only"], False)
        usage = x509.KeyUsage(**not_for, key_cert_sign=True, crl_sign=True)
        made = made.add_extension(usage, critical=True)
    return made.sign(by[1], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def make_certificates(folder: Path) -> tuple[Path, Path]:
    """Write an authority's certificate, and a server's key and certificate in one file; return both files."""
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca, both = folder / "ca.pem", folder / "server.pem"
    ca.write_bytes(_certificate("an authority", authority, ("an authority", authority)))
    private = server.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    both.write_bytes(private + _certificate("localhost", server, ("an authority", authority)))
    return ca, both


@contextlib.contextmanager
def tls_front(port: int, certificate: Path) -> Iterator[str]:
    """Accept TLS connections and forward their bytes to a local port; yield the https address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    loop, ready, address = asyncio.new_event_loop(), threading.Event(), [""]

    async def passed(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
        with contextlib.suppress(OSError):
            sink.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(passed(reader, behind[1]), passed(behind[0], writer))

    async def serve() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
        address[0] = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        with contextlib.suppress(asyncio.CancelledError):
            await server.serve_forever()

    task = loop.create_task(serve())

    async def end() -> None:
        left = asyncio.all_tasks(loop) - {asyncio.current_task()}
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def run() -> None:
        loop.run_until_complete(task)
        loop.run_until_complete(end())

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(60)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(60)
        loop.close()
