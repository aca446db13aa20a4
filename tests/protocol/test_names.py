"""No pattern of names, ids or digits allows a newline at the end, as Python's `$` would."""

import json
import re
import uuid
from pathlib import Path

import msgspec
import pytest

from fedping.dashboard.results.counts import _ID as COUNT_ID
from fedping.dashboard.runs.registry import _ID as RUN_ID
from fedping.model_store.versions import number_in
from fedping.protocol.errors import FedpingError
from fedping.protocol.json_schema import DOCUMENTS, json_schema
from fedping.protocol.ping import DOCUMENT_TYPES
from fedping.protocol.study import Study, study_from_toml
from fedping.protocol.weights import Block, Name
from fedping.server_jobs.ingest.answers import Rejection
from fedping.server_jobs.ingest.submit import document_id_in
from fedping.server_jobs.schedule import parse_every
from tests.support.pings import ping_json
from tests.support.versions import small_study

ROOT = Path(__file__).parents[2]
ENDS = ["\n", "\r", "\x00", " ", "\u2028"]


@pytest.mark.parametrize("end", ENDS)
def test_a_name_ends_with_one_of_its_letters(end: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(f"firefox{end}", Name)
    study = msgspec.to_builtins(small_study())
    assert msgspec.convert(study, Study) == small_study()
    places = [study, study["arms"][0], study["lines"][0], study["lines"][0]["spec"]]
    for place in places:
        name = place["name"]
        place["name"] = name + end
        with pytest.raises(msgspec.ValidationError, match="matching regex"):
            msgspec.convert(study, Study)
        place["name"] = name
    block = {"name": f"W{end}", "shape": [2], "step": {"start": 1, "min": 0.1, "max": 3}}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(block, Block)


def test_a_study_file_with_such_a_name_is_told(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('name = "firefox\\n"\n[[arms]]\nname = "plain"\nshare = 1.0\n')
    with pytest.raises(FedpingError, match="expected a name of letters"):
        study_from_toml(path)


def test_an_arm_in_a_ping_and_its_ids(tmp_path: Path) -> None:
    kind = DOCUMENT_TYPES["frecency-update"].ping
    whole = ping_json()
    assert msgspec.json.decode(json.dumps(whole).encode(), type=kind)
    for change in ({"clientId": whole["clientId"] + "\n"}, {"type": whole["type"] + "\n"}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(json.dumps(whole | change).encode(), type=kind)
    arm = whole["payload"] | {"study_variation": whole["payload"]["study_variation"] + "\n"}
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps(whole | {"payload": arm}).encode(), type=kind)
    for odd in (f"{uuid.UUID(int=1)}\n", "٣" * 8 + str(uuid.UUID(int=1))[8:]):
        with pytest.raises(Rejection):
            document_id_in(odd)


def test_numbers_and_ids_in_names_of_files() -> None:
    assert (number_in("0.json"), number_in("12.json"), number_in(f"{2**31 - 1}.json")) == (0, 12, 2**31 - 1)
    for odd in ("12.json\n", "12\n.json", "012.json", "٣.json", "1e1.json", "-1.json", "+1.json", "1_0.json", "².json",
                ".json", "12", "12.JSON", f"{2**31}.json", "9" * 5000 + ".json", "latest.json"):  # fmt: skip
        assert number_in(odd) is None
    for pattern, good in ((COUNT_ID, "1700000000000-0123456789ab"), (RUN_ID, "20260101-120000-a-title")):
        assert pattern.fullmatch(good)
        assert not pattern.fullmatch(good + "\n")
    with pytest.raises(FedpingError):
        parse_every("٣m")


def test_published_schemas_say_the_same_in_their_own_way() -> None:
    """In ECMAScript's patterns, used in JSON Schema, `$` matches only the end; `\\Z` is unknown there."""
    for document in DOCUMENTS:
        text = json_schema(document)
        assert "\\Z" not in text
        patterns = re.findall(r'"pattern": "([^"]*)"', text)
        names_tickets_and_keys = {"^[A-Za-z0-9][A-Za-z0-9_.-]*$", "^[A-Za-z0-9_.-]*$", "^[0-9a-f]{64}$"}
        assert set(patterns) <= names_tickets_and_keys


def test_no_pattern_of_ours_ends_in_a_dollar_where_a_newline_could_follow() -> None:
    """Patterns are given to `fullmatch`, end in `\\Z`, or are searched in texts of many lines."""
    rooms = ("protocol", "model_store", "server_jobs", "fedping", "dashboard", "experiments", "client_sim", "analysis")
    wrong = re.compile(r"""(pattern=|re\.(compile|match|search)\().*\$["'](?!.*(MULTILINE|DOTALL))""")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    odd = [f"{path}: {line}" for path in files for line in path.read_text().splitlines() if wrong.search(line)]
    assert len(files) > 300
    assert odd == []
