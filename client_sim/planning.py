"""Upload costs of a model's updates under each encoding, measured on updates of simulated clients."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fedping.client_sim.fleet.examples import ExampleSettings, examples_for, ranks_pages, searches_for
from fedping.client_sim.fleet.fleet import made_users
from fedping.client_sim.fleet.pings import encoded_lines, encoded_pings
from fedping.client_sim.http import LEVEL
from fedping.client_sim.learning.algorithm import bare
from fedping.client_sim.learning.algorithms import algorithm_for
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.registry import learner_for
from fedping.client_sim.learning.states import Kept, MemoryStates
from fedping.client_sim.learning.updates import updates_of_fleet
from fedping.client_sim.models import model_for
from fedping.client_sim.tradeoff import Spread, spread_of, times_variance
from fedping.client_sim.upload import first_state, sent_updates
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landed_table import ModelPings
from fedping.protocol.links import (
    Eden,
    ErrorFeedback,
    Float32,
    Levels,
    LowRank,
    Mask,
    ScaledSigns,
    Sign,
    Signs,
    Steps,
    TopK,
    Upload,
    in_words,
    name_of,
    settings_of,
)
from fedping.protocol.spec import published_array
from fedping.protocol.study import Line
from fedping.protocol.training import LocalSteps
from fedping.protocol.update import Payloads, size_of_updates
from fedping.protocol.upload import receiving, sending

CANDIDATES: tuple[Upload, ...] = (
    (),
    (Float32(),),
    (Levels(bits=8),),
    (Levels(bits=4, rotate=True),),
    (Levels(bits=2, rotate=True),),
    (Steps(size=0.5),),
    (Steps(size=1.0),),
    (Steps(size=2.0),),
    (Eden(bits=4),),
    (Eden(bits=2),),
    (Eden(bits=1),),
    (Mask(keep=0.1),),
    (Mask(keep=0.01),),
    (Mask(keep=0.1), Levels(bits=8)),
    (LowRank(rank=8),),
    (Signs(),),
)
"""Encodings measured for every model, in addition to a line's own links."""

WORTH_IT = 0.8
"""Maximum size of a ping's body, relative to a dense ping's, for which an encoding is worth its error."""

_NUMBERS = 2**21
_MOST, _LEAST = 1024, 2
"""Maximum and minimum number of measured updates; ``_NUMBERS`` is the approximate total of their values."""

_TRAINING, _UPLOAD = range(2)


class Cost(Struct, frozen=True, kw_only=True):
    """The cost of an update under some links; the bytes are means over the measured updates.

    Attributes:
        name: the links, for people.
        upload: the links in the syntax of a study file; empty for none.
        update_bytes: bytes of the encoded update.
        posted_bytes: bytes of the body of its ping.
        batched_bytes: bytes of its ping in a batch of pings, compressed by gzip.
        bits: bits per weight of the encoded update.
        error: E|h~ - h|² / E|h|² of one client's update h and its decoded form h~; None for signs, which have no
            decoded form.
        clients: factor on the number of clients that a round needs for a mean as exact as without links; None for
            signs.
        posted_times_clients: ``posted_bytes`` times ``clients``, for comparing bytes of rounds whose mean has the same
            error; None for signs.
    """

    name: str
    upload: str
    update_bytes: float
    posted_bytes: float
    batched_bytes: float
    bits: float
    error: float | None
    clients: float | None
    posted_times_clients: float | None


class UploadPlan(Struct, frozen=True, kw_only=True):
    """The costs of the links that a line can have.

    Attributes:
        line: name of the line.
        m: number of the model's weights.
        pings: number of measured updates.
        learned: whether simulated clients learned the updates at the line's start; else they are random numbers with
            zeros and a heavy tail.
        costs: the cost of each list of links.
        refused: lists of links that the line can't have, and the reasons.
        take: the recommended links, in the form of :attr:`Cost.upload`; empty for none.
        reason: the reason for the recommendation, in a sentence.
    """

    line: str
    m: int
    pings: int
    learned: bool
    costs: tuple[Cost, ...]
    refused: dict[str, str]
    take: str
    reason: str


def plan_upload(line: Line, seed: int = 0) -> UploadPlan:
    """Return the cost of updates of a line's model under each encoding, and the recommended one.

    Raises:
        InvalidSettings: the line is private, and its vectors have a fixed encoding.
    """
    if line.privacy is not None:
        what = "vectors of whole numbers, 4" if line.privacy.shared is None else "shares of whole numbers, 8"
        raise InvalidSettings(
            f"line '{line.name}' is private: its clients send {what} bytes a weight, which links can't reduce. Plan a "
            "line without [lines.privacy]"
        )
    updates, learned = _updates(line, seed)
    costs: list[Cost] = []
    refused: dict[str, str] = {}
    for upload in dict.fromkeys((*CANDIDATES, *((line.upload,) if line.upload else ()))):
        try:
            costs.append(_cost(_with(line, upload), updates, seed))
        except InvalidSettings as error:
            refused[in_words(upload)] = str(error)
    take, reason = _advice(costs)
    return UploadPlan(
        line=line.name,
        m=line.spec.m,
        pings=len(updates),
        learned=learned,
        costs=tuple(costs),
        refused=refused,
        take=take,
        reason=reason,
    )


def _written(upload: Upload) -> str:
    """Return links in the syntax of a study file; "" for none."""
    tables = (", ".join([f'link = "{name_of(link)}"', *settings_of(link)]) for link in upload)
    return f"[{', '.join(f'{{ {table} }}' for table in tables)}]" if upload else ""


def _with(line: Line, upload: Upload) -> Line:
    """Return a line with other links and without structured training, so that all links encode the same updates."""
    training = line.training
    if isinstance(training, LocalSteps):
        training = replace(training, structured=False)
    return replace(line, upload=upload, training=training)


def _updates(line: Line, seed: int) -> tuple[FloatArray, bool]:
    """Return updates of the line's model, shape (k, m), and whether simulated clients learned them."""
    k = min(_MOST, max(_LEAST, _NUMBERS // line.spec.m))
    try:
        found = np.concatenate(list(_learned(line, k, seed)))
        if found.any():
            return found, True
    except FedpingError:
        pass  # a product's custom model, or one without examples here
    random = np.random.default_rng(seed)
    made = random.standard_normal((k, line.spec.m)) * np.exp(random.standard_normal((k, line.spec.m)))
    return np.where(random.random(made.shape) < 0.4, 0.0, made), False


def _learned(line: Line, k: int, seed: int) -> Iterator[FloatArray]:
    training = _with(line, ()).training
    model = learner_for(line.spec, training)
    if ranks_pages(bare(model)):
        source = searches_for(made_users(seed)(model_for(line.spec.model, line.spec.settings)))
    else:
        source = examples_for(line.spec, bare(model), ExampleSettings(), seed)
    clients = np.arange(k)
    kept = Kept(MemoryStates(algorithm_for(training).init_state(bare(model))), clients)
    keys = child_keys(child_keys(root_key(seed), _TRAINING), clients)
    weights = published_array(line.spec, line.spec.start_array)
    for block in updates_of_fleet(model, training, weights, source.of(clients, 0, weights), clients, keys, kept=kept):
        yield np.asarray(block.sent().updates, np.float64)


def _cost(line: Line, updates: FloatArray, seed: int) -> Cost:
    """Return the cost of updates of shape (k, m) under a line's links; raise InvalidSettings if it can't use them."""
    k, m = updates.shape
    server = receiving(line)
    keys = child_keys(child_keys(root_key(seed), _UPLOAD), np.arange(k))
    links = sending(line)
    kept = Kept(MemoryStates(first_state(links, m)), np.arange(k)) if links.keeps_state else None
    made = sent_updates(links, updates, keys, kept)
    sent = made if isinstance(made, Payloads) else made.astype(np.float32)
    random = np.random.default_rng(seed)
    pings = ModelPings(
        document_ids=random.integers(0, 256, (k, 16), np.uint8),
        client_ids=random.integers(0, 256, (k, 16), np.uint8),
        arm="treatment",
        version=1,
        updates=sent,
        losses=random.random((k,)),
        examples=random.integers(1, 100, (k,)),
    )
    size = float(size_of_updates(sent).mean())
    posted = sum(len(body) for _, body in encoded_pings(pings)) / k
    batched = len(gzip.compress(b"\n".join(encoded_lines(pings)), LEVEL)) / k
    error = clients = None
    # Signs have no size, and more clients don't make up for the error of a biased link.
    if not any(isinstance(link, Sign | Signs | TopK | ScaledSigns | ErrorFeedback) for link in line.upload):
        decoded = server.decode(sent.column, m)[0] if isinstance(sent, Payloads) else sent
        error = float(((decoded - updates) ** 2).sum() / (updates**2).sum())
        clients = _times_clients(updates, error)
    return Cost(
        name=in_words(line.upload),
        upload=_written(line.upload),
        update_bytes=size,
        posted_bytes=posted,
        batched_bytes=batched,
        bits=8 * size / m,
        error=error,
        clients=clients,
        posted_times_clients=None if clients is None else posted * clients,
    )


def _times_clients(updates: FloatArray, error: float) -> float:
    """Return the factor on a round's clients that makes up for this error, by a sample of updates, shape (k, m)."""
    seen, k = spread_of(updates), len(updates)
    variance = seen.variance * k / (k - 1)  # a sample has a smaller spread around its own mean
    if variance == 0:
        return 1 + error
    return times_variance(Spread(max(0.0, seen.square - variance), variance), error)


def _advice(costs: Sequence[Cost]) -> tuple[str, str]:
    """Return the links with the fewest bytes for the same error of a round's mean, and the reason for them."""
    dense = next(each for each in costs if not each.upload)
    weighed = [(each.posted_times_clients, each) for each in costs if each.posted_times_clients is not None]
    # EDEN is for comparison: it is slightly biased, and browsers don't support it.
    least = min(posted for posted, _ in weighed)
    posted, best = min((one for one in weighed if "eden" not in one[1].name), key=lambda one: one[0])
    if posted > WORTH_IT * dense.posted_bytes:
        return "", (
            f"take none: a ping of {dense.posted_bytes:,.0f} bytes is mostly what stands around the update; in "
            f"batches, gzip makes it {dense.batched_bytes:,.0f}"
        )
    clients = best.clients or 1.0
    made_up = f"an error that {clients:.2g} times as many clients a round make up for"
    return best.upload, (
        f"take upload = {best.upload}: a ping has {best.posted_bytes:,.0f} bytes instead of {dense.posted_bytes:,.0f}, "
        f"and {made_up if clients > 1.01 else 'next to no error'}"
        + (
            "; eden has a smaller error, but is slightly biased, and browsers don't support it"
            if least < posted
            else ""
        )
    )
