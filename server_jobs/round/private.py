"""A round of a private line: what it does otherwise than the rest (`fedping.server_jobs.round.run`).

It cannot look away. Whatever has landed, be it nothing, what comes to be published has noise and is charged: a round
that was made or not by what clients have sent would tell of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedping.model_store.store import ModelStore
from fedping.model_store.version import Version
from fedping.protocol.clock import milliseconds_of
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landing import landed_at, open_landing
from fedping.protocol.location import Place
from fedping.protocol.privacy import Privacy, frame_of
from fedping.protocol.sharing.terms import agreed
from fedping.protocol.study import Line, Study
from fedping.server_jobs.privacy.budget import Spent, beyond_promise, check_key, epsilon_after, rounds_left, spent
from fedping.server_jobs.privacy.leader import leader_identity
from fedping.server_jobs.privacy.noise import Noise, SystemNoise, has_its_size
from fedping.server_jobs.privacy.sampling_key import Coins
from fedping.server_jobs.round.aggregate import combined
from fedping.server_jobs.round.engine import Engine
from fedping.server_jobs.round.helper_client import Helper
from fedping.server_jobs.round.manifest import Manifest, list_landed, work_on
from fedping.server_jobs.round.plan import rules_for
from fedping.server_jobs.round.private_release import (
    check_release,
    event_of,
    next_private,
    noise_in_clients,
    released,
    released_places,
    sigma_of,
)
from fedping.server_jobs.round.private_sums import Sums
from fedping.server_jobs.round.run import PrivacySpent, RoundResult
from fedping.server_jobs.round.shared import SharedSums, Together
from fedping.server_jobs.round.shared_sums import summing


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateRound:
    """One round of a private line, on its newest version."""

    landing: Place
    study: Study
    line: Line
    head: Version
    before: Spent
    keep: bool
    key: bytes | None = field(repr=False, compare=False)
    shared: SharedSums | None = None
    noise: Noise = field(default_factory=SystemNoise)

    @classmethod
    def of(
        cls,
        store: ModelStore,
        landing: Place,
        study: Study,
        line: Line,
        head: Version,
        key: bytes | None,
        keep: bool,
        noise: Noise | None = None,
        helper: Helper | None = None,
    ) -> PrivateRound:
        """Return the round, having deleted what an earlier one was killed before it could.

        Raises:
            FedpingError: the key is missing or another one, the line has no noise or too little, its settings are not
                those that it began with, rounds of another copy of the store have released more, or noise is to be
                drawn otherwise than by the system in a study that is not simulated; nothing was read.
        """
        assert line.privacy is not None
        if noise is not None:
            _refuse_for_real_clients(store, study.name)
        before = spent(store, head)
        sigma_of(line)
        key = check_key(line.privacy, line.name, before.last, key)
        made = cls(
            landing=landing,
            study=study,
            line=line,
            head=head,
            before=before,
            keep=keep,
            key=key,
            shared=_shared(store, landing, study, line, head, key, helper),
            noise=noise or SystemNoise(),
        )
        if made.shared is not None:
            made.shared.forget(head.iteration)
        if made.exhausted:
            made.delete(upto=None)
        else:
            made.delete(upto=head.iteration if head.lineage.stopped else head.iteration - 1)
            _refuse_other_settings(study, line, head)
            _refuse_too_little_noise(study, line, before.releases)
            _refuse_another_copy(landing, study, line, head)
        return made

    @property
    def exhausted(self) -> bool:
        """Whether the line has spent what it may."""
        return rounds_left(self._privacy, self.before.releases) == 0

    @property
    def spent(self) -> PrivacySpent:
        """What the rounds before have spent."""
        epsilon, _ = epsilon_after(self._privacy, self.before.releases)
        return self._told(self.before.releases, epsilon)

    @property
    def _privacy(self) -> Privacy:
        assert self.line.privacy is not None
        return self.line.privacy

    def made(
        self,
        result: RoundResult,
        listed: Callable[[], Manifest],
        engine: Engine,
        created: str,
        code_version: str,
        on_step: Callable[[str], None],
    ) -> tuple[RoundResult, Version | None]:
        """Return what the round comes to, and the version to publish; None if there is none to be.

        Where clients alone add noise, nothing is to be hidden of how many have come, and without enough of them there
        is no version. Neither is there one of a line of shares before its helper has answered; then there always is,
        for of that version it answers nothing else.
        """
        check_release(self.line, self.head)
        counted = epsilon_after(self._privacy, self.before.releases + 1)  # first: what it needs may not be installed
        shared = None
        if self.shared is not None:
            found = self.shared.sums(result, listed, engine, created, on_step)
            if not isinstance(found, Together):
                return found, None
            sums, shared = found.sums, found.told
        else:
            manifest = listed()
            if self._privacy.central is None and manifest.rows == 0:
                return result, None
            of = (self.head.iteration, self.head.digest)
            sums = exact_sums(self.landing, self.study, self.line, *of, manifest, engine, self.key)
        on_step("aggregated")
        noisy = released(self.study, self.line, sums, self.noise)
        del sums  # the exact ones go no further
        event = event_of(self.line, noisy, self.before.releases + 1, self.key, counted, shared)
        on_step("drawn")
        version = next_private(self.study, self.line, self.head, event, created=created, code_version=code_version)
        on_step("stepped")
        lineage = version.lineage
        assert lineage.privacy is not None
        submitting = [arm.name for arm in self.study.arms if arm.line == self.line.name and arm.submits]
        result = replace(
            result,
            clients=sum(lineage.arms[name].pings for name in submitting),
            counts=lineage.counts,
            arms=lineage.arms,
        )
        if self._privacy.central is None and shared is None and not lineage.privacy.stepped:
            return replace(result, status="waiting"), None
        told = self._told(event.releases, event.epsilon)
        noise, refused = noise_in_clients(event, self.line), shared.refused if shared is not None else 0
        return replace(
            result, privacy=replace(told, noise=noise, stepped=lineage.privacy.stepped, refused=refused)
        ), version

    def _told(self, releases: int, epsilon: float | None) -> PrivacySpent:
        central = self._privacy.central
        return PrivacySpent(
            releases=releases,
            rounds_left=rounds_left(self._privacy, releases),
            epsilon=epsilon,
            delta=central.delta if central else None,
            most=central.epsilon if central else None,
            local=self._privacy.local is not None,
        )

    def note(self, version: Version) -> None:
        """Note beside the pings what has been released, for rounds of whichever copy of the store."""
        open_landing(self.landing).record_published(
            str(self.landing), self.study.name, self.line.name, version.iteration
        )

    def delete(self, upto: int | None) -> None:
        """Delete the landed pings of all versions up to ``upto``, of every one if None; unless they are to be kept."""
        if not self.keep:
            delete_pings(self.landing, self.study.name, self.line.name, upto)

    def forget(self) -> None:
        """Delete what the helper was asked, once the version that its answer led to is published."""
        if self.shared is not None:
            self.shared.forget(self.head.iteration + 1)


def _shared(
    store: ModelStore, landing: Place, study: Study, line: Line, head: Version, key: bytes | None, helper: Helper | None
) -> SharedSums | None:
    """Return where the sums of a line of shares come from; None of another line.

    Raises:
        FedpingError: its clients prove what they send, or the key is not that which its helper knows.
    """
    assert line.privacy is not None
    if line.privacy.shared is None:
        return None
    assert key is not None
    summing(line)
    offer = store.studies.offer(study.name, line.name)
    if offer is not None and (leader := agreed(offer, study, line).leader) != leader_identity(key):
        raise InvalidSettings(
            f"the privacy key is not that of the leader {leader[:16]}…, with whom the helper of line '{line.name}' has "
            "agreed; give that one, or, as long as the helper has answered nothing, have its operator repeat 'fedping "
            "helper join' with the identity that 'fedping privacy identity FILE' prints, and publish the offer that it "
            "then makes; nothing was read"
        )
    asked = store.helper_request(study.name, line.name)
    return SharedSums(
        asked=asked,
        landing=landing,
        study=study,
        line=line,
        head=head,
        key=key,
        helper=helper,
        offered=offer is not None,
    )


def delete_pings(landing: Place, study: str, line: str, upto: int | None) -> None:
    """Delete a line's landed pings of all versions up to ``upto``; of all that there are, if it is None."""
    pings = open_landing(landing)
    for number, files in pings.files_by_iteration(study, line).items():
        if upto is None or number <= upto:
            for file in files:
                pings.remove(file)


def _refuse_for_real_clients(store: ModelStore, study: str) -> None:
    """Raise :class:`FedpingError` if noise that can be drawn again is meant for clients who were promised privacy."""
    if not store.studies.declared(study).simulated:
        raise FedpingError(
            f"study '{study}' is not declared to be simulated, and its clients are protected by noise of the system "
            "alone: run the round without noise of your own; nothing was read"
        )


def _refuse_other_settings(study: Study, line: Line, head: Version) -> None:
    """Raise :class:`FedpingError` if a line's settings are not those of its versions.

    What rounds cost is counted by one noise, one share and one bound for all of them, and their number was checked
    against the guarantee when the study was made.
    """
    if head.lineage.config_digest != digest_of(line):
        raise FedpingError(
            f"the settings of the private line '{line.name}' are not those that study '{study.name}' was created with, "
            "for which its guarantee was worked out: put its study.json back from a copy, or create a study of another "
            "name; nothing was read"
        )


def _refuse_too_little_noise(study: Study, line: Line, before: int) -> None:
    """Raise :class:`FedpingError` if a line's noise breaks its promise: whoever stored the study may not have asked.

    The first round looks at all that are to come, for their settings are its own; a later one at itself, which takes no
    time that it would not spend anyway.
    """
    assert line.privacy is not None
    central = line.privacy.central
    if central is None:
        return
    releases = before + 1 if before else line.privacy.releases or central.rounds
    found = beyond_promise(line.privacy, releases)
    if found is not None:
        raise FedpingError(
            f"the private line '{line.name}' of study '{study.name}' has too little noise: {releases:,} releases with "
            f"noise_multiplier = {central.noise_multiplier:g} spend epsilon = {found:.4g}, and it promises "
            f"{central.epsilon:g}; create a study of another name by 'fedping study create', which derives the noise; "
            "nothing was read"
        )


def _refuse_another_copy(landing: Place, study: Study, line: Line, head: Version) -> None:
    """Raise :class:`FedpingError` if a round has released more of the same clients than this store knows of.

    It may be a copy that is tried out: clients would be charged in one of the two, and released in both.
    """
    released = open_landing(landing).read_published(str(landing), study.name, line.name)
    if released > head.iteration:
        raise FedpingError(
            f"the private line '{line.name}' of study '{study.name}' is at version {head.iteration} here, but with "
            f"these pings a round has released version {released}, in another copy of the store: go on with that one, "
            f"or let this one go on beyond it with 'fedping store continue {study.name} {line.name} --from "
            f"{released + 1}', which counts the rounds in between as spent; nothing was read"
        )


def exact_sums(
    landing: Place,
    study: Study,
    line: Line,
    iteration: int,
    digest: str,
    manifest: Manifest,
    engine: Engine,
    key: bytes | None,
) -> Sums:
    """Return the sums of a version's vectors by arm, before there is noise: not to be written or told.

    ``digest`` is the version's, and ``key`` that of its coins; without a key everybody counts.
    """
    assert line.privacy is not None
    central = line.privacy.central
    coins = None
    if key is not None and central is not None:
        coins = Coins(study.name, line.name, iteration, digest, central.sampling, key)
    rules = rules_for(study, line.name, iteration, key=b"private", coins=coins)
    partials = engine.partials(work_on(landing, manifest.inputs, rules))
    total: Sums = combined(partials, rules).total
    assert all(each.dtype == np.int64 for each in total.values())
    return total


def noise_has_its_size(
    landing: Place, study: Study, line: Line, version: Version, engine: Engine, key: bytes | None
) -> bool | None:
    """Return whether a version's noise has the declared size, by the pings that had landed when its round was made.

    None if there is none, if the key that it takes is not given, or if the pings have been deleted, as they should be.

    Raises:
        InvalidSettings: it is another key.
    """
    event = version.lineage.privacy
    assert line.privacy is not None
    if line.privacy.shared is not None:  # of which nobody knows the exact sums
        return None
    if event is None or not event.sigma or (key is None and event.key_digest):
        return None
    if version.parent is None or version.parent_digest is None:
        return None
    key = check_key(line.privacy, line.name, event, key)
    every = list_landed(landing, study, line.name, version.parent, 0) if open_landing(landing).exists() else None
    if every is None or not every.inputs:
        return None
    made = milliseconds_of(version.created)
    inputs = tuple(file for file in every.inputs if (landed_at(Path(file.path)) or 0) <= made)
    of = (version.parent, version.parent_digest)
    sums = exact_sums(landing, study, line, *of, replace(every, inputs=inputs), engine, key)
    frame = frame_of(line.privacy, line.spec)
    arms = [arm for arm in study.arms if arm.line == line.name]
    drawn = np.concatenate(
        [
            (np.array(event.released[arm.name], np.int64) - sums.get(number, 0))[released_places(frame, arm)]
            for number, arm in enumerate(arms)
        ]
    )
    return has_its_size(drawn, event.sigma)
