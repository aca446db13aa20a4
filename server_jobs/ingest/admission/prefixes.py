"""How fast one network may send: limits by the prefix of the address, which store nothing.

A prefix is the /24 of an IPv4 address, the /48 of an IPv6 one. It has a bucket of tokens, of which every ping takes
one. Whoever has a /32 of IPv6 has 65,536 of these, so that it has a bucket of its own beside them, with :data:`WIDER`
times the tokens. Buckets are places in a table of fixed size, found by a hash whose key is drawn by the worker, is
written nowhere and is drawn anew every hour, when all buckets are full again: nobody can say afterwards which networks
have sent. A prefix has two places, and the fuller one decides, so that one that shares a place with a flood is seldom
held up by it.

What is refused takes nothing, so that a bucket fills whatever knocks: a crowd behind one address gets through at the
rate, each after some repetitions. Nor does a batch keep the others of its network waiting for long: of the tokens that
are not there yet it may take one second's worth.
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

from fedping.server_jobs.ingest.admission.rejection import Rejection

PLACES = 2**16
"""Of a table, half a megabyte."""

AHEAD = 1.0
"""Of how many seconds to come a batch may take the tokens. Without any, one larger than what a crowd leaves over would
never get through; with many, a few large batches would take the place of all others."""

WIDER = 64
"""How many times the tokens of a /48 a /32 of IPv6 has. So many buckets can it empty, of a table's 65,536."""

FORGET_EVERY = 3600.0
"""Seconds after which the key of the hash is drawn anew."""

ROUNDING = 1e-6
"""Seconds by which sums of times may be off."""

IPV6_BYTES = 6
"""Of the prefix of an IPv6 address, a /48."""

IPV6_WIDER_BYTES = 4
"""Of the wider one that bounds all of those, a /32."""

MOST_FORWARDED = 20
"""Addresses of a header that are looked at, from the last."""

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Places: TypeAlias = tuple[int, int]
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class PrefixLimits:
    """The limits of one worker.

    Args:
        rate: pings a second that a prefix may send.
        burst: how many it may send at once after a rest; one at least, or nobody could send anything.
        trusted: the networks of the operator's own proxies, whose X-Forwarded-For is believed.
        clock: seconds that only grow.
        draws: spreads over time those who are told to come again.
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
        """Take the token of a request's one ping, or of the first of a batch.

        Raises:
            Rejection: there is none; nothing was taken.
        """
        self._take(environ, 1, 0.0)

    def take_more(self, environ: dict[str, Any], pings: int) -> None:
        """Take the tokens of a batch of ``pings``, of which one was taken before.

        Raises:
            Rejection: it has more pings than a network may ever send at once, or than it may now; nothing was taken.
        """
        if pings > self._burst:
            raise Rejection(
                "too_many_lines",
                f"the batch has more lines than the {int(self._burst):,} that one network may send at once here; send "
                "it in parts",
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
                    "the network that this comes from sends more pings than it may; send it again after "
                    f"{after} s{smaller}",
                    retry_after=after,
                )
            self._networks.take(places, tokens, now)
            if wider is not None:
                self._wider.take(wider, tokens, now)

    def _places(self, prefix: bytes) -> Places:
        drawn = hashlib.blake2b(prefix, key=self._key, digest_size=4).digest()
        return divmod(int.from_bytes(drawn, "big"), PLACES)


class _Buckets:
    """A table of buckets that fill at ``rate`` tokens a second until they have ``burst`` of them."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._full_at = array("d", bytes(8 * PLACES))  # when each bucket is full again, in seconds of the clock

    def lacks(self, places: Places, tokens: int, now: float) -> float:
        """Return in how many seconds there will be so many tokens; negative if there are more."""
        return self._next_full(places, now) - now - (self._burst - tokens) / self._rate

    def take(self, places: Places, tokens: int, now: float) -> None:
        """Take tokens, whether they are there or not."""
        at = self._next_full(places, now) + tokens / self._rate
        for place in places:
            if self._full_at[place] < at:
                self._full_at[place] = at

    def _next_full(self, places: Places, now: float) -> float:
        first, second = places
        return max(now, min(self._full_at[first], self._full_at[second]))


def sender(environ: dict[str, Any], trusted: Sequence[Network]) -> str:
    """Return the address that a request came from: the socket's, or what the operator's own proxies say of it.

    Each proxy adds the address that it was called from at the end of X-Forwarded-For. So the last one there that is
    none of theirs is the sender's; what stands before it anybody may have written.
    """
    address: str = environ.get("REMOTE_ADDR", "").strip("[]")
    if not trusted or not _is_in(address, trusted):
        return address
    said = str(environ.get("HTTP_X_FORWARDED_FOR", "")).rsplit(",", MOST_FORWARDED)
    for each in map(_without_port, reversed(said[-MOST_FORWARDED:])):
        if parsed(each) is None:
            break
        address = each
        if not _is_in(address, trusted):
            break
    return address


def _without_port(said: str) -> str:
    """Return an address without the port and the brackets that some proxies write beside it."""
    address = said.strip()
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def prefix_of(address: str) -> bytes:
    """Return the prefix of an address; of what is none, the same for all of them."""
    with contextlib.suppress(OSError, ValueError):
        return socket.inet_pton(socket.AF_INET, address)[:3]
    with contextlib.suppress(OSError, ValueError):
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
        return packed[12:15] if packed.startswith(_IPV4_IN_IPV6) else packed[:IPV6_BYTES]
    return b""


_IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"


def parsed(address: str) -> Address | None:
    """Return an address, an IPv4 one also where it is written as IPv6; None of what is none."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if found.version == 6 else found


def _is_in(address: str, networks: Sequence[Network]) -> bool:
    found = parsed(address)
    return found is not None and any(found.version == net.version and found in net for net in networks)
