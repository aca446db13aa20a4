"""Private training in an experiment: which settings go with `[privacy]`, and the noise that follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fedping.client_sim.sampling import All, Bernoulli
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import Privacy

if TYPE_CHECKING:
    from fedping.experiments.laboratory.settings.experiment import Experiment
    from fedping.experiments.laboratory.settings.setup import Setup


def check_private(setup: Setup, privacy: Privacy) -> None:
    """Raise :class:`InvalidSettings` if nothing could be guaranteed, or rounds cannot be private there."""
    sampling = setup.sampling
    for wrong, why in (
        (setup.where != "memory", "the laboratory's private rounds are in memory, so leave 'where' out"),
        (setup.co_op is not None, "merging clients one by one releases each of them, so leave [co_op] out"),
        (setup.gossip is not None, "every neighbour of a node would see its model, so leave [gossip] out"),
        (setup.lateness is not None, "what is released is never added to, so leave [lateness] out"),
        (bool(setup.upload), "a client sends one bounded vector and nothing else, so leave 'upload' out"),
        (
            privacy.shared is not None,
            "shares are for two servers, of which the laboratory has none, so leave 'shared' out: the sums are of the "
            "same whole numbers, and have the noise of one server, where the two have √2 times as much",
        ),
        (setup.attack is not None, "an [attack] has no rounds of this kind; leave out one of them"),
        (
            not isinstance(sampling, All | Bernoulli),
            "what is guaranteed holds for clients that take part by a coin of their own, which depends on nobody else; "
            'set sampling = { sampling = "bernoulli", share = 0.1 } or leave [sampling] out',
        ),
    ):
        if wrong:
            raise InvalidSettings(f"[privacy]: {why}")
    share = sampling.share if isinstance(sampling, Bernoulli) else 1.0
    if privacy.central is not None and privacy.central.sampling not in (1.0, share):
        raise InvalidSettings(
            f"[privacy.central] counts on a coin by which {privacy.central.sampling:g} of the clients take part, and "
            f"by [sampling] it is {share:g}; set both alike, or leave the former out for a guarantee without the coin"
        )


def with_noise(experiment: Experiment) -> Experiment:
    """Return an experiment each private variant of which has the noise that keeps its guarantee.

    It takes seconds for each variant with sampling that does not give its noise.

    Raises:
        InvalidSettings: a noise multiplier is given that is too small.
        FedpingError: none is large enough.
    """
    from fedping.server_jobs.privacy.budget import privacy_with_noise

    variants = {
        name: setup if setup.privacy is None else replace(setup, privacy=privacy_with_noise(setup.privacy, name))
        for name, setup in experiment.variants.items()
    }
    return replace(experiment, variants=variants)
