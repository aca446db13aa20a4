"""`fedping study`: create a study in a store, show it, check its file, its health and its clients' tickets."""

from __future__ import annotations

import os
import secrets
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
import msgspec

from fedping import __version__
from fedping.client_sim.learning.study_files import study_as_written
from fedping.commands.study_file import (
    WarmOptions,
    checked,
    checked_with_warnings,
    own_model_option,
    summary_of,
    table_of,
    warm_document,
    warm_options,
    warm_starts,
    warnings_about,
)
from fedping.commands.study_init import init
from fedping.commands.study_life import as_declared, change, end, history, listed, pause, resume
from fedping.commands.study_offer import offer, offers_in_words, shared_lines
from fedping.creating import as_stored
from fedping.options import (
    ClientId,
    LocalPath,
    journal_of,
    journal_option,
    json_option,
    landing_option,
    log_format_option,
    store_option,
)
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import SHARDS
from fedping.protocol.links import in_words
from fedping.protocol.log import Level, is_json, tell
from fedping.protocol.notation import format_count, utc_now
from fedping.protocol.outcomes import at_choice, later
from fedping.protocol.pipeline import (
    CenteredClip,
    ClipByNorm,
    ClipByQuantile,
    Combination,
    GeometricMedian,
    Krum,
    Mean,
    MeanOfSigns,
    Median,
    Optimizer,
    OwnOptimizer,
    Recluster,
    TrimmedMean,
)
from fedping.protocol.stopping_settings import IterationByClients, IterationByTime
from fedping.protocol.study import Line, Study

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedping.protocol.location import Place
    from fedping.server_jobs.health.snapshot import Judgement, StudyMonitor
    from fedping.server_jobs.ingest.settings import IngestSettings
    from fedping.server_jobs.warm_start import Warm

VOTES = {"client": "a client", "ping": "a ping", "examples": "an example"}
"""Words for the unit that has one vote in a round, by the name of the weighting."""


@click.group()
def study() -> None:
    """Start a study from a template, create its version 0; show, check, change or watch one."""


for _command in (init, pause, resume, end, change, history, offer):
    study.add_command(_command)


@study.command()
@click.argument("file", type=LocalPath())
@own_model_option
@warm_options
@store_option
@landing_option
def create(file: Path, own_models: tuple[str, ...], store_path: Place, landing: Place, **options: Any) -> None:
    """Store the study of a TOML FILE and publish version 0 of each of its lines.

    The file is checked like by 'fedping study check'. Open settings get the safe choice: 'fedping study show' lists
    them. Safe to repeat. A study that exists with other settings is rejected, because its versions and pings depend on
    them; use 'fedping study change' for settings that may change. A line is rejected if the store or the landing folder
    shows that version 0 was lost: clients may have it, and it is never published twice.

    With --from, version 0 takes weights from a trained version of another study, matched by name or --renamed; all
    others get the start values of FILE. 'fedping study check' previews it.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import open_landing
    from fedping.server_jobs.optimize import first_versions

    the_study = checked(file, own_models, store_path)
    created = utc_now()
    warm = _warned(the_study, warm_starts(the_study, WarmOptions(**options), store_path))
    store = open_store(store_path, create=True)
    the_study = as_stored(store, the_study, study_as_written(file))
    noted = {
        line.name: open_landing(landing).read_published(str(store_path), the_study.name, line.name)
        for line in the_study.lines
    }
    begun = {name: (each.weights, each.origin) for name, each in warm.items()}
    firsts = first_versions(the_study, created=created, code_version=__version__, warm=begun)
    if store.create_study(the_study, firsts, noted):
        lines = ", ".join(f"{line.name} ({line.spec.m} weights)" for line in the_study.lines) or "no line"
        click.echo(f"study '{the_study.name}' is in {store_path}: version 0 of {lines}")
        for name, each in warm.items():
            click.echo(f"line '{name}' {summary_of(the_study, name, each)}")
        if any(line.privacy and line.privacy.central and line.privacy.central.sampling < 1 for line in the_study.lines):
            click.echo(
                "its rounds sample clients in secret: create the study's key once with 'fedping privacy key FILE'"
            )
        for line in shared_lines(the_study):
            click.echo(
                f"clients of line '{line.name}' wait for its helper's offer: publish it with 'fedping study offer'"
            )
    else:
        click.echo(f"study '{the_study.name}' is already in {store_path} with these settings; nothing changed")


@study.command()
@click.argument("file", type=LocalPath())
@own_model_option
@warm_options
@store_option
@json_option
def check(file: Path, own_models: tuple[str, ...], store_path: Place, as_json: bool, **options: Any) -> None:
    """Check a TOML FILE and show its study, without storing it.

    For fedping's models, it checks the settings and the number, shapes and names of the weights. Any other model may be
    your own; it prints a warning to stderr. With --from, which reads a store, it also shows the weights that 'fedping
    study create' would take over, and the start of each.

    Exits with 2 and an error on stderr if the study could not be created.
    """
    the_study, warnings = checked_with_warnings(file, own_models)
    warm = _warned(the_study, warm_starts(the_study, WarmOptions(**options), store_path))
    if as_json:
        document = {
            "study": the_study,
            "digest": the_study.digest,
            "warnings": [*warnings, *warnings_about(the_study, warm)],
            "begins_with": warm_document(the_study, warm),
        }
        click.echo(msgspec.json.encode(document).decode())
        return
    click.echo("\n".join([_described(the_study), *table_of(the_study, warm)]))


def _warned(the_study: Study, warm: dict[str, Warm]) -> dict[str, Warm]:
    """Print the warnings about weights that are taken over; return them."""
    for warning in warnings_about(the_study, warm):
        click.echo(f"fedping: warning: {warning}", err=True)
    return warm


@study.command()
@click.argument("name")
@store_option
@json_option
def show(name: str, store_path: Place, as_json: bool) -> None:
    """Show the study NAME of a store."""
    from fedping.model_store.store import open_store

    store = open_store(store_path)
    the_study = store.study(name)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(the_study)).decode())
        return
    click.echo("\n".join([_described(the_study), *as_declared(store, name), *offers_in_words(store, the_study)]))


@study.command(name="list")
@click.option(
    "--state",
    "with_state",
    is_flag=True,
    help=("Include each study's state with its reason, and the number of versions of each line."),
)
@store_option
@json_option
def list_(with_state: bool, store_path: Place, as_json: bool) -> None:
    """List the names of the studies of a store, one a line; with --state or --json, also their states.

    A study that can't be read is listed as 'unreadable' with the error; the command then exits with 1 after the list.
    """
    from fedping.model_store.store import open_store

    store = open_store(store_path)
    if not (with_state or as_json):
        for name in store.studies.names():
            click.echo(name)
        return
    rows = [listed(store, name) for name in store.studies.names()]
    width = max((len(row.study) for row in rows), default=0)
    for row in rows:
        click.echo(msgspec.json.encode(row).decode() if as_json else row.in_words(width))
    if any(row.state == "unreadable" for row in rows):
        raise click.exceptions.Exit(1)


@study.command()
@click.argument("names", nargs=-1)
@store_option
@landing_option
@journal_option
@json_option
def health(names: tuple[str, ...], store_path: Place, landing: Place, journal: Path | None, as_json: bool) -> int:
    """Check the health of the studies NAMES (default: all), as the dashboard does. Exits with 1 on a problem."""
    from fedping.server_jobs.health.snapshot import ingest_snapshot

    places = _places(store_path, landing, journal)
    judgements = _monitor(places, names).all(ingest_snapshot(places), names)
    for name, judgement in judgements.items():
        _show_health(name, judgement, as_json)
    return int(any(judged.verdict == "problem" for _, judged in judgements.values()))


@study.command()
@click.argument("names", nargs=-1)
@click.option("--every", default="60s", show_default=True, help="Time between two checks: 45s, 5m, ...")
@click.option(
    "--webhook",
    envvar="FEDPING_WEBHOOK",
    show_envvar=True,
    help="Address to post each change of health to. Other users can read a command line: if the address is a secret, "
    "use the variable.",
)
@store_option
@landing_option
@journal_option
@json_option
@log_format_option
def watch(names: tuple[str, ...], every: str, webhook: str | None, as_json: bool, **places: Any) -> None:
    """Watch the studies NAMES (default: all) until stopped, and report every change of their health.

    Reports, including the first of each study, are printed and posted to the webhook as JSON. A failed post is reported
    on stderr and retried.
    """
    from fedping.server_jobs.health.monitor import Reports, Webhook, make_poster, watch_studies
    from fedping.server_jobs.schedule import WallClock, parse_every
    from fedping.terminal import stopped_by_signals

    interval, clock = parse_every(every), WallClock()

    def on_change(name: str, judgement: Judgement) -> None:
        if is_json():
            _log_health(name, judgement)
        if as_json or not is_json():
            _show_health(name, judgement, as_json)

    hook = None if webhook is None else Webhook(make_poster(webhook), tell)
    with stopped_by_signals(clock):
        watch_studies(_monitor(_places(**places), names), names, clock, interval, Reports(on_change, tell, hook))


def _places(store_path: Place, landing: Place, journal: Path | None) -> IngestSettings:
    from fedping.server_jobs.ingest.settings import IngestSettings

    return IngestSettings(store=store_path, landing=landing, journal=journal_of(journal, landing))


def _monitor(places: IngestSettings, names: tuple[str, ...]) -> StudyMonitor:
    """Return the monitor of the studies; raise :class:`StoreError` if the store or a named study is missing."""
    from fedping.model_store.store import open_store
    from fedping.server_jobs.health.snapshot import StudyMonitor

    store = open_store(places.store)
    for name in names:
        store.study(name)
    return StudyMonitor(places)


def _show_health(name: str, judgement: Judgement, as_json: bool) -> None:
    declared, judged = judgement
    if as_json:
        from fedping.server_jobs.health.monitor import payload

        click.echo(msgspec.json.encode(payload(name, declared, judged)).decode())
        return
    click.echo(f"{name}: {judged.headline}")
    for one in judged.findings:
        click.echo(f"  {one.severity}: {one.sentence}")
    for staged in judged.staged:
        click.echo(f"  {staged.sentence}")


def _log_health(name: str, judgement: Judgement) -> None:
    levels: dict[str, Level] = {"problem": "error", "warning": "warning"}
    _, judged = judgement
    tell(judged.headline, levels.get(judged.verdict, "info"), study=name, verdict=judged.verdict)
    for one in judged.findings:
        tell(one.sentence, levels[one.severity], study=name, finding=one.name)


@study.command()
@click.argument("name")
@click.argument("client_id", type=ClientId())
@store_option
def arm(name: str, client_id: UUID, store_path: Place) -> None:
    """Print the arm of study NAME that hash enrolment assigns to CLIENT_ID."""
    from fedping.model_store.store import open_store
    from fedping.protocol.enrolment import enrol

    enrolled = enrol(open_store(store_path).study(name), str(client_id))
    click.echo(enrolled.name if enrolled else "not enrolled: the client is outside the arms' shares")


@study.command(name="ticket-key")
@click.argument("file", type=LocalPath(dir_okay=False))
def ticket_key(file: Path) -> None:
    """Add a new ticket key to FILE, which is created if it does not exist.

    Tickets of the previous key are still accepted; those of earlier keys are rejected. Ingest reloads the file by
    itself. A new file is readable only by its owner; an existing one keeps its permissions. Keep it out of the store,
    and away from people who don't create tickets.
    """
    from fedping.protocol.tickets import keys_text, read_keys, with_new_key

    keys = with_new_key(read_keys(file) if file.exists() else (), f"{int(time.time()):x}")
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as sink:
            if file.exists():  # otherwise ingest could no longer read it, and would reject the new tickets
                before = file.stat()
                os.fchown(sink.fileno(), before.st_uid, before.st_gid)
                os.fchmod(sink.fileno(), stat.S_IMODE(before.st_mode))
            sink.write(keys_text(keys))
            sink.flush()
            os.fsync(sink.fileno())
        os.replace(unfinished, file)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise FedpingError(f"cannot write the ticket keys {file}: {error.strerror}; correct the path") from error
    kept = f"; those of key {keys[1].name} stay valid" if len(keys) > 1 else ""
    click.echo(f"{file}: new tickets use key {keys[0].name}{kept}")


@study.command(name="ticket")
@click.argument("name")
@click.argument("client_ids", nargs=-1, required=True, type=ClientId())
@click.option(
    "--keys",
    type=LocalPath(dir_okay=False),
    required=True,
    envvar="FEDPING_TICKET_KEYS",
    show_envvar=True,
    help="File of keys.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=365,
    show_default=True,
    help=("Number of days until the tickets expire."),
)
def ticket_(name: str, client_ids: tuple[UUID, ...], keys: Path, days: int) -> None:
    """Print tickets of CLIENT_IDS for study NAME, one per line. Usually a product creates them when a client enrols."""
    from fedping.protocol.tickets import read_keys, ticket

    key, *_ = read_keys(keys)
    expires = int(time.time()) + days * 86_400
    for client_id in client_ids:
        click.echo(ticket(key, name, client_id, expires))


def _described(the_study: Study) -> str:
    rows = [f"study '{the_study.name}', {the_study.pings} pings"]
    for one in the_study.arms:
        words = ("applies", "submits", "decays", "personal")
        does = [word for word in words if getattr(one, word)]
        follows = f"follows {one.line}" if one.line else "follows no line"
        rows.append(f"  arm {one.name:<20} {one.share:>6.1%}  {follows}  {' '.join(does)}".rstrip())
    rows += (f"  {sentence}" for sentence in _limits(the_study))
    for line in the_study.lines:
        votes = VOTES[line.pipeline.weighting]
        if (most := line.pipeline.most_votes) is not None:
            votes += f" and {most:,} a client at most"
        steps = f"{_optimizer(line.pipeline.optimizer)} on {_aggregate(line.pipeline.aggregate)}"
        rows.append(
            f"  line {line.name}: {line.spec.model}, {line.spec.m} weights, {steps}, one vote {votes}, at least "
            f"{format_count(line.pipeline.min_clients, 'client')} a round"
        )
        rows += (
            f"    {sentence}"
            for sentence in (
                *_own(line),
                *_sent(line),
                *_rows(the_study, line),
                *_safeguards(line),
                *_guarantee(line),
                *_ending(line),
            )
        )
    return "\n".join(rows)


def _limits(the_study: Study) -> Iterator[str]:
    """Yield descriptions of the type of a study's pings, and of the limits of their values."""
    if the_study.shards != SHARDS:
        yield f"a round divides the clients into {the_study.shards:,} shards, so it runs at most that many tasks"
    if the_study.enrolment == "hash":
        yield "the hash of a client's id decides its arm; pings of another arm are rejected"
    if the_study.tickets == "required":
        yield "pings without a ticket are rejected"
    if (limits := the_study.limits) is not None:
        if limits.loss is not None:
            yield f"a loss is accepted from {limits.loss[0]:,.9g} to {limits.loss[1]:,.9g}"
        if limits.clip_loss is not None:
            yield f"a loss is clipped to {limits.clip_loss[0]:,.9g} to {limits.clip_loss[1]:,.9g}"
        if limits.rank is not None:
            yield f"a selected rank is accepted up to {limits.rank:,}"
        if limits.examples is not None:
            yield f"a ping counts as at most {limits.examples:,} examples"
        if limits.round_tails:
            share = _percent(limits.round_tails)
            yield f"rounds trim {share} of the clients at either end of an arm's losses and ranks"
    if declared := ", ".join(outcome.in_words for outcome in at_choice(the_study.outcomes)):
        yield f"clients report with a choice: {declared}"
    if declared := ", ".join(f"{one.in_words} within {one.within}" for one in later(the_study.outcomes)):
        yield f"clients report later: {declared}"


def _own(line: Line) -> Iterator[str]:
    """Yield a description of the private state of a line's clients, if any."""
    if (personal := getattr(line.training, "personal", None)) is not None:
        begins = f" from version {since:,} on" if (since := getattr(personal, "from_version", 0)) else ""
        yield f"clients of personal arms keep private state: {personal.__struct_config__.tag}{begins}"


def _sent(line: Line) -> Iterator[str]:
    """Yield descriptions of the share of clients that send updates, if not all do, and of their upload links.

    The link of a private line follows from its guarantee, whose sentence describes it.
    """
    if line.participation < 1:
        yield f"{_percent(line.participation)} of the clients send an update of a version, selected by their ids"
    if line.upload and line.privacy is None:
        yield f"updates are encoded by {in_words(line.upload)}"


def _rows(the_study: Study, line: Line) -> Iterator[str]:
    """Yield a description of the participation of institutions with tables in a line, if they can take part."""
    from fedping.protocol.ping import MODEL_UPDATE
    from fedping.protocol.row_privacy import (
        EPSILON,
        GRADIENT_MODELS,
        TABLE_MODELS,
        VERSIONS,
        noise_of_gradient,
        steps_on_rows,
        why_unprotected,
    )

    if the_study.pings != MODEL_UPDATE.name or line.spec.model not in TABLE_MODELS or line.privacy is not None:
        return
    if (why := why_unprotected(line.training)) is not None:
        yield f"institutions with tables must accept that rows can be reconstructed: {why}"
        return
    yield f"institutions with tables protect each row, by default with epsilon {EPSILON:g} over all versions"
    if line.spec.model in GRADIENT_MODELS:
        steps = steps_on_rows(line.training)
        noise = [noise_of_gradient(rows, VERSIONS, steps) for rows in (300, 3000)]
        of = "each of its steps" if steps > 1 else "its gradient, clipped to norm 1 a row"
        yield (
            f"noise on each number of {of}, where {VERSIONS} versions share the budget: {noise[0]:.2g} with 300 rows, "
            f"{noise[1]:.2g} with 3,000"
        )


def _safeguards(line: Line) -> Iterator[str]:
    """Yield descriptions of the settings that limit the effect of a single client on a line."""
    if line.limits is not None and line.limits.weight is not None:
        yield f"an update with a number beyond {line.limits.weight:,.9g} is rejected"
    if line.limits is not None and line.limits.norm is not None:
        yield f"an update with a norm above {line.limits.norm:,.9g} is rejected"
    clip = line.pipeline.clip
    if isinstance(clip, ClipByNorm):
        yield f"updates are clipped to norm {clip.norm:g}"
    elif isinstance(clip, ClipByQuantile):
        times = "" if clip.multiple == 1 else f"{clip.multiple:g} times "
        longer = "longer, in the weights' first steps," if clip.units == "step" else "longer"
        yield f"an update {longer} than {times}the {clip.quantile:g} quantile of the previous round is clipped to it"
    if line.pipeline.bucketing is not None:
        yield f"updates are averaged in random groups of {line.pipeline.bucketing:,} clients before aggregation"
    if (quorum := line.pipeline.quorum) is not None:
        yield f"a weight changes only if more than {quorum.decides:.4g} of the votes could have moved it"
    if line.guard is not None and line.guard.enabled:
        yield "a version that raises an alarm is held until an operator decides"
        if (rail := line.guard.guardrail) is not None:
            from fedping.protocol.guard import CLAIMED

            metric = rail.metric.replace("_", " ")
            above = (
                f"was more than {rail.most:g} times the control's"
                if rail.metric in CLAIMED
                else f"was worse than the control's by a factor of more than {rail.most:g}"
            )
            yield (
                f"the line is rolled back when its {metric} {above} for "
                f"{rail.rounds:,} round{'' if rail.rounds == 1 else 's'} in a row"
            )
        if (stage := line.guard.stage) is not None:
            yield (
                f"a version goes to {100 * stage.share:g} % of clients first, and to all after {stage.clients:,} "
                f"clients on each side have reported, if its loss is at most {stage.most:g} times the others'"
            )


def _optimizer(optimizer: Optimizer) -> str:
    """Return the optimizer in words."""
    if isinstance(optimizer, OwnOptimizer):
        return f"the extension '{optimizer.name}'"
    return type(optimizer).__name__


def _aggregate(aggregate: Combination) -> str:
    """Return the aggregation of a round's updates in words."""
    match aggregate:
        case Mean():
            return "the mean of the updates"
        case MeanOfSigns():
            return "the mean of the updates' signs"
        case Median():
            return "the median of each weight"
        case TrimmedMean(share=share):
            return f"the mean of each weight without {_percent(share)} of the votes at either end"
        case GeometricMedian():
            return "the geometric median of the updates"
        case Krum(hostile=hostile, keep=keep):
            nearest = "the update" if keep == 1 else f"the mean of the {keep:,} updates"
            return f"{nearest} nearest to the others (Krum, of up to {_percent(hostile)} hostile)"
        case CenteredClip(radius=radius):
            return f"the mean of the updates, each clipped to {radius:g} around the last direction"
        case Recluster():
            return "the clients' centroids, clustered again"
    return f"the aggregation of the extension '{aggregate.name}'"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def _guarantee(line: Line) -> Iterator[str]:
    """Yield sentences that describe the guarantee of a private line."""
    from fedping.protocol.row_privacy import EPSILON, mu_of, usual_delta

    if line.privacy is None:
        return
    if (central := line.privacy.central) is not None:
        noise = (
            ""
            if central.noise_multiplier is None
            else (f", with noise of {central.noise_multiplier:.4g} times the bound")
        )
        yield f"epsilon {central.epsilon:g} at delta {central.delta:g} for {central.rounds:,} rounds together{noise}"
        if central.sampling < 1:
            yield f"each round samples {100 * central.sampling:g} % of the clients in secret: rounds need the key"
    if (local := line.privacy.local) is not None:
        yield f"epsilon {local.epsilon:g} for each contribution, with noise that clients add"
    if (shared := line.privacy.shared) is not None:
        yield (
            f"clients send shares; the helper {shared.helper[:16]}… sums those of at least {shared.min_batch:,} "
            f"clients of an arm, sealed by {shared.seal}"
        )
        if (rows := line.privacy.rows) is not None:
            yield (
                f"each row of an institution's table is protected in their sum by noise of {rows.noise:g} times its "
                f"norm, as long as at most {rows.colluding:,} of {shared.min_batch:,} collude with the operator"
            )
            few, many = (int((mu_of(EPSILON, usual_delta(n)) * rows.noise) ** 2) for n in (300, 3_000))
            yield (
                f"with epsilon {EPSILON:g} for a table, that is enough for {few:,} versions with 300 rows, and for "
                f"{many:,} with 3,000"
            )
        if shared.proofs:
            yield "clients prove that they send only votes"
        else:
            yield "shares come without proof, so one client can move the model at will"


def _ending(line: Line) -> Iterator[str]:
    """Yield descriptions of the conditions that end a line's iterations and training, as far as set."""
    length, rule = line.length, line.early_stopping
    if isinstance(length, IterationByTime):
        yield f"an iteration lasts {length.minutes:,g} minutes"
    elif length is not None:
        until = (
            f"{length.clients:,} clients have sent a usable update"
            if isinstance(length, IterationByClients)
            else f"the signs of {100 * length.share:g} % of the weights are stable"
        )
        yield f"an iteration lasts until {until}, from {length.least:,g} to {length.most:,g} minutes"
    if rule is not None:
        rise = f", or is {100 * rule.rise:g} % above the lowest" if rule.rise is not None else ""
        yield f"training stops when the loss of {rule.arm} has not been lower for {rule.patience:,} versions{rise}"
