"""Write ``docs/settings.md``, the tables of a study's settings, from its schema: ``python -m docs.site.settings``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.site.contents import END, START, with_contents
from docs.site.markdown import cell, escaped
from fedping.protocol.json_schema import json_schema

PAGE = Path(__file__).resolve().parents[1] / "settings.md"
HEAD = f"""\
# Settings of a study

<!-- written by python -m docs.site.settings -->

Every table of a study, with its settings, their values and defaults, from the classes that check them. A study file is
the same in TOML, with [a few shorter forms](reference.md#study-file) and comments in an example; `fedping study check`
fills in the safe choices. The [JSON Schema](schema/study.json) has the same for programs.

{START}
{END}
"""

Schema = Mapping[str, Any]
_SECTION = re.compile(r"^(Attributes|Raises|Source|Returns):\s*$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^    ([\w, ]+): ", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def page() -> str:
    """Return the page's text."""
    schema = json.loads(json_schema("study"))
    tables = schema["$defs"]
    places = _places(tables)
    sections = (_table(name, table, places.get(name, [])) for name, table in tables.items())
    return with_contents("\n".join([HEAD, *(line for section in sections for line in section)]))


def _places(tables: Schema) -> dict[str, list[str]]:
    """Return the settings that may contain each table, as links."""
    found: dict[str, list[str]] = {}
    for outer, table in tables.items():
        for setting, value in table.get("properties", {}).items():
            for name in _references(value):
                place = f"`{setting}` of {_link(outer)}"
                if place not in found.setdefault(name, []):
                    found[name].append(place)
    return found


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _references(each)
    elif isinstance(value, dict):
        if "$ref" in value:
            yield _name(value["$ref"])
        for key, each in value.items():
            if key not in ("discriminator", "default"):
                yield from _references(each)


def _table(name: str, table: Schema, places: list[str]) -> Iterator[str]:
    yield f"## {_title(name)}\n"
    text, attributes = _described(table.get("description", ""))
    if places:
        yield f"Stands as {', '.join(places)}.\n"
    yield text + "\n"
    settings = table.get("properties", {})
    if settings:
        required = table.get("required", ())
        yield "| setting | values | default | |\n|---|---|---|---|"
        for setting, value in settings.items():
            default = "required" if setting in required else _json(value.get("default"))
            yield f"| `{setting}` | {cell(_values(value))} | {cell(default)} | {cell(attributes.get(setting, ''))} |"
        yield ""


def _described(docstring: str) -> tuple[str, dict[str, str]]:
    """Return a docstring's text without its sections, and its descriptions of attributes by name."""
    parts = _SECTION.split(docstring)
    text = _plain(parts[0].strip())
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    found = _ATTRIBUTE.split(sections.get("Attributes", ""))
    attributes = {
        name.strip(): _plain(" ".join(what.split()))
        for names, what in zip(found[1::2], found[2::2], strict=True)
        for name in names.split(",")
    }
    return text, attributes


def _plain(text: str) -> str:
    """Return a docstring's text as Markdown."""
    return escaped(_ROLE.sub(r"`\1`", text).replace("``", "`").replace("`\\", "`"))


def _values(value: Schema) -> str:
    """Return the allowed values of a setting in words."""
    if "$ref" in value:
        return _link(_name(value["$ref"]))
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_values(each) for each in value["anyOf"]))
    if "enum" in value:
        return ", ".join(_json(each) for each in value["enum"])
    if "const" in value:
        return _json(value["const"])
    kind = value.get("type", "anything")
    if kind == "array":
        inner = value["items"] if isinstance(value.get("items"), dict) else {}
        return f"list of {_values(inner)}" if inner else "list"
    if kind == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"table of names and {_values(value['additionalProperties'])}"
    return " ".join([{"null": "left out", "boolean": "true, false", "string": "text"}.get(kind, kind), *_bounds(value)])


def _bounds(value: Schema) -> Iterator[str]:
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    bounds = [f"{sign} {_number(value[key])}" for key, sign in signs.items() if key in value]
    if bounds:
        yield ", ".join(bounds)
    if "maxLength" in value:
        yield f"of at most {value['maxLength']:,} characters"


def _number(value: float) -> str:
    return f"{int(value):,}" if abs(value) < 1e12 and value == int(value) else f"{value:g}"


def _name(reference: str) -> str:
    return reference.removeprefix("#/$defs/")


def _title(name: str) -> str:
    *_, module, title = ("", *name.split("."))
    return f"{title} ({module})" if module else title


def _link(name: str) -> str:
    anchor = re.sub(r"[^\w\- ]", "", _title(name).lower()).replace(" ", "-")
    return f"[{_title(name)}](#{anchor})"


def _json(value: object) -> str:
    return "" if value is None else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
