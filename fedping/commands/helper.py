"""`fedping helper`: the second server of two-server lines, which the leader does not run."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fedping.options import LocalPath, json_option, log_format_option
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.log import say

if TYPE_CHECKING:
    from fedping.helper.folder import HelperFolder
    from fedping.protocol.sharing.offer import Offer, Terms

_MIB = 1024 * 1024
_IDENTITY = re.compile(r"[0-9a-f]{64}\Z")

folder_option = click.option(
    "--folder",
    type=LocalPath(file_okay=False),
    default=Path("helper"),
    show_default=True,
    envvar="FEDPING_HELPER",
    show_envvar=True,
    help="The helper's folder: its keys and its records.",
)
offer_option = click.option(
    "--offer", "offer_file", type=LocalPath(dir_okay=False), help="Write the offer to this file.  [default: print it]"
)
threads_option = click.option(
    "--threads", type=click.IntRange(1, 256), help="Number of threads that decrypt shares.  [default: one per core]"
)


@click.group()
def helper() -> None:
    """Run the helper (second server) of two-server lines: decrypt its shares, and return only sums.

    The other server, the leader, runs ingest and the rounds. Neither learns a client's update, as long as their
    operators don't collude.
    """


@helper.command()
@folder_option
@json_option
def init(folder: Path, as_json: bool) -> None:
    """Create a helper: a folder with a new identity, for studies to name."""
    from fedping.helper.folder import make_helper

    new = make_helper(folder)
    if as_json:
        click.echo(msgspec.json.encode({"folder": str(folder), "identity": new.identity}).decode())
        return
    click.echo(
        f"{folder}: a new helper, whose keys only you can read; back it up with 'fedping helper backup' when it has "
        f"joined a line\nidentity  {new.identity}\nstudies name it so: [lines.privacy.shared] helper = "
        f'"{new.identity}"'
    )


@helper.command()
@folder_option
@json_option
def identity(folder: Path, as_json: bool) -> None:
    """Print the identity by which studies name this helper."""
    from fedping.helper.folder import open_folder

    own = open_folder(folder).identity
    click.echo(msgspec.json.encode({"identity": own}).decode() if as_json else own)


@helper.command()
@click.argument("file", type=LocalPath(dir_okay=False))
@click.argument("line", required=False)
@click.option(
    "--leader",
    required=True,
    metavar="IDENTITY",
    help="The leader's identity, printed there by 'fedping privacy identity'.",
)
@offer_option
@folder_option
@json_option
def join(file: Path, line: str | None, leader: str, offer_file: Path | None, folder: Path, as_json: bool) -> None:
    """Join the LINE of a study, given the study FILE that clients fetch, and offer it a key.

    LINE can be omitted if only one line names this helper. The command checks the study's guarantees to clients, and
    pins the terms for all later requests of this line. Safe to repeat: the offer is printed again.
    """
    from fedping.helper import enrol
    from fedping.helper.folder import open_folder

    if not _IDENTITY.match(leader):
        raise InvalidSettings(
            "--leader must be an identity of 64 hexadecimal digits; ask the leader for the output of 'fedping "
            "privacy identity'"
        )
    helper_ = open_folder(folder)
    study = enrol.read_public_study(file)
    the_line = enrol.line_of(study, line, helper_.identity)
    offer, new = enrol.join(helper_, study, the_line, leader)
    _give(helper_, offer, offer_file, "takes part in" if new else "already takes part in", as_json)


@helper.command()
@click.argument("study")
@click.argument("line")
@offer_option
@folder_option
@json_option
def rotate(study: str, line: str, offer_file: Path | None, folder: Path, as_json: bool) -> None:
    """Create and offer a new key for a LINE of a STUDY; older keys still decrypt shares until you retire them."""
    from fedping.helper import enrol
    from fedping.helper.folder import open_folder

    helper_ = open_folder(folder)
    _give(helper_, enrol.rotate(helper_, study, line), offer_file, "has a new key for", as_json)


@helper.command()
@click.argument("study")
@click.argument("line")
@folder_option
@json_option
def retire(study: str, line: str, folder: Path, as_json: bool) -> None:
    """Delete all but the newest key for a LINE of a STUDY: shares for older keys can never be decrypted again.

    First wait until the leader has published the newer offer long enough for every client to fetch it.
    """
    from fedping.helper import enrol
    from fedping.helper.folder import open_folder

    retired = [each.hex() for each in enrol.retire(open_folder(folder), study, line)]
    if as_json:
        click.echo(msgspec.json.encode({"study": study, "line": line, "retired": retired}).decode())
        return
    deleted = f"deleted the older keys (offers {', '.join(retired)})" if retired else "no older key"
    click.echo(f"line '{line}' of study '{study}': {deleted}")


@helper.command()
@folder_option
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Show the lines of this helper, its answers, and the problems of its folder. Exits with 1 on a problem."""
    from fedping.helper.enrol import current
    from fedping.helper.folder import open_folder
    from fedping.helper.serving import troubles
    from fedping.protocol.sharing.offer import terms_of

    helper_ = open_folder(folder)
    rows = []
    with helper_.records() as records:
        for each in records.lines():
            offers, totals = records.offers(each.number), records.totals(each.number)
            terms = terms_of(current(offers), helper_.identity)
            rows.append(
                {
                    "study": each.study,
                    "line": each.line,
                    "leader": terms.leader,
                    "numbers": terms.numbers,
                    "sigma": terms.sigma,
                    "min_batch": terms.min_batch,
                    **_of_rows(terms),
                    "offer": current(offers).id.hex(),
                    "offered": terms.made,
                    "older_keys": sum(offer.retired is None for offer in offers[:-1]),
                    "answers": totals.answers,
                    "rounds": each.rounds,
                    "newest": totals.newest[0] if totals.newest else None,
                    "answered": totals.newest[1] if totals.newest else None,
                    "first": each.first,
                    "documents": totals.documents,
                }
            )
    problems = {name: why for name, why in troubles(helper_).items() if why}
    if as_json:
        click.echo(msgspec.json.encode({"identity": helper_.identity, "lines": rows, "troubles": problems}).decode())
    else:
        click.echo(f"helper {helper_.identity} in {folder}")
        for row in rows:
            click.echo(_in_words(row))
        if not rows:
            click.echo("it has not joined a line yet; join one with 'fedping helper join'")
    for name, why in problems.items():
        click.echo(f"fedping: {name}: {why}", err=True)
    if problems:
        raise click.exceptions.Exit(1)


def _of_rows(terms: Terms) -> dict[str, object]:
    return {} if isinstance(terms.rows, msgspec.UnsetType) else {"rows": msgspec.to_builtins(terms.rows)}


def _in_words(row: dict[str, object]) -> str:
    older = f"; older keys still in use: {row['older_keys']}" if row["older_keys"] else ""
    of = f" of {row['rounds']:,}" if row["rounds"] is not None else ""
    newest = f", the newest is version {row['newest']}, on {row['answered']}" if row["newest"] is not None else ""
    restored = f"restored: answers versions from {row['first']} on; all earlier ones count as answered"
    fence = f"\n  {restored}" if row["first"] else ""
    noise = f"noise of ± {row['sigma']:.6g}" if row["sigma"] else "no noise"
    noise = "the noise of the institutions" if "rows" in row else noise
    return (
        f"line '{row['line']}' of study '{row['study']}'\n"
        f"  sums of {row['numbers']:,} numbers and {row['min_batch']:,} clients or more, {noise}\n"
        f"  leader {row['leader']}\n"
        f"  offer {row['offer']}, made {row['offered']}{older}\n"
        f"  answered {row['answers']:,}{of} versions{newest}; {row['documents']:,} documents are known{fence}"
    )


@helper.command()
@click.argument("to", type=LocalPath(file_okay=False))
@folder_option
@json_option
def backup(to: Path, folder: Path, as_json: bool) -> None:
    """Copy the helper's folder with its keys to the new folder TO; also works while the helper runs."""
    from fedping.helper.folder import back_up, open_folder

    helper_ = open_folder(folder)
    back_up(helper_, to)
    if as_json:
        click.echo(msgspec.json.encode({"backup": str(to), "identity": helper_.identity}).decode())
        return
    click.echo(
        f"{to}: a backup with all keys. Keep it where only you can read it; 'fedping helper restore' restores it."
    )


@helper.command()
@click.argument("copy", type=LocalPath(file_okay=False))
@click.option(
    "--from",
    "first",
    multiple=True,
    metavar="STUDY/LINE=VERSION",
    help="The first version of a line to answer: the newest published version plus one. May be repeated.",
)
@folder_option
@json_option
def restore(copy: Path, first: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Create the helper's folder, which must not exist, from a backup COPY.

    A version must not be answered twice, and the backup lacks later answers. So give for each line the first version
    that was certainly not answered: the newest version that the leader has published, plus one.
    """
    from fedping.helper.folder import restore as restored

    made = restored(copy, folder, dict(map(_fence, first)))
    if as_json:
        click.echo(msgspec.json.encode({"folder": str(folder), "identity": made.identity}).decode())
        return
    click.echo(f"{folder}: helper {made.identity} is restored; the leader continues with 'fedping store continue'")


def _fence(text: str) -> tuple[tuple[str, str], int]:
    match = re.fullmatch(r"([^/=]+)/([^/=]+)=([0-9]{1,18})", text)
    if match is None:
        raise InvalidSettings(f"--from is {text}; give STUDY/LINE=VERSION, such as frecency/main=12")
    return (match[1], match[2]), int(match[3])


@helper.command()
@click.argument("request", type=LocalPath(dir_okay=False))
@click.option("--out", type=LocalPath(dir_okay=False), help="Write the answer to this file.  [default: REQUEST.answer]")
@threads_option
@folder_option
@json_option
def answer(request: Path, out: Path | None, threads: int | None, folder: Path, as_json: bool) -> None:
    """Answer the REQUEST in a file, for example in an hourly job.

    The same request gets the same answer, byte for byte. Exits with 1 if the request is rejected; the answer file has
    the reason, for the leader.
    """
    from fedping.helper.folder import open_folder
    from fedping.helper.requests import read_request, reply, write_answer
    from fedping.protocol.sharing.exchange import Refused, digest_of_signed

    helper_, to = open_folder(folder), out or request.with_name(f"{request.name}.answer")
    data = read_request(helper_, request)
    try:
        sums = reply(helper_, data, datetime.now(UTC), threads=threads or _cores())
    except Refused as error:
        refusal = msgspec.json.encode(error.refusal(digest_of_signed(data)))
        write_answer(to, refusal)
        if as_json:
            click.echo(refusal.decode())
        error.locate(f"the helper rejects the request {request} ({error.reason})")
        raise
    write_answer(to, sums.data)
    if as_json:
        facts = {name: value for name, value in sums._asdict().items() if name != "data"}
        click.echo(msgspec.json.encode({**facts, "file": str(to)}).decode())
        return
    click.echo(
        f"{to}: the answer to version {sums.version} of line '{sums.line}' of study '{sums.study}', a sum "
        f"over {sums.clients - sums.refused:,} of {sums.clients:,} clients{', as before' if sums.again else ''}"
    )


@helper.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(1, 65535), default=8084, show_default=True, help="Port to listen on.")
@click.option(
    "--max-request-mib",
    type=click.IntRange(1, 2048),
    default=128,
    show_default=True,
    help="Largest request; answering needs about five times its size in memory. 1 MiB is about 10,000 clients.",
)
@click.option(
    "--patience",
    type=click.FloatRange(0, 3600),
    default=20.0,
    show_default=True,
    help="Seconds after which a waiting leader gets 202 and retries.",
)
@threads_option
@folder_option
@log_format_option
def serve(host: str, port: int, max_request_mib: int, patience: float, threads: int | None, folder: Path) -> None:
    """Answer the requests of leaders over HTTP.

    An answer is on disk before it is sent. Ctrl-C (or SIGTERM) stops and discards unfinished work; the leader retries.
    Put a TLS proxy in front of it.
    """
    from fedping.helper.serving import ServeSettings
    from fedping.helper.serving import serve as serving

    settings = ServeSettings(folder, host, port, threads or _cores(), max_request_mib * _MIB, patience)
    serving(settings, lambda: say(f"Answering requests on http://{host}:{port}; Ctrl-C stops."))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _give(helper_: HelperFolder, offer: Offer, file: Path | None, what: str, as_json: bool) -> None:
    """Print an offer or write it to a file; as JSON, with its terms."""
    from fedping.protocol.sharing.offer import terms_of

    text = msgspec.json.encode(offer).decode()
    if file is not None:
        try:
            file.write_text(text + "\n")
        except OSError as error:
            raise FedpingError(
                f"cannot write the offer to {file}: {error.strerror}; repeat the command with another file"
            ) from error
    elif not as_json:
        click.echo(text)
    terms = terms_of(offer, helper_.identity)
    if as_json:
        document = {
            "study": terms.study,
            "line": terms.line,
            "leader": terms.leader,
            "numbers": terms.numbers,
            "sigma": terms.sigma,
            "min_batch": terms.min_batch,
            "promise": terms.promise,
            **_of_rows(terms),
            "offer": offer.id.hex(),
            "file": None if file is None else str(file),
            "signed": offer,
        }
        click.echo(msgspec.json.encode(document).decode())
        return
    noise = "without noise: both servers learn the exact sums"
    if not isinstance(terms.rows, msgspec.UnsetType):
        noise = (
            f"with the noise of the institutions: {terms.rows.noise:g} times the norm of a row, which protects as "
            f"long as at most {terms.rows.colluding:,} of them collude with the leader"
        )
    if terms.sigma:
        noise = f"noise of ± {terms.sigma:.6g} on each number; you guarantee {terms.promise}"
    click.echo(
        f"this helper {what} line '{terms.line}' of study '{terms.study}': sums of {terms.numbers:,} numbers, "
        f"{terms.min_batch:,} clients or more, {noise}\n{file or 'above'}: the offer {offer.id.hex()}, for the leader "
        f"{terms.leader[:16]}… ('fedping study offer')",
        err=file is None,  # stdout has only the offer, for a file
    )
