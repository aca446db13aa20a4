"""The stages of a two-server line's round that replace the sum of vectors by a request to the helper.

The first round of a version with enough clients stores a request, and later rounds wait for its answer. Each round
uses the same bytes, also after a round was killed. The answer contains the sums of vectors, with which the round
continues like any private round (`fedping.server_jobs.round.private`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NoReturn

import numpy as np

from fedping.model_store.helper_requests import HelperRequest, PendingRequest, StoredRequest
from fedping.model_store.version import Answered, InputFile
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.notation import time_at
from fedping.protocol.privacy import METRICS, Shared
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
from fedping.protocol.sharing.terms import agreed, arms_of
from fedping.protocol.study import Line
from fedping.server_jobs.privacy.keys import leader_identity, leader_key, verify_key
from fedping.server_jobs.round.aggregate import combined
from fedping.server_jobs.round.context import RoundContext, list_pings
from fedping.server_jobs.round.helper_client import HelperUnavailable
from fedping.server_jobs.round.manifest import Manifest, work_on
from fedping.server_jobs.round.plan import rules_for
from fedping.server_jobs.round.private import PrivateState
from fedping.server_jobs.round.private_sums import (
    Proofs,
    Shares,
    Sums,
    asked_arms,
    repeated_documents,
    summing,
    votes_of,
    without,
)
from fedping.server_jobs.round.result import RoundResult

_NEW_REQUEST: frozenset[Reason] = frozenset({"too_few", "too_old", "from_the_future", "repeated"})
"""Rejection reasons after which the next round creates a new request; the helper has stored nothing of the old one."""

_OF_COUNTS: frozenset[Reason] = frozenset({"too_few", "too_many"})
"""Rejection reasons whose sentence has the exact number of clients, which pages don't show for private studies."""

_NO_REQUEST: frozenset[Reason] = frozenset({"answered", "other_weights"})
"""Rejection reasons after which requests for the same version can't succeed."""


def check_helper(context: RoundContext, state: PrivateState) -> PrivateState:
    """Stage: check that the helper knows the key, and delete requests of earlier versions.

    Raises:
        FedpingError: the helper knows another key. No ping was read.
    """
    offer = context.store.studies.offer(context.study.name, context.line.name)
    if offer is not None:
        leader = agreed(offer, context.study, context.line).leader
        if leader != leader_identity(_key(context)):
            raise InvalidSettings(
                f"the privacy key is not that of leader {leader[:16]}…, which the helper of line "
                f"'{context.line.name}' has agreed with. Pass that key; or, if the helper has answered nothing yet, "
                "have its operator repeat 'fedping helper join' with the identity that 'fedping privacy identity FILE' "
                "prints, and publish the new offer. Nothing was read."
            )
    _requests(context).forget(context.head.iteration)
    return state


def keep_request(context: RoundContext, state: PrivateState) -> PrivateState | RoundResult:
    """Stage: open the request stored by an earlier round, or create and store a request from the landed pings."""
    requests = _requests(context)
    request = requests.open(context.head)
    if request is None:
        state = list_pings(context, state)
        assert state.manifest is not None
        new = _new_request(context, state.manifest)
        if isinstance(new, str):
            requests.tell(context.head.iteration, None)
            return replace(state.result, status="waiting", missing=new)
        context.options.on_step("summed")
        request = requests.keep(new, context.head)
        context.options.on_step("asked")
    elif not is_from(request.request, Request, leader_identity(_key(context))):  # an earlier round had another key
        request = requests.sign_again(request, signed(request.read, leader_key(_key(context))))
    return replace(state, request=request)


def ask_helper(context: RoundContext, state: PrivateState) -> PrivateState | RoundResult:
    """Stage: request the helper's aggregate share, or end the round if there is no answer yet.

    Raises:
        FedpingError: the helper can't answer any request on this version.
    """
    assert state.request is not None
    try:
        request, answer = _answer(context, state.request)
    except HelperUnavailable as error:
        return _waiting(context, state, "asked", str(error))
    except Refused as error:
        return _refused(context, state, error)
    context.options.on_step("answered")
    return replace(state, request=request, answer=answer)


def add_answer(context: RoundContext, state: PrivateState) -> PrivateState:
    """Stage: add the sums of both servers, and store the answer.

    Raises:
        FedpingError: the response isn't an answer to the request. No data was lost.
    """
    assert state.request is not None
    sums, answered = _both_sums(context, state.request, state.answer)
    _requests(context).keep_answer(context.head.iteration, state.answer)
    context.options.on_step("aggregated")
    return replace(state, sums=sums, answered=answered)


def delete_request(context: RoundContext, state: PrivateState) -> PrivateState:
    """Stage: delete the request, now that the version from its answer is published."""
    _requests(context).forget(context.head.iteration + 1)
    context.options.on_step("forgotten")
    return state


def _requests(context: RoundContext) -> StoredRequest:
    return context.store.helper_request(context.study.name, context.line.name)


def _key(context: RoundContext) -> bytes:
    assert context.key is not None
    return context.key


def _shared(line: Line) -> Shared:
    assert line.privacy is not None
    assert line.privacy.shared is not None
    return line.privacy.shared


def _arms(context: RoundContext) -> tuple[str, ...]:
    return arms_of(context.study.arms, context.line.name)


def _new_request(context: RoundContext, manifest: Manifest) -> HelperRequest | str:
    """Return a new request from the landed pings, or the reason to wait, as part of a sentence."""
    line, head, names = context.line, context.head, (context.study.name, context.line.name)
    shares = _shares(context, manifest.inputs)
    if len(repeated := repeated_documents(shares)):
        shares = without(line, shares, _shares(context, manifest.inputs, repeated.tobytes()))
    if missing := _missing_clients(context, shares):
        if context.store.studies.offer(*names) is not None:
            return missing
        return (
            f"{missing}; the helper's offer is not published, and clients send no pings without it: publish it with "
            f"'fedping study offer {names[0]} {names[1]} FILE'"
        )
    arms, sums = asked_arms(line, _arms(context), shares, proofs := _proofs(context))
    for arm in arms:
        if arm.clients < (least := _shared(line).min_batch):
            return _too_few(arm.arm, arm.clients, least)
    request = Request(
        study=names[0],
        line=names[1],
        version=head.iteration,
        arms=arms,
        made=time_at(context.now_ms),
        verify_key=proofs.verify_key if proofs else b"",
    )
    return HelperRequest(
        study=names[0],
        line=names[1],
        version=head.iteration,
        of=head.digest,
        request=signed(request, leader_key(_key(context))),
        sums={arm: as_bytes(total) for arm, total in sums.items()},
        inputs=manifest.inputs,
    )


def _proofs(context: RoundContext) -> Proofs | None:
    """Return the keys and contexts to check proofs with; None if clients don't send proofs."""
    votes, version = votes_of(context.line), (context.study.name, context.line.name, context.head.iteration)
    if votes is None:
        return None
    contexts = {arm: context_of(*version, arm, votes) for arm in _arms(context)}
    return Proofs(verify_key(_key(context), *version), contexts)


def _shares(context: RoundContext, inputs: tuple[InputFile, ...], among: bytes | None = None) -> Shares:
    """Return the landed shares of all clients that count, or only of those with the document ids ``among``."""
    rules = rules_for(context.study, context.line.name, context.head.iteration, key=b"private")
    rules = replace(rules, among=among)
    total: Shares = combined(context.engine.partials(work_on(context.landing, inputs, rules)), rules).total
    return total


def _missing_clients(context: RoundContext, shares: Shares) -> str:
    """Return a phrase about missing clients, of an arm for the helper or of the line for a step; empty if none.

    After an answer, further pings of the version can't be summed, so enough clients for a step are needed before.
    """
    least, arms = _shared(context.line).min_batch, _arms(context)
    counts = [shares[number].clients if number in shares else 0 for number in range(len(arms))]
    for arm, clients in zip(arms, counts, strict=True):
        if clients < least:
            return _too_few(arm, clients, least)
    submitting = {arm.name for arm in context.study.arms if arm.submits}
    total = sum(clients for arm, clients in zip(arms, counts, strict=True) if arm in submitting)
    if total < (minimum := context.line.pipeline.min_clients):
        return f"{total:,} of at least {minimum:,} clients have sent a usable share"
    return ""


def _answer(context: RoundContext, request: HelperRequest) -> tuple[HelperRequest, bytes]:
    """Return the helper's answer, and the request that it answers: ``request``, or the request put aside before."""
    requests, helper = _requests(context), context.options.helper
    file = requests.file_of(request)
    if helper is None:
        raise HelperUnavailable(
            f"give --helper URL, or send {file} to the helper and pass its answer with --answer FILE"
        )
    try:
        answer = helper.answer(request.request, most_answer_bytes(context.line, request.read))
    except Refused as error:
        if error.reason != "answered" or (aside := requests.aside(context.head)) is None:
            raise
        try:  # the answer to the earlier request may have been lost
            return aside, helper.answer(aside.request, most_answer_bytes(context.line, aside.read))
        except Refused:
            raise error from None
    aside = requests.aside(context.head)
    return aside if aside is not None and _answers(answer, aside) else request, answer


def _waiting(
    context: RoundContext, state: PrivateState, status: Literal["asked", "waiting"], why: str, shown: str = ""
) -> RoundResult:
    """Return the result of a round that waits because of ``why``. ``shown`` is the reason for pages if it differs."""
    assert state.request is not None
    request = state.request.read
    if status == "asked":
        _requests(context).tell(context.head.iteration, PendingRequest(since=request.made, why=shown or why))
    clients = sum(arm.clients for arm in request.arms)
    return replace(state.result, status=status, clients=clients, missing=why, since=request.made)


def _refused(context: RoundContext, state: PrivateState, refusal: Refused) -> RoundResult:
    request, requests, version = state.request, _requests(context), context.head.iteration
    assert request is not None
    sentence = f"it rejects the request ({refusal.reason}: {str(refusal).rstrip('.')})"
    shown = f"it rejects the request ({refusal.reason})" if refusal.reason in _OF_COUNTS else sentence
    if refusal.reason in SIGNED and not refusal.is_from(_shared(context.line).helper, request.digest):
        unsigned = "the helper has not signed that"
        why = f"{unsigned} {sentence}; check that the address is the helper's, and that no proxy changes its answers"
        return _waiting(context, state, "asked", why, f"{unsigned} {shown}")
    if refusal.reason in _NO_REQUEST:
        requests.tell(version, PendingRequest(since=request.read.made, why=sentence, for_good=True))
        _refuse_for_good(context, sentence, "" if refusal.reason == "other_weights" else _PUT_BACK)
    if refusal.reason in _NEW_REQUEST:
        requests.put_aside(request)
        aside = "so the request is put aside; the next round creates another"
        requests.tell(version, PendingRequest(since=request.read.made, why=f"{shown}, {aside}"))
        return _waiting(context, state, "waiting", f"the helper was asked, and {sentence}, {aside}")
    return _waiting(context, state, "asked", sentence, shown)


_PUT_BACK = "restore the store with the request that the helper has answered, or "


def _refuse_for_good(context: RoundContext, sentence: str, remedy: str) -> NoReturn:
    study, line, version = context.study.name, context.line.name, context.head.iteration
    raise FedpingError(
        f"can't compute the next version from the pings of version {version} of line '{line}' of study '{study}': "
        f"the helper was asked, and {sentence}; {remedy}discard these pings with 'fedping store continue {study} "
        f"{line} --from {version + 2}', which counts them as released"
    )


def _both_sums(context: RoundContext, request: HelperRequest, data: bytes) -> tuple[Sums, Answered]:
    """Return the sums of both servers without the clients that the helper rejected, and the lineage's entry."""
    answer = _checked_answer(context, request, data)
    arms, of = request.read.arms, summing(context.line)
    refused = b"".join(
        arm.documents[DOCUMENT_BYTES * at : DOCUMENT_BYTES * (at + 1)]
        for arm, answered in zip(arms, answer.arms, strict=True)
        for at in answered.refused
    )
    left_out = _shares(context, request.inputs, refused) if refused else {}
    sums = {}
    for number, (arm, answered) in enumerate(zip(arms, answer.arms, strict=True)):
        own = from_bytes(request.sums[arm.arm])
        if answered.refused:
            if number not in left_out or left_out[number].clients != len(answered.refused):
                raise FedpingError(
                    f"{context.landing} lacks pings of clients that the helper has rejected, so their shares can't "
                    "be left out; restore the pings from the time of the request"
                )
            own = of.ring.minus(own, left_out[number].total)
        clients = arm.clients - len(answered.refused)
        sums[number] = of.ring.centred(of.ring.plus(of.vector(own, clients), from_bytes(answered.total)))
    entry = Answered(
        helper=_shared(context.line).helper,
        request=request.digest,
        answer=digest_of_signed(data),
        refused=sum(len(answered.refused) for answered in answer.arms),
    )
    return sums, entry


def _checked_answer(context: RoundContext, request: HelperRequest, data: bytes) -> Answer:
    """Return the checked answer to a request.

    Raises:
        FedpingError: the answer can't be read, is from another helper, or belongs to another request.
    """
    study, line, helper = context.study.name, context.line.name, _shared(context.line).helper
    where = f"the helper's answer for line '{line}' of study '{study}'"
    lost = "no version was published, and the line waits for the answer"
    if not is_from(data, Answer, helper):
        raise FedpingError(
            f"{where} is not signed by the study's helper {helper[:16]}…, or was damaged in transit; {lost}"
        )
    try:
        answer = read_signed(data, Answer)
    except ValueError as error:
        raise FedpingError(f"{where} cannot be read: {error}; use a newer fedping; {lost}") from error
    if answer.request != request.digest:
        is_other = (answer.study, answer.line, answer.version) != (study, line, context.head.iteration)
        other = f", on version {answer.version} of {answer.study}/{answer.line}" if is_other else ""
        raise FedpingError(f"{where} answers another request{other}; {lost}")
    if problem := answer_problem(answer, request.read, context.line):
        raise FedpingError(f"{where} does not fit the request: {problem}; {lost}")
    return answer


def _too_few(arm: str, clients: int, least: int) -> str:
    return f"{clients:,} of at least {least:,} clients of arm '{arm}' have sent a usable share, the minimum for a sum"


def most_answer_bytes(line: Line, request: Request) -> int:
    """Return the maximum bytes of an answer to a request: its sums, and an entry for each client."""
    names = 2048 + sum(len(arm.arm) + 64 for arm in request.arms)
    of_arms = sum(8 * _size(line) + 5 * arm.clients for arm in request.arms)
    return SIGNATURE_BYTES + names + of_arms


def answer_problem(answer: Answer, request: Request, line: Line) -> str | None:
    """Return the reason why an answer doesn't match a request; None if it matches."""
    if (answer.study, answer.line, answer.version) != (request.study, request.line, request.version):
        return "it names another study, line or version"
    if [each.arm for each in answer.arms] != [arm.arm for arm in request.arms]:
        return "it has other arms"
    problems = (_arm_problem(each, arm, line) for each, arm in zip(answer.arms, request.arms, strict=True))
    return next(filter(None, problems), None)


def _arm_problem(each: AnsweredArm, arm: AskedArm, line: Line) -> str | None:
    if len(each.total) != 8 * _size(line):
        return f"its sum of arm '{arm.arm}' has {len(each.total):,} bytes instead of {8 * _size(line):,}"
    if (from_bytes(each.total) > np.uint64(summing(line).ring.modulus - 1)).any():
        return f"its sum of arm '{arm.arm}' has a number outside the ring"
    places = each.refused
    if any(b <= a for a, b in zip((-1, *places), places, strict=False)) or (places and places[-1] >= arm.clients):
        return f"the rejected clients of arm '{arm.arm}' are not positions in the request"
    least = _shared(line).min_batch
    if (left := arm.clients - len(places)) < least:  # else a helper could choose whose sum is published
        return f"it uses {left:,} of {arm.clients:,} clients of arm '{arm.arm}', but a sum needs {least:,} or more"
    return None


def _size(line: Line) -> int:
    return line.spec.m + len(METRICS)


def _answers(data: bytes, request: HelperRequest) -> bool:
    try:
        return read_signed(data, Answer).request == request.digest
    except ValueError:
        return False
