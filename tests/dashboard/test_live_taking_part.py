"""The Live page's list of participants: from landed pings alone, with shortened ids, and not for private lines."""

import json
from pathlib import Path

from msgspec.structs import replace

from fedping.protocol.landing import landed_files, partition
from fedping.protocol.limits import Limits
from tests.support.dashboard import dashboard_client
from tests.support.institutions import ARMS, STUDY, tumours
from tests.support.model_pings import Said, client_in, land
from tests.support.private import private_study
from tests.support.rounds import store_with

LIST = f"/live/{STUDY}/main/clients.json"


def test_the_page_has_a_place_for_who_takes_part_and_its_document_tells(tmp_path: Path) -> None:
    study = replace(tumours(arms=ARMS), enrolment="hash", limits=Limits(examples=80))
    store_with(tmp_path / "store", study)
    land(
        tmp_path / "landing",
        study,
        Said(client=1, arm="hospitals", received_ms=7_000),
        Said(client=1, arm="held-out", received_ms=6_000, examples=50, confusion=(20, 5, 5, 20)),
    )
    visitor = dashboard_client(tmp_path)
    assert 'id="taking-part"' in visitor.get(f"/live/{STUDY}/main/").get_data(as_text=True)
    answer = visitor.get(LIST)
    told = answer.get_json()
    assert [(one["arm"], one["examples"], one["heard_ms"]) for one in told["roll"]["listed"]] == [
        ("hospitals", 80, 7_000),
        ("held-out", 50, 6_000),
    ]
    (evaluation,) = told["evaluations"]
    assert evaluation["accuracy"] == 0.8
    assert str(client_in(study, "hospitals", 1)) not in answer.get_data(as_text=True)


def test_of_a_private_line_nothing_is_listed_and_the_page_has_no_place_for_it(tmp_path: Path) -> None:
    store_with(tmp_path / "store", private_study())
    visitor = dashboard_client(tmp_path)
    assert 'id="taking-part"' not in visitor.get("/live/private/main/").get_data(as_text=True)
    assert visitor.get("/live/private/main/clients.json").get_json() == {"roll": None, "evaluations": []}


def test_a_damaged_file_is_told_in_a_sentence(tmp_path: Path) -> None:
    study = replace(tumours(arms=ARMS), enrolment="hash")
    store_with(tmp_path / "store", study)
    land(tmp_path / "landing", study, Said(client=1, arm="hospitals"))
    (file,) = landed_files(partition(tmp_path / "landing", study.name, "main", 0))
    file.write_bytes(b"PAR1")
    answer = dashboard_client(tmp_path).get(LIST)
    assert answer.status_code >= 400
    assert file.name in json.loads(answer.get_data())["error"]
