"""Participation of clients in a version: by their ids alone, the same for clients, fleets, institutions and rounds."""

import hashlib
import json
from pathlib import Path
from uuid import UUID, uuid5

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from fedping.client_sim.fleet import Fleet, FleetSettings
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.enrolment import is_selected
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import OneSign
from fedping.protocol.study import PublicStudy, Study, public_json, public_study
from fedping.protocol.study_changes import check_change
from tests.support.faulty_server import faulty_server
from tests.support.fleets import PlannedTransport
from tests.support.institutions import ARMS, OPEN, STUDY, agreed, joining, tables, tumours
from tests.support.model_pings import Said, client_in, land
from tests.support.private import private_study
from tests.support.processes import wait_until
from tests.support.rounds import store_with
from tests.support.versions import small_study
from tests.support.virtual_time import in_virtual_time

SHARE = 0.4


def drawing(share: float = SHARE, **study: object) -> Study:
    return replace(tumours(arms=ARMS, min_clients=1, participation=share), **{"enrolment": "hash", **study})


def test_the_draw_is_what_it_was_documented_to_be() -> None:
    """The draw is SHA-256 of "turn", study, line, number and id, from which other clients can be implemented."""
    client = "0b7f1c9e-6a1d-4c55-9f0e-0d8f5f1f4f7a"
    digest = hashlib.sha256(f"turn\ntumours\nmain\n7\n{client}".encode()).digest()
    drawn = int.from_bytes(digest[:6], "big") / 2**48
    assert is_selected("tumours", "main", 7, drawn + 1e-9, client)
    assert not is_selected("tumours", "main", 7, drawn, client)


def test_as_many_take_part_as_the_share_says_and_others_each_time() -> None:
    """Of 20,000 draws, 8,000 ± 5 standard errors of 69 take part; two versions are independent."""
    clients = [str(uuid5(UUID(int=1), str(k))) for k in range(20_000)]
    first, second = (np.array([is_selected("s", "main", n, SHARE, each) for each in clients]) for n in (1, 2))
    for drawn in (first, second):
        assert abs(drawn.sum() - 8_000) < 5 * 69
    assert abs((first & second).sum() - 3_200) < 5 * 52


def test_clients_read_the_share_and_studies_without_one_say_nothing_of_it() -> None:
    told = public_json(public_study(drawing()))
    assert msgspec.json.decode(told, type=PublicStudy).lines[0].participation == SHARE
    assert b"participation" not in public_json(public_study(tumours()))


def test_a_fleet_sends_what_its_clients_have_drawn_and_arms_that_only_tell_always_tell() -> None:
    study = drawing()
    transport = PlannedTransport(study)
    fleet = Fleet(transport, transport.study, FleetSettings(clients=60, seed=3))
    sent: list[set[tuple[str, str]]] = []

    async def both() -> None:
        for version in range(2):
            transport.version, before = version, set(transport.landed)
            await fleet.run_iteration()
            pings = [json.loads(body) for key, body in transport.landed.items() if key not in before]
            sent.append({(ping["clientId"], ping["payload"]["study_variation"]) for ping in pings})

    in_virtual_time(both())
    for version, found in enumerate(sent):
        expected = set()
        for place, client in enumerate(map(str, fleet.roster.ids)):
            arm = fleet.roster.arm_of(place)
            if not arm.submits or is_selected(STUDY, "main", version, SHARE, client):
                expected.add((client, arm.name))
        assert found == expected
    assert sent[0] != sent[1]


def test_rounds_count_whose_turn_it_is_whoever_sends(tmp_path: Path) -> None:
    study = drawing()
    store_with(tmp_path / "store", study)
    land(tmp_path / "landing", study, *(Said(client=k, arm="hospitals") for k in range(30)), m=31)
    places = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing")]
    assert main(["round", STUDY, "--engine", "numpy", *places]) == 0
    ids = [str(client_in(study, "hospitals", k)) for k in range(30)]
    drawn = sum(is_selected(STUDY, "main", 0, SHARE, each) for each in ids)
    made = open_store(tmp_path / "store").version(STUDY, "main", 1).lineage
    assert made is not None
    assert 0 < drawn < 30
    assert (made.counts["used"], made.counts["not_sampled"]) == (drawn, 30 - drawn)
    assert main(["store", "recompute", STUDY, "main", "1", *places]) == 0


def test_an_institution_waits_for_its_turn_and_follows_a_share_that_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["--data", str(tables(tmp_path)[0]), "--columns", str(agreed(tmp_path / "columns.toml"))]
    state = ["--state", str(tmp_path / "state"), "--every", "0.1s"]
    never = tumours(participation=1e-9)
    with faulty_server(never) as server:
        assert main(["join", server.url, STUDY, "--show", OPEN, *rows, *state]) == 0
        assert "was not selected for version 0" in capsys.readouterr().err

        running = joining(server.url, "--yes", "--rounds", "1", *rows, *state)
        wait_until(lambda: len(server.fetches) > 4)
        server.files[f"/models/{STUDY}/study.json"] = msgspec.json.encode(public_study(tumours()))
        out, said = running.communicate(timeout=240)
        assert running.returncode == 0, said
        assert out.endswith(": accepted\n")
        assert len(server.attempts) == 1


@pytest.mark.parametrize(
    ("study", "says"),
    [
        (small_study(), "do not draw who takes part"),
        (private_study(local=OneSign(epsilon=1.0)), "Remove 'participation'"),
    ],
)
def test_other_studies_do_not_draw(study: Study, says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        replace(study, lines=(replace(study.lines[0], participation=0.5),))


def test_the_share_may_change_while_a_study_runs() -> None:
    (change,) = check_change(drawing(), drawing(0.8))
    assert change.place == "lines.main.participation"
