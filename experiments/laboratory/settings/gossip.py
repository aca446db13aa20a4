"""Gossip averaging in an experiment: the graph of the nodes, and which settings go with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from fedping.client_sim.sampling import All
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import local_path
from fedping.protocol.training import LocalSteps

if TYPE_CHECKING:
    from fedping.experiments.laboratory.settings.setup import Setup


class Gossip(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Gossip averaging instead of a server: every client is a node with a model of its own.

    In a round each node trains its model, and then averages it with those of its neighbours (D-PSGD, Lian et al. 2017).

    Attributes:
        graph: who is a neighbour of whom; None if a file says it.
        degree: the number of each node's neighbours in a random regular graph.
        file: a CSV file of edges, in the place of ``graph``.
        failures: the chance that a node is away in a round: it neither trains nor exchanges.
        exchanges: how often nodes average after one training.

    Raises:
        InvalidSettings: there is no graph, or there are two, or the degree is missing or belongs to no graph.
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
        """Return the same with the file's path relative to here, if it was relative to ``folder``."""
        return self if self.file is None else replace(self, file=str(folder / local_path(self.file)))


def check_gossip(setup: Setup) -> None:
    """Raise :class:`InvalidSettings` if a setting asks for what nodes without a server do not have."""
    for wrong, why in (
        (setup.co_op is not None, "its nodes have no global model to merge with, so leave [co_op] out"),
        (bool(setup.evaluation.newcomers), "every client is a node, so leave 'newcomers' out of [evaluation]"),
        (setup.data.drifts, "its nodes' own models are judged by examples that stay, so leave 'drift' out of [data]"),
        (setup.attack is not None, "an [attack] is on a server's rounds, so leave it out"),
        (setup.where != "memory", "its nodes exchange models in memory, so leave 'where' out"),
        (setup.lateness is not None, "there are no versions to be late for, so leave [lateness] out"),
        (bool(setup.upload), "nodes send each other their models as they are, so leave 'upload' out"),
        (not isinstance(setup.sampling, All), "who is away is drawn by 'failures', so leave [sampling] out"),
        (
            not isinstance(setup.training, LocalSteps) or setup.training.sign,
            "every node trains its own model by local steps and sends it whole; set training = { algorithm = "
            "\"local\", steps = 1, rate = 0.1 }, without 'sign'",
        ),
        (
            getattr(setup.training, "personal", None) is not None or setup.evaluation.decided_by == "personal",
            "every node has a model of its own anyway, so leave 'personal' out of [training], and 'decided_by' of "
            "[evaluation]",
        ),
    ):
        if wrong:
            raise InvalidSettings(f"[gossip]: {why}")
