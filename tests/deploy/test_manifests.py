"""deploy/kubernetes: the manifests are consistent with each other and with fedping."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import Bucket, place_of
from fedping.protocol.object_store import PATIENCE
from fedping.server_jobs.ingest import supervisor
from fedping.server_jobs.ingest.heartbeat import NEARLY_FULL_BYTES
from fedping.server_jobs.privacy.keys import read_key
from fedping.server_jobs.shutdown import FORCED_AFTER
from tests.support.command_lines import refused, value_of
from tests.support.images import ROOT, image
from tests.support.ingest_app import ingest_app
from tests.support.manifests import (
    KUBERNETES,
    Key,
    Object,
    Pods,
    chosen,
    generated,
    mebibytes,
    objects,
    pods,
    with_component,
)

LEADER = objects()
HELPER = objects(KUBERNETES / "helper")
PRIVATE = with_component(LEADER, KUBERNETES / "private")
TICKETS = with_component(LEADER, KUBERNETES / "tickets")
SPARK = with_component(LEADER, KUBERNETES / "spark")
BUCKET = with_component(LEADER, KUBERNETES / "bucket")
SETS = {
    "leader": LEADER,
    "private": PRIVATE,
    "tickets": TICKETS,
    "spark": SPARK,
    "bucket": BUCKET,
    "private in a bucket": with_component(with_component(PRIVATE, KUBERNETES / "tickets"), KUBERNETES / "bucket"),
    "helper": HELPER,
}
ALL_PODS = [(of, each) for of, found in SETS.items() for each in pods(found)]
OURS = [(of, each) for of, each in ALL_PODS if each.name != "fedping-models"]


def named(each: tuple[str, Pods]) -> str:
    return f"{each[0]}-{each[1].name}"


def in_sets() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("found", SETS.values(), ids=SETS)


def the_pods(found: dict[Key, Object], name: str) -> Pods:
    (one,) = (each for each in pods(found) if each.name == name)
    return one


def in_a_bucket(container: Object) -> bool:
    """Return whether a container gets its store and landing folder from the component `bucket`."""
    return {"configMapRef": {"name": "fedping-bucket"}} in container.get("envFrom", ())


def words_of(container: Object) -> list[str]:
    """Return the words of a container's fedping command; empty if it runs another program."""
    if "command" not in container:
        assert container["image"].startswith("fedping-")
        return list(container["args"])
    if "fedping.server_jobs.spark.submit" in container["command"]:
        return list(container["args"][container["args"].index("--") + 1 :])
    inside = [part for word in container["command"] for part in re.split(r"&&|\|\|", word)]
    return next((shlex.split(part)[1:] for part in inside if part.split()[0] == "fedping"), [])


# --- pods ---


@pytest.mark.parametrize("each", OURS, ids=named)
def test_every_command_is_one_that_fedping_takes(each: tuple[str, Pods]) -> None:
    commands = [words for container in each[1].containers() if (words := words_of(container))]
    assert commands
    assert [refused(words) for words in commands] == [""] * len(commands)


@pytest.mark.parametrize("each", OURS, ids=named)
def test_images_are_those_that_the_dockerfile_makes(each: tuple[str, Pods]) -> None:
    for container in each[1].containers():
        assert f"{each[1].spec['securityContext']['runAsUser']}:10001" == image(container["image"][8:]).user


@pytest.mark.parametrize("each", ALL_PODS, ids=named)
def test_pods_are_confined(each: tuple[str, Pods]) -> None:
    """Pods follow the profile `restricted` of Kubernetes' pod standards, with read-only files."""
    spec = each[1].spec
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    bindings = [thing for (kind, _), thing in SPARK.items() if kind == "RoleBinding"]
    with_role = {subject["name"] for binding in bindings for subject in binding["subjects"]}
    has_role = spec.get("serviceAccountName") in with_role
    assert spec["automountServiceAccountToken"] is has_role, "a token for who has a role, alone"
    for container in each[1].containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} == container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("each", ALL_PODS, ids=named)
def test_every_mount_has_its_volume_and_every_volume_its_source(each: tuple[str, Pods]) -> None:
    found, made = SETS[each[0]], each[1]
    volumes = {volume["name"]: volume for volume in made.spec.get("volumes", ())}
    mounted = {mount["name"] for container in made.containers() for mount in container["volumeMounts"]}
    assert mounted == volumes.keys() | set(made.claims())
    for volume in volumes.values():
        if claim := volume.get("persistentVolumeClaim"):
            assert ("PersistentVolumeClaim", claim["claimName"]) in found
        if configuration := volume.get("configMap"):
            assert ("ConfigMap", configuration["name"]) in generated()


@pytest.mark.parametrize("each", OURS, ids=named)
def test_what_a_command_writes_is_on_a_volume(each: tuple[str, Pods]) -> None:
    """Other files are read-only, and would be lost with the pod."""
    for container in each[1].containers():
        writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        words = words_of(container)
        if not words or words[:2] == ["study", "create"]:
            continue
        wanted = {"ingest": ["FEDPING_LANDING"], "round": ["FEDPING_STORE", "FEDPING_LANDING"]}.get(words[0], [])
        if in_a_bucket(container):
            wanted = []
        paths = [image(container["image"][8:]).environment[name] for name in wanted]
        paths += [path for option in ("--journal", "--folder") if (path := value_of(words, option))]
        for path in paths:
            assert any(Path(path).is_relative_to(folder) for folder in writable), path
        assert "/tmp" in writable


def test_store_and_landing_folder_are_shared_and_have_one_path_everywhere() -> None:
    """A round records the newest version under the store's path."""
    paths: dict[str, set[str]] = {}
    for each in pods(LEADER):
        claims = {
            volume["name"]: volume["persistentVolumeClaim"]["claimName"]
            for volume in each.spec["volumes"]
            if "persistentVolumeClaim" in volume
        }
        for mount in each.spec["containers"][0]["volumeMounts"]:
            if mount["name"] in claims:
                paths.setdefault(claims[mount["name"]], set()).add(mount["mountPath"])
    told = image("round").environment
    assert paths == {"fedping-store": {told["FEDPING_STORE"]}, "fedping-landing": {told["FEDPING_LANDING"]}}
    for name in paths:
        assert LEADER["PersistentVolumeClaim", name]["spec"]["accessModes"] == ["ReadWriteMany"]


# --- consistency ---


@in_sets()
def test_selectors_take_the_pods_that_they_are_for(found: dict[Key, Object]) -> None:
    wanted = {
        "fedping-jobs": {"fedping-round", "fedping-study"},
        "fedping-spark": {"fedping-round"},
        "fedping-bucket": {"fedping-ingest", "fedping-round", "fedping-study"},
        "fedping-models": {"fedping-models" if ("Deployment", "fedping-models") in found else "fedping-ingest"},
    }
    for (kind, name), thing in found.items():
        spec = thing.get("spec", {})
        selector = spec.get("podSelector" if kind == "NetworkPolicy" else "selector")
        if selector is None:
            continue
        names = {each.name for each in chosen(selector, found)}
        assert names == wanted.get(name, {name.removesuffix("-hosts")}), (kind, name)


@in_sets()
def test_ports_are_those_of_containers(found: dict[Key, Object]) -> None:
    for (kind, name), thing in found.items():
        if kind not in ("Service", "NetworkPolicy"):
            continue
        spec = thing["spec"]
        chosen_pods = chosen(spec.get("selector") or spec["podSelector"], found)
        ports = {port["name"] for each in chosen_pods for port in each.spec["containers"][0].get("ports", ())}
        rules = [port for rule in spec.get("ingress", ()) for port in rule.get("ports", ())]
        told = spec["ports"] if kind == "Service" else rules
        assert {port.get("targetPort", port["port"]) for port in told} <= ports, (kind, name)


@in_sets()
def test_no_object_is_of_a_namespace_or_has_a_secret_in_it(found: dict[Key, Object]) -> None:
    for (kind, name), thing in found.items():
        assert "namespace" not in thing["metadata"], name
        assert kind not in ("Secret", "Namespace"), name


@pytest.mark.parametrize(
    "each", [each for each in ALL_PODS if each[1].kind in ("StatefulSet", "Deployment")], ids=named
)
def test_probes_ask_the_shallow_heartbeat(each: tuple[str, Pods]) -> None:
    """The deep heartbeat also fails for problems that a restart doesn't solve."""
    (container,) = each[1].spec["containers"]
    probes = [container[name] for name in container if name.endswith("Probe")]
    assert {"readinessProbe", "livenessProbe"} <= container.keys()
    assert {probe["httpGet"]["path"] for probe in probes} == {"/__lbheartbeat__"}
    assert {probe["httpGet"]["port"] for probe in probes} == {"http"}


def test_what_probes_and_prometheus_ask_is_answered(tmp_path: Path) -> None:
    app = ingest_app(tmp_path)
    assert app.client.get("/__lbheartbeat__").status_code == 200
    told = the_pods(LEADER, "fedping-ingest").maker["spec"]["template"]["metadata"]["annotations"]
    by_address = {"Host": f"10.1.2.3:{told['prometheus.io/port']}"}
    assert app.operator.get(told["prometheus.io/path"], headers=by_address).status_code == 200
    assert app.client.get(told["prometheus.io/path"]).status_code == 404


# --- ingest ---


def test_ingest_listens_where_its_services_lead() -> None:
    (container,) = the_pods(LEADER, "fedping-ingest").spec["containers"]
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    words = container["args"]
    assert ports == {"http": value_of(words, "--port"), "operations": value_of(words, "--operations-port")}
    assert value_of(words, "--host") == value_of(words, "--operations-host") == "0.0.0.0"


def test_the_operators_port_is_open_to_monitoring_alone() -> None:
    policy = LEADER["NetworkPolicy", "fedping-ingest"]["spec"]
    rules = [rule for rule in policy["ingress"] if {"port": "operations"} in rule["ports"]]
    (rule,) = rules
    assert rule["ports"] == [{"port": "operations"}]
    (origin,) = rule["from"]
    assert origin == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    exposed = {
        port["targetPort"]
        for (kind, name), thing in LEADER.items()
        if kind == "Service" and name == "fedping-ingest"
        for port in thing["spec"]["ports"]
    }
    assert exposed == {"http"}


def test_each_ingest_has_a_journal_of_its_own_that_outlives_it() -> None:
    ingest = the_pods(LEADER, "fedping-ingest")
    assert ingest.kind == "StatefulSet"
    assert ingest.claims() == ["journal"]
    spec = ingest.maker["spec"]
    assert spec["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    room = spec["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    assert mebibytes(room) * 2**20 > 2 * NEARLY_FULL_BYTES, "else the heartbeat takes the disk for nearly full"


def test_ingest_has_the_time_to_stop_in_order() -> None:
    ingest = the_pods(LEADER, "fedping-ingest")
    (container,) = ingest.spec["containers"]
    before = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    # First the server and the listeners, each for its maximum time; then the compactor has the rest.
    stopping = before + 2 * (supervisor.KILL_AFTER + 5)
    assert ingest.spec["terminationGracePeriodSeconds"] >= stopping + 60


def test_ingest_has_the_memory_that_the_guide_says() -> None:
    (container,) = the_pods(LEADER, "fedping-ingest").spec["containers"]
    told = re.search(r"(\d+) MiB with the defaults", (ROOT / "docs" / "operators.md").read_text())
    assert told is not None
    workers = int(value_of(container["args"], "--workers") or 0)
    assert mebibytes(container["resources"]["limits"]["memory"]) >= (workers + 1) * int(told[1])
    # Whole cores, as many as asked for: the kubelet's static CPU manager gives such a pod its own.
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert int(container["resources"]["limits"]["cpu"]) == workers


def test_an_ingest_at_a_time_may_be_taken_away() -> None:
    for name in ("fedping-ingest", "fedping-models"):
        assert LEADER["PodDisruptionBudget", name]["spec"]["maxUnavailable"] == 1
        assert the_pods(LEADER, name).maker["spec"]["replicas"] > 1


# --- rounds ---


def round_job() -> tuple[Object, Object, list[str]]:
    """Return the CronJob's spec, its job's spec, and the command."""
    cron = LEADER["CronJob", "fedping-round"]["spec"]
    job = cron["jobTemplate"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    return cron, job, container["args"]


def test_rounds_are_every_half_hour_and_never_two_at_once() -> None:
    cron, job, _ = round_job()
    minutes, *others = cron["schedule"].split()
    first, second = map(int, minutes.split(","))
    assert (second - first, others) == (30, ["*"] * 4)
    assert cron["timeZone"] == "Etc/UTC"
    assert cron["concurrencyPolicy"] == "Forbid"
    assert job["template"]["spec"]["restartPolicy"] == "Never", "else no policy of failures counts"


def test_all_attempts_of_a_round_end_before_the_next() -> None:
    _, job, words = round_job()
    limit = re.fullmatch(r"(\d+)m", value_of(words, "--time-limit") or "")
    assert limit is not None
    attempts = (job["backoffLimit"] + 1) * (int(limit[1]) * 60 + FORCED_AFTER)
    assert attempts < job["activeDeadlineSeconds"] <= 1800 - 60
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] > FORCED_AFTER


def test_a_round_uses_the_cores_that_it_asks_for() -> None:
    """By default, Spark uses all of the node's cores, and starts a Python for each."""
    _, job, words = round_job()
    (container,) = job["template"]["spec"]["containers"]
    assert value_of(words, "--master") == f"local[{container['resources']['requests']['cpu']}]"


def test_only_what_may_be_otherwise_in_a_minute_is_tried_again() -> None:
    """According to the table of exit codes in docs/reference.md."""
    _, job, _ = round_job()
    table = (ROOT / "docs" / "reference.md").read_text().partition("## Exit codes")[2]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    rules = {rule["action"]: rule for rule in job["podFailurePolicy"]["rules"]}
    given_up = set(rules["FailJob"]["onExitCodes"]["values"])
    assert given_up == codes - {0, 6, 75, 130, 143}  # 6 is only of `fedping join`
    (container,) = job["template"]["spec"]["containers"]
    assert rules["FailJob"]["onExitCodes"]["containerName"] == container["name"]
    assert rules["Ignore"]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


def test_the_study_that_is_created_is_the_one_that_has_rounds() -> None:
    text = (KUBERNETES / "study.toml").read_text()
    assert text == (ROOT / "experiments" / "firefox.toml").read_text()
    assert f'name = "{round_job()[2][1]}"' in text
    (container,) = the_pods(LEADER, "fedping-study").spec["containers"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "study")
    assert container["args"] == ["study", "create", f"{mount['mountPath']}/study.toml"]


# --- store and landed pings in a bucket ---


def test_in_a_bucket_no_volume_is_shared_and_journals_stay_the_pods_own() -> None:
    assert "PersistentVolumeClaim" not in {kind for kind, _ in BUCKET}
    for each in pods(BUCKET):
        assert not [volume for volume in each.spec["volumes"] if "persistentVolumeClaim" in volume], each.name
        assert each.claims() == (["journal"] if each.name == "fedping-ingest" else [])
    (container,) = the_pods(BUCKET, "fedping-ingest").spec["containers"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/var/lib/fedping", "/tmp"}


def test_in_a_bucket_all_pods_are_told_where_and_have_one_identity() -> None:
    for each in pods(BUCKET):
        (container,) = each.spec["containers"]
        assert in_a_bucket(container), each.name
        assert {"secretRef": {"name": "fedping-bucket", "optional": True}} in container["envFrom"], each.name
        assert not [word for word in container["args"] if re.match("--(store|landing)", word)], "would be before it"
        assert ("ServiceAccount", each.spec["serviceAccountName"]) in BUCKET


def test_in_a_bucket_what_clients_fetch_is_ingest_s_under_the_same_name() -> None:
    (ingest,) = chosen(BUCKET["Service", "fedping-models"]["spec"]["selector"], BUCKET)
    assert ingest.name == "fedping-ingest"
    assert BUCKET["Service", "fedping-models"]["spec"]["ports"] == LEADER["Service", "fedping-models"]["spec"]["ports"]
    assert {name for _, name in BUCKET if "models" in name} == {"fedping-models"}


def test_in_a_bucket_pods_may_ask_for_names_and_by_https_and_nothing_else() -> None:
    policies = [thing["spec"] for (kind, _), thing in BUCKET.items() if kind == "NetworkPolicy"]
    for each in pods(BUCKET):
        mine = [spec for spec in policies if each.name in {one.name for one in chosen(spec["podSelector"], BUCKET)}]
        open_ports = {port["port"] for spec in mine for rule in spec.get("egress", ()) for port in rule["ports"]}
        assert open_ports == {53, 443}, each.name
    assert BUCKET["NetworkPolicy", "fedping-ingest"] == LEADER["NetworkPolicy", "fedping-ingest"]


def test_in_a_bucket_ingest_has_the_time_for_its_last_attempts() -> None:
    ingest = the_pods(BUCKET, "fedping-ingest")
    (container,) = ingest.spec["containers"]
    before = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    stopping = before + 2 * (supervisor.KILL_AFTER + 5)
    assert ingest.spec["terminationGracePeriodSeconds"] >= stopping + 5 * PATIENCE


# --- secrets ---


def test_the_privacy_key_reaches_rounds_as_a_file_that_they_take(tmp_path: Path) -> None:
    """The group can read a mounted Secret; the init container makes a copy that only its user can read."""
    spec = the_pods(PRIVATE, "fedping-round").spec
    (before,), (container,) = spec["initContainers"], spec["containers"]
    *words, source, target = before["command"]
    mounts = {mount["name"]: mount["mountPath"] for each in (before, container) for mount in each["volumeMounts"]}
    (path,) = (each["value"] for each in container["env"] if each["name"] == "FEDPING_PRIVACY_KEY")
    assert (source, target, path) == (f"{mounts['secret']}/privacy.key", path, f"{mounts['key']}/privacy.key")
    assert {volume["name"] for volume in spec["volumes"] if "emptyDir" in volume} == {"key", "tmp"}
    (tmp_path / "mounted").write_text("ab" * 32)
    (tmp_path / "mounted").chmod(0o440)
    with pytest.raises(InvalidSettings, match="users other than its owner"):
        read_key(tmp_path / "mounted")
    subprocess.run([*words, tmp_path / "mounted", tmp_path / "copy"], check=True)
    assert read_key(tmp_path / "copy") == bytes.fromhex("ab" * 32)


def test_secrets_are_named_and_mounted_as_their_makers_are_told() -> None:
    for folder, found, name in (("private", PRIVATE, "fedping-round"), ("tickets", TICKETS, "fedping-ingest")):
        told = (KUBERNETES / folder / "kustomization.yaml").read_text()
        created = re.search(r"kubectl create secret generic (\S+) --from-file=(\S+)", told)
        assert created is not None
        spec = the_pods(found, name).spec
        (secret,) = (volume["secret"] for volume in spec["volumes"] if "secret" in volume)
        assert secret == {"secretName": created[1], "defaultMode": 0o400}
        assert created[2] in str([*spec.get("initContainers", ()), *spec["containers"]])
        for line in re.findall(r"^#     fedping (.*)$", told, re.MULTILINE):
            assert refused(shlex.split(line)) == ""
            assert line.split()[-1] == created[2]


def test_rounds_may_ask_a_helper_only_where_they_have_one() -> None:
    for found, ports in ((LEADER, {53}), (PRIVATE, {53, 443})):
        (rule,) = found["NetworkPolicy", "fedping-jobs"]["spec"]["egress"]
        assert {port["port"] for port in rule["ports"]} == ports


# --- the helper ---


def test_there_is_one_helper_and_its_keys_stay_its_own() -> None:
    helper = the_pods(HELPER, "fedping-helper")
    assert (helper.kind, helper.maker["spec"]["replicas"]) == ("StatefulSet", 1)
    # `Always` lets the group read every file of a volume whenever it is mounted, keys included.
    assert helper.spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    for container in helper.containers():
        folder = Path(value_of(words_of(container), "--folder") or "")
        (mount,) = (each["mountPath"] for each in container["volumeMounts"] if each["name"] == "folder")
        assert folder.parent == Path(mount), (
            "the helper closes its folder to the group, which a volume's own must stay open to"
        )


def test_the_helper_has_memory_for_the_largest_request() -> None:
    """The helper needs about five times the request's size, as `fedping helper serve --help` says."""
    (container,) = the_pods(HELPER, "fedping-helper").spec["containers"]
    most = int(value_of(container["args"], "--max-request-mib") or 0)
    assert mebibytes(container["resources"]["limits"]["memory"]) >= 5 * most + 256
    assert [str(port["containerPort"]) for port in container["ports"]] == [value_of(container["args"], "--port")]


def test_the_helper_makes_its_identity_once(tmp_path: Path) -> None:
    """The init container's script runs twice in a shell, with a stand-in for fedping."""
    (step,) = the_pods(HELPER, "fedping-helper").spec["initContainers"]
    shell, option, script = step["command"]
    folder = tmp_path / "helper"
    stub = f"#!/bin/sh\nmkdir -p {folder} && echo made >> {folder}/helper.key\n"
    (tmp_path / "fedping").write_text(stub)
    (tmp_path / "fedping").chmod(0o755)
    for _ in range(2):
        moved = script.replace("/var/lib/fedping/helper", str(folder))
        subprocess.run([shell, option, moved], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    assert (folder / "helper.key").read_text() == "made\n"


# --- validation by other programs ---


def rendered(folder: Path) -> str:
    """Return the output of kubectl for a kustomization, without a cluster; skip the test if kubectl is missing."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    with tempfile.TemporaryDirectory() as home:  # where kubectl keeps a cache
        environment = {"PATH": "/usr/bin:/bin", "KUBECONFIG": "/dev/null", "HOME": home}
        ran = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def told() -> list[Object]:
    """Return the kustomizations of docs/containers.md: the complete one, and a bucket's additions."""
    page = (ROOT / "docs" / "containers.md").read_text()
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]


def overlay(folder: Path, told: Object) -> Path:
    """Write a kustomization into a folder next to a copy of the manifests."""
    shutil.copytree(ROOT / "deploy", folder / "fedping" / "deploy")
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(told))
    (folder / "my_study.toml").write_text('name = "my-study"\n')
    return folder


def with_a_bucket() -> Object:
    """Return the complete kustomization with a bucket's additions."""
    whole, added = told()
    return whole | {name: [*whole[name], *more] for name, more in added.items()}


def test_the_kustomization_of_the_guide_names_what_is_there(tmp_path: Path) -> None:
    whole, added = told()
    folder = overlay(tmp_path, whole)
    for path in [*whole["resources"], *whole["components"], *added["components"]]:
        assert (folder / path / "kustomization.yaml").is_file(), path
    used = {container["image"] for _, each in OURS for container in each.containers()} - {"fedping-helper"}
    assert {each["name"] for each in whole["images"]} == used
    assert {("ConfigMap", each["name"]) for each in whole["configMapGenerator"]} <= generated()
    for patch in whole["patches"]:
        assert (patch["target"]["kind"], patch["target"]["name"]) in LEADER
        for operation in yaml.safe_load(patch["patch"]):
            assert operation["op"] == "replace"
            place: Any = LEADER[patch["target"]["kind"], patch["target"]["name"]]
            for part in operation["path"].strip("/").split("/"):
                place = place[int(part)] if isinstance(place, list) else place[part]
            assert refused(operation["value"]) == ""


def test_the_bucket_of_the_guide_is_one_that_fedping_takes() -> None:
    _, added = told()
    (configuration,) = added["configMapGenerator"]
    assert in_a_bucket({"envFrom": [{"configMapRef": {"name": configuration["name"]}}]})
    said = dict(literal.split("=", 1) for literal in configuration["literals"])
    for name in ("FEDPING_STORE", "FEDPING_LANDING"):
        assert name in image("round").environment, "else the image's own would stay"
        assert isinstance(place_of(said[name]), Bucket)
    for patch in added["patches"]:
        assert (patch["target"]["kind"], patch["target"]["name"]) in BUCKET


@pytest.mark.parametrize("which", ["leader", "helper", "guide", "bucket"])
def test_kubectl_takes_them(which: str, tmp_path: Path) -> None:
    folders = {"leader": KUBERNETES, "helper": KUBERNETES / "helper"}
    said = {"guide": lambda: told()[0], "bucket": with_a_bucket}
    text = rendered(folders[which] if which in folders else overlay(tmp_path, said[which]()))
    made = [each for each in yaml.safe_load_all(text) if each["kind"] != "ConfigMap"]
    sets = {"leader": LEADER, "helper": HELPER, "guide": LEADER, "bucket": BUCKET}
    assert {(each["kind"], each["metadata"]["name"]) for each in made} == sets[which].keys()
    if which in said:
        assert not re.search(r"image: fedping-", text), "an image without a registry"
        assert 'name = "my-study"' in text
        assert "FEDPING_PRIVACY_KEY" in text
    if which == "bucket":
        (name,) = re.findall(r"^kind: ConfigMap\nmetadata:\n  name: (fedping-bucket-\w+)$", text, re.MULTILINE)
        assert text.count(f"name: {name}") == 1 + len([*pods(BUCKET)])
        assert "eks.amazonaws.com/role-arn" in text
        assert "/srv/fedping/" not in text
        assert "fedping-models-" not in text, "what nginx would be told, and is not there"


@pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed"
)
@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_kubernetes_own_schemas_take_them(version: str) -> None:
    validate = importlib.import_module("kubernetes_validate")
    for found in SETS.values():
        for thing in found.values():
            validate.validate(thing, version, strict=True)
