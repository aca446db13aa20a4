"""deploy/compose.yaml: its parts are there, and fit each other, the images and nginx.conf."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedping.server_jobs.ingest.processes.supervisor import KILL_AFTER
from tests.support.command_lines import refused, value_of
from tests.support.images import ROOT, image

FILE = ROOT / "deploy" / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if "build" in service)


def mounts(name: str) -> dict[str, str]:
    """Return what is mounted in a service, by its path there."""
    return {target: source for source, target in (each.split(":")[:2] for each in SERVICES[name].get("volumes", ()))}


@pytest.mark.parametrize("name", OURS)
def test_commands_and_images_are_ours(name: str) -> None:
    service = SERVICES[name]
    assert refused(service["command"]) == ""
    build = service["build"]
    assert (FILE.parent / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    assert service["image"] == f"fedping-{image(build['target']).name}"


@pytest.mark.parametrize("name", OURS)
def test_services_are_confined_and_write_to_volumes(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["tmpfs"] == ["/tmp:exec,mode=1777"]
    volumes = image(service["build"]["target"]).volumes
    assert {target for target in mounts(name) if target != "/etc/fedping/study.toml"} <= set(volumes)
    if name == "ingest":
        assert set(mounts(name)) == set(volumes)
        assert value_of(service["command"], "--journal") in volumes


def test_what_is_mounted_is_there() -> None:
    for name in SERVICES:
        for source in mounts(name).values():
            if source.startswith("."):
                assert (FILE.parent / source).is_file(), source
            else:
                assert source in COMPOSE["volumes"], source


def test_services_wait_for_what_can_be_waited_for() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES, name
            if how["condition"] == "service_healthy":
                assert image(SERVICES[other]["build"]["target"]).health, other
            if how["condition"] == "service_completed_successfully":
                assert "restart" not in SERVICES[other], other


def test_the_study_is_the_one_that_has_rounds() -> None:
    (source,) = (source for target, source in mounts("study").items() if target == SERVICES["study"]["command"][-1])
    assert f'name = "{SERVICES["schedule"]["command"][1]}"' in (FILE.parent / source).read_text()


def test_nothing_is_open_to_other_machines() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_nginx_finds_ingest_its_certificate_and_its_own_port() -> None:
    """As on a machine without containers: the file is not changed, so it has to find what it names."""
    text = (ROOT / "docs" / "deploy" / "nginx.conf").read_text()
    assert SERVICES["nginx"]["network_mode"] == "service:ingest"
    upstream = re.search(r"server 127\.0\.0\.1:(\d+);", text)
    assert upstream is not None
    assert upstream[1] == value_of(SERVICES["ingest"]["command"], "--port")
    published = {port.rpartition(":")[2] for port in SERVICES["ingest"]["ports"]}
    assert set(re.findall(r"listen (\d+) ssl", text)) <= published
    made = " ".join(SERVICES["certificate"]["command"])
    for path in re.findall(r"ssl_certificate(?:_key)?\s+(\S+);", text):
        assert path in made
        assert str(Path(path).parent) in mounts("nginx")
        assert mounts("nginx")[str(Path(path).parent)] == mounts("certificate")[str(Path(path).parent)]


def test_ingest_has_the_time_to_stop_in_order() -> None:
    assert SERVICES["ingest"]["stop_grace_period"] == "2m"
    assert 2 * (KILL_AFTER + 5) < 2 * 60
