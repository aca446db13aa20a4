"""What docs/containers.md says of trying it with an object store, done: the compose file's commands, as processes."""

import json
import os
import re
import shlex
import subprocess
import uuid
from functools import partial
from pathlib import Path

import pytest

from fedping.model_store import ModelStore, open_store
from fedping.protocol.landed_file import open_landed
from fedping.protocol.landing import open_landing
from fedping.protocol.location import place_of
from tests.support.compose import Composed, composed, waits_for
from tests.support.images import ROOT
from tests.support.nginx import nginx_by
from tests.support.processes import wait_until

FILE = ROOT / "deploy" / "compose-bucket.yaml"
PAGE = (ROOT / "docs" / "containers.md").read_text()
BLOCK = next(block for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if FILE.name in block)
COMPOSE = f"docker compose --file deploy/{FILE.name} "


def told() -> list[list[str]]:
    """Return the commands of the page: compose's without what names the file."""
    return [shlex.split(line.removeprefix(COMPOSE)) for line in BLOCK.splitlines()]


def configuration(services: Composed, folder: Path) -> str:
    """Return nginx's file as the service makes it before it starts."""
    shell, option, script = services.command("nginx")
    making, _, starting = script.partition(" && ")
    assert starting == "exec nginx -g 'daemon off;'"
    subprocess.run([shell, option, making], check=True)
    return (folder / "default.conf").read_text()


def test_the_page_says_what_to_type() -> None:
    first, *others, last = told()
    assert (first[0], last) == ("up", ["down"])
    assert [each[0] for each in others] == ["exec", "exec", "curl", "exec"]


def has_version_1(store: ModelStore) -> bool:
    return store.head("firefox", "main").iteration >= 1


@pytest.mark.long
@pytest.mark.parametrize("engine", ["numpy", pytest.param("spark", marks=pytest.mark.long)])
def test_what_the_page_says_comes_to_a_version_in_the_bucket(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command in its order; rounds are every few seconds, so that nobody waits two minutes for one."""
    said = {"FEDPING_BUCKET": f"trying-{uuid.uuid4().hex[:12]}"}
    instead = {"--every=2m": "--every=3s", "/etc/nginx/conf.d": str(tmp_path)}
    with composed(FILE, tmp_path, said, instead) as services:
        services.services["schedule"]["command"].append(f"--engine={engine}")
        services.up(["schedule", "ingest", "ingest-2"])
        for name in waits_for(services.services["nginx"]).keys() - {"certificate"}:
            assert wait_until(partial(services.is_well, name)), services.said(name)
        for variable, value in services.environment("schedule").items():
            monkeypatch.setenv(variable, value)
        store = open_store(place_of(os.environ["FEDPING_STORE"]))
        posted, said = 0, ""
        with nginx_by(configuration(services, tmp_path), tmp_path / "nginx") as nginx:
            for command, *words in told()[1:-1]:
                if command == "exec":
                    said = services.execute(words[0], words[1:])
                    posted += sum(int(count) for count in re.findall(r"(\d+) accepted,", said))
                    continue
                assert wait_until(partial(has_version_1, store)), services.said("schedule")
                path = words[-1].partition(":8443")[2]
                assert wait_until(lambda: json.loads(nginx.ask("GET", path)[1])["iteration"] >= 1)  # noqa: B023
        assert re.findall(r"^ +([01])  ", said, re.MULTILINE) == ["0", "1"]
        codes = services.down(but="objects")
        assert [codes[name] for name in ("schedule", "ingest", "ingest-2")] == [0, 0, 0]
        assert posted > 500
        landed = open_landing(place_of(os.environ["FEDPING_LANDING"])).all_files()
        assert sum(open_landed(file).footer.num_rows for file in landed) == posted
        for name in ("journal", "journal-2"):
            assert not [*(tmp_path / "volumes" / name).glob("*.closed")]
