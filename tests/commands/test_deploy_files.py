"""`fedping deploy files`: files that systemd, nginx and kubectl accept, with the user's names; it overwrites none."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from fedping.deployment import Deployment, files_of
from fedping.main import cli, main
from fedping.server_jobs.ingest.supervisor import DESCRIPTORS
from tests.support import forked
from tests.support.ingest_server import free_port
from tests.support.nginx import nginx_by
from tests.support.processes import wait_until

ROOT = Path(__file__).parents[2]
STUDY = """
name = "shoes"
pings = "model-update"
arms = [{ name = "all", share = 1.0, line = "main", applies = true, submits = true }]
[[lines]]
name = "main"
[lines.spec]
name = "shoes"
model = "logistic-regression"
settings = { features = 3 }
blocks = [
  { name = "coefficients", shape = [3], step = { start = 0.1, min = 1e-6, max = 50.0 } },
  { name = "intercept", shape = [1], step = { start = 0.1, min = 1e-6, max = 50.0 } },
]
"""
OURS = [
    *("--host", "pings.shoes.example", "--data", "/var/lib/shoes", "--user", "shoes"),
    *("--environment", "/opt/shoes", "--docs", "https://docs.shoes.example/fedping/"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shoes.toml").write_text(STUDY)
    written = tmp_path / "written"
    assert main(["deploy", "files", str(written), "--study", str(tmp_path / "shoes.toml"), *OURS]) == 0
    return written


def test_every_name_of_the_example_is_replaced(folder: Path) -> None:
    for path in [
        *folder.rglob("*.service"),
        *folder.glob("nginx/*"),
        *folder.glob("prometheus/*"),
        folder / "README.md",
    ]:
        text = path.read_text()
        for old in ("telemetry.example.org", "/srv/fedping", "/opt/fedping", "=fedping\n", "firefox ", "HOST/PATH"):
            assert old not in text, (path.name, old)
    units = "".join(path.read_text() for path in sorted(folder.glob("systemd/*")))
    assert units.count("User=shoes\n") == 2
    assert "ExecStart=/opt/shoes/bin/fedping ingest --host 127.0.0.1" in units
    assert "ExecStart=/opt/shoes/bin/fedping schedule shoes --every 30m" in units
    assert "FEDPING_STORE=/var/lib/shoes/store FEDPING_LANDING=/var/lib/shoes/landing" in units
    assert "server_name pings.shoes.example;" in (folder / "nginx" / "fedping.conf").read_text()
    rules = yaml.safe_load((folder / "prometheus" / "fedping-alerts.yml").read_text())["groups"][0]["rules"]
    assert {rule["annotations"]["runbook_url"].partition("#")[0] for rule in rules} == {
        "https://docs.shoes.example/fedping/alerts.md"
    }
    assert json.loads((folder / "grafana" / "fedping.json").read_text())["panels"]
    assert (folder / "study.toml").read_text() == STUDY == (folder / "kubernetes" / "study.toml").read_text()


def test_each_name_of_the_example_is_in_the_files() -> None:
    example = Deployment(
        study="firefox",
        study_file=b"",
        host="telemetry.example.org",
        data="/srv/fedping",
        user="fedping",
        environment="/opt/fedping/.venv",
        docs="https://HOST/PATH/docs",
    )
    assert all(old == new for old, new in example.names.items()), "the files of the repository are those of the example"
    texts = b"".join(files_of(example).values()).decode()
    for name in example.names:
        assert name in texts, name


def test_ingest_s_unit_gives_what_a_worker_needs(folder: Path) -> None:
    text = (folder / "systemd" / "fedping-ingest.service").read_text()
    limits = dict(re.findall(r"^(\w+)=(\S+)$", text, re.MULTILINE))
    assert int(limits["LimitNOFILE"]) >= DESCRIPTORS
    assert limits["ReadWritePaths"] == "/var/lib/shoes"
    assert limits["ProtectHome"] == "yes"
    assert (
        main(["deploy", "files", str(folder.parent / "home"), "--data", "/home/x/data", "--environment", "/opt/x"]) == 0
    )
    text = (folder.parent / "home" / "systemd" / "fedping-ingest.service").read_text()
    assert "ProtectHome=no" in text, "or ingest could not reach its folders"


def test_the_commands_of_the_units_are_ones_that_fedping_takes(folder: Path) -> None:
    for unit in folder.glob("systemd/*"):
        (command,) = re.findall(r"^ExecStart=\S+ (.*)$", unit.read_text(), re.MULTILINE)
        words = shlex.split(command)
        found = cli.get_command(None, words[0])  # type: ignore[arg-type]
        assert found is not None
        known = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("systemd/*"):
        unit = tmp_path / path.name
        unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/sh", path.read_text(), flags=re.MULTILINE))
        ran = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
        assert (ran.returncode, [line for line in ran.stderr.splitlines() if "fedping" in line]) == (0, [])


def test_nginx_takes_its_file(folder: Path, tmp_path: Path) -> None:
    text = (folder / "nginx" / "fedping.conf").read_text()
    text = text.replace("pings.shoes.example", "telemetry.example.org")
    text = text.replace("server 127.0.0.1:8080;", f"server 127.0.0.1:{free_port()};")
    with nginx_by(text, tmp_path / "nginx") as nginx:
        answer, body = nginx.ask("GET", "/private")
        assert (answer.status, json.loads(body)["error"][:12]) == (404, "this address")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_makes_the_objects_of_the_study(folder: Path) -> None:
    ran = subprocess.run(
        ["kubectl", "kustomize", str(folder / "kubernetes")], capture_output=True, text=True, check=True
    )
    objects = {
        (one["kind"], re.sub(r"-[a-z0-9]{10}$", "", one["metadata"]["name"])): one
        for one in yaml.safe_load_all(ran.stdout)
    }
    (container,) = objects["CronJob", "fedping-round"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["round", "shoes"]
    assert container["image"] == "registry.example/fedping-round:1"
    assert objects["ConfigMap", "fedping-study"]["data"]["study.toml"] == STUDY
    assert {one["metadata"].get("namespace") for one in objects.values()} <= {"fedping", None}


def test_names_of_the_example_that_are_left_are_said_with_the_files_that_have_them(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "placeholder" not in capsys.readouterr().out, "all names were given"
    written = tmp_path / "example"
    assert main(["deploy", "files", str(written)]) == 0
    said = capsys.readouterr().out
    for name, option in (("telemetry.example.org", "--host"), ("https://HOST/PATH/docs", "--docs")):
        (note,) = [line for line in said.splitlines() if line.startswith(f"note: {name} is a placeholder in ")]
        assert f"with {option}, and --force" in note
        having = {path for path in written.rglob("*") if path.is_file() and name.encode() in path.read_bytes()}
        listed = note.removeprefix(f"note: {name} is a placeholder in ").partition(";")[0].split(", ")
        assert {written / each for each in listed} == having
    assert main(["deploy", "files", str(written), "--host", "pings.shoes.example", "--force"]) == 0
    assert "telemetry.example.org" not in capsys.readouterr().out


def test_nothing_that_was_changed_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = ["deploy", "files", str(folder), "--study", str(folder / "study.toml"), *OURS]
    capsys.readouterr()
    assert main(again) == 0
    assert "0 of them new or changed" in capsys.readouterr().out
    unit, rules = folder / "systemd" / "fedping-ingest.service", folder / "prometheus" / "fedping-alerts.yml"
    unit.write_text(unit.read_text() + "# ours\n")
    rules.unlink()
    assert main(again) == 1
    assert f"{unit} would be overwritten, so no file was written" in capsys.readouterr().err
    assert not rules.exists()
    assert main([*again, "--force"]) == 0
    assert "2 of them new or changed" in capsys.readouterr().out
    assert "# ours" not in unit.read_text()


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--host", "x y"], 2, "--host 'x y' can't be written to the files"),
        (["--host", "a.example;"], 2, "--host"),
        (["--data", "srv"], 2, "--data 'srv' can't be written to the files"),
        (["--data", "/srv/a b"], 2, "without spaces"),
        (["--data", "/srv/../etc"], 2, "--data"),
        (["--user", "root\nExecStart=x"], 2, "--user"),
        (["--environment", "/opt/x%h"], 2, "--environment"),
        (["--docs", "ftp://x"], 2, "--docs"),
        (["--study", "{none}"], 2, "cannot read the study file"),
        (["--study", "{wrong}"], 2, "needs the setting 'name'"),
    ],
)
def test_what_cannot_stand_in_the_files_is_refused(
    tmp_path: Path, options: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.toml").write_text("[[arms]]\n")
    words = [word.format(none=tmp_path / "none.toml", wrong=tmp_path / "wrong.toml") for word in options]
    assert main(["deploy", "files", str(tmp_path / "d"), *words]) == code
    err = capsys.readouterr().err
    assert says in err or "'name' is missing" in err
    assert not (tmp_path / "d").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "systemd").write_text("")
    assert main(["deploy", "files", str(tmp_path / "d")]) == 1
    assert "can't write" in capsys.readouterr().err


def test_what_is_written_takes_a_fleet_s_pings_through_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = tmp_path / "written", tmp_path / "data"
    options = ["--data", str(data), "--environment", sys.prefix, "--host", "localhost.example"]
    assert main(["deploy", "files", str(folder), *options]) == 0
    readme = (folder / "README.md").read_text()
    (create,) = re.findall(r"bin/fedping (study create .*)$", readme, re.MULTILINE)
    (data / "landing").mkdir(parents=True)
    shutil.copy(folder / "study.toml", data)
    assert main(shlex.split(create)) == 0

    unit = (folder / "systemd" / "fedping-ingest.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    (settings,) = re.findall(r"^Environment=(.*)$", unit, re.MULTILINE)
    port, operations = free_port(), free_port()
    program, *words = shlex.split(command.replace("--port 8080", f"--port {port} --operations-port {operations}"))
    assert Path(program) == Path(sys.prefix) / "bin" / "fedping"
    environment = {**os.environ, **dict(each.split("=", 1) for each in settings.split())}
    ingest = forked.Popen([sys.executable, "-m", "fedping", *words], env=environment)
    try:
        assert wait_until(lambda: is_well(operations))
        text = (folder / "nginx" / "fedping.conf").read_text()
        text = text.replace("localhost.example", "telemetry.example.org").replace("127.0.0.1:8080", f"127.0.0.1:{port}")
        with nginx_by(text, tmp_path / "nginx") as nginx:
            trusted = ["--ca", str(nginx.folder / "fullchain.pem")]
            capsys.readouterr()
            assert main(["fleet", f"https://localhost:{nginx.port}", "firefox", "--clients", "10", *trusted]) == 0
            assert re.search(r"(\d+) pings: \1 accepted, 0 rejected", capsys.readouterr().out)
    finally:
        ingest.send_signal(signal.SIGTERM)
        assert ingest.wait(60) == 0
    places = ["--store", str(data / "store"), "--landing", str(data / "landing")]
    assert main(["round", "firefox", "--engine", "numpy", *places]) == 0
    assert re.search(r"version 0 stays; \d+ of at least 100 clients", capsys.readouterr().out)


def is_well(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/__heartbeat__", timeout=60):
        return True
    return False
