"""The settings of one training: everything except how often it is repeated and what it is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import replace

from fedping.client_sim.attacks import Attack
from fedping.client_sim.data import Iid, Partition
from fedping.client_sim.learning.algorithms import algorithm_name
from fedping.client_sim.learning.checking import adds_mean, check_server
from fedping.client_sim.sampling import All, Sampling, Uniform
from fedping.client_sim.sampling.samplers import OwnSampling
from fedping.experiments.laboratory.settings.data import Data
from fedping.experiments.laboratory.settings.gossip import Gossip, check_gossip
from fedping.experiments.laboratory.settings.personal import check_personal
from fedping.experiments.laboratory.settings.private import check_private
from fedping.experiments.laboratory.tallies import OwnMetric
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.links import Upload
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.privacy import Privacy
from fedping.protocol.spec import Positive
from fedping.protocol.training import OneGradient, Training
from fedping.protocol.upload import check_links

Where: TypeAlias = Literal["memory", "files", "http"]
Newcomers: TypeAlias = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(gt=0, lt=1)]
BaselineName: TypeAlias = Literal["centralised", "local", "start"]


class Evaluation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When and on what a model is evaluated.

    Attributes:
        every: number of rounds between evaluations; the start model and the last one are always evaluated.
        local: whether to evaluate on each client's own test examples too: the mean over the clients, and over the worst
            tenth.
        trained: whether to evaluate each client's own model too, as trained and before merging, on everybody's test
            examples and on everybody else's; that takes as long as two evaluations per client.
        newcomers: how many of the clients that have test examples, or which share of them, never take part in training,
            drawn by the seed; the versions' mean over them is measured too.
        task: how predictions are judged; from the model if None.
        metric: the metric that determines the best variant; from the task if None.
        decided_by: whose metrics determine the best variant and version and are compared with a target: the shared
            model's, or those of the models that clients have of their own, as the mean over the clients.
        target: a value of that metric; how many rounds a run takes to reach it is counted, on the validation examples
            if there are any, else on the test examples.
        metrics: further metrics, each an extension: its name, or a table with its settings.
        baselines: the baselines to compare the federated run with.
        baseline_iterations: the most iterations of those that learn.
    """

    digest_name: ClassVar[str] = "Evaluation"

    every: Annotated[int, Meta(ge=1)] = 1
    local: bool = False
    trained: bool = False
    newcomers: Newcomers = 0
    task: Literal["classification", "regression", "ranking", "clustering"] | None = None
    metric: str | None = None
    decided_by: Literal["central", "personal"] = "central"
    target: float | None = None
    metrics: tuple[OwnMetric, ...] = ()
    baselines: tuple[BaselineName, ...] = ("centralised", "local", "start")
    baseline_iterations: Annotated[int, Meta(ge=1)] = 500

    def __post_init__(self) -> None:
        names = [each.name for each in self.metrics]
        if len({*names}) < len(names):
            raise InvalidSettings(f"[evaluation] names the metric '{max(names, key=names.count)}' twice; leave one out")


class EarlyStopping(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When training stops before its last round (thesis 3.4), by a metric of the clients' validation examples.

    It stops when the best is ``patience`` evaluations old, or, if ``rise`` is given, as soon as the metric is worse
    than the best by more than that share of it. The best version is tested in the end.

    Raises:
        InvalidSettings: neither is given.
    """

    digest_name: ClassVar[str] = "EarlyStopping"

    metric: str = "loss"
    patience: Annotated[int, Meta(ge=1)] | None = None
    rise: Annotated[float, Meta(ge=0, le=10)] | None = None

    def __post_init__(self) -> None:
        if self.patience is None and self.rise is None:
            raise InvalidSettings("early stopping needs 'patience' or 'rise', or it would never stop; give one of them")


class Lateness(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Slow clients: of those that take part, ``shares[a]`` learn from the version that is a versions old.

    The server's ``staleness`` decides what happens to their updates; without it they are left out.

    Raises:
        InvalidSettings: the shares do not sum to 1.
    """

    shares: Annotated[tuple[Annotated[float, Meta(ge=0, le=1)], ...], Meta(min_length=1, max_length=101)]

    def __post_init__(self) -> None:
        if abs(sum(self.shares) - 1) > 1e-9:
            raise InvalidSettings(f"the shares of [lateness] sum to {sum(self.shares):g}; they have to sum to 1")


class CoOp(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """CO-OP (Wang 2017) instead of rounds: clients come one by one, and each is merged as it arrives.

    A client merges if the global model has merged at least ``lower`` and at most ``upper`` others since the client was
    last there; before, it continues training, and after, it starts again from the global model. ``speeds`` are how
    often clients come, relative to each other; they are dealt to the clients in turn.

    Raises:
        InvalidSettings: no age is within the bounds.
    """

    lower: Annotated[int, Meta(ge=0)] = 0
    upper: Annotated[int, Meta(ge=0)] = 100
    speeds: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (1.0,)

    def __post_init__(self) -> None:
        if self.lower > self.upper:
            raise InvalidSettings(f"[co_op] has lower = {self.lower} above upper = {self.upper}; nobody would merge")


class PingLimits(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a round believes of a ping, as the ``limits`` of a study: it counts as so many ``examples`` at most."""

    examples: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Setup(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One training.

    Attributes:
        model: its ``name`` and its own settings.
        data: the examples, and how they are prepared.
        partition: how examples are divided among clients.
        training: what a client does.
        upload: what it does to an update before sending it, link by link; nothing if empty.
        server: what the server does with a round's updates.
        sampling: which clients take part in a round.
        lateness: how many of them are how late; nobody if None.
        co_op: merges clients as they arrive, instead of ``server``, ``sampling`` and ``lateness``; not used if None.
        gossip: averages the clients' models over a graph, instead of all these; not used if None.
        rounds: the most rounds.
        where: the updates go straight to the server's arithmetic (``memory``), through landed Parquet files
            (``files``), or over HTTP to an ingest that lands them (``http``).
        engine: computes the rounds of ``files`` and ``http``.
        evaluation: see :class:`Evaluation`.
        early_stopping: see :class:`EarlyStopping`; none if absent.
        attack: what hostile clients do; there are none if absent.
        privacy: the guarantee that clients have, as a line's (`fedping.protocol.privacy`); none if absent.
        limits: see :class:`PingLimits`; a ping counts as all of its examples if absent.

    Raises:
        InvalidSettings: settings that exclude each other.
    """

    digest_name: ClassVar[str] = "Setup"

    model: dict[str, Any]
    data: Data
    partition: Partition = Iid(clients=10)
    training: Training = OneGradient()
    upload: Upload = ()
    server: Pipeline
    sampling: Sampling = All()
    lateness: Lateness | None = None
    co_op: CoOp | None = None
    gossip: Gossip | None = None
    rounds: Annotated[int, Meta(ge=0, le=1_000_000)]
    where: Where = "memory"
    engine: Literal["numpy", "spark"] = "numpy"
    evaluation: Evaluation = Evaluation()
    early_stopping: EarlyStopping | None = None
    attack: Attack | None = None
    privacy: Privacy | None = None
    limits: PingLimits | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model.get("name"), str):
            raise InvalidSettings('[model] has no name; add one, such as name = "logistic-regression"')
        if self.where == "memory" and self.engine == "spark":
            raise InvalidSettings(
                'where = "memory" and engine = "spark" exclude each other; set where = "files" or "http" for Spark'
            )
        check_links(self.upload, "main")
        if not self.co_op:
            check_server(self.training, self.server, self.upload, is_private=self.privacy is not None)
            self._check_votes()
        if self.lateness and self.server.min_clients > 1:
            raise InvalidSettings("[lateness] needs min_clients = 1, so that every round takes what has come")
        if self.privacy:
            check_private(self, self.privacy)
        if (personal := getattr(self.training, "personal", None)) is not None:
            check_personal(self, personal)
        if self.co_op:
            self._check_co_op()
        if self.gossip:
            check_gossip(self)
        if self.limits and (self.privacy or self.co_op or self.gossip):
            raise InvalidSettings(
                "[limits] are of the pings of rounds that count examples, which [privacy], [co_op] and [gossip] do "
                "not; leave [limits] out"
            )
        if self.evaluation.trained and (
            self.co_op or self.gossip or isinstance(self.training, OneGradient) or getattr(self.training, "sign", False)
        ):
            raise InvalidSettings(
                "[evaluation] trained measures the models that clients have after local training, before a round "
                'merges them; set training = { algorithm = "local", ... }, and leave out [co_op] and '
                "[gossip], which measures its nodes' models anyway"
            )
        if self.data.drifts and (self.evaluation.trained or self.attack):
            raise InvalidSettings(
                "where users drift, every round is judged by searches of its own, which 'trained' in [evaluation] and "
                "the figures of an [attack] are not made for; leave out 'drift' or these"
            )
        if self.early_stopping and not self.data.validation and not self.data.users:
            raise InvalidSettings(
                "[early_stopping] needs validation examples; set 'validation' in [data], such as validation = 0.2"
            )

    @property
    def most_rounds(self) -> int:
        """The most rounds that there can be: ``rounds``, or as many as a guarantee is for."""
        central = self.privacy.central if self.privacy else None
        return self.rounds if central is None else min(self.rounds, central.rounds)

    def _check_votes(self) -> None:
        """Raise if an algorithm adds up means, and a client's part in them changes from round to round."""
        if not adds_mean(self.training):
            return
        known = isinstance(self.sampling, Uniform | OwnSampling) and self.server.weighting != "examples"
        if self.lateness or not (known or isinstance(self.sampling, All)):
            raise InvalidSettings(
                f"the training '{algorithm_name(self.training)}' adds up the means of all rounds, which is wrong where "
                "a client counts for more in one round than in another; leave out [lateness], set sampling = "
                '"uniform" or "all" in [sampling], and weighting = "client" in [server]'
            )

    def _check_co_op(self) -> None:
        if self.evaluation.decided_by == "personal":
            raise InvalidSettings(
                '[co_op] measures the merged model alone; leave out it, or decided_by = "personal" in [evaluation]'
            )
        if self.evaluation.newcomers:
            raise InvalidSettings("[co_op] merges every client; leave out it, or 'newcomers' in [evaluation]")
        if self.attack:
            raise InvalidSettings("[co_op] has no rounds that an [attack] could be on; leave out one of them")
        if self.where != "memory" or self.lateness or self.upload or not isinstance(self.sampling, All):
            raise InvalidSettings(
                "[co_op] merges clients one by one, in memory, with ages of its own; leave out 'where', [lateness], "
                "[sampling] and 'upload'"
            )
        if isinstance(self.training, OneGradient) or getattr(self.training, "sign", False):
            raise InvalidSettings(
                "[co_op] mixes the clients' models, and this training sends none; set training = { algorithm = "
                '"local", epochs = 1, rate = 0.1 } or another that moves the weights'
            )

        if adds_mean(self.training):
            raise InvalidSettings(
                "[co_op] mixes the clients' models one by one, and this training needs a server that adds the mean of "
                'their updates; leave out [co_op], or set training = { algorithm = "local", ... }'
            )

    def at(self, folder: Path) -> Setup:
        """Return the same with paths that were relative to ``folder`` relative to here."""
        return replace(self, data=self.data.at(folder), gossip=self.gossip and self.gossip.at(folder))
