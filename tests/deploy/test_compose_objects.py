"""deploy/compose.objects.yaml: the store of compose.yaml in a bucket of azurite, with the real azurite."""

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from fedping.main import main
from fedping.model_store import open_store
from fedping.protocol.place import place_of
from tests.browser.harness.available import skip_for_want_of
from tests.deploy.test_compose import OURS, SERVICES
from tests.support import azurite
from tests.support.images import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.objects.yaml").read_text())
ADDED: dict[str, Any] = COMPOSE["services"]
AT = "http://objects:10000"


def test_all_of_ours_use_the_bucket_and_wait_for_it() -> None:
    assert {name for name, service in ADDED.items() if service.get("environment") == COMPOSE["x-store"]} == set(OURS)
    assert ADDED["study"]["depends_on"]["container"] == {"condition": "service_completed_successfully"}
    assert all("study" in SERVICES[name]["depends_on"] for name in OURS if name != "study")


def test_azurite_is_the_one_that_the_tests_run_and_nobody_outside_reaches_it() -> None:
    assert ADDED["objects"]["image"].rpartition(":")[2] == azurite.VERSION
    assert not any("ports" in service for service in ADDED.values())
    assert [volume.partition(":")[0] for volume in ADDED["objects"]["volumes"]] == list(COMPOSE["volumes"])


def test_its_commands_make_the_container_and_a_study_in_it(
    object_servers: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = object_servers("az")
    if shutil.which("curl") is None:
        skip_for_want_of("curl")
    command = [part.replace(AT, here) for part in ADDED["container"]["command"]]
    told = [subprocess.run(command, capture_output=True, text=True, timeout=60) for _ in range(2)]
    assert [(each.returncode, each.stdout.strip()) for each in told] == [(0, "201"), (0, "409")]
    for name, value in COMPOSE["x-store"].items():
        monkeypatch.setenv(name, value.replace(AT, here))
    assert main(["study", "create", str(ROOT / "experiments" / "firefox_2018.toml")]) == 0
    assert open_store(place_of(COMPOSE["x-store"]["FEDPING_STORE"])).iterations("firefox-2018", "main") == [0]
