"""The conformance vectors of outcomes: values within bounds, ages, document ids, and whole pings."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec

from fedping.protocol.outcomes import (
    CategoryOutcome,
    CountOutcome,
    FlagOutcome,
    NumberOutcome,
    Outcome,
    age_hours,
    at_choice,
    later,
    linked_id,
    unlinked_id,
)
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, Study, public_json, public_study
from tests.conformance.draw import Draw

HOUR = 3_600_000
OUTCOMES: tuple[Outcome, ...] = (
    FlagOutcome(name="basket"),
    CountOutcome(name="opened", most=20),
    NumberOutcome(name="seconds", low=0.0, high=600.0, round=0.5),
    NumberOutcome(name="rating", low=-1.0, high=1.0, round=0.1),
    CategoryOutcome(name="device", values=("phone", "desktop", "télé")),
    NumberOutcome(name="paid", low=0.0, high=500.0, round=0.01, within="48h", linked=True),
    FlagOutcome(name="returned", within="14d"),
)
_VALUES: dict[str, list[Any]] = {
    "basket": [True, False],
    "opened": [0, 1, 20, 21, -4, 2.5, 3.4999, 1e12],
    "seconds": [0, 0.24, 0.25, 12.74, 12.75, 599.8, 600, 1e9, -3],
    "rating": [-2, -1, -0.95, -0.05, 0.04, 0.05, 0.34999, 0.35, 1, 3],
    "device": ["phone", "télé", "Phone", "", "tv"],
    "paid": [0, 0.004, 0.005, 0.07, 0.285, 0.29, 0.57, 49.9, 499.999, 500, 731.4],
    "returned": [True, False],
}


def study_of_outcomes() -> Study:
    """Return a shop with outcomes of every kind."""
    weights = tuple(Weight(name=f"w{i}", start=1.0, step=Step(start=1, min=0.1, max=3)) for i in range(3))
    line = Line(name="main", spec=ModelSpec(name="shop", model="linear-15", weights=weights))
    arms = (
        Arm(name="treatment", share=0.5, line="main", applies=True, submits=True),
        Arm(name="control", share=0.5, line="main"),
    )
    return Study(name="shop", pings="list-update", arms=arms, lines=(line,), outcomes=OUTCOMES)


def outcomes() -> dict[str, Any]:
    """Return a study, and a client's data for each of its outcomes."""
    draw = Draw(2061)
    return {
        "study": msgspec.json.decode(public_json(public_study(study_of_outcomes()))),
        "clipped": [
            {"outcome": outcome.name, "value": value, "sent": outcome.clipped(value)}
            for outcome in OUTCOMES
            for value in _VALUES[outcome.name]
        ],
        "ids": list(_ids(draw)),
        "ages": [
            {"chosen": chosen, "at": at, "age": age_hours(chosen, at)}
            for chosen in (0, 1_790_000_000_000)
            for at in (chosen, chosen + HOUR - 1, chosen + HOUR, chosen + 48 * HOUR - 1, max(0, chosen - 5 * HOUR))
        ],
        "lists": list(_lists(draw)),
        "later": list(_later(draw)),
    }


def _ids(draw: Draw) -> Iterator[dict[str, Any]]:
    for _ in range(4):
        choice, secret = draw.uuid(), draw.uuid()
        yield {"choice": choice, "column": "paid", "id": str(linked_id(UUID(choice), "paid"))}
        found = unlinked_id(UUID(secret), UUID(choice), "returned")
        yield {"choice": choice, "secret": secret, "column": "returned", "id": str(found)}


def _observed(draw: Draw) -> dict[str, Any]:
    return {
        outcome.name: _VALUES[outcome.name][draw.whole(0, len(_VALUES[outcome.name]) - 1)]
        for outcome in at_choice(OUTCOMES)
        if draw.chance(0.8)
    }


def _lists(draw: Draw) -> Iterator[dict[str, Any]]:
    kinds = {outcome.name: outcome for outcome in OUTCOMES}
    for number in range(12):
        candidates = draw.whole(1, 20)
        place = draw.whole(0, candidates) if number else 0
        shown: dict[str, Any] = {"place": place, "candidates": candidates, "seen": draw.whole(place, candidates)}
        shown |= {"swapped": True} if number % 3 == 0 else {}
        shown |= {"pinned": draw.chance(0.3)} if place and number % 2 else {}
        submits = number % 4 != 3
        update = [draw.whole(-8, 8) / 4 for _ in range(3)] if place else [0.0] * 3
        learned = {"loss": draw.whole(1, 40) / 8 if place else 0.0, "update": update if submits else None}
        observed, client = _observed(draw), draw.uuid()
        sent = {name: kinds[name].clipped(value) for name, value in observed.items()}
        version = number - 1  # -1 is the version of a client that has fetched none
        payload = {"model_version": version, "study_variation": "treatment" if submits else "control"}
        payload |= learned | shown | {name: value for name, value in sent.items() if value is not None}
        yield {
            "client": client,
            "arm": payload["study_variation"],
            "version": version,
            "learned": learned,
            "shown": shown,
            "observed": observed,
            "ping": {"clientId": client, "type": "list-update", "payload": payload},
        }


def _later(draw: Draw) -> Iterator[dict[str, Any]]:
    chosen = 1_790_000_000_000
    for outcome in later(OUTCOMES):
        hours = outcome.hours or 0
        for at in (chosen + 1, chosen + 5 * HOUR, chosen + hours * HOUR - 1, chosen + hours * HOUR, chosen - HOUR):
            value = _VALUES[outcome.name][draw.whole(0, len(_VALUES[outcome.name]) - 1)]
            client, choice, secret = draw.uuid(), draw.uuid(), draw.uuid()
            age = age_hours(chosen, at)
            payload: dict[str, Any] = {"model_version": 3, "study_variation": "control", "age": age}
            payload |= {"choice": choice} if outcome.linked else {}
            payload |= {outcome.name: outcome.clipped(value)}
            name = UUID(choice), outcome.name
            yield {
                "client": client,
                "arm": "control",
                "version": 3,
                "choice": choice,
                "secret": secret,
                "chosen": chosen,
                "at": at,
                "column": outcome.name,
                "value": value,
                "id": str(linked_id(*name) if outcome.linked else unlinked_id(UUID(secret), *name)),
                "ping": {"clientId": client, "type": "outcome", "payload": payload} if age < hours else None,
            }
