"""Pages of a private study: canaries planted in its pings appear in no answer, file or log."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest

from fedping.model_store.decisions import rollback
from fedping.protocol.privacy import Central, Privacy
from fedping.protocol.study import Study
from fedping.server_jobs.privacy.budget import with_noise
from fedping.server_jobs.privacy.noise import SystemNoise
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.dashboard import dashboard_client
from tests.support.ingest_app import IngestApp, ingest_app
from tests.support.private import PATH, client_of, private_ping, private_study, vector
from tests.support.rounds import WHEN

COUNTS = {"treatment": 41, "control": 29}
"""Canaries: the number of clients in each arm, which is also the number of documents."""


@pytest.fixture
def study() -> Study:
    central = Central(epsilon=3, delta=1e-6, rounds=2, population=1000)
    return with_noise(private_study(privacy=Privacy(central=central)))


@pytest.fixture
def ingest(tmp_path: Path, study: Study, caplog: pytest.LogCaptureFixture) -> IngestApp:
    """Give an ingest with the pings of one version, landed and not yet in a round."""
    caplog.set_level(logging.DEBUG)
    app = ingest_app(tmp_path, others=(study,))
    for arm, clients in COUNTS.items():
        for number in range(clients):
            ping = private_ping(study, vector(study, [1.0, -2.0, 0.0, 3.0], loss=0.37), arm=arm, number=number)
            assert app.ping(ping, path=PATH).status_code == 200
    app.services.flush()
    return app


def planted(study: Study) -> list[bytes]:
    """Return the secret values: ids, as bytes and as text, and payloads."""
    ids = [client_of(study, arm, number) for arm, clients in COUNTS.items() for number in range(clients)]
    payload = vector(study, [1.0, -2.0, 0.0, 3.0], loss=0.37)
    return [payload, *(one.bytes for one in ids), *(form.encode() for one in ids for form in (str(one), one.hex))]


def told_by(folder: Path, operator: IngestApp) -> dict[str, str]:
    """Return every page, document and metric of the study, by its address."""
    visitor = dashboard_client(folder, journal=folder / "journal")
    live = "/live/private/main"
    addresses = [
        "/live/studies",
        "/live/private/privacy",
        "/live/private/privacy.json",
        *(
            f"{live}/{name}"
            for name in ("", "history.json", "history.csv", "versions/1.json", "refused.json", "clients.json")
        ),
        "/results/private/",
    ]
    told = {address: visitor.get(address).get_data(as_text=True) for address in addresses}
    stream = visitor.get(f"{live}/changes", headers={"Accept": "text/event-stream"})
    told["changes"] = next(iter(stream.response)).decode()  # type: ignore[union-attr]
    stream.close()
    told["/metrics"] = operator.operator.get("/metrics").get_data(as_text=True)
    return told


def test_no_page_metric_log_or_file_tells_what_was_planted(
    tmp_path: Path, study: Study, ingest: IngestApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = np.random.default_rng(1)
    monkeypatch.setattr(
        SystemNoise, "integers", lambda _, sigma, size: np.rint(draws.normal(0, sigma, size)).astype(np.int64)
    )
    counts = [*COUNTS.values(), sum(COUNTS.values())]
    exact = re.compile(rf"(?<![\d.\-+:e])(?:{'|'.join(map(str, counts))})(?![\d:\-]|\.[1-9])")
    before = told_by(tmp_path, ingest)
    ingest.land()
    waiting = told_by(tmp_path, ingest)
    where = ingest.services.store, tmp_path / "landing", "private", "main", NumpyEngine()
    run_round(*where, RoundOptions(clock=lambda: WHEN, code_version="t"))
    after = told_by(tmp_path, ingest)
    for moment in (before, waiting, after):
        for address, text in moment.items():
            assert text, address
            assert not [each for each in planted(study) if each in text.encode()], address
            words = re.sub(r"<(style|script)\b.*?</\1>", "", text, flags=re.S) if text.startswith("<!") else text
            # digests and tokens contain any number by chance
            words = re.sub('[0-9a-f]{64}|name="csrf-token" content="[^"]*"', "", words)
            assert not exact.search(words), (address, exact.search(words))
    said = caplog.text.encode()
    assert not [each for each in planted(study) if each in said]
    files = [file for place in ("store", "landing") for file in (tmp_path / place).rglob("*") if file.is_file()]
    assert any(file.name == "1.json" for file in files)
    for file in files:
        data = file.read_bytes()
        assert not [each for each in planted(study) if each in data], file


def test_the_budget_is_told_until_it_is_exhausted(tmp_path: Path, ingest: IngestApp) -> None:
    def metric(name: str) -> float:
        text = ingest.operator.get("/metrics").get_data(as_text=True)
        [line] = [each for each in text.splitlines() if each.startswith(f'{name}{{line="main",study="private"}}')]
        return float(line.split()[-1])

    def round_() -> None:
        where = ingest.services.store, tmp_path / "landing", "private", "main", NumpyEngine()
        run_round(*where, RoundOptions(clock=lambda: WHEN, code_version="t"))

    assert (metric("fedping_study_privacy_epsilon"), metric("fedping_study_privacy_rounds_left")) == (0, 2)
    round_()
    assert 0 < (first := metric("fedping_study_privacy_epsilon")) < 3
    rollback(ingest.services.store, "private", "main", to=0, created=WHEN, code_version="t")
    assert metric("fedping_study_privacy_epsilon") == first
    round_()
    assert first < metric("fedping_study_privacy_epsilon") <= 3
    assert metric("fedping_study_privacy_rounds_left") == 0
    assert 'fedping_study_finding{finding="privacy",study="private"} 2.0' in ingest.operator.get("/metrics").text
    visitor = dashboard_client(tmp_path, journal=tmp_path / "journal")
    assert "is spent" in visitor.get("/live/studies").text
    rows = visitor.get("/live/private/main/history.json").json["rows"]  # type: ignore[index]
    assert [row["privacy"] and row["privacy"]["releases"] for row in rows] == [None, 1, None, 2]


def test_the_card_is_a_page_and_a_document(tmp_path: Path, ingest: IngestApp) -> None:
    visitor = dashboard_client(tmp_path, journal=tmp_path / "journal")
    page, document = visitor.get("/live/private/privacy").text, visitor.get("/live/private/privacy.json").json
    assert document is not None
    assert document["lines"][0]["epsilon"] == 3
    for part in ("trusts", "leaves", "guarantee"):
        assert document["lines"][0][part][1:40] in page
    assert visitor.get("/live/%2e%2e/privacy").status_code == 404
