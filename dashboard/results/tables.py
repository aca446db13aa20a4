"""The document of an analysis as CSV: one row per comparison, or per arm. Numbers keep all their digits."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Document: TypeAlias = Mapping[str, Any]

_BOUNDS = ("value", "low", "high", "confidence")


def comparisons_csv(document: Document) -> str:
    """Return one row per comparison; docs/reference.md describes the columns."""
    return _csv([_comparison(one, document) for one in document["comparisons"]])


def sizes_csv(document: Document) -> str:
    """Return one row per arm."""
    return _csv([_size(name, arm, document) for name, arm in document["arms"].items()])


def _comparison(one: Document, document: Document) -> dict[str, Any]:
    clients, pings = one["per_client"], one["per_ping"]
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
    """Return the name under which an arm has its number of counted pings, which depends on their type."""
    return "with_examples" if "with_examples" in arm else "selections"


def _sides(name: str, values: Sequence[float | None]) -> dict[str, float | None]:
    return {f"{name}_first": values[0], f"{name}_second": values[1]}


def _estimate(name: str, estimate: Document) -> dict[str, Any]:
    named = {"value": name, **{bound: f"{name}_{bound}" for bound in _BOUNDS[1:]}}
    return {column: estimate[bound] for bound, column in named.items()}


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as in RFC 4180; a float has the fewest digits that restore it, true and false are as in JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _plain(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value
