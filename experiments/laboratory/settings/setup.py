"""The settings of one training: everything except its repetitions and comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from fedping.client_sim.attacks import Attack
from fedping.client_sim.data import Iid, Partition
from fedping.client_sim.learning.algorithms import algorithm_name
from fedping.client_sim.learning.checking import check_mean, declared_traits
from fedping.client_sim.sampling import All, Bernoulli, Sampling
from fedping.experiments.laboratory.settings.clock import Clock
from fedping.experiments.laboratory.settings.data import Data
from fedping.experiments.laboratory.settings.response import Response
from fedping.experiments.laboratory.settings.several import Bipartition, Clusters, Hierarchy
from fedping.experiments.laboratory.tallies import OwnMetric
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.links import check_links
from fedping.protocol.location import local_path
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.rules import Parts, Trait, check, traits_of, traits_where
from fedping.protocol.spec import ModelSpec, Positive
from fedping.protocol.study import Line, LineSettings, check_line

LINE = "main"
"""The name of a run's line."""

Where: TypeAlias = Literal["memory", "files", "http"]
Newcomers: TypeAlias = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(gt=0, lt=1)]
BaselineName: TypeAlias = Literal["centralised", "local", "start"]


class Evaluation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The times and the examples of a model's evaluation.

    Attributes:
        every: number of rounds between evaluations; the start model and the last one are always evaluated.
        local: whether to evaluate on each client's own test examples too: the mean over the clients, and over the worst
            tenth.
        trained: whether to evaluate each client's own model too, as trained and before merging, on all clients' test
            examples and on all other clients'; that takes as long as two evaluations per client.
        newcomers: number or share of the clients with test examples that never train, drawn by the seed; the versions'
            mean over them is measured too.
        task: how predictions are judged; from the model if None.
        metric: the metric that determines the best variant; from the task if None.
        decided_by: the metrics that determine the best variant and version and are compared with a target: metrics of
            the shared model, or of the clients' own models, as the mean over the clients.
        target: a value of that metric; the rounds until a run reaches it are counted, on the validation examples if
            there are any, else on the test examples.
        metrics: further metrics, each an extension: its name, or a table with its settings.
        baselines: the baselines to compare the federated run with.
        baseline_iterations: the maximum number of iterations of baselines that learn.
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
            raise InvalidSettings(f"[evaluation] names the metric '{max(names, key=names.count)}' twice. Remove one")


class EarlyStopping(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Early stopping of training (thesis 3.4), by a metric of the clients' validation examples.

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
    """Slow clients: a share ``shares[a]`` of the participants learns from the version that is ``a`` versions old.

    The server's ``staleness`` determines the use of their updates; without it, the updates are left out.

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
    last there; before, it continues training, and after, it starts again from the global model. ``speeds`` are the
    relative frequencies of the clients' arrivals, assigned to the clients in turn.

    Raises:
        InvalidSettings: the bounds exclude every age.
    """

    lower: Annotated[int, Meta(ge=0)] = 0
    upper: Annotated[int, Meta(ge=0)] = 100
    speeds: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (1.0,)

    def __post_init__(self) -> None:
        if self.lower > self.upper:
            raise InvalidSettings(
                f"[co_op] has lower = {self.lower} above upper = {self.upper}; clients would never merge"
            )


class Gossip(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Gossip averaging instead of a server: every client is a node with its own model.

    In a round each node trains its model, and then averages it with its neighbours' models (D-PSGD, Lian et al. 2017).

    Attributes:
        graph: the kind of graph; None if ``file`` has the graph.
        degree: the number of each node's neighbours in a random regular graph.
        file: a CSV file of edges, in the place of ``graph``.
        failures: the probability that a node is absent in a round: it neither trains nor exchanges.
        exchanges: the number of averagings after each training.

    Raises:
        InvalidSettings: not exactly one graph is given, or ``degree`` is missing or the graph has none.
    """

    graph: Literal["complete", "ring", "random_regular"] | None = None
    degree: Annotated[int, Meta(ge=1)] | None = None
    file: str | None = None
    failures: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    exchanges: Annotated[int, Meta(ge=1, le=1_000)] = 1

    def __post_init__(self) -> None:
        if (self.graph is None) == (self.file is None):
            raise InvalidSettings(
                "[gossip] needs either 'graph', such as graph = \"ring\", or 'file', a CSV file of edges; give one of "
                "them"
            )
        if self.graph == "random_regular" and self.degree is None:
            raise InvalidSettings(
                '[gossip] has graph = "random_regular" without the number of each node\'s neighbours; add '
                "'degree', such as degree = 4"
            )
        if self.graph != "random_regular" and self.degree is not None:
            raise InvalidSettings(
                "[gossip] has a 'degree', which only graph = \"random_regular\" has; leave out 'degree'"
            )

    def at(self, folder: Path) -> Gossip:
        """Return the settings with a path that is relative to ``folder`` made relative to the current folder."""
        return self if self.file is None else replace(self, file=str(folder / local_path(self.file)))


class PingLimits(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of a ping, as a study has them: it counts as at most ``examples`` examples."""

    examples: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Setup(LineSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One training: the settings of a line, and settings in place of a study's.

    Attributes:
        model: its ``name`` and its own settings.
        spec: the model's spec; None if it follows from ``model`` and the data.
        data: the examples, and how they are prepared.
        partition: how examples are divided among clients.
        training: a client's training.
        upload: the steps on an update before it is sent, link by link; none if empty.
        server: the server's treatment of a round's updates, the ``pipeline`` of a line.
        sampling: which clients take part in a round.
        lateness: the shares of clients by the age of their version; all have the newest if None.
        clock: simulated time of the answers' arrival; all arrive at once if None.
        co_op: merges clients as they arrive, instead of ``server``, ``sampling`` and ``lateness``; not used if None.
        gossip: averages the clients' models over a graph, instead of all these; not used if None.
        hierarchy: edge servers between the clients and a cloud; not used if None.
        clusters: several models, each for the clients that it fits; not used if None.
        rounds: maximum number of rounds.
        where: the updates go straight to the server's arithmetic (``memory``), through landed Parquet files
            (``files``), or over HTTP to an ingest that lands them (``http``).
        engine: computes the rounds: ``numpy``; ``spark`` those of ``files`` and ``http``; ``jax`` those of ``memory``,
            compiled; ``auto`` is ``jax`` where it sees an accelerator and can compile whole rounds, else ``numpy``.
        evaluation: see :class:`Evaluation`.
        early_stopping: see :class:`EarlyStopping`; none if absent.
        attack: the hostile clients' behaviour; all clients are honest if absent.
        privacy: the clients' guarantee; none if absent.
        limits: see :class:`PingLimits`; a ping counts as all of its examples if absent.
        randomised_response: draws the targets that clients learn from; they learn from the true ones if absent.

    Raises:
        InvalidSettings: settings that exclude each other.
    """

    digest_name: ClassVar[str] = "Setup"

    model: dict[str, Any]
    spec: ModelSpec | None = None
    data: Data
    partition: Partition = Iid(clients=10)
    pipeline: Pipeline = field(name="server")
    sampling: Sampling = All()
    lateness: Lateness | None = None
    clock: Clock | None = None
    co_op: CoOp | None = None
    gossip: Gossip | None = None
    hierarchy: Hierarchy | None = None
    clusters: Clusters | None = None
    rounds: Annotated[int, Meta(ge=0, le=1_000_000)]
    where: Where = "memory"
    engine: Literal["numpy", "spark", "jax", "auto"] = "numpy"
    evaluation: Evaluation = Evaluation()
    early_stopping: EarlyStopping | None = None
    attack: Attack | None = None
    limits: PingLimits | None = None
    randomised_response: Response | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model.get("name"), str):
            raise InvalidSettings('[model] has no name; add one, such as name = "logistic-regression"')
        parts = self.parts
        check("engine", parts)
        check_links(self.upload, LINE)
        if not self.co_op:
            check_mean(self.training, parts.traits)
            check("votes of a file", parts)
        check("lateness", parts)
        if self.clock:
            check("clock", parts, "[clock]: ")
        if self.privacy:
            check("private file", parts, "[privacy]: ")
        if parts.has("personal"):
            check("personal file", parts, "[training.personal]: ")
        if self.co_op:
            check("co_op", parts)
        if self.gossip:
            check("gossip", parts, "[gossip]: ")
        if self.hierarchy or self.clusters:
            check("several models", parts, "[hierarchy]: " if self.hierarchy else "[clusters]: ")
        check("file", parts)
        if self.randomised_response:
            self._refuse_true_targets()
        own_links = traits_where({"other upload": bool(self.upload)})
        check_line(Parts(self.traits | own_links, {"line": LINE}), "[privacy]: ")

    def _refuse_true_targets(self) -> None:
        """Raise if the preparation of the data would use clients' true targets, which the reports should hide."""
        asked = {"class_weights": self.data.class_weights, "select": self.data.select is not None}
        if names := [f"'{name}'" for name, there in asked.items() if there]:
            raise InvalidSettings(
                f"[randomised_response] hides clients' targets, and [data] {' and '.join(names)} would be computed "
                "from the true ones. Remove either"
            )

    @property
    def parts(self) -> Parts:
        """The setup's parts and own settings, for the checks of `fedping.protocol.rules`."""
        evaluation, central = self.evaluation, self.privacy.central if self.privacy else None
        begins = getattr(getattr(self.training, "personal", None), "from_version", 0)
        share = self.sampling.share if isinstance(self.sampling, Bernoulli) else 1.0
        own: dict[Trait, bool] = {
            "other upload": bool(self.upload),
            "co_op": self.co_op is not None,
            "gossip": self.gossip is not None,
            "hierarchy": self.hierarchy is not None,
            "clusters": self.clusters is not None,
            "divides": isinstance(self.clusters, Bipartition),
            "lateness": self.lateness is not None,
            "attack": self.attack is not None,
            "not in memory": self.where != "memory",
            "spark": self.engine == "spark",
            "jax": self.engine == "jax",
            "newcomers": bool(evaluation.newcomers),
            "trained": evaluation.trained,
            "decided personally": evaluation.decided_by == "personal",
            "drift": self.data.drifts,
            "users": bool(self.data.users),
            "validation": bool(self.data.validation),
            "early stopping": self.early_stopping is not None,
            "ping limits": self.limits is not None,
            "several clients needed": self.pipeline.min_clients > 1,
            "other coin": central is not None and central.sampling not in (1.0, share),
            "begins too late": begins >= self.most_rounds > 0,
        }
        words = {
            "training": algorithm_name(self.training),
            "begins": f"{begins:,}",
            "rounds": f"{self.most_rounds:,}",
            "last": f"{self.most_rounds - 1:,}",
            "counted": f"{central.sampling:g}" if central else "",
            "drawn": f"{share:g}",
        }
        traits = self.traits | traits_of(self.sampling) | traits_of(self.clock) | traits_where(own)
        return Parts(traits | declared_traits(self.training), words)

    def line(self, spec: ModelSpec) -> Line:
        """Return the line that a run with this model's spec trains, in a study's form."""
        settings = {name: getattr(self, name) for name in LineSettings.__struct_fields__}
        return Line(name=LINE, spec=spec, **settings)

    @property
    def versions_held(self) -> int:
        """Number of versions that clients may learn from, counted back from the newest."""
        if self.clock and self.clock.counts_late and self.pipeline.staleness:
            return self.pipeline.staleness.most + 1
        return len(self.lateness.shares) if self.lateness else 1

    @property
    def most_rounds(self) -> int:
        """Maximum number of rounds: ``rounds``, or the rounds of the privacy guarantee if these are fewer."""
        central = self.privacy.central if self.privacy else None
        return self.rounds if central is None else min(self.rounds, central.rounds)

    def at(self, folder: Path) -> Setup:
        """Return the setup with paths that are relative to ``folder`` made relative to the current folder."""
        return replace(self, data=self.data.at(folder), gossip=self.gossip and self.gossip.at(folder))
