"""Decorators that register a package's extensions of fedping by name.

A function's keyword-only parameters, or a dataclass's fields, are its settings in a settings file, checked by their
annotations; fedping passes the parameters before them. A package declares the module with an entry point of the group
``fedping.extensions``; or ``FEDPING_EXTENSIONS`` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeVar

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import Kind, register, structs_of

F = TypeVar("F", bound=Callable[..., Any])


class Decorator(Protocol):
    """Returns its argument."""

    def __call__(self, made: F, /) -> F:
        """Register a function or a class."""
        ...


def optimizer(name: str) -> Decorator:
    """Register a link of the server: a function of (spec) that returns a ``Transformation``.

    A class has its two functions as methods: ``init(spec)`` returns the state, a dict of vectors, and
    ``update(step, state, weights)`` the step that is added to the weights, shape (m,), and the next state. The incoming
    step is a direction of descent.
    """
    return _decorator("optimizer", name)


def client_algorithm(name: str) -> Decorator:
    """Register a client algorithm: a function of (model, weights, batch, keys) that returns updates.

    It works on k clients at once: ``weights`` are the fetched weights, shape (m,), ``batch`` the clients' examples,
    ``keys`` a random key for each client, shape (k,). The updates are directions that the server adds, shape (k, m).
    ``model.gradients(weights, batch)`` takes weights of shape (m,) or (k, m) and returns (k, m), an ascent.

    A class has it as ``update(model, weights, batch, keys, state)``, which returns the updates and the next state:
    arrays of shape (k, ...) by name, which clients keep between rounds. ``init_state(model)`` returns one client's
    first state. With ``beside(model)``, a tuple of arrays made by ``array(name, shape)``, the server publishes these
    arrays after the model's weights, and updates have as many additional numbers. With ``adds_mean = True`` in its body
    the class requires a server that adds the mean of the updates; any other is rejected before the first round. With
    ``personal_weights(model, weights, batch, state)`` clients predict with personal weights, shape (k, m), which the
    laboratory evaluates in addition to the shared ones. ``local_steps`` draws the examples of local steps. A function,
    or ``update``, with a further parameter ``version`` gets the number of the fetched version, from 0; with ``now`` the
    simulated time of each client's invitation in seconds, shape (k,), or None without a ``[clock]``;
    ``steps_taken(sizes)`` returns the number of local steps of each client.
    """
    return _decorator("client_algorithm", name)


def upload_link(name: str) -> Decorator:
    """Register an upload link: a function of only its settings that returns a ``ClientEnd`` and a ``ServerEnd``.

    The client's end has ``transform(updates, keys)``, which returns other updates, or ``encode(updates, keys)``, which
    returns an Arrow array of payloads. ``updates`` have the shape (k, m); ``keys`` has one random key per client, shape
    (k,). The server's end of an encoding link has ``decode(payloads, m)``, which returns the updates, float32 of shape
    (k, m), and a mask of the readable payloads, shape (k,); and ``lengths(m)``, the minimum and maximum bytes of a
    payload. It may have ``trouble(payload, m)``, which returns the problem of a payload, or None. The server's end of a
    transforming link may have ``undo(updates)``, ``undo_sum(spec, direction)`` for the direction of a round, shape
    (m,), or both. A class has these functions as methods.
    """
    return _decorator("upload_link", name)


def aggregation(name: str) -> Decorator:
    """Register an aggregation: a function of only its settings that returns an accumulator of updates.

    An accumulator has ``init(line)``, ``add(total, updates, votes)``, ``merge(one, other)`` and ``finish(total, line,
    weights, state, key)``, which returns a direction, shape (m,), or a ``Finished`` with the state for the next round,
    a dict of vectors. These functions must not change their arguments. ``updates`` have the shape (k, m), their
    ``votes``, all positive, (k,); ``key`` is 32 bytes of randomness. A class is an accumulator itself.
    ``of_all(finish)`` creates an accumulator that keeps all updates. If ``finish`` of ``of_all``, or ``add`` of an
    accumulator, has a further parameter ``senders``, it gets the updates' senders, in the laboratory in memory
    (:class:`fedping.server_jobs.round.accumulator.Senders`).
    """
    return _decorator("aggregation", name)


def sampling(name: str) -> Decorator:
    """Register a sampler of a round's clients: a function of (sizes, groups, random) that returns clients' positions.

    ``sizes`` are the clients' numbers of examples, shape (clients,), ``groups`` their natural keys or None, ``random``
    a NumPy generator, a new one in each round. A class has the function as ``draw``. With a further parameter ``past``
    it gets the clients' last losses and earlier rounds (:class:`fedping.client_sim.sampling.Past`).
    """
    return _decorator("sampling", name)


def partition(name: str) -> Decorator:
    """Register a partition: a function of (table, random) that returns the client number of each row, from 0.

    -1 leaves a row out. A class has the function as ``owners``.
    """
    return _decorator("partition", name)


def data_set(name: str) -> Decorator:
    """Register a data set: a function of only its settings, or a class's ``table``, that returns a ``Table``."""
    return _decorator("data_set", name)


def metric(name: str, *, higher_is_better: bool = False) -> Decorator:
    """Register a metric: the mean of a function of (predictions, y) that returns a number for each example.

    The model's predictions have the shape (n,): numbers, the probability of class 1 of two, or the number of a cluster;
    or (n, c): the probability of each class, or the score of each candidate. y are the targets, shape (n,), with
    classes as numbers. The task's standard metrics are always computed.

    For a metric that is not a mean, register a class: ``width`` is the number of counts of a client,
    ``counts(predictions, y, there)`` returns them, shape (k, width), and ``metric(counts)`` computes the metric of each
    row, shape (...), also for the sum over clients.
    """
    decorate: Decorator = _decorator("metric", name)

    def marked(made: F) -> F:
        made.higher_is_better = higher_is_better  # type: ignore[attr-defined]
        return decorate(made)

    return marked


def ranking_model(name: str) -> Decorator:
    """Register a model that ranks pages, with ``weight_names``, ``start`` and ``scores(weights, pages)``, shape (P,).

    A function returns such a model; a class is one. ``pages`` has a row for each page: ``visit_count``, ``typed``,
    ``bookmarked`` and ``is_query`` of shape (P,), and for its newest visits ``age_days``, ``visit_type``,
    ``origin_type`` and ``onward`` of shape (P, V), where only the first ``sampled`` count. ``gradients(weights,
    pages)``, shape (P, m), enables the analytic gradient; with ``reference``, shape (m,), a fleet's simulated users
    choose by these weights.
    """
    return _decorator("ranking_model", name)


def model(name: str) -> Decorator:
    """Register a network: a function of only its settings that returns a ``Network``.

    ``flax_network`` and ``equinox_network`` create one from a module. An experiment sets ``features`` and ``classes``,
    if the function has them, from its data. Every network also has the settings ``seed``, which draws the start
    weights, and ``precision``.
    """
    return _decorator("model", name)


def _decorator(kind: Kind, name: str) -> Decorator:
    def decorate(made: F) -> F:
        if name in _built_in(kind):
            raise InvalidSettings(f"the {kind.replace('_', ' ')} '{name}' is one of fedping's; give yours another name")
        register(kind, name, made)
        return made

    return decorate


def _built_in(kind: Kind) -> Collection[str]:
    """Return the registered names."""
    match kind:
        case "optimizer":
            from fedping.protocol.pipeline import Optimizer

            return _tags(Optimizer)
        case "client_algorithm":
            from fedping.protocol.training import Training

            return _tags(Training)
        case "aggregation":
            from fedping.protocol.pipeline import Combination

            return _tags(Combination)
        case "upload_link":
            from fedping.protocol.links import UploadLink

            return _tags(UploadLink)
        case "sampling":
            from fedping.client_sim.sampling import Sampling

            return _tags(Sampling)
        case "partition":
            from fedping.client_sim.data import Partition

            return _tags(Partition)
        case "data_set":
            from fedping.client_sim.data import DATASETS

            return DATASETS
        case "ranking_model" | "model":
            from fedping.client_sim.learning import LEARNERS

            return LEARNERS
        case "metric":
            from fedping.experiments.laboratory.tallies import HIGHER_IS_BETTER, LOWER_IS_BETTER

            return HIGHER_IS_BETTER | LOWER_IS_BETTER
        case _:
            return ()


def _tags(union: Any) -> set[str]:
    from msgspec import inspect

    return {str(each.tag) for each in structs_of(inspect.type_info(union))}
