"""A shop: a study of lists with outcomes of every kind, at the choice and later, and its pings as plain JSON."""

import json
import uuid
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fedping.protocol.outcomes import CategoryOutcome, CountOutcome, FlagOutcome, NumberOutcome, Outcome, linked_id
from fedping.protocol.study import Study
from tests.support.ingest_app import IngestApp
from tests.support.versions import small_study

SHOP = "shop"
LISTS = f"/submit/{SHOP}/list-update/1"
LATER = f"/submit/{SHOP}/outcome/1"
CLIENT = "2a3f7f1e-7a52-4d54-9a5e-0d8f3a9d4c11"
M = 3

AT_CHOICE: tuple[Outcome, ...] = (
    FlagOutcome(name="basket"),
    CountOutcome(name="opened", most=20),
    NumberOutcome(name="seconds", low=0.0, high=600.0, round=0.5),
    CategoryOutcome(name="device", values=("phone", "desktop", "2026-11-26")),
)
AFTER: tuple[Outcome, ...] = (
    NumberOutcome(name="paid", low=0.0, high=500.0, round=0.01, within="48h", linked=True),
    FlagOutcome(name="returned", within="14d"),
)


def shop_study(*outcomes: Outcome) -> Study:
    """Return the shop's study, with the given outcomes in place of its own."""
    return replace(small_study(SHOP, m=M), pings="list-update", outcomes=outcomes or AT_CHOICE + AFTER)


def list_json(**payload: Any) -> dict[str, Any]:
    """Return a ping of a list, with the given payload fields replaced."""
    own = {"model_version": 0, "study_variation": "treatment", "update": [0.5] * M, "loss": 1.5}
    own |= {"place": 2, "candidates": 8, "seen": 5}
    return {"clientId": CLIENT, "type": "list-update", "payload": own | payload}


def outcome_json(**payload: Any) -> dict[str, Any]:
    """Return a ping of a later outcome, with the given payload fields added."""
    own = {"model_version": 0, "study_variation": "treatment", "age": 5}
    return {"clientId": CLIENT, "type": "outcome", "payload": own | payload}


def paid_json(choice: str, amount: float = 49.9, **payload: Any) -> tuple[dict[str, Any], str]:
    """Return a ping of the linked outcome, and its document id."""
    return outcome_json(choice=choice, paid=amount, **payload), str(linked_id(uuid.UUID(choice), "paid"))


def post(ingest: IngestApp, ping: dict[str, Any], document: str | None = None) -> tuple[int, str]:
    """Post a ping of the shop; return the status and the reason, empty if it was accepted."""
    path = LATER if ping["type"] == "outcome" else LISTS
    answer = ingest.post(f"{path}/{document or uuid.uuid4()}", json.dumps(ping).encode())
    return answer.status_code, answer.json.get("error", "")


def outcome_paths(landing: Path) -> list[Path]:
    """Return the landed files of later outcomes."""
    return sorted(landing.glob("_outcomes/study=*/day=*/*.parquet"))
