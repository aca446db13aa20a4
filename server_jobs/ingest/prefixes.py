"""Rate limits by network, without storing addresses.

A network is the /24 of an IPv4 address or the /48 of an IPv6 address. It has a bucket of tokens; each ping takes one
token. The owner of an IPv6 /32 has 65,536 of these networks, so a /32 has a bucket too, with :data:`WIDER` times the
tokens.

Buckets are places in a table of fixed size, found by a keyed hash. The key is random for each worker, is never
written to disk, and is replaced every hour, when all buckets become full again. So the networks that sent pings can't
be found out afterwards. A network has two places, and the fuller one counts, so that a network that shares one place
with a flood is seldom limited.

Rejected requests take no tokens, so buckets fill under any load: many clients behind one address get through at the
limited rate, each after some retries. A batch may only take future tokens of the next second, so it never delays
other clients of its network for long.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import math
import random
import secrets
import socket
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from fedping.server_jobs.ingest.answers import Rejection

PLACES = 2**16
"""Number of buckets of a table, which has half a megabyte."""

AHEAD = 1.0
"""Maximum seconds of future tokens that a batch may take. With 0, a batch would never get through a busy network's
bucket if it needs more tokens than are usually left. With many, a few large batches would displace all other
requests."""

WIDER = 64
"""Tokens of an IPv6 /32 as a multiple of those of a /48. A /32 can empty at most this number of the table's 65,536
buckets."""

FORGET_EVERY = 3600.0
"""Seconds after which the hash key is replaced."""

ROUNDING = 1e-6
"""Tolerance of sums of times, in seconds."""

IPV6_BYTES = 6
"""Bytes of an IPv6 network, a /48."""

IPV6_WIDER_BYTES = 4
"""Bytes of the wider IPv6 network, a /32."""

MOST_FORWARDED = 20
"""Maximum number of addresses read from a header, from its end."""

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Places: TypeAlias = tuple[int, int]
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class PrefixLimits:
    """The rate limits of one worker.

    Args:
        rate: maximum pings per second of a network.
        burst: maximum pings at once after a pause; at least 1.
        trusted: networks of the operator's proxies, whose X-Forwarded-For is trusted.
        clock: monotonic clock in seconds.
        draws: random source that spreads retries over time.
    """

    def __init__(
        self,
        rate: float,
        burst: float,
        trusted: Sequence[Network] = (),
        clock: Callable[[], float] = time.monotonic,
        draws: random.Random | None = None,
    ) -> None:
        self._rate, self._burst, self._trusted, self._clock = rate, max(1.0, burst), tuple(trusted), clock
        self._draws = draws or random.Random()
        self._lock = threading.Lock()
        self._forget(clock())

    def _forget(self, now: float) -> None:
        self._key, self._began = secrets.token_bytes(16), now
        self._networks = _Buckets(self._rate, self._burst)
        self._wider = _Buckets(WIDER * self._rate, WIDER * self._burst)

    def take(self, environ: dict[str, Any]) -> None:
        """Take one token, for a single ping or for the first of a batch.

        Raises:
            Rejection: no token is left. No token was taken.
        """
        self._take(environ, 1, 0.0)

    def take_more(self, environ: dict[str, Any], pings: int) -> None:
        """Take the tokens of a batch of ``pings``, after the first.

        Raises:
            Rejection: the batch exceeds the burst, or the remaining tokens. No token was taken.
        """
        if pings > self._burst:
            raise Rejection(
                "too_many_lines",
                f"the batch has more lines than the maximum of {int(self._burst):,} for one network; send it in parts",
            )
        if pings > 1:
            self._take(environ, pings - 1, AHEAD)

    def _take(self, environ: dict[str, Any], tokens: int, ahead: float) -> None:
        prefix = prefix_of(sender(environ, self._trusted))
        with self._lock:
            now = self._clock()
            if now - self._began >= FORGET_EVERY:
                self._forget(now)
            places = self._places(prefix)
            wider = self._places(prefix[:IPV6_WIDER_BYTES]) if len(prefix) == IPV6_BYTES else None
            wait = self._networks.lacks(places, tokens, now)
            if wider is not None:
                wait = max(wait, self._wider.lacks(wider, tokens, now))
            if wait > ahead + ROUNDING:
                after = math.ceil(wait - ahead + self._draws.random() * self._burst / self._rate)
                smaller = ", a batch in smaller parts" if ahead else ""
                raise Rejection(
                    "too_many_pings",
                    f"this client's network sends too many pings; send it again after {after} s{smaller}",
                    retry_after=after,
                )
            self._networks.take(places, tokens, now)
            if wider is not None:
                self._wider.take(wider, tokens, now)

    def _places(self, prefix: bytes) -> Places:
        drawn = hashlib.blake2b(prefix, key=self._key, digest_size=4).digest()
        return divmod(int.from_bytes(drawn, "big"), PLACES)


class _Buckets:
    """A table of token buckets that fill at ``rate`` tokens per second up to ``burst``."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._full_at = array("d", bytes(8 * PLACES))  # the time at which each bucket is full, in seconds of the clock

    def lacks(self, places: Places, tokens: int, now: float) -> float:
        """Return the seconds until the bucket has this number of tokens; negative if it has more."""
        return self._next_full(places, now) - now - (self._burst - tokens) / self._rate

    def take(self, places: Places, tokens: int, now: float) -> None:
        """Take tokens, including future tokens if the bucket has too few."""
        at = self._next_full(places, now) + tokens / self._rate
        for place in places:
            if self._full_at[place] < at:
                self._full_at[place] = at

    def _next_full(self, places: Places, now: float) -> float:
        first, second = places
        return max(now, min(self._full_at[first], self._full_at[second]))


def sender(environ: dict[str, Any], trusted: Sequence[Network]) -> str:
    """Return the sender's address: the socket's address, or the address reported by the operator's proxies.

    Each proxy appends the address of its client to X-Forwarded-For. The sender is the last address that isn't a
    trusted proxy; earlier addresses may be forged.
    """
    address: str = environ.get("REMOTE_ADDR", "").strip("[]")
    if not trusted or not _is_in(address, trusted):
        return address
    forwarded = str(environ.get("HTTP_X_FORWARDED_FOR", "")).rsplit(",", MOST_FORWARDED)
    for each in map(_without_port, reversed(forwarded[-MOST_FORWARDED:])):
        if parsed(each) is None:
            break
        address = each
        if not _is_in(address, trusted):
            break
    return address


def _without_port(text: str) -> str:
    """Return an address without the port and the brackets that some proxies add."""
    address = text.strip()
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def prefix_of(address: str) -> bytes:
    """Return the network of an address; b"" for any invalid address."""
    with contextlib.suppress(OSError, ValueError):
        return socket.inet_pton(socket.AF_INET, address)[:3]
    with contextlib.suppress(OSError, ValueError):
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
        return packed[12:15] if packed.startswith(_IPV4_IN_IPV6) else packed[:IPV6_BYTES]
    return b""


_IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"


def parsed(address: str) -> Address | None:
    """Return a parsed address, as IPv4 if it is an IPv4-mapped IPv6 address; None if it is invalid."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if found.version == 6 else found


def _is_in(address: str, networks: Sequence[Network]) -> bool:
    found = parsed(address)
    return found is not None and any(found.version == net.version and found in net for net in networks)
