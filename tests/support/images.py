"""Reads deploy/Dockerfile and .dockerignore, without building."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


@dataclass
class Stage:
    """One build stage: its base, and its instructions in order, as name and rest of the line."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        """Return the arguments of all instructions with a name."""
        return [rest for each, rest in self.instructions if each == name]


def stages() -> dict[str, Stage]:
    """Return the stages of the Dockerfile by name, in their order."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    found: dict[str, Stage] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            found[stage] = Stage(base)
        elif name and found:
            [*found.values()][-1].instructions.append((name, rest.strip()))
    return found


@dataclass(frozen=True)
class Image:
    """A target of the Dockerfile, with everything that it inherits from its base stages."""

    name: str
    user: str
    entrypoint: list[str]
    command: list[str]
    environment: dict[str, str]
    volumes: list[str]
    ports: list[int]
    health: list[str]
    """The command of the health check; empty for NONE."""


def image(name: str) -> Image:
    """Return a target with its inherited settings."""
    every = stages()
    line = [stage := every[name]]
    while stage.base in every:
        line.insert(0, stage := every[stage.base])
    said = [each for stage in line for each in stage.instructions]

    def last(instruction: str, default: str = "[]") -> str:
        return [default, *(rest for each, rest in said if each == instruction)][-1]

    environment = dict(word.split("=", 1) for each, rest in said if each == "ENV" for word in shlex.split(rest))
    health = last("HEALTHCHECK").partition("CMD ")[2] or "[]"
    return Image(
        name,
        last("USER", ""),
        json.loads(last("ENTRYPOINT")),
        json.loads(last("CMD")),
        environment,
        json.loads(last("VOLUME")),
        [int(word) for word in last("EXPOSE", "").split()],
        json.loads(health),
    )


def _as_regex(pattern: str) -> re.Pattern[str]:
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    words = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.strip("/"))
    return re.compile("".join(parts.get(word, re.escape(word)) for word in words) + r"(?:/.*)?\Z")


def _rules() -> Iterator[tuple[bool, re.Pattern[str]]]:
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.startswith("!"), _as_regex(line.removeprefix("!"))


def in_context(path: str) -> bool:
    """Return whether a file is in the build context: the last pattern that matches it or a parent decides."""
    taken = True
    for wanted, pattern in _rules():
        if pattern.match(path):
            taken = wanted
    return taken
