"""The forms of a laboratory experiment and of a study's experiment: cards, models and sources of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from msgspec import inspect

from fedping.dashboard.runs.form import words
from fedping.dashboard.runs.form.nodes import (
    Choice,
    Field,
    Node,
    Option,
    Table,
    Widget,
    default_text,
    fields_of_struct,
    first_paragraph,
    node_of,
    plain,
)
from fedping.experiments.laboratory.models import (
    NOT_OF_A_FUNCTION,
    PAGE_RANKINGS,
    WORKED_OUT,
    Ask,
    ModelChoice,
    OfSpec,
    data_sets,
    models,
)
from fedping.experiments.laboratory.settings.data import Data
from fedping.experiments.laboratory.settings.experiment import Head
from fedping.experiments.laboratory.settings.setup import Setup
from fedping.experiments.simulate.settings import Experiment
from fedping.protocol.extensions import Extension, Kind, all_of
from fedping.protocol.features import FEATURES
from fedping.protocol.spec import ModelSpec


@cache
def laboratory_form() -> dict[str, tuple[Node, ...]]:
    """Return the nodes of the laboratory's form by card, all except the variants."""
    head = [
        node_of(Head, each, each.encode_name, each.encode_name) for each in filter(_is_head, fields_of_struct(Head))
    ]
    settings = (each for each in fields_of_struct(Setup) if each.name != "spec")  # [model] is its short form
    return _on_cards([*head, *map(_of_setup, settings)], words.GROUPS)


@cache
def study_form() -> dict[str, tuple[Node, ...]]:
    """Return the nodes of the form of a study's experiment by card."""
    nodes = [node_of(Experiment, each, each.encode_name, each.encode_name) for each in fields_of_struct(Experiment)]
    return _on_cards(nodes, words.GROUPS_OF_STUDY)


def _on_cards(found: Sequence[Node], groups: Mapping[str, Sequence[str]]) -> dict[str, tuple[Node, ...]]:
    nodes = {node.path: node for node in found}
    placed = {path for paths in groups.values() for path in paths}
    cards = {title: [nodes[path] for path in paths if path in nodes] for title, paths in groups.items()}
    last = list(cards)[-1]
    cards[last] += [node for path, node in nodes.items() if path not in placed]
    return {title: tuple(found) for title, found in cards.items()}


@cache
def laboratory_nodes() -> tuple[Node, ...]:
    """Return all nodes of the laboratory's form in one sequence."""
    return tuple(node for nodes in laboratory_form().values() for node in nodes)


@cache
def study_nodes() -> tuple[Node, ...]:
    """Return all nodes of the form of a study's experiment in one sequence."""
    return tuple(node for nodes in study_form().values() for node in nodes)


KIND = "kind"
"""The form's input that distinguishes the two forms; the laboratory's form by default."""


def nodes_for(form: Mapping[str, str]) -> tuple[Node, ...]:
    """Return all nodes of a filled-in or posted form."""
    return study_nodes() if form.get(KIND) == "study" else laboratory_nodes()


def _is_head(field: inspect.Field) -> bool:
    return field.encode_name != "variants"


def _of_setup(field: inspect.Field) -> Node:
    path = field.encode_name
    if path == "model":
        return _model()
    if path == "data":
        return _data()
    node = node_of(Setup, field, path, path)
    if isinstance(node, Field) and path == "upload":
        return replace(node, help=f"{node.help}{_extensions('upload_link')}")
    if isinstance(node, Table) and path == "evaluation":
        children = (
            replace(each, help=f"{each.help}{_extensions('metric')}")
            if isinstance(each, Field) and each.key == "metrics"
            else each
            for each in node.children
        )
        return replace(node, children=tuple(children))
    return node


def _extensions(kind: Kind) -> str:
    """Return the extensions of a kind with their settings, as a sentence to append; empty if there are none."""
    told = [f"{each.name}{_settings_in_words(each)}" for each in all_of(kind)]
    return f" There are: {'; '.join(told)}." if told else ""


def _settings_in_words(extension: Extension) -> str:
    said = [
        each.encode_name if each.required else f"{each.encode_name} = {default_text(each.default, 'toml')}"
        for each in fields_of_struct(extension.settings)
    ]
    return f" ({', '.join(said)})" if said else ""


def _data() -> Choice:
    """Return the choice of [data]; the one of three settings that is present determines the source."""
    info = inspect.type_info(Data)
    assert isinstance(info, inspect.StructType)
    sources = {
        "set": "a data set",
        "file": "a file of your own",
        "users": "synthetic users, for models that rank pages",
    }
    options = []
    for source, words_for_it in sources.items():
        fields = [each for each in info.fields if each.encode_name != WORKED_OUT and _is_of(each.encode_name, source)]
        nodes = tuple(_of_data(each, source) for each in fields)
        options.append(Option(value=source, label=words_for_it, children=nodes))
    return Choice(
        path="data",
        name="data@",
        label=words.label("data"),
        tag=None,
        options=tuple(options),
        default="set",
    )


def _is_of(setting: str, source: str) -> bool:
    if setting in words.OF_USERS:
        return source == "users"
    if setting in words.OF_A_FILE:
        return source == "file"
    return source == "set" if setting in ("name", "settings", "folder") else source != "users"


def _of_data(field: inspect.Field, source: str) -> Node:
    path, name = f"data.{field.encode_name}", f"data@{source}.{field.encode_name}"
    if path == "data.name":
        sets = tuple(
            (each.name, each.name if not each.missing else f"{each.name} (not installed)") for each in data_sets()
        )
        about = {each.name: first_paragraph(each.help) for each in data_sets()}
        return Field(
            path=path, name=name, label=words.label(path), widget="select", required=True, options=sets, about=about
        )
    node = node_of(Data, field, path, name)
    if isinstance(node, Field) and path == "data.settings":
        return replace(node, help=f"{node.help}{_extensions('data_set')}")
    if isinstance(node, Field) and field.encode_name in ("file", "target", "users"):
        return replace(node, required=True)
    return node


def _model() -> Choice:
    return Choice(
        path="model",
        name="model.name",
        label=words.label("model"),
        tag="name",
        options=(*map(_of_model, models()), _of_features(), *map(_of_extension, _own_models())),
        default=models()[0].name,
    )


def _own_models() -> tuple[Extension, ...]:
    return (*all_of("ranking_model"), *all_of("model"))


def _of_model(model: ModelChoice) -> Option:
    name = f"model@{model.name}"
    of_spec = _of_spec(name)
    own = tuple(_input_field(ask, name) for ask in model.settings if ask.name not in of_spec)
    return Option(
        value=model.name,
        label=model.name,
        help=f"{plain(model.line)} {first_paragraph(model.help)}".strip(),
        children=(*own, *of_spec.values()),
    )


def _of_features() -> Option:
    """Return the option for a model of custom features, with the settings of a study's spec."""
    name = f"model@{FEATURES}"
    fields = {each.encode_name: each for each in fields_of_struct(ModelSpec)}
    children = []
    for each, about in words.OF_FEATURES.items():
        node = node_of(ModelSpec, fields[each], f"model.{each}", f"{name}.{each}")
        assert isinstance(node, Field)
        children.append(
            replace(node, help=f"{about} {node.help}".strip()) if each != FEATURES else _features(node, about)
        )
    return Option(value=FEATURES, label=FEATURES, help=words.FEATURES, children=tuple(children))


def _features(node: Field, about: str) -> Field:
    example = words.EXAMPLE_OF_FEATURES
    return replace(node, default=None, required=True, rare=False, help=about, example=example)


def _of_extension(model: Extension) -> Option:
    name = f"model@{model.name}"
    own = (
        node_of(model.settings, each, f"model.{each.encode_name}", f"{name}.{each.encode_name}")
        for each in fields_of_struct(model.settings)
        if model.kind != "model" or each.encode_name not in NOT_OF_A_FUNCTION
    )
    like, names = (("cnn",), ("seed", "precision")) if model.kind == "model" else (PAGE_RANKINGS[:1], ("gradient",))
    more = (ask for each in models() if each.name in like for ask in each.settings if ask.name in names)
    return Option(
        value=model.name,
        label=model.name,
        help=first_paragraph(model.help),
        children=(*own, *(_input_field(ask, name) for ask in more), *_of_spec(name).values()),
    )


def _of_spec(name: str) -> dict[str, Node]:
    """Return the settings that all models share, by name."""
    return {
        each.encode_name: node_of(OfSpec, each, f"model.{each.encode_name}", f"{name}.{each.encode_name}")
        for each in fields_of_struct(OfSpec)
        if each.encode_name != "name"
    }


def _input_field(ask: Ask, name: str) -> Field:
    path = f"model.{ask.name}"
    widgets: dict[str, Widget] = {
        "whole": "number",
        "wholes": "toml",
        "number": "number",
        "flag": "flag",
        "choice": "select",
    }
    widget = widgets.get(ask.kind, "text")
    least = f"At least {ask.least:g}." if ask.least and ask.least >= 1 else ""
    given = "From the data or the seed, if left out." if ask.optional and widget == "number" else ""
    return Field(
        path=path,
        name=f"{name}.{ask.name}",
        label=words.label(path),
        widget=widget,
        default=default_text(ask.default, widget),
        required=ask.default is None and not ask.optional,
        options=tuple((each, words.option(path, each)) for each in ask.choices),
        help=" ".join(filter(None, (words.HELPS.get(path, ""), given, least))),
        example=ask.example or words.EXAMPLES.get(path, ""),
        rare=path in words.RARE,
    )
