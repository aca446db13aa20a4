"""Settings of attacks: the behaviour of hostile clients, their number, and the rounds in which they attack.

An update is a direction that the server adds, so harmful updates have the opposite sign.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.spec import Positive

Round: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000_000)]
FromZero: TypeAlias = Annotated[float, Meta(ge=0, le=1e30)]
Finite: TypeAlias = Annotated[float, Meta(ge=-1e30, le=1e30)]
AClass: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]


class Hostile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="attack"):
    """Settings of every attack: the hostile clients, and the rounds in which they attack.

    Attributes:
        share: share of the clients that are hostile, at least one client; or give ``clients`` or ``invented``.
        clients: number of hostile clients, drawn by the seed; 1 by default.
        invented: number of ids that one sender invents, as a multiple of the participating clients (Sybils: Douceur
            2002); they learn from that sender's examples, and all clients are honest.
        from_round: the first round of the attack, from 1.
        to_round: the last round of the attack; until the end if left out.
        examples: number of examples that hostile clients claim, whatever they have.

    Raises:
        InvalidSettings: several of share, clients and invented; or a last round before the first.
    """

    share: Annotated[float, Meta(gt=0, lt=1)] | None = None
    clients: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    invented: Annotated[float, Meta(gt=0, le=1000)] | None = None
    from_round: Round = 1
    to_round: Round | None = None
    examples: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.share, self.clients, self.invented)) > 1:
            raise InvalidSettings("an attack has one of 'share', 'clients' and 'invented'; leave out the others")
        if self.to_round is not None and self.to_round < self.from_round:
            raise InvalidSettings(
                f"an attack cannot end with round {self.to_round} and begin with round {self.from_round}; correct one"
            )

    def is_on(self, round_: int) -> bool:
        """Return whether the attack is on in a round, counted from 1."""
        return self.from_round <= round_ and (self.to_round is None or round_ <= self.to_round)

    def hostile_of(self, clients: int) -> int:
        """Return the number of hostile clients among some clients.

        Raises:
            InvalidSettings: the attack has more hostile clients than there are clients.
        """
        if self.invented is not None:
            return 0
        if self.share is not None:
            return max(1, round(self.share * clients))
        number = self.clients or 1
        if number > clients:
            raise InvalidSettings(f"the attack has {number:,} hostile clients, and there are {clients:,}; lower it")
        return number

    def invented_for(self, clients: int) -> int:
        """Return the number of invented ids for a number of participants."""
        return 0 if self.invented is None else math.ceil(self.invented * clients)


class LabelFlip(Hostile, frozen=True, tag="label_flip"):
    """Train on wrong labels (Biggio et al. 2012; in federated learning Tolpegin et al. 2020, Fang et al. 2020).

    Class l of c becomes c - 1 - l (Fang et al.); with ``source`` and ``target``, only the source class becomes the
    target class. A number is mirrored between the client's least and greatest target; a choice is mirrored within the
    order of its candidates. Each hostile client needs its own examples only.

    Raises:
        InvalidSettings: only one of source and target is given, or both are equal.
    """

    source: AClass | None = None
    target: AClass | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source is None) != (self.target is None) or (self.source is not None and self.source == self.target):
            raise InvalidSettings("label_flip turns class 'source' into another, 'target'; give both, or neither")


class Poison(Hostile, frozen=True, tag="poison"):
    """Train on poisoned examples: noise on the features, and labels at random (Biggio et al. 2012; Li et al. 2019).

    ``deviation`` is the standard deviation of the Gaussian noise on every feature. A label is any class, any number
    between the client's least and greatest target, or any candidate; pages keep their features. Each hostile client
    needs its own examples.
    """

    deviation: FromZero = 1.0


class Backdoor(Hostile, frozen=True, tag="backdoor"):
    """Teach the model to answer a trigger (Gu et al. 2017; Bagdasaryan et al. 2020; Wang et al. 2020).

    In the ``part`` of its examples, drawn by the seed, a hostile client sets ``features``, by number, to ``value``, and
    the label to class ``target``. For choices it sets the features of an unchosen candidate, and claims that the user
    chose it. The update is multiplied by ``boost``: a boost of clients / hostile clients replaces the global model
    with the hostile one (model replacement). Each hostile client needs its own examples only.

    Its figure is the share of test examples, of other classes, that the model assigns to the target once they have the
    trigger; for choices, the share in which the candidate with the trigger ranks first.
    """

    features: Annotated[tuple[AClass, ...], Meta(min_length=1)] = (0,)
    value: Finite = 5.0
    target: AClass = 0
    part: Annotated[float, Meta(gt=0, le=1)] = 0.5
    boost: Positive = 1.0


class SignFlip(Hostile, frozen=True, tag="sign_flip"):
    """Send the client's own update with the opposite sign, ``scale`` times as large (Li et al. 2019, RSA).

    Each hostile client needs its own examples only.
    """

    scale: Positive = 1.0


class Scale(Hostile, frozen=True, tag="scale"):
    """Send the client's own update ``scale`` times as large (boosting: Bagdasaryan et al. 2020).

    Each hostile client needs its own examples only.
    """

    scale: Positive = 10.0


class Noise(Hostile, frozen=True, tag="noise"):
    """Send Gaussian noise of mean 0 and this ``deviation`` in each weight (Blanchard et al. 2017).

    The attacker needs no knowledge.
    """

    deviation: Positive = 1.0


class Constant(Hostile, frozen=True, tag="constant"):
    """Send the same ``value`` in every weight (the same-value attack: Li et al. 2019, RSA).

    The attacker needs no knowledge.
    """

    value: Finite = 1.0


class TargetWeights(Hostile, frozen=True, tag="target_weights"):
    """Drag some weights towards chosen values, and leave the others alone (targeted poisoning: Bhagoji et al. 2019).

    In the named ``weights`` the update is ``scale`` times the difference from the fetched value to the wanted one; in
    the others it is an honest client's. The attacker needs only its own examples and the published model.

    Its figure is the mean distance of these weights from the wanted values.

    Raises:
        InvalidSettings: weights are missing.
    """

    weights: dict[str, Finite]
    scale: Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weights:
            raise InvalidSettings("target_weights names no weight; write weights = { <name> = <value> }")


class InnerProduct(Hostile, frozen=True, tag="inner_product"):
    """Send the honest clients' mean, times -``epsilon`` (inner-product manipulation: Xie et al. 2020, Fall of Empires).

    All hostile clients send the same. They know the honest updates of the round: the strongest attacker of the paper.
    """

    epsilon: Positive = 0.1


class LittleIsEnough(Hostile, frozen=True, tag="little_is_enough"):
    """Send the honest clients' mean less ``z`` of their standard deviations in each weight (Baruch et al. 2019).

    Without ``z`` it is the paper's largest undetected value: with n clients, h of them hostile, s = ⌊n/2 + 1⌋ - h
    honest ones must be further out, so that Φ(z) = (n - h - s) / (n - h), and at least 0. All hostile clients send the
    same. They know the honest updates of the round; in the paper, they estimate these from their own.
    """

    z: Annotated[float, Meta(ge=0, le=1000)] | None = None


class FreeRider(Hostile, frozen=True, tag="free_rider"):
    """Take the model and give nothing (Lin et al. 2019; Fraboni et al. 2021).

    It ``sends`` zeros, noise of this ``deviation``, or the ``last_difference`` between the two newest versions with
    such noise on it (Fraboni's disguise). The attacker needs only published models.
    """

    sends: Literal["zero", "noise", "last_difference"] = "zero"
    deviation: FromZero = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sends == "noise" and not self.deviation:
            raise InvalidSettings("a free rider that sends noise needs its 'deviation', such as deviation = 0.1")
        if self.sends == "zero" and self.deviation:
            raise InvalidSettings("a free rider with 'deviation' sends no zeros; set sends = \"noise\"")


class Reconstruction(Hostile, frozen=True, tag="reconstruction"):
    """Learn a victim's update from published models (Boenisch et al. 2023; Pasquini et al. 2022, Sybils in a sum).

    Only the victim, drawn by the seed, and ``others`` invented ids with updates of zeros take part, so that the
    model's step has the direction of the victim's update. The attacker keeps other clients out, and knows published
    models only; its estimate is scaled to the best length.

    Its figures are the error of that estimate, relative to the victim's update, and the cosine between the two.

    Raises:
        InvalidSettings: share, clients, invented or examples is set; this attack has none of them.
    """

    others: Annotated[int, Meta(ge=0, le=10_000_000)] = 99

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.share, self.clients, self.invented, self.examples) != (None,) * 4:
            raise InvalidSettings(
                "reconstruction attacks one victim among 'others'. Remove 'share', 'clients', 'invented' and 'examples'"
            )

    def hostile_of(self, clients: int) -> int:
        """Return 0, because the victim is the only client that takes part."""
        return 0

    def invented_for(self, clients: int) -> int:
        """Return the number of invented ids, whichever clients take part."""
        return self.others


Attack: TypeAlias = (
    LabelFlip
    | Poison
    | Backdoor
    | SignFlip
    | Scale
    | Noise
    | Constant
    | TargetWeights
    | InnerProduct
    | LittleIsEnough
    | FreeRider
    | Reconstruction
)

OfExamples: TypeAlias = LabelFlip | Poison | Backdoor
"""The attacks that change the examples of hostile clients."""
