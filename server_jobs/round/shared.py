"""What a round of a line of shares does where another private line adds up vectors: it asks the helper.

The first round of a version that finds clients enough keeps a request, and everything waits for its answer: one that
comes later, after whatever kill, goes on with the same bytes. What the answer leads to is a sum of vectors as any other
private round has (`fedping.server_jobs.round.private`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NoReturn

import numpy as np

from fedping.model_store.helper_requests import HelperRequest, PendingRequest, StoredRequest
from fedping.model_store.version import Answered, InputFile, Version
from fedping.protocol.errors import FedpingError
from fedping.protocol.location import Place
from fedping.protocol.privacy import METRICS, Privacy, Shared
from fedping.protocol.sharing.exchange import (
    DOCUMENT_BYTES,
    SIGNED,
    Answer,
    AnsweredArm,
    AskedArm,
    Reason,
    Refused,
    Request,
    digest_of_signed,
    is_from,
    read_signed,
    signed,
)
from fedping.protocol.sharing.keys import SIGNATURE_BYTES
from fedping.protocol.sharing.shares import as_bytes, context_of, from_bytes
from fedping.protocol.sharing.terms import arms_of
from fedping.protocol.study import Line, Study
from fedping.server_jobs.privacy.leader import leader_identity, leader_key, verify_key
from fedping.server_jobs.round.aggregate import combined
from fedping.server_jobs.round.engine import Engine
from fedping.server_jobs.round.helper_client import Helper, HelperUnavailable
from fedping.server_jobs.round.manifest import Manifest, work_on
from fedping.server_jobs.round.plan import rules_for
from fedping.server_jobs.round.private_sums import Sums
from fedping.server_jobs.round.shared_sums import (
    Proofs,
    Shares,
    asked_arms,
    repeated_documents,
    summing,
    votes_of,
    without,
)

if TYPE_CHECKING:
    from fedping.server_jobs.round.run import RoundResult

_NEW_REQUEST: frozenset[Reason] = frozenset({"too_few", "too_old", "from_the_future", "repeated"})
"""Refusals after which the next round makes another request: the helper has kept nothing of this one."""

_OF_COUNTS: frozenset[Reason] = frozenset({"too_few", "too_many"})
"""Refusals whose sentence says how many clients there are, exactly, which pages do not tell of a private study."""

_NO_REQUEST: frozenset[Reason] = frozenset({"answered"})
"""Refusals after which no request on the same version will do."""


@dataclass(frozen=True, slots=True)
class Together:
    """The sums of vectors that both servers' sums come to, the helper's noise included, and what a lineage says."""

    sums: Sums
    told: Answered


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSums:
    """The sums of one version of a line of shares.

    Attributes:
        asked: where requests are kept.
        landing, study, line, head: of what.
        key: the leader's secret.
        helper: the way to the helper; None if there is none but by hand.
        offered: whether what the helper offers is published, without which clients send nothing.
    """

    asked: StoredRequest
    landing: Place
    study: Study
    line: Line
    head: Version
    key: bytes = field(repr=False, compare=False)
    helper: Helper | None = None
    offered: bool = True

    def sums(
        self,
        result: RoundResult,
        listed: Callable[[], Manifest],
        engine: Engine,
        now: str,
        on_step: Callable[[str], None],
    ) -> Together | RoundResult:
        """Return the sums, or what the round comes to without them: it waits for clients, or for the helper.

        Raises:
            FedpingError: what has come is no answer to the request, or no answer can come to any; nothing was lost.
        """
        made = self.asked.open(self.head)
        if made is None:
            request = self._request(listed(), engine, now)
            if isinstance(request, str):
                self.asked.tell(self.head.iteration, None)
                return replace(result, status="waiting", missing=request)
            on_step("summed")
            made = self.asked.keep(request, self.head)
            on_step("asked")
        elif not is_from(made.request, Request, leader_identity(self.key)):  # of a round that was given another key
            made = self.asked.sign_again(made, signed(made.read, leader_key(self.key)))
        try:
            answered, data = self._answered(made)
        except HelperUnavailable as error:
            return self._waits(result, made, "asked", str(error))
        except Refused as error:
            return self._refused(result, made, error)
        on_step("answered")
        found = self._together(answered, data, engine)
        self.asked.keep_answer(self.head.iteration, data)
        return found

    def forget(self, version: int) -> None:
        """Delete the requests of all versions before one."""
        self.asked.forget(version)

    @property
    def _shared(self) -> Shared:
        privacy: Privacy | None = self.line.privacy
        assert privacy is not None
        assert privacy.shared is not None
        return privacy.shared

    @property
    def _arms(self) -> tuple[str, ...]:
        return arms_of(self.study.arms, self.line.name)

    def _request(self, manifest: Manifest, engine: Engine, now: str) -> HelperRequest | str:
        """Return a request of what has landed, or for what it is too early, as part of a sentence."""
        shares = self._shares(manifest.inputs, engine)
        if len(repeated := repeated_documents(shares)):
            shares = without(self.line, shares, self._shares(manifest.inputs, engine, repeated.tobytes()))
        if (short := self._short(shares)) and not self.offered:
            return (
                f"{short}; no offer of the helper is published, and clients send nothing before: 'fedping study offer "
                f"{self.study.name} {self.line.name} FILE' publishes it"
            )
        if short:
            return short
        arms, sums = asked_arms(self.line, self._arms, shares, proofs := self._proofs)
        for arm in arms:
            if arm.clients < self._shared.min_batch:
                return _too_few(arm.arm, arm.clients, self._shared.min_batch)
        request = Request(
            study=self.study.name,
            line=self.line.name,
            version=self.head.iteration,
            arms=arms,
            made=now,
            verify_key=proofs.verify_key if proofs else b"",
        )
        return HelperRequest(
            study=self.study.name,
            line=self.line.name,
            version=self.head.iteration,
            of=self.head.digest,
            request=signed(request, leader_key(self.key)),
            sums={arm: as_bytes(total) for arm, total in sums.items()},
            inputs=manifest.inputs,
        )

    @property
    def _proofs(self) -> Proofs | None:
        """What proofs are looked at with; None if clients prove nothing."""
        votes, study, line, version = votes_of(self.line), self.study.name, self.line.name, self.head.iteration
        if votes is None:
            return None
        contexts = {arm: context_of(study, line, version, arm, votes) for arm in self._arms}
        return Proofs(verify_key(self.key, study, line, version), contexts)

    def _shares(self, inputs: tuple[InputFile, ...], engine: Engine, among: bytes | None = None) -> Shares:
        """Return what has landed of all clients that count, or of those with the document ids ``among`` alone."""
        rules = rules_for(self.study, self.line.name, self.head.iteration, key=b"private", among=among)
        found: Shares = combined(engine.partials(work_on(self.landing, inputs, rules)), rules).total
        return found

    def _short(self, shares: Shares) -> str:
        """Return which arm has too few clients for the helper, or that all have for a step; empty if there are enough.

        After an answer nothing more of the version can be had, so a step has to wait for its clients before that.
        """
        least, counts = (
            self._shared.min_batch,
            [shares[number].clients if number in shares else 0 for number in range(len(self._arms))],
        )
        for arm, clients in zip(self._arms, counts, strict=True):
            if clients < least:
                return _too_few(arm, clients, least)
        submitting = {arm.name for arm in self.study.arms if arm.submits}
        there = sum(n for arm, n in zip(self._arms, counts, strict=True) if arm in submitting)
        if there < (wanted := self.line.pipeline.min_clients):
            return f"{there:,} of at least {wanted:,} clients have sent a usable share"
        return ""

    def _answered(self, made: HelperRequest) -> tuple[HelperRequest, bytes]:
        """Return what has come from the helper, and to which request: this one, or that which was put aside before."""
        where = self.asked.file_of(made)
        if self.helper is None:
            raise HelperUnavailable(
                f"give --helper URL, or send {where} to the helper and give the file that comes back by --answer FILE"
            )
        most = most_answer_bytes(self.line, made.read)
        try:
            data, instead = self.helper.answer(made.request, most), None
        except Refused as error:
            if error.reason != "answered" or (aside := self.asked.aside(self.head)) is None:
                raise
            try:  # the answer to that one may have been lost
                data, instead = self.helper.answer(aside.request, most_answer_bytes(self.line, aside.read)), aside
            except Refused:
                raise error from None
        if instead is None and (aside := self.asked.aside(self.head)) is not None and _answers(data, aside):
            instead = aside
        return instead or made, data

    def _waits(
        self, result: RoundResult, made: HelperRequest, status: Literal["asked", "waiting"], why: str, shown: str = ""
    ) -> RoundResult:
        """Return that the line waits, and why; ``shown`` is what pages say of that, if it is something else."""
        since = made.read.made
        if status == "asked":
            self.asked.tell(self.head.iteration, PendingRequest(since=since, why=shown or why))
        clients = sum(arm.clients for arm in made.read.arms)
        return replace(result, status=status, clients=clients, missing=why, since=since)

    def _refused(self, result: RoundResult, made: HelperRequest, refused: Refused) -> RoundResult:
        said = f"it refuses the request ({refused.reason}: {str(refused).rstrip('.')})"
        shown = f"it refuses the request ({refused.reason})" if refused.reason in _OF_COUNTS else said
        if refused.reason in SIGNED and not refused.is_from(self._shared.helper, made.digest):
            why = f"the helper has not signed that {said}; see that the address is the helper's, and nobody in between"
            return self._waits(result, made, "asked", why, f"the helper has not signed that {shown}")
        if refused.reason in _NO_REQUEST:
            self.asked.tell(self.head.iteration, PendingRequest(since=made.read.made, why=said, for_good=True))
            self._refuse_for_good(said)
        if refused.reason in _NEW_REQUEST:
            self.asked.put_aside(made)
            aside = "which is put aside; the next round makes another"
            self.asked.tell(self.head.iteration, PendingRequest(since=made.read.made, why=f"{shown}, {aside}"))
            return self._waits(result, made, "waiting", f"the helper was asked, and {said}, {aside}")
        return self._waits(result, made, "asked", said, shown)

    def _refuse_for_good(self, said: str) -> NoReturn:
        study, line, beyond = self.study.name, self.line.name, self.head.iteration + 2
        raise FedpingError(
            f"no version can follow from the pings of version {self.head.iteration} of line '{line}' of study "
            f"'{study}': the helper was asked, and {said}; put back the store that has the request which it has "
            f"answered, or leave these pings behind with 'fedping store continue {study} {line} --from {beyond}', "
            "which counts them as released"
        )

    def _together(self, made: HelperRequest, data: bytes, engine: Engine) -> Together:
        """Return the sums of both servers, without the clients that the helper has refused."""
        answer = self._checked(made, data)
        asked, of = made.read.arms, summing(self.line)
        refused = b"".join(
            arm.documents[DOCUMENT_BYTES * at : DOCUMENT_BYTES * (at + 1)]
            for arm, each in zip(asked, answer.arms, strict=True)
            for at in each.refused
        )
        out = self._shares(made.inputs, engine, refused) if refused else {}
        found = {}
        for number, (arm, each) in enumerate(zip(asked, answer.arms, strict=True)):
            own = from_bytes(made.sums[arm.arm])
            if each.refused:
                if number not in out or out[number].clients != len(each.refused):
                    raise FedpingError(
                        f"the pings of clients that the helper has refused are no longer all in {self.landing}, so "
                        "their shares cannot be left out; put back what was there when the helper was asked"
                    )
                own = of.ring.minus(own, out[number].total)
            clients = arm.clients - len(each.refused)
            found[number] = of.ring.centred(of.ring.plus(of.vector(own, clients), from_bytes(each.total)))
        told = Answered(
            helper=self._shared.helper,
            request=made.digest,
            answer=digest_of_signed(data),
            refused=sum(len(each.refused) for each in answer.arms),
        )
        return Together(found, told)

    def _checked(self, made: HelperRequest, data: bytes) -> Answer:
        """Return the answer to a request.

        Raises:
            FedpingError: it is none, by somebody else, or to another request.
        """
        where = f"what has come as the helper's answer for line '{self.line.name}' of study '{self.study.name}'"
        lost = "nothing was published, and the line waits for the answer"
        if not is_from(data, Answer, self._shared.helper):
            raise FedpingError(
                f"{where} is not signed by the helper {self._shared.helper[:16]}…, which the study names, or was "
                f"damaged on the way; {lost}"
            )
        try:
            answer = read_signed(data, Answer)
        except ValueError as error:
            raise FedpingError(f"{where} cannot be read: {error}; use a newer fedping; {lost}") from error
        if answer.request != made.digest:
            about = (answer.study, answer.line, answer.version)
            of = f"version {answer.version} of {answer.study}/{answer.line}"
            mine = about == (self.study.name, self.line.name, self.head.iteration)
            raise FedpingError(f"{where} answers another request{'' if mine else f', on {of}'}; {lost}")
        if trouble := answer_trouble(answer, made.read, self.line):
            raise FedpingError(f"{where} does not fit the request: {trouble}; {lost}")
        return answer


def _too_few(arm: str, clients: int, least: int) -> str:
    return (
        f"{clients:,} of at least {least:,} clients of arm '{arm}' have sent a usable share, and of fewer the helper "
        "gives no sum"
    )


def most_answer_bytes(line: Line, request: Request) -> int:
    """Return how many bytes an answer to a request has at most: its sums, and as many places as there are clients."""
    names = 2048 + sum(len(arm.arm) + 64 for arm in request.arms)
    of_arms = sum(8 * _d(line) + 5 * arm.clients for arm in request.arms)
    return SIGNATURE_BYTES + names + of_arms


def answer_trouble(answer: Answer, request: Request, line: Line) -> str | None:
    """Return what of an answer does not fit a request; None if all does."""
    if (answer.study, answer.line, answer.version) != (request.study, request.line, request.version):
        return "it names another study, line or version"
    if [each.arm for each in answer.arms] != [arm.arm for arm in request.arms]:
        return "it has other arms"
    troubles = (_arm_trouble(each, arm, line) for each, arm in zip(answer.arms, request.arms, strict=True))
    return next(filter(None, troubles), None)


def _arm_trouble(each: AnsweredArm, arm: AskedArm, line: Line) -> str | None:
    if len(each.total) != 8 * _d(line):
        return f"its sum of arm '{arm.arm}' has {len(each.total):,} bytes, and not {8 * _d(line):,}"
    if (from_bytes(each.total) > np.uint64(summing(line).ring.modulus - 1)).any():
        return f"its sum of arm '{arm.arm}' has a number that is none of the ring"
    places = each.refused
    if any(b <= a for a, b in zip((-1, *places), places, strict=False)) or (places and places[-1] >= arm.clients):
        return f"the clients of arm '{arm.arm}' that it refuses are not places in the request"
    assert line.privacy is not None
    assert line.privacy.shared is not None
    least = line.privacy.shared.min_batch
    if (left := arm.clients - len(places)) < least:  # or a helper could have the sum of whom it likes published
        return f"it leaves {left:,} of {arm.clients:,} clients of arm '{arm.arm}', and a sum is of {least:,} or more"
    return None


def _d(line: Line) -> int:
    return line.spec.m + len(METRICS)


def _answers(data: bytes, asked: HelperRequest) -> bool:
    try:
        return read_signed(data, Answer).request == asked.digest
    except ValueError:
        return False
