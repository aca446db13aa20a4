"""Randomised response on the targets that clients learn from (`fedping.client_sim.privacy.two_stage`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data import ExampleData
from fedping.client_sim.privacy.two_stage import TwoStageResponse
from fedping.experiments.laboratory.settings.response import Response
from fedping.protocol.draws import child_keys, root_key, uniforms
from fedping.protocol.errors import InvalidSettings

_LEVELS, _PERMANENT, _INSTANTANEOUS = range(2**20, 2**20 + 3)
"""Indices of children of a run's key; its children from 0 on have other uses."""


@dataclass(frozen=True)
class Responses:
    """The reports that clients of a run learn from, instead of their targets.

    Attributes:
        data: the true examples.
        seed: the run's seed.
        answers: the number of each example's target among the possible ones, shape (N,).
        values: the possible targets, if they are numbers; None for classes.
        stages: both stages of each level of privacy.
    """

    data: ExampleData
    seed: int
    answers: NDArray[np.intp]
    values: NDArray[np.float64] | None
    stages: tuple[TwoStageResponse, ...]

    @property
    def levels(self) -> NDArray[np.intp]:
        """Each client's level, shape (K,)."""
        chosen = uniforms(child_keys(child_keys(root_key(self.seed), _LEVELS), self.data.ids), 1)[:, 0]
        return (chosen * len(self.stages)).astype(np.intp)

    def in_round(self, round_: int) -> ExampleData:
        """Return the examples with the targets that clients report to their training in a round."""
        once = self._uniforms(child_keys(root_key(self.seed), _PERMANENT)[0])
        again = self._uniforms(child_keys(child_keys(root_key(self.seed), _INSTANTANEOUS), round_)[0])
        targets = self.data.y.copy() if self.values is None else np.empty(len(self.answers))
        own = self.levels[self.data.client_of]
        for number, stages in enumerate(self.stages):
            mine = own == number
            reports = stages.drawn(self.answers[mine], once[mine], again[mine])
            targets[mine] = reports if self.values is None else stages.unbiased(reports, self.values)
        return replace(self.data, y=targets)

    def _uniforms(self, key: np.uint64) -> NDArray[np.float64]:
        """Return a number in [0, 1) for each example, drawn by its client and its position in the client's examples."""
        clients = child_keys(key, self.data.ids)[self.data.client_of]
        places = np.arange(len(self.answers)) - self.data.offsets[self.data.client_of]
        return np.asarray(uniforms(child_keys(clients, places), 1)[:, 0])

    def note(self, rounds: int) -> str:
        """Return a sentence on the guarantee of a run with this number of rounds."""
        reports, all_rounds = (
            " or ".join(f"{stages.epsilon_of(count):.3g}" for stages in self.stages) for count in (1, max(rounds, 1))
        )
        return (
            "clients learn from targets by randomised response: of an example's target, a single report reveals at "
            f"most a local epsilon of {reports}, and {rounds:,} rounds together of {all_rounds}; other numbers of a "
            "client, such as its number of examples, are not protected"
        )


def responses(settings: Response, data: object, seed: int) -> Responses:
    """Return the randomised responses of a run's clients.

    Raises:
        InvalidSettings: clients have no targets that could be randomised, or a target is not among the values.
    """
    where = "[randomised_response]"
    if not isinstance(data, ExampleData):
        raise InvalidSettings(f"{where} draws the targets of examples, and these clients learn from choices. Remove it")
    target = data.target
    if target.is_class:
        if settings.values is not None:
            raise InvalidSettings(
                f"{where} has 'values', but the target is one of {len(target.classes)} classes. Remove 'values'"
            )
        if len(target.classes) < 2:
            raise InvalidSettings(f"{where} needs targets of two or more classes. Remove it")
        values, answers = None, data.y.astype(np.intp)
    else:
        if settings.values is None:
            raise InvalidSettings(
                f"{where} values: the target '{target.name}' is a number. Give the values that it may have, such as "
                "values = [1, 2, 3, 4, 5]"
            )
        values = np.sort(np.array(settings.values, np.float64))
        answers = np.minimum(np.searchsorted(values, data.y), len(values) - 1)
        if len(wrong := np.flatnonzero(values[answers] != data.y)):
            raise InvalidSettings(
                f"{where} values: a client has the target {data.y[wrong[0]]:g}, which is not among them. Add it"
            )
    count = len(target.classes) if values is None else len(values)
    stages = tuple(TwoStageResponse(count, level, settings.instantaneous) for level in settings.levels)
    return Responses(data, seed, answers, values, stages)
