"""Trusted certificate authorities for https servers: this machine's defaults, a file, or no check at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedping.protocol.errors import InvalidSettings

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True)
class Trust:
    """The trusted certificate authorities.

    Attributes:
        ca: a PEM file with the only trusted authorities; None for the defaults of this machine.
        insecure: whether any certificate is accepted, so that anyone on the network path can impersonate the server.

    Raises:
        InvalidSettings: both are given, or the file can't be read or has no certificate.
    """

    ca: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.insecure and self.ca is not None:
            raise InvalidSettings("--ca checks certificates and --insecure does not; use one of them")
        self.context()

    def context(self) -> ssl.SSLContext | bool:
        """Return the argument ``ssl`` of aiohttp: a context, False for no checks, True for this machine's defaults."""
        if self.insecure or self.ca is None:
            return not self.insecure
        import ssl

        try:
            return ssl.create_default_context(cafile=str(self.ca))
        except ssl.SSLError as error:
            raise InvalidSettings(
                f"{self.ca} has no certificate that can be read. Give the PEM file of the authority that has signed "
                "the server's certificate."
            ) from error
        except OSError as error:
            raise InvalidSettings(f"can't read the certificates {self.ca} ({error.strerror}); correct --ca") from error

    @property
    def verify(self) -> bool | str:
        """The argument ``verify`` of the library requests; without checks, the library's warning is disabled."""
        if not self.insecure:
            return True if self.ca is None else str(self.ca)
        import urllib3

        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        return False


USUAL = Trust()
"""Trust in the certificate authorities of this machine."""
