"""An experiment's file: a study, its simulated clients, its phases, and its validation."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from fedping.client_sim.attacks import Attack
from fedping.client_sim.fleet.interactions import Gradient
from fedping.client_sim.fleet.members import check_attack
from fedping.client_sim.learning.registry import is_ranking_model
from fedping.client_sim.learning.study_files import study_from_toml
from fedping.client_sim.population.behaviour import ActivitySettings, UserSettings
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import local_path
from fedping.protocol.settings_file import converted, read_toml
from fedping.protocol.stopping_settings import (
    EarlyStop,
    IterationByClients,
    IterationBySigns,
    IterationByTime,
    IterationLength,
)
from fedping.protocol.study import Study

Ticks: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
Rate: TypeAlias = Annotated[float, Meta(gt=0, le=10_000)]
Shape: TypeAlias = Annotated[float, Meta(gt=0.001, le=1e6)]


class FixedLength(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="time"):
    """An iteration has a fixed number of ticks, as in 2018."""

    digest_name: ClassVar[str] = "FixedLength"

    ticks: Ticks = 1


class LengthByClients(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="clients"):
    """An iteration ends with the tick when this number of clients have sent a usable update (thesis 7.5).

    It ends after ``most`` ticks at the latest.
    """

    digest_name: ClassVar[str] = "LengthByClients"

    clients: Annotated[int, Meta(ge=1)]
    most: Ticks = 48


class LengthBySigns(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="signs"):
    """An iteration ends when the signs of the mean update are stable (thesis 7.5), since RProp uses only these.

    A sign is stable when the mean is at least ``z`` standard errors from 0, or when all updates of that weight are 0.
    The share of stable signs must be ``share``. It ends after ``most`` ticks at the latest.
    """

    digest_name: ClassVar[str] = "LengthBySigns"

    z: Annotated[float, Meta(gt=0, le=100)] = 2.0
    share: Annotated[float, Meta(gt=0, le=1)] = 0.8
    most: Ticks = 48


Length: TypeAlias = FixedLength | LengthByClients | LengthBySigns


def in_minutes(length: Length, tick_ms: int) -> IterationLength:
    """Return the length of an iteration in a study line's form, given the milliseconds of a tick."""
    if isinstance(length, FixedLength):
        return IterationByTime(minutes=length.ticks * tick_ms / 60_000)
    most = length.most * tick_ms / 60_000
    if isinstance(length, LengthByClients):
        return IterationByClients(clients=length.clients, most=most)
    return IterationBySigns(z=length.z, share=length.share, most=most)


class Phase(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The activity of clients in a phase.

    ``searches_per_day`` is an average enrolled client's; ``activity_shape`` is the shape of the gamma distribution of
    clients' activity: the lower, the more unequal. The default matches the thesis' counts (7.5): 2.07 and 3.67 million
    pings of 310,525 clients (186,315 in treatment's 60 percent) and 306,200, of 723,581 enrolled, need 0.21 and 0.16.
    """

    searches_per_day: Rate = 1.0
    activity_shape: Shape = 0.18


class Optimization(Phase, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The phase with a round after every iteration.

    ``length`` and ``early_stopping`` are for lines of the study without own settings for the end of an iteration and of
    training. Lines that the arm of ``early_stopping`` does not follow are trained to their last iteration. At the end
    the best version is published again, for the evaluation, also if training was not stopped.
    """

    digest_name: ClassVar[str] = "Optimization"

    iterations: Annotated[int, Meta(ge=0, le=1_000_000)]
    length: Length = FixedLength()
    early_stopping: EarlyStop | None = None


class Evaluation(Phase, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The phase after the optimization, with a fixed number of ticks and the final version frozen.

    Its pings land in the partition of that version, which has no pings of the optimization, because no round stepped
    from it. Late pings of clients with an older version land with that version, as always; their ``received_at`` shows
    it. Clients do not know phases: those that submit updates continue to do so.
    """

    digest_name: ClassVar[str] = "Evaluation"

    ticks: Annotated[int, Meta(ge=0, le=1_000_000)]


class Experiment(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a simulation.

    Attributes:
        study: the study's file, relative to the experiment's.
        seed: determines all draws.
        clients: the number of browsers, enrolled or not.
        start: when it begins, by the simulated clock (UTC).
        tick_minutes: the step of simulated time: clients fetch once a tick, and pings land at the end of each.
        gradient: how clients compute updates.
        users: the users' data, wishes and behaviour.
        activity: the times of their searches.
        optimization: the first phase.
        held: the outcome of a version that a line's guard holds: the simulation ends, or it is released or discarded at
            once.
        evaluation: the second; none if absent.
        attack: the behaviour of hostile clients, which are in arms that submit; all clients are honest if absent. A
            round is the newest version's round. Those who collude see the honest updates of the same tick, arm and
            version, at most 2,048 at a time.

    Raises:
        InvalidSettings: a day is not a whole number of ticks.
    """

    digest_name: ClassVar[str] = "Experiment"

    study: str
    seed: Annotated[int, Meta(ge=0)] = 0
    clients: Annotated[int, Meta(ge=1, le=100_000_000)]
    start: datetime = datetime(2018, 6, 20, tzinfo=UTC)
    tick_minutes: Annotated[float, Meta(gt=0, le=1440)] = 30.0
    gradient: Gradient = "finite_differences"
    users: UserSettings = UserSettings()
    activity: ActivitySettings = ActivitySettings()
    optimization: Optimization
    evaluation: Evaluation | None = None
    attack: Attack | None = None
    held: Literal["end", "release", "discard"] = "end"

    def __post_init__(self) -> None:
        if (1440 / self.tick_minutes) % 1:
            raise InvalidSettings(
                f"a day is not a whole number of ticks of {self.tick_minutes:g} minutes; set tick_minutes to 30, say"
            )
        if self.start.tzinfo is None:
            raise InvalidSettings("the start of an experiment needs a time zone; write it as 2018-06-20T00:00:00Z")

    @property
    def tick_ms(self) -> int:
        """The length of a tick, in milliseconds."""
        return round(self.tick_minutes * 60_000)

    @property
    def start_ms(self) -> int:
        """The start, in milliseconds since 1970."""
        return round(self.start.timestamp() * 1000)


def experiment_from_toml(path: Path) -> tuple[Experiment, Study]:
    """Read an experiment's file, and the file of its study.

    Raises:
        InvalidSettings: a file is missing, is not TOML, or has invalid settings.
    """
    experiment = converted(read_toml(path, "experiment file"), Experiment, f"the experiment file {path}: ")
    study = study_from_toml(path.parent / local_path(experiment.study))
    _check(experiment, study)
    return experiment, study


def _check(experiment: Experiment, study: Study) -> None:
    if not study.lines:
        raise InvalidSettings(f"study '{study.name}' trains no model line, so there is nothing to simulate")
    if experiment.attack:
        check_attack(experiment.attack, study, ranks_pages=True)
    users = experiment.users
    for name, given in (("true_weights", users.true_weights), ("drifted_weights", users.drifted_weights)):
        for spec in (line.spec for line in study.lines if given and line.spec.m != len(given)):
            raise InvalidSettings(
                f"the experiment's {name} are {len(given)}, but '{spec.model}' has {spec.m}; give as many, in the "
                "order of the spec's weights"
            )
    if study.is_private:
        _check_private(experiment, study)
    phase = experiment.optimization
    follows = study.arm(phase.early_stopping.arm).line if phase.early_stopping else None
    if phase.early_stopping and not study.arm(phase.early_stopping.arm).applies:
        raise InvalidSettings(
            f"early stopping is to follow arm '{phase.early_stopping.arm}', which does not rank with the trained "
            "model; name an arm with 'applies = true'"
        )
    for line in study.lines:
        if line.guard is not None and line.guard.enabled and line.guard.stage is not None:
            raise InvalidSettings(
                f"line '{line.name}' of study '{study.name}' stages its versions, but simulated clients never fetch "
                "staged versions. Remove 'stage' from its guard"
            )
        twice = {
            "length": line.length is not None and phase.length != FixedLength(),
            "early_stopping": line.early_stopping is not None and line.name == follows,
        }
        for name in (name for name, is_so in twice.items() if is_so):
            raise InvalidSettings(
                f"line '{line.name}' of study '{study.name}' has '{name}', and so has the experiment. Remove it from "
                "the experiment, which then uses the study's"
            )


def _check_private(experiment: Experiment, study: Study) -> None:
    """Raise :class:`InvalidSettings` if an experiment needs data that its private study doesn't provide."""
    private = f"study '{study.name}' is private"
    if experiment.evaluation is not None:
        raise InvalidSettings(
            f"{private}: [evaluation] has no data here, because the users' behaviour with a version is known only "
            "from the next round's release. Remove [evaluation]"
        )
    if not isinstance(experiment.optimization.length, FixedLength):
        raise InvalidSettings(
            f"{private}: the time of a round may not depend on who has sent. Remove length in [optimization], or "
            'set it to { by = "time", ticks = 1 }'
        )
    for line in study.lines:
        if line.privacy is not None and line.privacy.shared is not None:
            raise InvalidSettings(
                f"line '{line.name}' of study '{study.name}' is a two-server line, but a simulation has no second "
                "server. Remove [lines.privacy.shared]: the sums then contain the same whole numbers with the noise "
                "of one server; two servers add √2 times as much"
            )
        if not is_ranking_model(line.spec.model):
            raise InvalidSettings(
                f"{private}, and the model '{line.spec.model}' of its line '{line.name}' ranks no pages, but "
                "simulated users only rank pages. Run a fleet for it ('fedping docs privacy'), or try its training "
                "in the laboratory"
            )
