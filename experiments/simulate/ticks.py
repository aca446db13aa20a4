"""One tick of simulated time: searches, the clients' versions, and the resulting pings, partition by partition.

Pings are made directly as the columns that ingest would write, without JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedping.client_sim.attacks import Plot
from fedping.client_sim.fleet.interactions import Browsers, Conditions, as_sent, by_arm_and_version
from fedping.client_sim.fleet.members import corrupt_updates, last_known
from fedping.client_sim.fleet.pings import ADDON_VERSION
from fedping.client_sim.population.behaviour import Behaved, Seekers, behave
from fedping.client_sim.upload import projections, refuse_state
from fedping.experiments.simulate.people import Anybody, uuid_bytes
from fedping.experiments.simulate.settings import Experiment
from fedping.protocol.arrow import landed_schema
from fedping.protocol.draws import FloatArray, Keys, child_keys, uniforms
from fedping.protocol.landed_table import id_column, text_column
from fedping.protocol.landed_table import landed_table as table_of
from fedping.protocol.ping import FRECENCY_UPDATE, NO_VERSION
from fedping.protocol.study import Study, public_study
from fedping.protocol.upload import sending

_STYLES = ("", "bookmark", "favicon")


@dataclass(frozen=True)
class Envelopes:
    """The metadata of S pings of one arm.

    Attributes:
        document_ids, client_ids: shape (S, 16).
        received_ms: the time at which ingest received each ping, in milliseconds since 1970, shape (S,).
        version: the model version that the clients hold.
        arm: the position of the clients' arm in ``arms``.
        arms: the names of all arms of the study.
    """

    document_ids: NDArray[np.uint8]
    client_ids: NDArray[np.uint8]
    received_ms: NDArray[np.int64]
    version: int
    arm: int
    arms: tuple[str, ...]


def landed_table(envelopes: Envelopes, behaved: Behaved) -> pa.Table:
    """Return pings with :func:`fedping.protocol.arrow.landed_schema`, one per search, in the order of the searches."""
    seen, typed = behaved.seen, behaved.typed
    count = len(seen)
    selected = seen.rank >= 0
    numbers: dict[str, NDArray[np.generic]] = {
        "model_version": np.full(count, envelopes.version),
        "loss": seen.loss,
        "num_suggestions_displayed": seen.shown,
        "rank_selected": seen.rank,
        "bookmark_and_history_num_suggestions_displayed": seen.shown,
        "bookmark_and_history_rank_selected": seen.rank,
        "num_chars_typed": typed.characters,
        "num_key_down_events": typed.keys,
        "num_key_down_events_at_selecteds_first_entry": typed.keys_at_first_entry,
        "time_start_interaction": np.zeros(count, np.int8),
        "time_end_interaction": typed.milliseconds,
        "time_at_selecteds_first_entry": typed.milliseconds_at_first_entry,
        "selected_url_was_same_as_search_string": np.where(selected, 0, -1),
        "enter_was_pressed": typed.enter.astype(np.int8),
    }
    arrow_columns = {
        "document_id": id_column(envelopes.document_ids),
        "client_id": id_column(envelopes.client_ids),
        "received_at": pa.array(envelopes.received_ms),
        "study_variation": text_column(np.full(count, envelopes.arm), envelopes.arms),
        "frecency_scores": _scores(seen.scores, seen.shown),
        "selected_style": text_column(np.where(selected, 2 - seen.bookmarked, 0), _STYLES),
        "study_addon_version": text_column(np.zeros(count, np.int32), (ADDON_VERSION,)),
    }
    columns = {**arrow_columns, **{name: pa.array(values) for name, values in numbers.items()}}
    return table_of(FRECENCY_UPDATE, columns, seen.update)


def _scores(scores: NDArray[np.float64], shown: NDArray[np.intp]) -> pa.ListArray:
    values = scores[np.arange(scores.shape[1]) < shown[:, None]].astype(np.float32)
    offsets = np.concatenate([[0], np.cumsum(shown)]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(values), type=landed_schema().field("frecency_scores").type
    )


SEARCHES_AT_A_TIME = 2048
"""Searches per piece of work, so that arrays fit the processor's cache and memory doesn't grow with the clients."""

_BEHAVE, _DOCUMENT, _MOMENT, _UPLOAD = range(4)


@dataclass(frozen=True)
class Models:
    """The versions of a line that clients may hold during a tick.

    Attributes:
        newest: the newest version at the beginning of every tick up to this one, shape (tick + 1,).
        weights: the weights of every version, by its number, as clients get them.
    """

    newest: NDArray[np.int64]
    weights: Mapping[int, FloatArray]


@dataclass(frozen=True)
class Part:
    """The pings of one partition in one tick."""

    line: str | None
    version: int
    table: pa.Table


@dataclass(frozen=True)
class TickSearches:
    """The searches of one tick by enrolled clients, in the order of the clients; each of shape (S,).

    Attributes:
        users: the client of each search.
        number: the number of the search among its client's in this tick, from 0.
        keys: a random key for each search.
        arm: the position of the client's arm in the study.
        version: the version that the client holds, -1 in an arm without a line.
    """

    users: NDArray[np.int64]
    number: NDArray[np.intp]
    keys: Keys
    arm: NDArray[np.int16]
    version: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.users)

    def at(self, rows: NDArray[np.intp]) -> TickSearches:
        """Return the searches at these rows."""
        return TickSearches(self.users[rows], self.number[rows], self.keys[rows], self.arm[rows], self.version[rows])


@dataclass(frozen=True)
class Finished:
    """Some finished searches of one arm and version.

    Attributes:
        arm: the position of the arm in the study.
        version: the version that its clients hold.
        searches: the S searches.
        moment: the time of each search, as a fraction of the tick, shape (S,).
        behaved: the results of the searches; updates are not encoded yet.
    """

    arm: int
    version: int
    searches: TickSearches
    moment: FloatArray
    behaved: Behaved


Out = TypeVar("Out")


class Searchers:
    """Simulates the searches of an experiment's clients, each tick independently of the others."""

    def __init__(self, experiment: Experiment, study: Study, people: Anybody, pool: Executor) -> None:
        self._experiment = experiment
        self._study = study
        self._people = people
        self._pool = pool
        self.links = {line.name: sending(line) for line in study.lines}
        refuse_state(self.links.values())
        self._browsers = Browsers(public_study(study), experiment.gradient)
        for ranker in {self._browsers.spec(arm).model for arm in study.arms}:
            people.users(ranker)  # made now, because threads would make it several times

    def searching(
        self, tick: int, means: NDArray[np.float32], models: Mapping[str, Models], first: int = 0
    ) -> TickSearches:
        """Return the searches of a tick, before they are simulated; arguments as in :meth:`TickMaker.parts`."""
        searching = self._people.activity.searching(tick, means, first)
        arms = self._people.arms_of(searching.users)
        rows = np.flatnonzero(arms < len(self._study.arms))
        users, arm = searching.users[rows], arms[rows]
        keys = self._people.activity.search_keys(searching, tick)[rows]
        return TickSearches(users, searching.number[rows], keys, arm, self._held(users, arm, tick, models))

    def finished(
        self,
        searches: TickSearches,
        tick: int,
        iteration: int,
        models: Mapping[str, Models],
        result_of: Callable[[Finished], Out],
    ) -> Iterator[Out]:
        """Simulate searches, and yield the result of ``result_of`` for some at a time, by arm and version.

        Args:
            searches: the searches of the tick.
            tick: its number.
            iteration: the study's iteration.
            models: each line's models, by name.
            result_of: called in a thread, with at most :data:`SEARCHES_AT_A_TIME` searches.
        """
        jobs = [
            (arm, version, rows[at : at + SEARCHES_AT_A_TIME])
            for arm, version, rows in by_arm_and_version(searches.arm, searches.version)
            for at in range(0, len(rows), SEARCHES_AT_A_TIME)
        ]

        def job(each: tuple[int, int, NDArray[np.intp]]) -> Out:
            arm, version, rows = each
            return result_of(self._finished(arm, version, searches.at(rows), tick, iteration, models))

        yield from self._pool.map(job, jobs)

    def _held(
        self, users: NDArray[np.int64], arm: NDArray[np.int16], tick: int, models: Mapping[str, Models]
    ) -> NDArray[np.int64]:
        """Return the version that each client of these arms holds, -1 in an arm without a line."""
        held = np.full(len(users), NO_VERSION, np.int64)
        for position, settings in enumerate(self._study.arms):
            mine = np.flatnonzero(arm == position)
            if settings.line is not None:
                held[mine] = self._people.activity.held_versions(users[mine], tick, models[settings.line].newest)
        return held

    def _finished(
        self,
        arm: int,
        version: int,
        searches: TickSearches,
        tick: int,
        iteration: int,
        models: Mapping[str, Models],
    ) -> Finished:
        settings = self._study.arms[arm]
        moment = uniforms(child_keys(searches.keys, _MOMENT), 1)[:, 0]
        day = (tick + moment) * (self._experiment.tick_minutes / 1440)
        held = models[settings.line].weights[version] if settings.line is not None and version != NO_VERSION else None
        ranking = self._browsers.ranking(settings, held)
        seekers = Seekers(searches.users, child_keys(searches.keys, _BEHAVE), day)
        attack = self._experiment.attack if settings.submits else None
        plot = None
        if attack and attack.is_on(iteration + 1):
            plot = Plot(attack, self._people.hostile, self._experiment.seed, tick)
        links = None if settings.line is None else self.links[settings.line]
        conditions = Conditions(
            corrupt=corrupt_updates(plot, searches.users),
            projections=projections(links, searches.keys, _UPLOAD) if links else None,
        )
        behaved = behave(self._people.users(ranking.spec.model), ranking, seekers, iteration, conditions)
        if plot and settings.line is not None and isinstance(behaved.seen.update, np.ndarray):
            before = models[settings.line].weights.get(version - 1)
            known = last_known(ranking.spec.names, ranking.spec.start_array if held is None else held, before)
            sent = plot.at_once(searches.users, searches.number, behaved.seen.update, known)
            behaved = replace(behaved, seen=replace(behaved.seen, update=sent))
        return Finished(arm, version, searches, moment, behaved)


class TickMaker:
    """Makes the pings of any tick, each independently of the others."""

    def __init__(self, experiment: Experiment, study: Study, people: Anybody, pool: Executor) -> None:
        self._experiment = experiment
        self._study = study
        self._people = people
        self._searchers = Searchers(experiment, study, people, pool)

    def parts(
        self,
        tick: int,
        iteration: int,
        means: NDArray[np.float32],
        models: Mapping[str, Models],
        first: int = 0,
    ) -> list[Part]:
        """Return the pings of a tick, one table per partition, in the order of the study's lines and of the versions.

        Args:
            tick: its number.
            iteration: the study's iteration; users' wishes may drift with it.
            means: the activity of some consecutive clients
                (:meth:`fedping.client_sim.population.behaviour.Activity.means`); only these clients search.
            models: each line's models, by name.
            first: the first of these clients.
        """

        def landed_part(one: Finished) -> tuple[str | None, int, pa.Table]:
            return self._study.arms[one.arm].line, one.version, self._table(one, tick)

        searches = self._searchers.searching(tick, means, models, first)
        return joined(self._searchers.finished(searches, tick, iteration, models, landed_part))

    def _table(self, one: Finished, tick: int) -> pa.Table:
        line, behaved, keys = self._study.arms[one.arm].line, one.behaved, one.searches.keys
        if line is not None:
            behaved = replace(
                behaved, seen=as_sent(behaved.seen, self._searchers.links[line], child_keys(keys, _UPLOAD))
            )
        start = self._experiment.start_ms + tick * self._experiment.tick_ms
        envelopes = Envelopes(
            document_ids=document_ids(keys),
            client_ids=self._people.ids_of(one.searches.users),
            received_ms=start + (one.moment * self._experiment.tick_ms).astype(np.int64),
            version=one.version,
            arm=one.arm,
            arms=tuple(each.name for each in self._study.arms),
        )
        return landed_table(envelopes, behaved)


def document_ids(keys: Keys) -> NDArray[np.uint8]:
    """Return the document ids of the pings of searches, shape (S, 16), from the searches' keys."""
    return uuid_bytes(child_keys(keys, _DOCUMENT))


def joined(tables: Iterable[tuple[str | None, int, pa.Table]]) -> list[Part]:
    """Return one part per line and version, with its tables joined, in the order of lines and versions."""
    of_partition: dict[tuple[str | None, int], list[pa.Table]] = {}
    for line, version, table in tables:
        of_partition.setdefault((line, version), []).append(table)
    order = sorted(of_partition, key=lambda key: (key[0] or "", key[1]))
    return [Part(line, version, pa.concat_tables(of_partition[line, version])) for line, version in order]
