"""Settings of runs with several models: edge servers below a cloud, and clusters of clients."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.spec import Positive


class Hierarchy(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Edge servers between the clients and a cloud (HierFAVG, Liu et al. 2020).

    Each edge has its own clients and a model, which they train in rounds, as a server does. After every
    ``edge_rounds`` rounds the cloud averages the edges' models, and every edge continues from the average.

    Attributes:
        edge_rounds: number of rounds of the edges between two averages of the cloud, κ₂ in the paper.
        edges: number of edges; None with ``by = "key"``.
        by: how clients are divided among them: at ``random``, evenly; by the most frequent ``label`` of their examples,
            clients of a class side by side, so that edges differ; or an edge for each natural ``key``.

    Raises:
        InvalidSettings: ``edges`` is missing, or is given with natural keys.
    """

    edge_rounds: Annotated[int, Meta(ge=1, le=10_000)]
    edges: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    by: Literal["random", "label", "key"] = "random"

    def __post_init__(self) -> None:
        if (self.edges is None) != (self.by == "key"):
            raise InvalidSettings(
                "[hierarchy] needs 'edges', the number of edge servers, such as edges = 5; or by = \"key\" for one of "
                "each natural key. Give one of them"
            )


class Ifca(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="ifca"):
    """A number of models; each client trains its model of least loss (IFCA, Ghosh et al. 2020).

    Attributes:
        clusters: number of models.
        spread: standard deviation of the normal numbers that are added to the start of each, so that they differ.
    """

    clusters: Annotated[int, Meta(ge=2, le=64)]
    spread: Positive = 0.1


class Bipartition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="bipartition"):
    """One model, whose clients are divided again and again where their updates disagree (Sattler et al. 2019).

    A cluster is divided if the mean of its updates is small, as at a minimum of its common loss, while a client's
    update is large: then its clients have different minima. The two parts are those between which the greatest cosine
    of two updates is least.

    Attributes:
        mean_below: a cluster may be divided if its mean is shorter, ε₁ in the paper.
        norm_above: a cluster may be divided if its longest update is longer, ε₂.
        gamma: least √((1 - α) / 2) between the parts, where α is the greatest cosine; 0 divides at any cosine.
        after: number of rounds before a cluster may first be divided.
        most: most clusters.
    """

    mean_below: Positive
    norm_above: Positive
    gamma: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    after: Annotated[int, Meta(ge=1)] = 1
    most: Annotated[int, Meta(ge=2, le=64)] = 16


Clusters: TypeAlias = Ifca | Bipartition
