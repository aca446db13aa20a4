"""Reads a compose file as compose does, and runs its services as processes of this machine."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedping.server_jobs.processes import child_command
from tests.support.images import image
from tests.support.ingest_server import free_port
from tests.support.processes import PATIENCE, wait_until

Service = dict[str, Any]

_MOTO = ["python", "-m", "moto.server", "-H", "127.0.0.1"]
"""Command of moto's image, which listens at all addresses of its container."""

_PROGRAMS = {"fedping": [sys.executable, "-m", "fedping"], "python": [sys.executable]}

_KEPT = ("PATH", "HOME", "JAVA_HOME", "LANG")
"""Environment variables of this machine that processes need."""


def services(file: Path) -> dict[str, Service]:
    """Return the services of a compose file, as written."""
    found: dict[str, Service] = yaml.safe_load(file.read_text())["services"]
    return found


def mounts(service: Service) -> dict[str, str]:
    """Return the mounts of a service, by their path in the container."""
    return {target: source for source, target in (each.split(":")[:2] for each in service.get("volumes", ()))}


def filled_in(service: Service, said: Mapping[str, str]) -> Service:
    """Return a service with its ``${NAME:-default}`` replaced by variables; it has no other ``$``."""
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: said.get(found[1]) or found[2], json.dumps(service))
    assert "$" not in text, "what compose would take for a variable"
    made: Service = json.loads(text)
    return made


def waits_for(service: Service) -> dict[str, str]:
    """Return the services that a service waits for, with the conditions."""
    return {name: how["condition"] for name, how in service.get("depends_on", {}).items()}


class Composed:
    """The services of a compose file as processes: their commands, with ports and folders of this machine.

    Args:
        file: the compose file.
        folder: the folder of the volumes and the services' output.
        said: values for the file's variables, in place of its defaults.
        instead: more words of commands, with their replacements here.
    """

    def __init__(self, file: Path, folder: Path, said: Mapping[str, str], instead: Mapping[str, str]) -> None:
        self._file, self._folder, self._instead = file, folder, dict(instead)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.services = {name: filled_in(service, said) for name, service in services(file).items()}
        self.ports = {
            name: {port: free_port() for port in re.findall(r"--\S*port=(\d+)", " ".join(service["command"]))}
            for name, service in self.services.items()
        }

    # --- commands on this machine ---

    def words(self, name: str, said: Sequence[str]) -> list[str]:
        """Return a command in a service's container, as this machine runs it."""
        here = [self._here(name, word) for word in said]
        return [*_PROGRAMS.get(here[0], here[:1]), *here[1:]]

    def command(self, name: str) -> list[str]:
        """Return a service's own command as this machine runs it."""
        service = self.services[name]
        if "build" in service:
            entrypoint = image(service["build"]["target"]).entrypoint[-1:]  # without the init program
        else:
            entrypoint = service.get("entrypoint") or (_MOTO if "moto" in service["image"] else [])
        return self.words(name, [*entrypoint, *service["command"]])

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment variables of a service: its image's and its own."""
        service = self.services[name]
        of_image = image(service["build"]["target"]).environment if "build" in service else {}
        said = {each: value for each, value in of_image.items() if each.startswith("FEDPING_")}
        said |= {each: value for each, value in service.get("environment", {}).items() if value is not None}
        here = {each: os.environ[each] for each in _KEPT if each in os.environ}
        return here | {each: self._here(name, value) for each, value in said.items()}

    def _here(self, name: str, word: str) -> str:
        for target, source in mounts(self.services[name]).items():
            of_checkout = source.startswith(".")
            place = (self._file.parent / source).resolve() if of_checkout else self._folder / "volumes" / source
            word = word.replace(target, str(place))
        for other, ports in self.ports.items():
            for port, here in ports.items():
                word = re.sub(rf"(?<![\w-]){other}:{port}\b", f"127.0.0.1:{here}", word)
        for port, here in self.ports[name].items():
            word = re.sub(rf"(port=|127\.0\.0\.1:){port}\b", rf"\g<1>{here}", word)
        for said, ours in self._instead.items():
            word = word.replace(said, ours)
        return word

    # --- running them ---

    def up(self, names: Collection[str]) -> None:
        """Start services, each after its dependencies, which are started too."""
        for name in names:
            if name not in self._running:
                for other, until in waits_for(self.services[name]).items():
                    self._after(other, until)
                self._start(name)

    def _after(self, name: str, until: str) -> None:
        if until == "service_healthy":
            self.up([name])
            assert wait_until(lambda: self.is_well(name)), self.said(name)
        elif name not in self._running:
            self.up([name])
            assert self._running[name].wait(PATIENCE) == 0, self.said(name)

    def _start(self, name: str) -> None:
        with open(self._log(name), "ab") as log:
            self._running[name] = subprocess.Popen(
                child_command(self.command(name)),
                env=self.environment(name),
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )

    def is_well(self, name: str) -> bool:
        """Return whether a service's health check succeeds; the service must be running."""
        assert self._running[name].poll() is None, self.said(name)
        service = self.services[name]
        check = (
            service["healthcheck"]["test"][1:] if "healthcheck" in service else image(service["build"]["target"]).health
        )
        asked = subprocess.run(
            self.words(name, check), env=self.environment(name), capture_output=True, timeout=PATIENCE
        )
        return asked.returncode == 0

    def execute(self, name: str, said: Sequence[str]) -> str:
        """Run a command in a running service's container, and return its output."""
        ran = subprocess.run(
            self.words(name, said), env=self.environment(name), cwd=self._folder, capture_output=True, text=True,
            timeout=PATIENCE,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def down(self, but: str) -> dict[str, int]:
        """Stop all services except one, each before its dependencies, and return their exit codes."""
        codes = {}
        for name in [name for name in reversed(self._running) if name != but]:
            process = self._running.pop(name)
            process.send_signal(signal.SIGTERM)
            codes[name] = process.wait(PATIENCE)
        return codes

    def kill(self) -> None:
        """Kill all processes."""
        for process in self._running.values():
            process.kill()
            process.wait()

    def said(self, name: str) -> str:
        """Return the output of a service."""
        return self._log(name).read_text(errors="replace")

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


@contextlib.contextmanager
def composed(
    file: Path, folder: Path, said: Mapping[str, str] | None = None, instead: Mapping[str, str] | None = None
) -> Iterator[Composed]:
    """Give a compose file's services as :class:`Composed`, and leave none running at the end."""
    made = Composed(file, folder, said or {}, instead or {})
    try:
        yield made
    finally:
        made.kill()
