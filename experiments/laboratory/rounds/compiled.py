"""Rounds compiled by JAX: one call computes all rounds between two evaluations, or the training of one round.

Clients and examples are drawn on the host, as by the NumPy engine, and laid out in lanes (`lanes.py`). If the server's
part can be compiled as well (`inside.py`), all rounds up to the next evaluation are one call (:class:`CompiledRounds`).
Otherwise only the clients' training is compiled (:class:`CompiledTraining`), and the NumPy engine does everything else,
on the updates of a round.

Weights agree with the NumPy engine's up to rounding. A seed gives the same bits on one machine with one version of JAX;
other processors and versions may round differently.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data import ExampleData, example_data
from fedping.client_sim.learning import ChoiceData, Diverged
from fedping.client_sim.learning.batch import NO_EXAMPLE, Clients, FloatArray, padded
from fedping.client_sim.learning.mini_batches import steps_of
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.models.jax_loss import JaxLoss
from fedping.client_sim.learning.models.layer import Layer
from fedping.client_sim.learning.models.linear_regression import LinearRegression
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.client_sim.learning.models.network import Network
from fedping.client_sim.learning.models.svm_ranking import SvmRanking
from fedping.client_sim.learning.networks.tree_model import TreeModel
from fedping.client_sim.learning.states import ClientStates, Kept, MemoryStates
from fedping.client_sim.learning.updates import UpdateBlock, draws, updates_of_fleet
from fedping.client_sim.sampling import Bernoulli
from fedping.client_sim.sampling.samplers import All
from fedping.experiments.laboratory.participants import Participants
from fedping.experiments.laboratory.preparing import Problem, in_precision
from fedping.experiments.laboratory.resuming import Arrays, KeepsPending, Part
from fedping.experiments.laboratory.rounds.aggregating import first_state_of, needs_all
from fedping.experiments.laboratory.rounds.compiling import (
    NOBODY,
    SEEN,
    Local,
    Objective,
    Server,
    Work,
    compiled,
    placed,
    told_choice,
)
from fedping.experiments.laboratory.rounds.inside import check_inside, said_between
from fedping.experiments.laboratory.rounds.lanes import (
    Members,
    Pieces,
    Plan,
    joined,
    pieces_of,
    planned,
    rounded_up,
    width_of,
)
from fedping.experiments.laboratory.rounds.methods import prepared
from fedping.experiments.laboratory.rounds.rectangle import Rectangle, rectangle_of, width_if_even
from fedping.experiments.laboratory.rounds.server import RoundReport, diverged
from fedping.experiments.laboratory.rounds.slots import Slots
from fedping.experiments.laboratory.rounds.updates import Updates, fetched_bytes, posted_bytes, repetitions
from fedping.experiments.laboratory.settings import Setup
from fedping.protocol.draws import Keys
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.local_optimizers import LocalDescent
from fedping.protocol.model import LARGEST_WEIGHT, out_of_range
from fedping.protocol.pipeline import ClipByNorm, Krum, OwnAggregation
from fedping.protocol.training import LocalSteps, OneGradient
from fedping.protocol.weights import LARGEST
from fedping.server_jobs.optimize import BrokenLink, first_state
from fedping.server_jobs.optimize.optimizers import rate_at
from fedping.server_jobs.optimize.transformation import link_name
from fedping.server_jobs.round import MOST_POINTS, votes_of

_NO_MEMORY, _MIB = "RESOURCE_EXHAUSTED", 2**20

_CACHE = 2**18
"""Count of numbers that all lanes process at a time, small enough for a processor's cache."""

_TOGETHER, _COPIES = 2**24, 4
"""Count of numbers processed at a time by clients' single steps on a small model, and copies of the weights in them."""

_UNEVEN = 8
"""Maximum lanes of clients that differ in size: with more, most of them wait for the largest client."""

_MEMORY = 1 / 8
"""Share of an accelerator's memory for one of the several copies of all lanes' numbers."""

_ROWS = 2**21
"""Maximum places for examples in the plans of a call, unless a single round needs more."""

_UPDATES = 2**24
"""Maximum count of numbers in the updates that a call returns."""

_LOSS = 6
"""Index of the column of a plan with the numbers of examples for the loss."""

_TOO_LARGE = "an update is larger than 1e30 or no longer finite; lower the rate, or standardise the features"

_CAPACITIES: dict[tuple[object, ...], list[int]] = {}
"""The sizes of compiled plans, kept so that runs with other seeds reuse the compilations."""


def objective_of(problem: Problem, model: Model[Any]) -> Objective:
    """Return the objective of a problem's model, which is one of `inside.MODELS`."""
    if isinstance(model, JaxLoss):
        return Objective("own", (), 0.0, str(model.dtype), model.loss)
    if isinstance(model, SvmRanking):
        candidates = problem.train.x.shape[1] if isinstance(problem.train, ChoiceData) else 1
        layers = (Layer(model.features, 1, intercept=False),)
        return Objective("choices", layers, model.l2, model.precision, margin=model.margin, candidates=candidates)
    if isinstance(model, TreeModel):
        return Objective("network", (), 0.0, model.precision, model.functions.loss, draws=model.has_modes)
    assert isinstance(model, LinearRegression | LogisticRegression | Network)
    kind = "numbers" if isinstance(model, LinearRegression) else "classes"
    if isinstance(model, LogisticRegression) and model.classes == 2:
        kind = "two classes"
    return Objective(kind, model.penalised_layers, model.l2, model.precision)


def rows_of(data: object) -> ExampleData:
    """Return the examples of clients as rows; a choice is one row with all its candidates.

    Raises:
        InvalidSettings: clients have new examples in each round.
    """
    if isinstance(data, ExampleData):
        return data
    if not isinstance(data, ChoiceData):
        raise InvalidSettings(
            'engine = "jax" keeps the examples on the device, and the users of a rehearsal have new ones in every '
            'round. Set engine = "numpy"'
        )
    n, candidates, _ = data.x.shape
    shown = np.full(n, candidates) if data.shown is None else data.shown
    y = told_choice(data.y.astype(np.float64), shown, candidates)
    rows = example_data(data.x.reshape(n, -1), y, data.sizes)
    return replace(rows, natural_keys=data.natural_keys)


def local_of(training: OneGradient | LocalSteps, objective: Objective, *, in_one: bool = False) -> Local:
    """Return the clients' local work; ``in_one`` means that each step is one piece of a plan."""
    whole = training.batch is None and not objective.draws
    if isinstance(training, OneGradient):
        return Local(None, 0.0, training.sign, LocalDescent(), whole, in_one, in_one)
    single = in_one and _steps_on_all(training) == 1
    return Local(training.rate, training.proximal, training.sign, training.optimizer, whole, in_one, single)


def _steps_on_all(training: OneGradient | LocalSteps) -> int | None:
    """Return the number of steps of clients; None if it depends on their number of examples."""
    if isinstance(training, OneGradient):
        return 1
    return training.epochs if training.steps is None and training.batch is None else training.steps


class _Round(NamedTuple):
    """A drawn round: the plan, the rows for the losses with their owners, and the participants.

    ``keepers`` are the clients with a state, each once, in ascending order.
    """

    plan: Plan
    seen: NDArray[np.int32]
    owners: NDArray[np.int32]
    keepers: Clients
    all_votes: float
    clients: int
    pings: int
    sent: int
    fetches: int
    examples: int


@dataclass(frozen=True)
class Padding:
    """The number of computed examples, and of needed ones among them."""

    computed: int = 0
    needed: int = 0

    def and_of(self, plan: Plan, passes: int = 1) -> Padding:
        """Return these counts plus those of a plan that was computed ``passes`` times."""
        return Padding(self.computed + passes * plan.computed, self.needed + passes * plan.needed)

    @property
    def notes(self) -> tuple[str, ...]:
        """A note if many examples are computed although they are not needed."""
        more = self.computed / max(self.needed, 1) - 1
        if more <= _MUCH:
            return ()
        return (
            f"compiled rounds computed {100 * more:.0f} % more examples than were needed, because clients and batches "
            "differ in size; 'most' in [data] limits the largest clients",
        )


_MUCH = 0.5
"""Minimum share of unneeded computed examples for a note."""


class Lanes:
    """The clients' examples on the device, and the plans of rounds with them."""

    def __init__(self, setup: Setup, problem: Problem, *, with_server: bool) -> None:
        check_inside(setup)
        import jax

        try:
            jax.devices()
        except RuntimeError as error:
            raise InvalidSettings(
                f'engine = "jax" finds no device to compute on: {" ".join(str(error).split())}. Correct JAX_PLATFORMS, '
                'or set engine = "numpy"'
            ) from error
        data, self.how = rows_of(problem.train), prepared(setup.training, problem.model)
        training, model = self.how.phases[-1 if self.how.method is None else 0].training, self.how.model
        if isinstance(model, TreeModel):
            model.check_examples(data.x, float(data.y.max()) if len(data.y) else -np.inf)
        self.jax, self.setup, self.problem, self.training, self.data = jax, setup, problem, training, data
        self.objective = objective_of(problem, model)
        self._with_server = with_server
        learners, self.participants = problem.learners, Participants(setup, problem)
        self.width = width_of(training.batch, data.sizes)
        longest = min(training.batch or sys.maxsize, int(data.sizes.max(initial=1)))
        self.local = local_of(training, self.objective, in_one=longest <= self.width)
        if self.how.method is not None:
            whole = self.local.whole and self.how.at_fetched
            self.local = self.local._replace(sign=self.how.phases[-1].training.sign, whole=whole, single=False)
        if isinstance(setup.sampling, Bernoulli):
            self.drawn = max(1, round(setup.sampling.share * len(learners)))
        else:
            self.drawn = max(1, len(self.participants.of_round(0)))
        numbers = problem.spec.m + self.width * (data.x.shape[1] + 1)
        self.on_one = ""
        """The part of the rounds that can only use one device, as words for a note; empty if there is none."""
        if self.how.method is not None:
            self.on_one = "algorithms other than plain local steps"
        elif with_server and needs_all(setup.pipeline.aggregate):
            self.on_one = "all updates for the aggregation"
        self.devices = 1 if self.on_one else min(len(jax.devices()), self.drawn)
        each = -(-self.drawn // self.devices)
        most = max(1, min(_numbers_at_once(jax) // numbers, each))
        if np.ptp(data.sizes[learners]) > 1 and jax.default_backend() == "cpu":
            most = min(most, _UNEVEN)
        self.count = self.devices * -(-each // -(-each // most))
        self.seen = self.devices * -(-SEEN // self.devices)
        self.padding = Padding()
        self.rectangle = self._rectangle() if with_server else None
        if self.rectangle is None:
            self.arrays = self._on_device()
        else:
            steps = _steps_on_all(training) or 1
            self.local = self.local._replace(in_one=True, single=steps == 1, steps=steps)
            self.count, self.width = self.devices * self.rectangle.at_once, self.rectangle.rows.shape[1]
            self.arrays = self._rectangle_on_device(self.rectangle)

    def _rectangle(self) -> Rectangle | None:
        """Return the layout of examples if all clients train on all of theirs and have similar numbers; else None."""
        learners, model, (_, d) = self.problem.learners, self.problem.model, self.data.x.shape
        sizes, m = self.data.sizes[learners], self.problem.spec.m
        if not self.is_constant or self.how.method or (width := width_if_even(sizes)) is None:
            return None
        numbers, on_cpu = width * (d + 1), self.jax.default_backend() == "cpu"
        if on_cpu and _steps_on_all(self.training) == 1 and m <= numbers:  # a copy of the examples would be more work
            most = _TOGETHER // (width * getattr(model, "floats_per_example", 1) + _COPIES * m)
        else:
            most = _numbers_at_once(self.jax) // (numbers + m)
        return rectangle_of(self.data.offsets[:-1][learners], sizes, width, max(1, most), self.devices)

    def _rectangle_on_device(self, rectangle: Rectangle) -> tuple[Any, ...]:
        data, dtype, learners = self.data, np.dtype(self.objective.precision), self.problem.learners
        number = np.bincount(data.client_of, data.weight > 0, minlength=len(data))
        share = data.weight / np.maximum(number, 1)[data.client_of]
        there = rectangle.client != NOBODY
        whose = np.where(there, rectangle.client, 0)
        columns = (
            _taken(data.x, rectangle.rows, dtype),
            _taken(data.y, rectangle.rows, dtype),
            np.where(rectangle.there, share[rectangle.rows], 0).astype(dtype),
            rectangle.client,
            np.where(there, self._votes(learners)[whose], 0),
            np.where(there, data.sizes[learners][whose], 0).astype(np.float64),
        )
        with self.jax.enable_x64(True):
            return tuple(placed(column, self.devices, 0) for column in columns)

    def _votes(self, clients: Clients) -> FloatArray:
        """Return the votes of the clients of a round; 0 for clients without examples."""
        sizes, pings = self.data.sizes[clients], repetitions(clients)[1]
        votes, used = np.zeros(len(clients)), sizes > 0
        votes[used] = votes_of(
            self.setup.pipeline, pings=pings[used], examples=sizes[used], ages=np.zeros(int(used.sum()), np.int64)
        )
        return votes

    def _on_device(self) -> tuple[Any, ...]:
        data, precision = self.data, self.objective.precision
        number = np.bincount(data.client_of, data.weight > 0, minlength=len(data))
        each = data.sizes if self._with_server else np.ones(len(data))
        share = data.weight * (each / np.maximum(number, 1))[data.client_of]
        everything = sum(len(getattr(part, "y", ())) for part in (data, self.problem.validation, self.problem.test))
        more = rounded_up(max(everything, len(data.y))) - len(data.y)
        columns = (data.x.astype(precision), data.y.astype(precision), data.weight, share)
        with self.jax.enable_x64(True):
            return tuple(
                placed(np.concatenate([column, np.zeros((more, *column.shape[1:]), column.dtype)]), self.devices, None)
                for column in columns
            )

    @property
    def made_by(self) -> str:
        """A note on the software and hardware that determine the last bits of the weights."""
        device = self.jax.devices()[0].device_kind
        there = len(self.jax.devices())
        on = f"{self.devices} devices ({device})" if self.devices > 1 else device
        if there > 1 and self.on_one:
            on = f"one of {there} devices ({device}), because {self.on_one} are on one"
        return f"made by JAX {self.jax.__version__} on {on}, {self.count:,} clients at a time"

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Turn a device's lack of memory in this context into a :class:`FedpingError` that lists its largest uses."""
        try:
            yield
        except self.jax.errors.JaxRuntimeError as error:
            if _NO_MEMORY not in str(error):
                raise
            rows = sum(array.nbytes for array in self.arrays)
            raise FedpingError(
                f"the device has too little memory: the examples take {rows / _MIB:,.0f} MiB, and {self.count:,} "
                f"clients train at a time, each on up to {self.width:,} examples in a step, by "
                f"{self.problem.spec.m:,} weights. "
                'Set a smaller batch in [training], fewer clients in [sampling], or engine = "numpy"'
            ) from error

    @property
    def most_drawn(self) -> int:
        """The maximum number of clients of a round; a round of Bernoulli sampling may rarely have more."""
        more = 4 * math.isqrt(self.drawn) if isinstance(self.setup.sampling, Bernoulli) else 0
        return min(self.drawn + more, max(1, len(self.problem.learners)))

    @property
    def most_trips(self) -> int:
        """The maximum number of pieces of a lane in a round, whichever clients are drawn, if their number is usual."""
        sizes = self.data.sizes[self.problem.learners]
        pieces = np.zeros(len(sizes), np.int64)
        for training in (phase.training for phase in self.how.phases):
            steps = steps_of(training, sizes) if isinstance(training, LocalSteps) else (sizes > 0).astype(int)
            pieces += steps * -(-np.minimum(sizes, training.batch or sizes.max(initial=1)) // self.width)
        largest = np.sort(pieces)[::-1][: self.drawn]
        return int(-(-largest.sum() // self.count) + largest.max(initial=0))

    @cached_property
    def is_constant(self) -> bool:
        """Whether all rounds have the same plan."""
        return isinstance(self.setup.sampling, All) and not self.draws

    @property
    def draws(self) -> bool:
        """Whether clients draw random numbers."""
        phases = self.how.phases
        return any(phase.support is not None or draws(phase.training, self.how.model) for phase in phases)

    def drawn_round(self, clients: Clients, keys: Keys) -> _Round:
        """Return the round of some clients with these keys, as the NumPy engine draws it."""
        data = self.data
        repeats = repetitions(clients)[0]
        sizes, first = data.sizes[clients], data.offsets[:-1][clients]
        votes, used = self._votes(clients), sizes > 0
        members = Members(first, sizes, keys, votes, data.weight)
        keepers, row = np.zeros(0, np.intp), None
        if self.how.method is not None:
            keepers, row = np.unique(clients, return_inverse=True)
        none = self.rectangle is not None
        pieces = Pieces.none(self.width) if none else pieces_of(self.how.phases, members, self.width)
        parts = [pieces]
        if row is not None and repeats.any():  # a client's second training begins with the state after its first one
            nth = repeats[pieces.client]
            parts = [pieces.only(nth == each) for each in range(int(repeats.max()) + 1)]
        plan = joined([planned(part, members, self.count, draws=self.objective.draws, row=row) for part in parts])
        self.padding = self.padding.and_of(plan)
        owner = np.repeat(np.arange(len(clients), dtype=np.int32), sizes)
        row = np.arange(len(owner)) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
        blocks = 0 if self.local.whole else -(-len(row) // self.seen)
        seen, owners = np.full(blocks * self.seen, NO_EXAMPLE, np.int32), np.full(blocks * self.seen, NOBODY, np.int32)
        if blocks:
            seen[: len(row)], owners[: len(row)] = row, owner
        return _Round(
            plan,
            seen.reshape(blocks, self.seen),
            owners.reshape(blocks, self.seen),
            keepers,
            float(votes.sum()),
            int((used & (repeats == 0)).sum()),
            int(used.sum()),
            len(clients),
            int((repeats == 0).sum()),
            int(sizes.sum()),
        )

    def capacity(self, work: Work, rounds: int) -> tuple[int, int]:
        """Return the number of pieces and of blocks of examples of a call with a number of rounds.

        Sizes are reused from run to run, so that compilations are, too.
        """
        if self.rectangle is not None:
            return 0, 0
        known = _CAPACITIES.setdefault((work, rounds, self.count, self.width, self.arrays[0].shape), [0, 0])
        one, rows = self.most_trips, self.count * self.width
        if known[0] < one:
            known[0] = rounded_up(max(one + one // 8, min(rounds * one, _ROWS // rows)))
        largest = np.sort(self.data.sizes[self.problem.learners])[::-1][: self.drawn]
        blocks = 0 if self.local.whole else -(-int(largest.sum()) // self.seen)
        if known[1] < blocks:
            known[1] = rounded_up(max(blocks + blocks // 8 + 1, min(rounds * blocks, _ROWS // self.seen)))
        return known[0], known[1]

    def packed(self, rounds: Sequence[_Round], room: tuple[int, int]) -> tuple[Any, Any, NDArray[np.int32]]:
        """Return the plans of rounds one after another, and where each begins and ends, shape (4, rounds).

        Args:
            rounds: the rounds.
            room: from :meth:`capacity`; a single round that is larger gets more.
        """
        lengths = np.array([[len(each.plan.rows), len(each.seen)] for each in rounds]).reshape(-1, 2)
        ends = np.cumsum(lengths, axis=0)
        total = ends[-1]
        sizes = [have if need <= have else rounded_up(int(need)) for need, have in zip(total, room, strict=True)]
        lanes, width = self.count, self.width
        columns = [
            np.zeros((sizes[0], lanes, width), np.int32),
            np.zeros((sizes[0], lanes)),
            np.zeros((sizes[0], lanes), np.bool_),
            np.zeros((sizes[0], lanes), np.bool_),
            np.zeros((sizes[0], lanes), np.int32),
            np.zeros((sizes[0], lanes)),
            np.zeros((sizes[0], lanes)),
            np.zeros((sizes[0], lanes, 2 * self.objective.draws), np.uint32),
            np.zeros((sizes[0], lanes), np.int32),
            np.zeros((sizes[0], lanes, 0 if self.how.method is None else 2), np.int32),
        ]
        seen = [np.zeros((max(sizes[1], 1), self.seen), np.int32) for _ in range(2)]
        for each, end, length in zip(rounds, ends, lengths, strict=True):
            for column, part in zip(columns, each.plan.columns, strict=True):
                column[end[0] - length[0] : end[0]] = part
            for column, part in zip(seen, (each.seen, each.owners), strict=True):
                column[end[1] - length[1] : end[1]] = part
        bounds = np.stack([ends[:, 0] - lengths[:, 0], ends[:, 0], ends[:, 1] - lengths[:, 1], ends[:, 1]])
        return tuple(columns), tuple(seen), bounds.astype(np.int32)


def _taken(values: NDArray[Any], rows: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values at some rows, shape (k, n, ...), without a copy if the rows are all in order."""
    if np.array_equal(rows.ravel(), np.arange(len(values))):
        return values.astype(dtype, copy=False).reshape(*rows.shape, *values.shape[1:])
    found = np.empty((*rows.shape, *values.shape[1:]), dtype)
    for low in range(0, len(rows), _AT_A_TIME):
        found[low : low + _AT_A_TIME] = values[rows[low : low + _AT_A_TIME]]
    return found


_AT_A_TIME = 4096
"""Clients whose examples are copied at a time."""


def _numbers_at_once(jax: Any) -> int:
    """Return the count of numbers that all lanes may work on at a time."""
    if jax.default_backend() == "cpu":
        return _CACHE
    told = jax.devices()[0].memory_stats() or {}
    return max(_CACHE, int(_MEMORY * told.get("bytes_limit", 0)) // 4)


class _Made(NamedTuple):
    """A computed round: the largest numbers in an update and in the version, and the round's report.

    ``at`` is the round's number in its call, from 1; ``is_last`` is whether it is the call's last.
    """

    at: int
    is_last: bool
    largest: float
    largest_weight: float
    report: RoundReport


class CompiledRounds:
    """The rounds of a server in memory, compiled up to the next evaluation; see :class:`Rounds`.

    The versions between two evaluations are only on the device: :attr:`weights` is the last one of a call.

    Raises:
        InvalidSettings: a part of the setup cannot run inside a compiled round, or JAX is missing.
    """

    def __init__(self, setup: Setup, problem: Problem, states: ClientStates | None = None) -> None:
        self._lanes = Lanes(setup, problem, with_server=True)
        self._setup, self._problem, self._weights = setup, problem, problem.spec.start_array
        pipeline = setup.pipeline
        clip = pipeline.clip.norm if isinstance(pipeline.clip, ClipByNorm) else None
        lanes = self._lanes
        how, at_once = lanes.how, lanes.rectangle.at_once if lanes.rectangle else 0
        server = Server(clip, pipeline.optimizer, pipeline.aggregate)
        self._work = Work(lanes.objective, lanes.local, server, at_once, how.method, lanes.devices)
        first = first_state(problem.line).get(link_name(pipeline.optimizer), {})
        state = {**first, **first_state_of(pipeline.aggregate, problem.spec.m)}
        state.pop("round", None)
        self._most = max(1, min(setup.evaluation.every, setup.most_rounds))
        if isinstance(pipeline.aggregate, Krum) and self._lanes.drawn > MOST_POINTS:
            raise InvalidSettings(
                f"the aggregation 'krum' compares all clients of a round pairwise, and {self._lanes.drawn:,} are more "
                f"than {MOST_POINTS:,}; let fewer clients take part in a round"
            )
        empty = int(np.count_nonzero(problem.train.sizes[problem.learners] == 0))
        if isinstance(pipeline.aggregate, OwnAggregation) and empty:
            raise InvalidSettings(
                f"the aggregation '{pipeline.aggregate.name}' gets the updates of all clients that are drawn, and "
                f'{empty:,} have no examples, so that a round has fewer. Set engine = "numpy", or another partition'
            )
        all_updates = needs_all(pipeline.aggregate)
        self._width = self._lanes.most_drawn if all_updates or how.method is not None else 0
        """Number of rows for the states of a round's clients and for their updates; 0 if neither is needed."""
        self._number = 0
        self._made: list[_Made] = []
        self._begun = _Begun(0, 0, self._weights, state)
        self._next = self._begun
        self._drawn: dict[int, _Round] = {}
        self._packed: tuple[Any, Any, NDArray[np.int32]] | None = None
        self._states = MemoryStates(how.first) if states is None else states
        drawn = self._lanes.most_drawn
        wanted = min(len(problem.learners), setup.most_rounds * drawn)
        self._slots = Slots(
            how.first, self._states, len(problem.train), wanted, (min(wanted, self._most * drawn), drawn)
        )
        if isinstance(self._states, KeepsPending):
            self._states.pending = self._written
        self._refused = self._weights

    @property
    def weights(self) -> FloatArray:
        """See :attr:`Rounds.weights`."""
        return self._weights

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the computation."""
        return (self._lanes.made_by, *self._slots.notes, *self._lanes.padding.notes)

    def _written(self) -> None:
        """Write the clients' states to the store."""
        with self._lanes.jax.enable_x64(True):
            self._slots.flush()

    @property
    def checkpoint(self) -> Part | None:
        """The rounds themselves, which checkpoints save."""
        return self

    def snapshot(self) -> Arrays:
        """Return the state to resume from: the state before the current call, and the number of the last round."""
        begun = self._begun if self._made else self._next
        return {
            "number": np.array(self._number),
            "begun": np.array([begun.number, begun.steps]),
            "weights": begun.weights,
            **{f"state/{name}": value for name, value in begun.state.items()},
        }

    def restore(self, saved: Arrays) -> None:
        """Resume from a snapshot; finished rounds of the interrupted call are computed again."""
        number, steps = (int(each) for each in saved["begun"])
        state = {key.removeprefix("state/"): value for key, value in saved.items() if key.startswith("state/")}
        self._begun = self._next = _Begun(number, steps, saved["weights"], state)
        self._number, self._weights, self._made = number, saved["weights"], []
        self._slots.forget()
        while self._number < int(saved["number"]):
            self.run([])

    def start_weights(self, versions: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """Return the versions."""
        return versions

    def measured(self) -> Mapping[str, Mapping[str, float]]:
        """Return no metrics."""
        return {}

    def run(self, sent: Iterable[Updates]) -> RoundReport:
        """See :meth:`Rounds.run`; clients train inside, and ``sent`` is not used.

        Raises:
            Diverged: an update or a weight is too large.
            FedpingError: a loss is not a finite number.
        """
        if not self._made:
            self._begun = self._next
            self._made = self._computed()[::-1]
        made = self._made.pop()
        self._number += 1
        odd_loss = self._work.objective.function is not None and made.report.pings and not np.isfinite(made.report.loss)
        if odd_loss or not made.largest <= LARGEST:
            self._weights = self._next.weights
            self._slots.commit()
            raise self._trouble_of_a_client()
        if not made.largest_weight <= LARGEST_WEIGHT:
            self._weights = self._next.weights
            raise self._trouble_of_the_server()
        if made.is_last:
            self._weights = self._next.weights
            self._slots.commit()
        return made.report

    def _computed(self) -> list[_Made]:
        """Return the rounds of the next call."""
        begun, every = self._begun, self._setup.evaluation.every
        room = self._lanes.capacity(self._work, self._most)
        end = min(self._setup.most_rounds, (begun.number // every + 1) * every, begun.number + self._most)
        drawn = self._rounds_within(begun.number, end, room)
        plan, seen, bounds = self._plan_of(drawn, room)
        least, optimizer = max(self._setup.pipeline.min_clients, 1), self._setup.pipeline.optimizer
        stepped = np.array([each.clients >= least for each in drawn])
        counts = begun.steps + np.cumsum(stepped)
        rates = [rate_at(optimizer, max(int(count), 1)) for count in counts]  # type: ignore[arg-type]
        votes = [each.all_votes or 1.0 for each in drawn]
        per: list[NDArray[Any]] = [np.zeros(self._most, np.int32) for _ in range(4)]
        per += [np.ones(self._most), np.zeros(self._most), np.zeros(self._most, np.bool_)]
        for column, values in zip(per, (*bounds, votes, rates, stepped), strict=True):
            column[: len(drawn)] = values
        keepers = [each.keepers for each in drawn]
        with self._lanes.jax.enable_x64(True), self._lanes.fitting():
            table = self._slots.begin(np.unique(np.concatenate(keepers)))
        width = max(self._width, *(each.sent for each in drawn)) if self._width else 0
        slots = np.full((self._most, width), self._slots.capacity, np.int32)
        for row, whose in zip(slots, keepers if width else (), strict=False):
            row[:] = self._slots.rows(whose, width)
        after, last, of_rounds, refused = self._called(plan, seen, (*per, slots), table)
        self._refused = np.asarray(refused)
        losses, penalties, largest, largest_weight = (np.asarray(each).tolist() for each in of_rounds)
        state = {name: np.asarray(value) for name, value in after.items()}
        self._next = _Begun(begun.number + len(drawn), int(counts[-1]), state.pop("weights"), state)
        posted, fetched = self._bytes(drawn[-1], np.asarray(last), begun.weights)
        means = _means(losses, penalties, [each.examples for each in drawn])
        return [
            _Made(
                at + 1,
                at + 1 == len(drawn),
                largest[at],
                largest_weight[at],
                self._report(each, mean, bool(stepped[at]), posted, fetched),
            )
            for at, (each, mean) in enumerate(zip(drawn, means, strict=True))
        ]

    def _called(self, plan: Any, seen: Any, per: tuple[NDArray[Any], ...], table: Arrays) -> Any:
        """Run the compiled rounds from the state before the current call, and return the results; uses up ``table``."""
        state = {"weights": self._begun.weights, **self._begun.state}
        rounds, constants = compiled(self._work), self._lanes.how.constants
        with self._lanes.jax.enable_x64(True), self._lanes.fitting():
            found = rounds(state, self._lanes.arrays, plan, seen, per, table, constants)
            *made, table = self._lanes.jax.block_until_ready(found)
        self._slots.put(table)
        return made

    def _trouble_of_the_server(self) -> FedpingError:
        """Return the error about the last round's version."""
        spec, aggregate = self._problem.spec, self._setup.pipeline.aggregate
        odd = np.flatnonzero(~np.isfinite(self._refused))
        if isinstance(aggregate, OwnAggregation) and len(odd):  # as the NumPy engine reports it
            return BrokenLink(
                f"round {self._number} failed: the aggregation '{aggregate.name}' returned a direction that is "
                f"{self._refused[odd[0]]} at weight '{spec.names[odd[0]]}'"
            )
        return diverged(out_of_range(self._refused, spec) or "a weight is too large")

    def _trouble_of_a_client(self) -> FedpingError:
        """Return the error about the first client that diverged in the last round, trained by the NumPy engine."""
        clients, keys = self._drawn_clients(self._number - 1)
        low, high = 0, len(clients)
        while high - low > 1:
            middle = (low + high) // 2
            if self._trouble_of(clients[low:middle], keys[low:middle]):
                high = middle
            else:
                low = middle
        found = self._trouble_of(clients[low:high], keys[low:high])
        return found or Diverged(f"training on the clients has diverged: {_TOO_LARGE}")

    def _trouble_of(self, clients: Clients, keys: Keys) -> FedpingError | None:
        """Return the error if training these clients on the last version fails; else None."""
        problem, training = self._problem, self._setup.training
        data = in_precision(problem.train, problem.model)
        diverged = Diverged(f"training on client {clients[0]} has diverged: {_TOO_LARGE}")
        kept = None
        if first := self._lanes.how.first:
            self._written()
            kept, whose = Kept(MemoryStates(first), clients), np.unique(clients)
            kept.states.save(whose, self._states.load(whose))
        version = self._number - 1
        try:
            for block in updates_of_fleet(
                problem.model, training, self._weights, data, clients, keys, losses=False, version=version, kept=kept
            ):
                if not np.abs(block.updates).max(initial=0.0) <= LARGEST:
                    return diverged
        except Diverged:
            return diverged
        except FedpingError as error:  # the error names the client
            return error
        return None

    def _rounds_within(self, number: int, end: int, room: tuple[int, int]) -> list[_Round]:
        """Return the rounds from ``number`` to before ``end`` that fit the room, at least one."""
        if self._lanes.is_constant:
            return [self._round(number)] * (end - number)
        found: list[_Round] = []
        pieces = blocks = 0
        keeping = np.zeros(len(self._problem.train) if self._lanes.how.method is not None else 0, np.bool_)
        for at in range(number, end):
            each = self._round(at)
            pieces, blocks = pieces + len(each.plan.rows), blocks + len(each.seen)
            keeping[each.keepers] = True
            full = pieces > room[0] or blocks > room[1] or np.count_nonzero(keeping) > self._slots.capacity
            if found and full:
                self._drawn[at] = each
                break
            found.append(each)
        return found

    def _round(self, number: int) -> _Round:
        """Return a drawn round."""
        key = 0 if self._lanes.is_constant else number
        if (found := self._drawn.pop(key, None)) is None:
            found = self._lanes.drawn_round(*self._drawn_clients(number))
        if self._lanes.is_constant:
            self._drawn[key] = found
        return found

    def _drawn_clients(self, number: int) -> tuple[Clients, Keys]:
        """Return the participants of a round, and a key for each."""
        clients = self._lanes.participants.of_round(number)
        return clients, self._lanes.participants.keys(number, clients, repetitions(clients)[0])

    def _plan_of(self, drawn: Sequence[_Round], room: tuple[int, int]) -> tuple[Any, Any, NDArray[np.int32]]:
        """Return the plans of rounds on the device, and where each begins and ends, shape (4, rounds)."""
        if not self._lanes.is_constant:
            return self._lanes.packed(drawn, room)
        if self._packed is None:
            plan, seen, bounds = self._lanes.packed(drawn[:1], room)
            with self._lanes.jax.enable_x64(True):
                self._packed = (*placed((plan, seen), self._lanes.devices, 1), bounds)
        plan, seen, bounds = self._packed
        return plan, seen, np.repeat(bounds, len(drawn), axis=1)

    def _bytes(self, drawn: _Round, last: NDArray[np.float32], weights: FloatArray) -> tuple[int, int]:
        """Return the bytes of a ping with the update ``last`` and of a version, as estimates for all rounds of a call.

        An exact count would need the text of every update and version, which stay on the device.
        """
        one = np.ones(1, np.int64)
        examples = one * (drawn.examples // max(drawn.pings, 1))
        ping = posted_bytes(Updates(one - 1, one - 1, one, last[None], np.array([0.5]), examples))
        return ping, fetched_bytes(self._problem.spec.document_names, weights)

    def _report(self, drawn: _Round, loss: float, stepped: bool, posted: int, fetched: int) -> RoundReport:
        return RoundReport(
            clients=drawn.clients,
            pings=drawn.pings,
            loss=loss,
            stepped=stepped,
            update_bytes=4 * self._problem.spec.m * drawn.pings,
            posted_bytes=posted * drawn.sent,
            fetched_bytes=drawn.fetches * fetched,
            estimated=True,
        )


class _Begun(NamedTuple):
    """The state before a call: the rounds and steps so far, the weights, and the state of the server's optimizer."""

    number: int
    steps: int
    weights: FloatArray
    state: Arrays


def _means(losses: Sequence[float], penalties: Sequence[float], examples: Sequence[int]) -> list[float]:
    """Return the mean loss of each round; NaN without examples."""
    return [
        loss / count + penalty if count else float("nan")
        for loss, penalty, count in zip(losses, penalties, examples, strict=False)
    ]


class CompiledTraining:
    """The clients' compiled training. Their updates then go to the server of the NumPy engine.

    Raises:
        InvalidSettings: a part of the setup cannot run inside compiled training, or JAX is missing.
    """

    def __init__(self, setup: Setup, problem: Problem, states: ClientStates | None = None) -> None:
        self._lanes = Lanes(setup, problem, with_server=False)
        how = self._lanes.how
        self._work = Work(self._lanes.objective, self._lanes.local, None, 0, how.method, self._lanes.devices)
        self._states = MemoryStates(how.first) if states is None else states
        m = problem.spec.m
        self._at_once = max(1, min(rounded_up(self._lanes.drawn), _UPDATES // m))

        self._notes = (said_between(setup),)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the computation."""
        return (*self._notes, self._lanes.made_by, *self._lanes.padding.notes)

    def updates(self, weights: FloatArray, clients: Clients, keys: Keys) -> Iterator[UpdateBlock]:
        """Yield the updates of some clients in blocks, as :func:`fedping.client_sim.learning.updates_of_fleet` does.

        Args:
            weights: the fetched weights, shape (m,).
            clients: positions among all clients.
            keys: a key for each of them.
        """
        lanes = self._lanes
        for low in range(0, len(clients), self._at_once):
            at = np.arange(low, min(low + self._at_once, len(clients)))
            each = lanes.drawn_round(clients[at], keys[at])
            plan, seen, of_rounds = lanes.packed([each], lanes.capacity(self._work, 1))
            bounds = tuple(of_rounds[:, 0])
            columns = (*plan[:_LOSS], (plan[_LOSS] > 0).astype(np.float64), *plan[_LOSS + 1 :])
            with lanes.jax.enable_x64(True), lanes.fitting():
                made = compiled(self._work)(
                    weights, lanes.arrays, columns, seen, bounds, self._kept(each), lanes.how.constants, self._at_once
                )
                updates, losses, penalty = map(np.asarray, made[:3])
            if lanes.how.first:
                count = len(each.keepers)
                self._states.save(each.keepers, {name: np.array(value[:count]) for name, value in made[3].items()})
            sizes = lanes.data.sizes[clients[at]]
            yield UpdateBlock(at, updates[: len(at)], np.where(sizes > 0, losses[: len(at)] + penalty, 0.0))

    def _kept(self, drawn: _Round) -> Arrays:
        """Return the states of a round's clients, padded to the number of clients that train at once."""
        if not self._lanes.how.first:
            return {}
        kept = self._states.load(drawn.keepers)
        return {name: padded(np.asarray(value), self._at_once) for name, value in kept.items()}
