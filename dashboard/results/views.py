"""The addresses of the Results page (listed in docs/reference.md), and its CSV files, which have all digits."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from flask import Blueprint, Response, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from fedping.analysis.private import PrivateResult, private_result
from fedping.analysis.report.rows import LIFT_HEADS
from fedping.analysis.study.metrics import window_folders
from fedping.analysis.verdict import all_pairs, plan_of
from fedping.dashboard.answers import as_file, as_json, unknown_study
from fedping.dashboard.changes.recording import changed
from fedping.dashboard.results.counts import Count, CountFeed, Counts, UnknownCount, landed_since
from fedping.dashboard.results.effects import AT_ONCE, NAMES, Selection, effects_of, headline
from fedping.dashboard.results.landed import Watch
from fedping.dashboard.results.page import Page, View, page_of
from fedping.dashboard.results.question import (
    asked_by,
    by_fields,
    chosen_pairs,
    fields_of,
    first_question,
    given_fields,
    key_of,
    query_of,
)
from fedping.dashboard.settings import DashboardSettings, Services
from fedping.model_store.store import StoreError, open_store
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.study import Study

FOLDER = "results"
"""The folder of the counts, in the folder of the runs."""

MOST_DIGITS = 10
"""Maximum number of digits of a row's position in an address."""


def blueprint(services: Services) -> Blueprint:
    """Return the views of the Results page."""
    pages = Blueprint(
        "results",
        __name__,
        url_prefix="/results",
        template_folder="templates",
        static_folder="static",
        static_url_path="/page/static",
    )
    pages.add_app_template_filter(by_fields, "by_fields")
    results = Results(services)
    pages.add_url_rule("/", "index", results.index)
    pages.add_url_rule("/<study>/", "study", results.study)
    pages.add_url_rule("/<study>/feed", "feed", results.feed)
    pages.add_url_rule("/<study>/count", "count", results.ask, methods=["POST"])
    pages.add_url_rule("/<study>/stop", "stop", results.stop, methods=["POST"])
    pages.add_url_rule("/<study>/document.json", "document", results.document)
    pages.add_url_rule("/<study>/comparisons.csv", "comparisons", results.comparisons)
    pages.add_url_rule("/<study>/sizes.csv", "sizes", results.sizes)
    pages.add_url_rule("/<study>/effects.json", "effects", results.effects)
    return pages


class Results:
    """The views of the Results page."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self._services = services
        self._counts = Counts(settings.runs / FOLDER, settings.store, settings.landing)
        self._watch = Watch(settings.landing)

    def index(self) -> AnyResponse | str:
        """Redirect to the only study, or list the studies."""
        try:
            studies = open_store(self._settings.store).studies.names()
        except StoreError as error:
            return render_template("results/index.html", studies=[], sentence=str(error))
        if len(studies) == 1:
            return redirect(url_for("results.study", study=studies[0]))
        newest = {study: self._newest(study) for study in studies}
        private, damaged = set[str](), dict[str, str]()
        for study in studies:
            try:
                if self._study(study).is_private:
                    private.add(study)
            except FedpingError as error:
                damaged[study] = str(error)
        given = {"studies": newest, "private": private, "damaged": damaged, "sentence": None, "headline": headline}
        return render_template("results/index.html", **given)

    def study(self, study: str) -> AnyResponse | str:
        """Show a question and its newest count; without a question, redirect to the most recently counted one."""
        about = self._study(study)
        if about.is_private:
            return render_template("results/private.html", result=_private(self._settings, about), about=about)
        fields, id = given_fields(request.args.to_dict(flat=False)), request.args.get("count")
        if not fields and id is None:
            newest = self._newest(study)
            if newest is not None:
                return redirect(self._address(study, query_of(newest.asked, about)))
        try:
            all_pairs(about)
        except InvalidSettings as error:
            return render_template("results/index.html", studies=[], sentence=str(error))
        fields = fields or fields_of(first_question(about), about)
        return self._render(page_of(self._counts, about, fields, id, View.of(request.args)), pinned=id is not None)

    def ask(self, study: str) -> AnyResponse | tuple[str, int]:
        """Request a count of a question; if the question is invalid, show the form again, with the reason."""
        about = self._study(study)
        if about.is_private:
            raise InvalidSettings(
                f"study '{study}' is private, and its pings are deleted, so they can't be counted; 'fedping analyze' "
                "shows its releases"
            )
        fields = given_fields(request.form.to_dict(flat=False))
        try:
            fields = chosen_pairs(request.form.to_dict(flat=False), about)
            asked = asked_by(fields, about)
            plan_of(about, asked)
            window_folders(self._settings.landing, about, asked.window)
        except FedpingError as error:
            return self._render(Page(about, fields, None), wrong=str(error)), 400
        count = self._counts.ask(about, asked)
        changed(after=f"count {count.id}: {query_of(asked, about)}")
        return redirect(self._address(study, query_of(asked)), 303)

    def stop(self, study: str) -> AnyResponse:
        """Stop a count."""
        about = self._study(study)
        count = self._counts.count(study, request.form.get("count", ""))
        self._counts.stop(study, count.id)
        changed(before=f"count {count.id}: {count.state}", after="stopped")
        return redirect(self._address(study, query_of(count.asked, about)), 303)

    def feed(self, study: str) -> Response:
        """Send the state of a question's count, and the number of pings landed since the count that is shown."""
        about, shown = self._study(study), request.args.get("shown") or None
        if shown is not None:
            key = self._counts.count(study, shown).key
        else:
            key = key_of(asked_by(given_fields(request.args.to_dict(flat=False)), about))
        return self._services.streams.answer(CountFeed(study, key, shown, about, self._counts, self._watch))

    def document(self, study: str) -> Response:
        """Return the document as `fedping analyze --json` printed it, bit for bit."""
        if (about := self._study(study)).is_private:
            return as_json(_private(self._settings, about))
        return as_file(self._chosen(study).printed, "application/json", f"{study}.json", kept=False)

    def effects(self, study: str) -> Response:
        """Return rows of a metric's effects: the results of a search, from a position on."""
        view, first = View.of(request.args), request.args.get("from", "0")
        if not (first.isascii() and first.isdigit() and len(first) < MOST_DIGITS):
            raise InvalidSettings(f"'from' must be the position of a row, a whole number from 0, not '{first[:80]}'")
        selection = Selection(view.find, int(first), AT_ONCE)
        found = effects_of(self._chosen(study).document, selection, request.args.get("metric", ""))
        if not found:
            raise UnknownCount(f"this count has no metric '{request.args.get('metric', '')[:80]}'")
        return as_json(found[0])

    def comparisons(self, study: str) -> Response:
        """Return the comparisons as CSV."""
        return as_file(comparisons_csv(self._chosen(study).document), "text/csv", f"{study}-comparisons.csv")

    def sizes(self, study: str) -> Response:
        """Return the sizes of the arms as CSV."""
        return as_file(sizes_csv(self._chosen(study).document), "text/csv", f"{study}-sizes.csv")

    @property
    def _settings(self) -> DashboardSettings:
        return self._services.settings

    def _study(self, name: str) -> Study:
        """Return a study that the store lists, so that a name in an address is never used as a path."""
        store = open_store(self._settings.store)
        studies = store.studies.names()
        if name not in studies:
            raise unknown_study(name, studies)
        return store.study(name)

    def _newest(self, study: str) -> Count | None:
        return next((one for one in self._counts.of(study) if one.state == "finished"), None)

    def _chosen(self, study: str) -> Count:
        """Return the count that a data address names, by its id or by its question."""
        fields = given_fields(request.args.to_dict(flat=False))
        count = page_of(self._counts, self._study(study), fields, request.args.get("count")).count
        if count is None:
            raise UnknownCount(f"study '{study}' has no results for these settings; press Count on its Results page")
        return count

    def _address(self, study: str, query: str) -> str:
        return f"{url_for('results.study', study=study)}?{query}"

    def _render(self, page: Page, *, pinned: bool = False, wrong: str | None = None) -> str:
        since = None if page.count is None else landed_since(self._watch, page.study, page.count)
        return render_template(
            "results/study.html",
            page=page,
            pinned=pinned,
            wrong=wrong,
            since=since,
            studies=open_store(self._settings.store).studies.names(),
            query_of=query_of,
            fields_of=fields_of,
            lift_heads=LIFT_HEADS,
            scale_names=NAMES,
        )


def _private(settings: DashboardSettings, study: Study) -> PrivateResult:
    return private_result(open_store(settings.store), study)


Document: TypeAlias = Mapping[str, Any]

_BOUNDS = ("value", "low", "high", "confidence")


def comparisons_csv(document: Document) -> str:
    """Return one row per comparison; docs/reference.md describes the columns."""
    return _csv([_comparison(one, document) for one in document["comparisons"]])


def sizes_csv(document: Document) -> str:
    """Return one row per arm."""
    return _csv([_size(name, arm, document) for name, arm in document["arms"].items()])


_NOTHING = dict.fromkeys(_BOUNDS)
_NO_PINGS: Document = {
    **dict.fromkeys(("n", "means"), (None, None)),
    "difference": _NOTHING,
    **dict.fromkeys(("percent", "p", "log10_p")),
}
"""The empty values per ping of a later outcome, which has no pings."""

_NO_MEANS: Document = {
    **dict.fromkeys(("n", "means"), (None, None)),
    **dict.fromkeys(("difference", "lift"), _NOTHING),
    **dict.fromkeys(("no_interval", "cap", "adjustment", "fragility_by_the_largest")),
}
"""The empty means of a document by an older version of fedping."""


def _comparison(one: Document, document: Document) -> dict[str, Any]:
    clients, pings = one["per_client"], one["per_ping"] or _NO_PINGS
    means = one.get("means") or _NO_MEANS
    first, second = one["pair"]
    return {
        "study": document["study"],
        "window": document["window"],
        "interim": document["interim"],
        "metric": one["metric"],
        "role": one["role"],
        "first": first,
        "second": second,
        "finding": one["finding"],
        "worse": one["worse"],
        "fragility": one.get("fragility"),
        **_sides("clients", clients["n"]),
        **_sides("mean", clients["means"]),
        **_estimate("difference", clients["difference"]),
        "tails": clients.get("tails"),
        **_sides("untrimmed_mean", clients.get("untrimmed_means") or (None, None)),
        **_estimate("untrimmed_difference", clients.get("untrimmed_difference") or dict.fromkeys(_BOUNDS)),
        "p": clients["p"],
        "log10_p": clients["log10_p"],
        "p_bonferroni": clients["p_bonferroni"],
        "log10_p_bonferroni": clients["log10_p_bonferroni"],
        "p_holm": clients["p_holm"],
        "log10_p_holm": clients["log10_p_holm"],
        **_estimate("superiority", clients["superiority"]),
        **_estimate("shift", clients["hodges_lehmann"]),
        **_estimate("anytime", one["anytime_valid"] or dict.fromkeys(_BOUNDS)),
        "decides_scale": (one.get("decides") or {}).get("scale"),
        **_estimate("decides", one.get("decides") or dict.fromkeys(_BOUNDS)),
        "percent": one.get("percent"),
        **_sides("pings", pings["n"]),
        **_sides("ping_mean", pings["means"]),
        **_estimate("ping_difference", pings["difference"]),
        "ping_percent": pings.get("percent"),
        "ping_p": pings["p"],
        "ping_log10_p": pings["log10_p"],
        **_sides("effect_clients", means["n"]),
        **_sides("effect_mean", means["means"]),
        **_estimate("effect", means["difference"]),
        **_estimate("lift", means["lift"]),
        "lift_no_interval": means["no_interval"],
        "cap": (means["cap"] or {}).get("value"),
        "adjusted": means["adjustment"] is not None,
        "fragility_by_the_largest": means["fragility_by_the_largest"],
    }


def _size(name: str, arm: Document, document: Document) -> dict[str, Any]:
    used = used_of(arm)
    means = {
        f"{metric}_per_{unit}": values[f"per_{unit}"]
        for metric, values in arm["means"].items()
        for unit in ("client", "ping", "client_untrimmed")
        if f"per_{unit}" in values
    }
    return {
        "study": document["study"],
        "window": document["window"],
        "arm": name,
        "enrolled": arm["enrolled"],
        "clients": arm["clients"],
        "clients_expected": document["sample_ratio"]["expected"][name],
        "exposed": arm["exposed"],
        "pings": arm["pings"],
        used: arm[used],
        **means,
    }


def used_of(arm: Document) -> str:
    """Return the key of an arm's number of counted pings, which depends on the pings' type."""
    return next(name for name in ("with_examples", "choices", "selections") if name in arm)


def _sides(name: str, values: Sequence[float | None]) -> dict[str, float | None]:
    return {f"{name}_first": values[0], f"{name}_second": values[1]}


def _estimate(name: str, estimate: Document) -> dict[str, Any]:
    named = {"value": name, **{bound: f"{name}_{bound}" for bound in _BOUNDS[1:]}}
    return {column: estimate[bound] for bound, column in named.items()}


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV (RFC 4180); floats have the fewest digits that restore them, booleans are as in JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _plain(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value
