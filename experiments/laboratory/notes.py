"""Notes on a run's problem and rounds, for readers of its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fedping.client_sim.data import ExampleData
from fedping.client_sim.learning.algorithms import algorithm_name
from fedping.client_sim.learning.networks.tree_model import TreeModel, has_convolutions
from fedping.client_sim.learning.submodel import Part
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.tallies import Regression, better
from fedping.experiments.laboratory.users import NewEachRound
from fedping.protocol.limits import MOST_EXAMPLES
from fedping.protocol.personalization import FineTune, Vector
from fedping.protocol.rules import sentences

_CLASSES_LISTED = 5


def of_problem(setup: Setup, problem: Problem) -> Iterator[str]:
    """Yield notes on a run's problem: clients without data, impossible tests, odd targets, unshared models."""
    yield from sentences("advice on training", setup.parts)
    yield from problem.notes
    yield from _of_population(setup, problem)
    yield from _of_network(setup, problem)
    yield from _of_guarantee(setup)
    if not isinstance(problem.train, NewEachRound):  # users have new data in every round
        yield from _of_clients(setup, problem)
        yield from _of_examples(setup, problem)
    if not problem.test.sizes.sum():
        yield f"no client has test examples, so nothing is tested; {_remedy_of_no_tests(setup)}"
    if isinstance(problem.train, ExampleData):
        yield from _of_target(setup, problem, problem.train)


def _of_network(setup: Setup, problem: Problem) -> Iterator[str]:
    """Yield a note if a network has convolutions, which are slow when each client has its own weights."""
    model = problem.model.whole if isinstance(problem.model, Part) else problem.model
    if isinstance(model, TreeModel) and has_convolutions(model.network):
        yield (
            f"the model '{setup.model['name']}' computes convolutions by jax.lax, which takes 3 to 7 times as long as "
            "a product of patches where each client has its own weights. In modules of Flax set conv_general_dilated "
            "= fedping.convolution"
        )


def _of_guarantee(setup: Setup) -> Iterator[str]:
    """Yield a note if the examples' preparation uses all examples, because a guarantee doesn't cover that."""
    if algorithm_name(setup.training) == "private-k-means" and (names := setup.data.computed):
        yield (
            f"the epsilon of private-k-means does not cover {' and '.join(names)} of [data], computed from all "
            "examples: one more may change all others. It holds for a preparation that was fixed beforehand"
        )


def _of_clients(setup: Setup, problem: Problem) -> Iterator[str]:
    expected = max(getattr(setup.partition, "clients", None) or 0, len(problem.train))
    tested_alone = problem.newcomers[(problem.train.sizes == 0)[problem.newcomers]]
    tested_alone = tested_alone[problem.test.sizes[tested_alone] > 0]
    if len(tested_alone):
        yield (
            f"{len(tested_alone):,} of {expected:,} clients have test examples alone: they never train, and are "
            "measured as newcomers"
        )
    there = int((problem.train.sizes > 0).sum()) + len(tested_alone)
    if there < expected:
        least, name = getattr(setup.partition, "least", 1), setup.partition.__struct_config__.tag
        yield (
            f"{expected - there:,} of {expected:,} clients have no training examples and take no part: the partition "
            f"'{name}' gives them fewer than least = {least:,}, or all that they have is "
            "set apart"
        )


def _of_examples(setup: Setup, problem: Problem) -> Iterator[str]:
    """Yield a note if examples are votes and clients have more of them than a ping can count for."""
    if setup.pipeline.weighting != "examples" or setup.co_op or setup.gossip or setup.privacy:
        return
    sizes = problem.train.sizes
    most = MOST_EXAMPLES if setup.limits is None else setup.limits.examples
    capped = f"{int((sizes > most).sum()):,} of {len(sizes):,} clients have more than {most:,} training examples"
    if not (sizes > most).any():
        return
    if setup.limits is not None:
        yield f"{capped}, and count for {most:,}: so says [limits]"
        return
    yield (
        f"{capped}, {int(sizes.max()):,} at most, and count for all of them; in a new study a ping counts as {most:,} "
        f"at most; set limits = {{ examples = {int(sizes.max())} }} in the study, or the study's limit in [limits] here"
    )


def _remedy_of_no_tests(setup: Setup) -> str:
    if not setup.data.test_share:
        return "set 'test' in [data], such as test = 0.2"
    return "each client keeps one example to learn from, so give clients more of them"


def _of_target(setup: Setup, problem: Problem, train: ExampleData) -> Iterator[str]:
    target, name = train.target, setup.model["name"]
    if target.is_class and isinstance(problem.tally, Regression):
        yield (
            f"the target '{target.name}' is a class, {_listed(target.classes)}, which '{name}' takes for the numbers "
            f"0 to {len(target.classes) - 1}; choose a model of classes, unless their order is meant"
        )
    elif target.is_class and 2 * len(target.classes) > (examples := int(train.sizes.sum())) > 2:
        of_file = 'if it is a number, leave out kind = "class" in [data] and choose a model of numbers'
        remedy = of_file if setup.data.file else "read more examples, such as those of more users or rows"
        yield (
            f"the target '{target.name}' has {len(target.classes):,} classes for {examples:,} training examples, too "
            f"many to learn; {remedy}"
        )


def _of_population(setup: Setup, problem: Problem) -> Iterator[str]:
    """Yield a note if a guarantee's declared number of clients, the divisor of sums, is far from the real one."""
    central = setup.privacy.central if setup.privacy is not None else None
    if central is None:
        return
    sizes = problem.train.sizes[problem.learners]
    there = len(sizes) if isinstance(problem.train, NewEachRound) else int((sizes > 0).sum())
    if there and not 1 / _FAR <= central.population / there <= _FAR:
        yield (
            f"population = {central.population:,} in [privacy.central], but there are {there:,} clients: the server "
            f"divides sums by the former, so its steps are {there / central.population:.3g} times what they should be; "
            f"set population = {there}"
        )


_FAR = 1.25
"""Minimum ratio of the declared number of clients to the real one for a note."""


def of_rounds(setup: Setup, rounds: int, versions: int) -> Iterator[str]:
    """Yield a note if rounds published no version because of too few clients, by an exact or a private count."""
    few, remedy = "no client with examples took part in", "draw more"
    if setup.pipeline.min_clients > 1:
        few = f"fewer than min_clients = {setup.pipeline.min_clients:,} clients with examples took part in"
        remedy = "lower min_clients in [server] or [line.pipeline], or draw more"
    if setup.privacy is not None and setup.privacy.central is not None:
        few = f"with the noise, fewer than min_clients = {setup.pipeline.min_clients:,} clients were counted in"
    if setup.most_rounds < setup.rounds and rounds == setup.most_rounds:
        yield (
            f"exhausted after {rounds:,} of {setup.rounds:,} rounds, which the guarantee covers. For more, raise "
            "'rounds' in [privacy.central]"
        )
    personal = getattr(setup.training, "personal", None)
    if isinstance(personal, FineTune) and not personal.shares and rounds > personal.from_version:
        yield (
            f"clients stop sending from version {personal.from_version:,} on (shares = false), so that is the last "
            "one published by rounds. Set shares = true to continue"
        )
        rounds = min(rounds, personal.from_version)
    if isinstance(personal, Vector) and personal.in_step:
        rounds -= max(0, rounds - personal.from_version + 1) // 2  # in every second round no client sends
    if rounds and not versions:
        yield f"rounds published no version: {few} each of the {rounds:,}, so this is the start model; {remedy}"
    elif versions < rounds:
        yield f"{rounds - versions:,} of {rounds:,} rounds published no version: {few} them; {remedy}"


def of_end(metric: str, start: Mapping[str, float], end: Mapping[str, float]) -> Iterator[str]:
    """Yield a note if a run ended worse than it began, by the deciding metric or by the loss.

    A model that diverges may still choose the right class, so the loss is checked in addition to the deciding metric.
    """
    for name in dict.fromkeys((metric, "loss")):
        before, after = start.get(name, np.nan), end.get(name, np.nan)
        if better(name, before, after) and not np.isnan(after):
            yield (
                f"it ended worse than it began ({name} {before:,.6g} at first, {after:,.6g} in the end); lower the "
                "clients' or the server's rate"
            )
            return


def _listed(classes: tuple[str, ...]) -> str:
    return ", ".join(classes[:_CLASSES_LISTED]) + (", ..." if len(classes) > _CLASSES_LISTED else "")
