"""Learning from lists in production's order: place offsets find the truth, naive losses don't (docs/features.md)."""

import pytest

from fedping.experiments.papers.scripts.place_bias import share_learned, sponsored_weight


def test_offsets_of_places_learn_what_a_naive_loss_does_not() -> None:
    naive, offsets = (
        share_learned("place", learner, 0, lists=3000, rounds=50) for learner in ("softmax", "softmax with places")
    )
    assert naive < 0.8
    assert offsets > 0.95


@pytest.mark.long
@pytest.mark.parametrize(
    ("learner", "shares"),
    [
        ("softmax", {"place": 0.71, "consider": 0.77, "cascade": 0.60}),
        ("hinge", {"place": 0.76, "consider": 0.81, "cascade": 0.58}),
        ("softmax with places", {"place": 0.991, "consider": 0.992, "cascade": 0.98}),
    ],
)
def test_the_shares_of_the_gain_are_as_published(learner: str, shares: dict[str, float]) -> None:
    """With two of the five seeds, each share is within .05; those of single seeds spread by about .03."""
    for looks, share in shares.items():
        found = [share_learned(looks, learner, seed) for seed in (0, 1)]  # type: ignore[arg-type]
        assert sum(found) / 2 == pytest.approx(share, abs=0.05), looks


@pytest.mark.long
def test_a_pinned_item_teaches_its_weight_with_offsets_and_misleads_without() -> None:
    assert sponsored_weight(0, 0, pinned=False) > 0.3
    assert sponsored_weight(10, 0) == pytest.approx(-0.25, abs=0.12)
