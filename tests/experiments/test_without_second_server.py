"""Features for a single server reject two-server lines with advice; plans for two servers count both."""

import base64
import json
import math
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from fedping.client_sim.fleet.replay import Recording, Replay, ReplaySettings
from fedping.client_sim.planning import plan_upload
from fedping.client_sim.privacy import Sharer
from fedping.experiments.laboratory.settings import experiment_from_toml as laboratory_from_toml
from fedping.experiments.privacy.auditing import audit
from fedping.experiments.simulate import experiment_from_toml as simulation_from_toml
from fedping.main import main
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import Privacy
from fedping.server_jobs.privacy.planning import planned
from tests.support.fleets import PlannedTransport
from tests.support.private import CENTRAL, private_ping, private_study
from tests.support.sharing import HELPER, Helper, offering, shared
from tests.support.virtual_time import in_virtual_time

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
STUDY = private_study(privacy=shared(Privacy(central=CENTRAL)))


def test_a_simulated_study_has_no_second_server(tmp_path: Path) -> None:
    study = (EXPERIMENTS / "private_study.toml").read_text()
    asked = study.replace("sampling = 0.01", f'[lines.privacy.shared]\nhelper = "{HELPER}"')
    (tmp_path / "private_study.toml").write_text(asked)
    file = tmp_path / "private_users.toml"
    file.write_text((EXPERIMENTS / "private_users.toml").read_text())
    with pytest.raises(InvalidSettings, match=r"Remove \[lines\.privacy\.shared\]"):
        simulation_from_toml(file)
    assert main(["simulate", str(file), "--out", str(tmp_path / "out")]) == 2
    (tmp_path / "private_study.toml").write_text(study)
    simulation_from_toml(file)


def test_the_laboratory_has_no_second_server(tmp_path: Path) -> None:
    text = (EXPERIMENTS / "private_local.toml").read_text()
    line = 'privacy.local = { mechanism = "one-sign", epsilon = 1.0 }'
    assert line in text
    file = tmp_path / "experiment.toml"
    file.write_text(text.replace(line, f'{line}\nprivacy.shared = {{ helper = "{HELPER}" }}'))
    with pytest.raises(InvalidSettings, match="Remove 'shared'"):
        laboratory_from_toml(file)


def test_an_audit_says_that_single_pings_tell_nothing() -> None:
    with pytest.raises(InvalidSettings, match="is a two-server line"):
        audit(STUDY, STUDY.lines[0])


def test_no_link_makes_shares_smaller() -> None:
    with pytest.raises(InvalidSettings, match="shares of whole numbers, 8 bytes a weight"):
        plan_upload(STUDY.lines[0])


def test_shares_are_posted_again_as_they_were_or_not_at_all(tmp_path: Path) -> None:
    helper, document = Helper(), uuid4()
    offer = helper.offer(STUDY)
    payload = Sharer(STUDY, STUDY.lines[0], offer).payload(np.arange(7), document, 0, "treatment")
    update = {"encoding": "shared", "payload": base64.b64encode(payload).decode()}
    ping = private_ping(STUDY, b"", update=update)
    (tmp_path / "pings.ndjson").write_text(json.dumps(ping | {"documentId": str(document)}) + "\n")
    transport = PlannedTransport(STUDY)
    recording = Recording(tmp_path / "pings.ndjson", transport.study)
    for settings in (ReplaySettings(), ReplaySettings(same_ids=True, to_current_version=True)):
        with pytest.raises(
            InvalidSettings, match="count only with the document and the version that they were recorded"
        ):
            Replay(transport, transport.study, recording, settings)
    summary = in_virtual_time(Replay(transport, transport.study, recording, ReplaySettings(same_ids=True)).run())
    assert summary.pings.accepted == 1
    [(sent, body)] = transport.landed.items()
    vector = helper.read(offering(STUDY, offer), json.loads(body), sent)
    assert vector is not None
    assert vector.tolist() == list(range(7))


def test_a_plan_for_two_servers_counts_the_noise_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"population": 100_000, "weights": 22, "rounds": 48, "contributions": 1, "epsilon_": 1.0, "delta": 1e-6}
    one, two = planned(**settings), planned(**settings, shared=True)  # type: ignore[arg-type]
    assert two.noise_multiplier == one.noise_multiplier
    assert two.ratio == pytest.approx(one.ratio * math.sqrt(2))
    assert two.clients_needed == pytest.approx(one.clients_needed * math.sqrt(2), abs=1)
    asked = ["privacy", "plan", "--clients", "100000", "--rounds", "48", "--contributions", "1", "--epsilon", "1"]
    assert main([*asked, "--shared"]) == 0
    assert "by each of two servers" in capsys.readouterr().out
    assert main([*asked, "--shared", "--sampling", "0.5"]) == 2
    assert "--sampling doesn't protect" in capsys.readouterr().err
