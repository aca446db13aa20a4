"""`fedping study offer`: publish the offer of a line's helper, from its file or from the helper itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fedping.options import LocalPath, store_option, trust_of, trust_options
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.location import local_path
from fedping.protocol.own_login import login_in_address
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.trust import USUAL, Trust

if TYPE_CHECKING:
    from fedping.model_store import ModelStore
    from fedping.protocol.location import Place
    from fedping.protocol.study import Line, Study

MOST_BYTES = 256 * 1024
"""Maximum size of an offer as JSON; its terms are at most 64 kB of text, even with every character escaped."""

CONNECT_SECONDS, READ_SECONDS, MOST_SECONDS = 5.0, 10.0, 30.0


@click.command()
@click.argument("name")
@click.argument("line")
@click.argument("offer", metavar="FILE_OR_URL")
@click.option(
    "--privacy-key",
    "privacy_key",
    type=LocalPath(dir_okay=False),
    envvar="FEDPING_PRIVACY_KEY",
    show_envvar=True,
    help="File of the rounds' key; an offer for another leader is rejected.",
)
@trust_options
@store_option
def offer(name: str, line: str, offer: str, privacy_key: Path | None, store_path: Place, **trusted: Any) -> None:
    """Publish the offer of the helper of a two-server LINE of the study NAME, so that clients can send.

    FILE_OR_URL is the helper's address, or the file with the offer from the helper's operator. The offer must be signed
    by the study's helper and match the study. It replaces an earlier one: clients encrypt for it after their next fetch
    of the study, and the helper still decrypts shares for the earlier one until its operator retires that.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.sharing.terms import agreed

    store = open_store(store_path)
    the_line = store.study(name).line(line)
    if the_line.privacy is None or the_line.privacy.shared is None:
        raise InvalidSettings(f"line '{line}' of study '{name}' has no helper, so it needs no offer")
    new = read_offer(offer, name, line, trust_of(offer, trusted["ca"], trusted["insecure"]))
    if privacy_key is not None:
        from fedping.server_jobs.privacy.keys import leader_identity, read_key

        ours, theirs = leader_identity(read_key(privacy_key)), agreed(new, store.study(name), the_line).leader
        if ours != theirs:
            raise InvalidSettings(
                f"the offer is for the leader {theirs[:16]}…, but {privacy_key} is the key of {ours[:16]}…, so the "
                "helper would reject this key's requests; ask its operator to repeat 'fedping helper join' with your "
                "leader identity"
            )
    before = store.studies.publish_offer(name, line, new)
    if before == new:
        click.echo(f"line '{line}' of study '{name}' already has the offer {new.id.hex()}; nothing changed")
        return
    terms = agreed(new, store.study(name), the_line)
    click.echo(
        f"line '{line}' of study '{name}' has the offer {new.id.hex()} of helper {terms.helper[:16]}…, made "
        f"{terms.made}, for the leader {terms.leader[:16]}…"
        + (f"; it replaces {before.id.hex()}" if before is not None else "")
    )
    click.echo("clients encrypt for it after their next fetch of the study")
    if privacy_key is None:
        click.echo("the helper answers only that leader: 'fedping privacy identity FILE' must print the same identity")


def shared_lines(the_study: Study) -> list[Line]:
    """Return the two-server lines of a study."""
    return [line for line in the_study.lines if line.privacy is not None and line.privacy.shared is not None]


def offers_in_words(store: ModelStore, the_study: Study) -> Iterator[str]:
    """Yield a sentence about the offer of each two-server line of a stored study."""
    from fedping.protocol.sharing.terms import agreed

    for line in shared_lines(the_study):
        offered = store.studies.offer(the_study.name, line.name)
        if offered is None:
            yield (
                f"  line {line.name} has no helper offer yet, so clients send no pings; publish one with 'fedping "
                "study offer'"
            )
        else:
            terms = agreed(offered, the_study, line)
            yield (
                f"  line {line.name} has the helper offer {offered.id.hex()}, made {terms.made}, for the leader "
                f"{terms.leader}"
            )


def read_offer(where: str, study: str, line: str, trust: Trust = USUAL) -> Offer:
    """Return the offer for a line, from a file or from the helper at an address.

    Raises:
        FedpingError: there is no offer, it can't be read, or the helper does not answer in time.
    """
    is_address = where.startswith(("http://", "https://"))
    data = _fetched(f"{where.rstrip('/')}/offers/{study}/{line}", trust) if is_address else _read(where)
    try:
        return msgspec.json.decode(data, type=Offer)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(
            f"{where} is not a helper's offer: {error}; give the file, or the helper's address"
        ) from error


def _read(where: str) -> bytes:
    path: Path = local_path(where)
    try:
        with path.open("rb") as source:
            data = source.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidSettings(f"cannot read the offer {where}: {error.strerror}; correct the path") from error
    return _bounded(data, where)


def _fetched(url: str, trust: Trust) -> bytes:
    """Return the body at an address without following redirects, in bounded time and memory."""
    import requests

    deadline, data = time.monotonic() + MOST_SECONDS, bytearray()
    try:
        with requests.get(
            url,
            timeout=(CONNECT_SECONDS, READ_SECONDS),
            stream=True,
            allow_redirects=False,
            headers={"Accept-Encoding": "identity"},
            auth=login_in_address,
            verify=trust.verify,
        ) as answer:
            for chunk in answer.iter_content(4096):
                data += chunk
                if len(data) > MOST_BYTES or time.monotonic() > deadline:
                    break
    except requests.exceptions.SSLError as error:
        raise FedpingError(
            f"the certificate of the helper at {url} is not trusted. If the helper's operator has a private "
            "certificate authority, give its PEM file with --ca."
        ) from error
    except requests.RequestException as error:
        raise FedpingError(
            f"can't reach the helper at {url} ({type(error).__name__}); check the address, and whether the helper is "
            "running"
        ) from error
    if time.monotonic() > deadline:
        raise FedpingError(f"the helper has not answered {url} within {MOST_SECONDS:g} seconds; try again later")
    if answer.status_code == 404:
        raise InvalidSettings(
            f"the helper has no offer at {url}; ask its operator to run 'fedping helper join' with the study as "
            "ingest publishes it"
        )
    if answer.status_code != 200:
        raise FedpingError(
            f"{url} answers {answer.status_code} instead of an offer; check that it is the helper's address"
        )
    return _bounded(bytes(data), url)


def _bounded(data: bytes, where: str) -> bytes:
    if len(data) > MOST_BYTES:
        raise InvalidSettings(
            f"{where} has more than {MOST_BYTES:,} bytes, so it is not an offer; give the helper's offer"
        )
    return data
