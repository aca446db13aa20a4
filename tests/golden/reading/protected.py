"""Reads the state of institutions that protect their rows: they continue from it, with unchanged ledgers."""

import json
from pathlib import Path
from typing import Any

from tests.golden.reading.clients import answered
from tests.golden.reading.common import answers, command, digest
from tests.golden.reading.server import serving

INSTITUTIONS = {"waiting": ("tumours", 2), "changed": ("tumours", 1), "holding": ("held", 1)}
"""The study and the number of further rounds, by name of the folder and its table."""

OF_NOW = ("ledger", "head", "time")
"""Keys whose values depend on the folder's path and on the time of continuing."""


def join_options(folder: Path, name: str) -> list[object]:
    """Return the options of an institution in a folder."""
    table = ["--data", folder / f"{name}.csv", "--columns", folder / "columns.toml", "--state", folder / name]
    held_out = ["--hold-out", "0.25"] if name == "holding" else []
    return [INSTITUTIONS[name][0], *table, *held_out, "--every", "0.1s", "--yes", "--json"]


def read(folder: Path) -> dict[str, Any]:
    told = {
        name: {
            "heads": [each["head"] for each in answers("join", "ledger", folder / f"{name}.csv")],
            "ledger": _ledger(folder, name),
        }
        for name in (*INSTITUTIONS, "told")
    }
    return {"before": told, "after": {name: _goes_on(folder, name) for name in INSTITUTIONS}}


def _goes_on(folder: Path, name: str) -> dict[str, Any]:
    waiting = folder / name / "waiting.json"
    waits = json.loads(waiting.read_bytes())["document_id"] if waiting.exists() else ""
    with serving(folder / "store", newest=2) as server:
        options = [*join_options(folder, name), "--rounds", INSTITUTIONS[name][1], "--for", "90s"]
        code, out, err = command("join", server.url, *options)
        assert code == 0, err
    return {
        "waits": waits,
        "posted": {key: _shape(body) for key, body in server.bodies.items()},
        "bytes": digest(server.bodies[waits]) if waits else "",
        "told": [_figures(json.loads(line)["consent"]) for line in out.splitlines()],
        "ledger": _ledger(folder, name),
        "sent": [(line["version"], line["outcome"]) for line in answered(folder / name / "sent.ndjson")],
        "progress": json.loads((folder / name / "progress.json").read_bytes()),
        "consent": json.loads((folder / name / "joined.json").read_bytes())["consent"],
    }


def _figures(consent: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a consent, without its words."""
    return {key: value for key, value in consent.items() if key != "sentences"}


def _ledger(folder: Path, name: str) -> list[Any]:
    """Return the charges of a ledger."""
    return answers("join", "ledger", folder / f"{name}.csv", without=OF_NOW)


def _shape(body: bytes) -> dict[str, Any]:
    """Return a ping without its noisy values, which another version of the program draws differently."""
    payload = json.loads(body)["payload"]
    update, confusion = payload.pop("update"), payload.pop("confusion", None)
    payload.pop("loss")
    return {**payload, "numbers": update and len(update), "cells": confusion and len(confusion)}
