"""deploy/compose*.yaml: all parts exist, and match each other, the images and nginx.conf."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest
import requests
import yaml

from fedping.protocol.location import Bucket, place_of
from fedping.protocol.object_store import PATIENCE
from fedping.server_jobs.ingest.supervisor import KILL_AFTER
from tests.support.command_lines import refused, value_of
from tests.support.compose import Service, composed, filled_in, mounts, services, waits_for
from tests.support.images import ROOT, image, in_context
from tests.support.processes import wait_until

FOLDERS, BUCKET = ROOT / "deploy" / "compose.yaml", ROOT / "deploy" / "compose-bucket.yaml"
FILES = (FOLDERS, BUCKET)
SERVICES: dict[str, dict[str, Service]] = {file.name: services(file) for file in FILES}
OURS = [(file, name) for file, found in SERVICES.items() for name, service in found.items() if "build" in service]

of_each = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@pytest.mark.parametrize(("file", "name"), OURS)
def test_commands_and_images_are_ours(file: str, name: str) -> None:
    service = SERVICES[file][name]
    assert refused(service["command"]) == ""
    build = service["build"]
    assert (FOLDERS.parent / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    assert service["image"] == f"fedping-{image(build['target']).name}"


@pytest.mark.parametrize(("file", "name"), OURS)
def test_services_are_confined_and_write_to_volumes(file: str, name: str) -> None:
    service = SERVICES[file][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["tmpfs"] == ["/tmp:exec,mode=1777"]
    told = image(service["build"]["target"])
    assert {target for target in mounts(service) if target != "/etc/fedping/study.toml"} <= set(told.volumes)
    written = told.environment | service.get("environment", {})
    for variable in ("FEDPING_STORE", "FEDPING_LANDING"):
        needs_none = written[variable].startswith("s3://") or (name, variable) == ("study", "FEDPING_LANDING")
        assert needs_none or written[variable] in mounts(service)
    if name.startswith("ingest"):
        assert value_of(service["command"], "--journal") in mounts(service)


@of_each
def test_what_is_mounted_is_there(file: Path) -> None:
    for service in SERVICES[file.name].values():
        for source in mounts(service).values():
            if source.startswith("."):
                assert (file.parent / source).is_file(), source
            else:
                assert source in yaml.safe_load(file.read_text())["volumes"], source


@of_each
def test_services_wait_for_what_can_be_waited_for(file: Path) -> None:
    found = SERVICES[file.name]
    for name, service in found.items():
        for other, until in waits_for(service).items():
            assert other in found, name
            if until == "service_healthy":
                assert "healthcheck" in found[other] or image(found[other]["build"]["target"]).health, other
            if until == "service_completed_successfully":
                assert "restart" not in found[other], other


@of_each
def test_the_study_is_the_one_that_has_rounds(file: Path) -> None:
    study, schedule = SERVICES[file.name]["study"], SERVICES[file.name]["schedule"]
    (source,) = (source for target, source in mounts(study).items() if target == study["command"][-1])
    assert f'name = "{schedule["command"][1]}"' in (file.parent / source).read_text()


@of_each
def test_nothing_is_open_to_other_machines(file: Path) -> None:
    ports = [port for service in SERVICES[file.name].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)


@of_each
def test_nginx_has_its_certificate_and_its_own_port(file: Path) -> None:
    found = SERVICES[file.name]
    text = (ROOT / "docs" / "deploy" / "nginx.conf").read_text()
    has_the_network = "ingest" if "network_mode" in found["nginx"] else "nginx"
    published = {port.rpartition(":")[2] for port in found[has_the_network]["ports"]}
    assert set(re.findall(r"listen (\d+) ssl", text)) <= published
    made = " ".join(found["certificate"]["command"])
    for path in re.findall(r"ssl_certificate(?:_key)?\s+(\S+);", text):
        assert path in made
        assert str(Path(path).parent) in mounts(found["nginx"])
        assert mounts(found["nginx"])[str(Path(path).parent)] == mounts(found["certificate"])[str(Path(path).parent)]


def test_nginx_finds_ingest_as_on_a_machine_without_containers() -> None:
    """With a single ingest, the file is unchanged, so its names must resolve."""
    found = SERVICES[FOLDERS.name]
    assert found["nginx"]["network_mode"] == "service:ingest"
    upstream = re.search(r"server 127\.0\.0\.1:(\d+);", (ROOT / "docs" / "deploy" / "nginx.conf").read_text())
    assert upstream is not None
    assert upstream[1] == value_of(found["ingest"]["command"], "--port")


@of_each
def test_ingest_has_the_time_to_stop_in_order(file: Path) -> None:
    last_attempts = 4 * (PATIENCE + 5) if file == BUCKET else 0.0
    for name, service in SERVICES[file.name].items():
        if name.startswith("ingest"):
            minutes = re.fullmatch(r"(\d)m", service["stop_grace_period"])
            assert minutes is not None
            assert 60 * int(minutes[1]) > 2 * (KILL_AFTER + 5) + last_attempts


@of_each
def test_a_build_does_not_depend_on_it(file: Path) -> None:
    assert not in_context(str(file.relative_to(ROOT)))


# --- the bucket ---


def test_all_of_ours_are_told_of_one_bucket_which_is_made_before() -> None:
    found = SERVICES[BUCKET.name]
    told = [found[name]["environment"] for file, name in OURS if file == BUCKET.name]
    assert all(each == told[0] for each in told)
    made = filled_in(found["bucket"], {})["environment"]
    for variable in ("FEDPING_STORE", "FEDPING_LANDING"):
        place = place_of(made[variable])
        assert isinstance(place, Bucket)
        assert place.name == made["FEDPING_BUCKET"]
    waits = waits_for(found["study"])
    assert waits == {"bucket": "service_completed_successfully"}
    assert waits_for(found["bucket"]) == {"objects": "service_healthy"}


def test_each_ingest_has_a_journal_of_its_own() -> None:
    journals = [mounts(SERVICES[BUCKET.name][name])["/var/lib/fedping/journal"] for name in ("ingest", "ingest-2")]
    assert len(set(journals)) == 2


def test_the_object_store_is_the_one_that_the_tests_use() -> None:
    assert SERVICES[BUCKET.name]["objects"]["image"] == f"docker.io/motoserver/moto:{version('moto')}"


def test_another_object_store_is_named_by_the_environment() -> None:
    page = (ROOT / "docs" / "containers.md").read_text()
    (block,) = (each for each in re.findall(r"^```sh\n(export .*?)^```$", page, re.MULTILINE | re.DOTALL))
    said = dict(re.findall(r"(\w+)=(\S+)", block))
    made = filled_in(SERVICES[BUCKET.name]["bucket"], said)["environment"]
    assert said.items() <= made.items()
    assert made["FEDPING_STORE"] == f"s3://{said['FEDPING_BUCKET']}/store"


def test_the_bucket_is_made_once_and_a_second_start_leaves_it(tmp_path: Path) -> None:
    import boto3
    from botocore.exceptions import ClientError

    with composed(BUCKET, tmp_path) as running:
        running.up(["objects"])
        assert wait_until(lambda: running.is_well("objects")), running.said("objects")
        told, service = running.environment("bucket"), running.services["bucket"]
        client = boto3.client(
            "s3", "us-east-1", endpoint_url=told["AWS_ENDPOINT_URL"],
            aws_access_key_id="any", aws_secret_access_key="any",
        )  # fmt: skip
        with pytest.raises(ClientError, match="404"):
            client.head_bucket(Bucket=told["FEDPING_BUCKET"])
        running.execute("bucket", [*service["entrypoint"], *service["command"]])
        client.put_object(Bucket=told["FEDPING_BUCKET"], Key="kept", Body=b"kept")
        running.execute("bucket", [*service["entrypoint"], *service["command"]])
        assert client.get_object(Bucket=told["FEDPING_BUCKET"], Key="kept")["Body"].read() == b"kept"
        # The host's name in a container, which could be mistaken for a bucket's: http://BUCKET.HOST/.
        address = f"{told['AWS_ENDPOINT_URL']}/{told['FEDPING_BUCKET']}"
        assert requests.head(address, headers={"Host": "objects:5000"}, timeout=60).ok
