"""Results that clients in every language must compute identically: the files of `docs/conformance/`.

    python -m tests.conformance.vectors

writes them again (`make vectors`); a test checks that the committed files match the code. A topic is a function in
:data:`TOPICS`. Its file has its name, and `docs/conformance/README.md` describes it.

Each topic draws from a separate generator, whose numbers never change (`random.Random.random`), so that a topic may
grow without changing the others. Sums run in plain loops: `sum` is more precise from Python 3.12 on, and NumPy sums
in another order.
"""

import base64
import hashlib
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import numpy as np
from msgspec.structs import replace

from fedping.client_sim.client import Backoff
from fedping.client_sim.fleet.interactions import Keystrokes, Ranking, interact, stored_scores
from fedping.client_sim.fleet.pings import interaction_pings
from fedping.client_sim.learning import Examples, algorithm_for
from fedping.client_sim.learning.algorithm import MaySendNothing, Personalizes
from fedping.client_sim.learning.bounds import bounded
from fedping.client_sim.learning.personal.vector import random_basis
from fedping.client_sim.models import (
    FRECENCY_NAMES,
    LINEAR_15_NAMES,
    Onward,
    Page,
    PageTable,
    Visit,
    decayed,
    frecency_start,
    linear_15_truth,
    page_table,
    searches_from,
)
from fedping.client_sim.models.reference import descent_by_finite_differences, frecency, linear_15
from fedping.client_sim.privacy import Chance, Contributor, has_turn, rotating_id
from fedping.client_sim.privacy.contributions import SECRET_BYTES
from fedping.client_sim.upload import sent_updates
from fedping.protocol.draws import bits, child_keys, uniforms
from fedping.protocol.encodings.blocks import padded_size
from fedping.protocol.encodings.mask import places, weights_kept
from fedping.protocol.encodings.payloads import payload_seeds
from fedping.protocol.enrolment import enrol, hash_fraction, staged_for
from fedping.protocol.links import Dense, Float32, Levels, Mask, Rotation, Sign, Signs, Steps, Upload, in_words
from fedping.protocol.local_optimizers import LocalRProp
from fedping.protocol.model import ModelDocument
from fedping.protocol.personalization import FineTune, Personalization, Vector
from fedping.protocol.privacy import (
    Central,
    ClippedByKind,
    ClippedFlat,
    LocalGaussian,
    OneSign,
    Privacy,
    local_sigma,
    published_privacy,
)
from fedping.protocol.rules import traits_of
from fedping.protocol.spec import ModelSpec, NonNegative, OrderedCutoffs, Step, Weight, published, published_spec
from fedping.protocol.study import Arm, Line, Piece, PublicLine, Study, public_json, public_study
from fedping.protocol.training import OneGradient
from fedping.protocol.update import EncodedUpdate, Payloads
from fedping.protocol.upload import sending
from tests.conformance.draw import Draw
from tests.conformance.features import features
from tests.conformance.outcomes import outcomes
from tests.conformance.proofs import proofs
from tests.conformance.shares import seal_once, shares
from tests.support.encodings import EXAMPLES
from tests.support.links import line_with

FOLDER = Path(__file__).parents[2] / "docs" / "conformance"
NOW = 1_530_000_000_000_000
"""Time of all cases, in microseconds since 1970. JavaScript has milliseconds, so times are multiples of 1,000."""

_DAY = 86_400_000_000
_SHARES = 2042
_PAGES, _SEARCHES, _CLIENTS = 120, 12, 60
_EDGES = (0, 1, 4, 5, 6, 14, 15, 16, 31, 32, 33, 90, 91, 92)


def text(topic: str) -> str:
    """Return a topic's file as it is committed: JSON, one case for each line."""
    lines = []
    for name, entries in TOPICS[topic]().items():
        if isinstance(entries, list):
            rows = ",\n".join("  " + json.dumps(entry) for entry in entries)
            lines.append(f'"{name}": [\n{rows}\n]')
        else:
            lines.append(f'"{name}": {json.dumps(entries)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(topic: str) -> dict[str, Any]:
    """Return the content of a topic's file."""
    vectors: dict[str, Any] = json.loads((FOLDER / f"{topic}.json").read_text())
    return vectors


def write() -> None:
    """Write the files of all topics."""
    seal_once(Draw(_SHARES))
    for topic in TOPICS:
        (FOLDER / f"{topic}.json").write_text(text(topic))


def plain_loss(scores: Sequence[float], chosen: int, margin: float) -> float:
    """Return the SVM loss for ranking, summed in displayed order, like the reference."""
    total = 0.0
    for j, score in enumerate(scores):
        if chosen >= 0 and j != chosen:
            total += max(0.0, score + margin - scores[chosen])
    return total


def drawn_pages() -> list[Page]:
    """Return the pages that the other topics rank."""
    draw = Draw(2018)
    return [_page(draw) for _ in range(_PAGES)]


def _pages() -> dict[str, Any]:
    return {"now": NOW // 1000, "pages": [_as_json(page) for page in drawn_pages()]}


def _page(draw: Draw) -> Page:
    visits = tuple(_visit(draw) for _ in range(draw.whole(0, 13) if draw.chance(0.85) else 0))
    return Page(
        visits=visits,
        visit_count=draw.whole(0, 30) if draw.chance(0.8) else draw.whole(0, 100_000),
        typed=draw.chance(0.5),
        bookmarked=draw.chance(0.5),
        is_query=draw.chance(0.15),
    )


def _visit(draw: Draw) -> Visit:
    """Return a visit within milliseconds of a cutoff, or at any time, including the future."""
    if draw.chance(0.5):
        age = _EDGES[draw.whole(0, len(_EDGES) - 1)] * _DAY + 1000 * draw.whole(-1, 1)
    else:
        age = 1000 * draw.whole(-3 * 86_400_000, 300 * 86_400_000)
    origin = draw.whole(-1, 11) if draw.chance(0.6) else None
    return Visit(NOW - age, draw.whole(-1, 11), origin, Onward(draw.whole(0, 2)))


def _as_json(page: Page) -> dict[str, Any]:
    return {
        "visits": [[visit.time / 1000, visit.type, visit.origin_type, int(visit.onward)] for visit in page.visits],
        "visitCount": page.visit_count,
        "typed": page.typed,
        "bookmarked": page.bookmarked,
        "isQuery": page.is_query,
    }


_Scores: TypeAlias = Callable[[Sequence[float], Sequence[Page]], list[float]]


def _models(draw: Draw) -> Iterator[tuple[str, list[list[float]], _Scores]]:
    """Yield the name of each ranking model, weights to test, and its function that scores pages."""
    yield "frecency-2018", list(_frecency_weights(draw)), _frecency_scores
    yield "linear-15", list(_linear_weights(draw)), _linear_scores


def _frecency_weights(draw: Draw) -> Iterator[list[float]]:
    yield frecency_start().tolist()
    yield [0.0] * len(FRECENCY_NAMES)
    for whole in (True, True, False, False):
        numbers = [*(draw.fraction() * 100 for _ in range(4)), *(draw.fraction() * 900 - 300 for _ in range(18))]
        yield [float(round(number)) if whole else number for number in numbers]


def _linear_weights(draw: Draw) -> Iterator[list[float]]:
    yield linear_15_truth().tolist()
    for scale in (1.0, 200.0):
        yield [scale * (draw.fraction() - 0.3) for _ in LINEAR_15_NAMES]


def _frecency_scores(weights: Sequence[float], pages: Sequence[Page]) -> list[float]:
    return [float(frecency(np.array(weights), page, NOW)) for page in pages]


def _linear_scores(weights: Sequence[float], pages: Sequence[Page]) -> list[float]:
    return [linear_15(np.array(weights), page, NOW) for page in pages]


def _scores() -> dict[str, Any]:
    """Return the scores of all pages by each model, and the decayed stored scores."""
    draw, pages = Draw(2019), drawn_pages()
    cases = [
        {"model": name, "weights": weights, "scores": scores_of(weights, pages)}
        for name, tried, scores_of in _models(draw)
        for weights in tried
    ]
    table = page_table(pages, NOW)
    aged = [{"scores": case["scores"], "stored": _stored(case["scores"], table)} for case in cases[:2]]
    a_day = [[score, decayed(np.array(float(score))).item()] for score in (-1, 0, 20, 21, 22, 60, 140, 99_999)]
    return {"scores": cases, "decayed": a_day, "stored": aged}


def _stored(scores: Sequence[float], pages: PageTable) -> list[float]:
    stored: list[float] = stored_scores(np.array(scores), pages).tolist()
    return stored


def _updates() -> dict[str, Any]:
    """Return searches, each with its order, its loss and its update."""
    draw, pages = Draw(2020), drawn_pages()
    searches = [
        _search(draw, number, name, tried[number % len(tried)], pages, scores_of)
        for name, tried, scores_of in _models(draw)
        for number in range(_SEARCHES)
    ]
    return {"searches": searches}


def _search(
    draw: Draw, number: int, model: str, weights: list[float], pages: Sequence[Page], scores_of: _Scores
) -> dict[str, Any]:
    rows = draw.some(range(len(pages)), draw.whole(1, 10))
    chosen = draw.whole(-1, len(rows) - 1)
    margin, epsilon = (10.0, 100.0, 7.25)[number % 3], (1.0, 1.0, 0.5, 3.0)[number % 4]
    shown = [pages[row] for row in rows]

    def loss_at(w: Any) -> float:
        return plain_loss(scores_of(w.tolist(), shown), chosen, margin)

    scores = scores_of(weights, shown)
    return {
        "model": model,
        "weights": weights,
        "pages": rows,
        "chosen": chosen,
        "margin": margin,
        "epsilon": epsilon,
        "order": sorted(range(len(rows)), key=lambda row: -scores[row]),
        "loss": plain_loss(scores, chosen, margin),
        "update": descent_by_finite_differences(loss_at, np.array(weights), epsilon).tolist(),
    }


def _model_documents() -> dict[str, Any]:
    """Return the weights of version 0 of specs, and valid and invalid documents of a line's model."""
    line = study_of_pings().lines[0]
    return {
        "start": list(_start(Draw(2021))),
        "line": {
            **msgspec.to_builtins(PublicLine(name=line.name, spec=line.spec, training=line.training)),
            "spec": published_spec(line.spec),
        },
        "documents": [
            {"what": what, "document": document, "taken": _is_taken(document, line.spec)}
            for what, document in _documents_of(line.spec)
        ],
    }


def _start(draw: Draw) -> Iterator[dict[str, Any]]:
    starts = [-1.5, -0.5, 0.49999999999999994, 0.5, 1.5, 2.5, 2.499999, 1e15 + 0.5, 3.0]
    starts += [draw.fraction() * 100 - 50 for _ in range(6)]
    step = Step(start=1, min=1, max=1)
    for integer in (True, False):
        weights = tuple(Weight(f"w{i}", start, step, integer=integer) for i, start in enumerate(starts))
        spec = ModelSpec(name="spec", model="linear-15", weights=weights)
        told = [{"name": w.name, "start": w.start, "integer": w.integer} for w in weights]
        yield {"weights": told, "start": list(published(spec, spec.start))}


def _documents_of(spec: ModelSpec) -> Iterator[tuple[str, dict[str, Any]]]:
    good: dict[str, Any] = {
        "model": [weight + 1.5 for weight in spec.start],
        "iteration": 7,
        "study": "pings",
        "line": "main",
        "names": list(spec.names),
        "spec_digest": spec.digest,
        "created": "2018-06-26T08:00:00Z",
        "parent": 6,
    }
    yield "a version", good
    yield "version 0", {**good, "iteration": 0, "parent": None}
    yield "a version with a key that nobody knows", {**good, "comment": "of a later format"}
    yield "the largest weight that there may be", {**good, "model": [1e30, *good["model"][1:]]}
    yield "a weight too many", {**good, "model": [*good["model"], 0.0], "names": [*good["names"], "another"]}
    yield "a weight too few", {**good, "model": good["model"][1:]}
    yield "other names", {**good, "names": [name.upper() for name in good["names"]]}
    yield "names in another order", {**good, "names": good["names"][::-1]}
    yield "a weight beyond 1e30", {**good, "model": [2e30, *good["model"][1:]]}
    yield "a weight that is null", {**good, "model": [None, *good["model"][1:]]}
    yield "a weight that is a text", {**good, "model": ["4", *good["model"][1:]]}
    yield "no number of the version", {name: value for name, value in good.items() if name != "iteration"}
    yield "a version below 0", {**good, "iteration": -1}
    yield "a version that is no whole number", {**good, "iteration": 7.5}
    yield "a version beside which another is staged", {**good, "staged": {"iteration": 8, "share": 0.1}}
    yield "no weights", {name: value for name, value in good.items() if name != "model"}


def _is_taken(document: dict[str, Any], spec: ModelSpec) -> bool:
    """Return whether the fleet's clients would use a document."""
    try:
        read = msgspec.json.decode(msgspec.json.encode(document), type=ModelDocument)
    except msgspec.ValidationError:
        return False
    return read.names == spec.document_names and len(read.model) == spec.m


def _enrolment() -> dict[str, Any]:
    """Return clients' positions, and their arms in three studies."""
    draw, shares = Draw(2022), ((0.6, 0.2, 0.2), (0.1,) * 9, (1 / 3, 1 / 3, 1 / 3))
    found = {"positions": list(_positions(draw)), "studies": [_enrolments(draw, *each) for each in shares]}
    found["studies"].append(_enrolments(Draw(2031), 0.5, 0.25, 0.125, pieces=_PIECES))
    return {**found, "staged": list(_staged(Draw(2030)))}


def _staged(draw: Draw) -> Iterator[dict[str, Any]]:
    for study, line, iteration, share in (
        ("firefox-2018", "main", 1, 0.1),
        ("firefox-2018", "main", 2, 0.1),
        ("größe-ß", "andere", 2**31 - 1, 1 / 3),
        ("demo", "main", 7, 0.999),
    ):
        clients = [draw.uuid() for _ in range(_CLIENTS)]
        first = [staged_for(study, line, iteration, share, client) for client in clients]
        named = {"study": study, "line": line, "staged": {"iteration": iteration, "share": share}}
        yield {**named, "clients": list(zip(clients, first, strict=True))}


def _positions(draw: Draw) -> Iterator[list[Any]]:
    for study in ("firefox-2018", "demo", "a", "s" * 64, "größe-ß", "学習", "😀"):
        for client in (draw.uuid(), "", "x" * draw.whole(1, 130)):
            yield [study, client, hash_fraction(study, client)]


_PIECES = (
    Piece(arm="arm0", end=0.25),
    Piece(end=0.3125),
    Piece(arm="arm1", end=0.5625),
    Piece(arm="arm0", end=0.8125),
    Piece(arm="arm2", end=0.9375),
)
"""Pieces of arms after a change of their shares."""


def _enrolments(draw: Draw, *shares: float, pieces: tuple[Piece, ...] = ()) -> dict[str, Any]:
    arms_of = tuple(Arm(name=f"arm{i}", share=share) for i, share in enumerate(shares))
    study = Study(name="enrolment", arms=arms_of, pieces=pieces)
    clients = [draw.uuid() for _ in range(_CLIENTS)]
    arms = [arm and arm.name for arm in (enrol(study, client) for client in clients)]
    return {"study": json.loads(public_json(public_study(study))), "clients": list(zip(clients, arms, strict=True))}


def study_of_pings() -> Study:
    """Return a study of the full frecency with an arm of each kind."""
    step = Step(start=1, min=1, max=3)
    weights = tuple(
        Weight(name, start, step, integer=True)
        for name, start in zip(FRECENCY_NAMES, frecency_start().tolist(), strict=True)
    )
    line = Line(name="main", spec=ModelSpec(name="frecency", model="frecency-2018", weights=weights, margin=25.0))
    arms = (
        Arm(name="treatment", share=0.4, line="main", applies=True, submits=True),
        Arm(name="shadow", share=0.2, line="main", submits=True, decays=True),
        Arm(name="control", share=0.2, line="main", decays=True),
        Arm(name="plain", share=0.2, decays=True),
    )
    return Study(name="pings", arms=arms, lines=(line,))


def _pings() -> dict[str, Any]:
    """Return a study, a fetched model, and the pings of each arm's client for the same search."""
    study, pages, draw = study_of_pings(), drawn_pages(), Draw(7)
    fetched = [weight + draw.whole(-3, 3) for weight in frecency_start().tolist()]
    searches = [(draw.some(range(len(pages)), 8), draw.whole(-1, 7)) for _ in range(5)]
    cases = [case for arm in study.arms for case in _pings_of(study, arm, fetched, pages, searches)]
    return {
        "study": json.loads(public_json(public_study(study))),
        "model": {"model": fetched, "iteration": 3, "names": list(FRECENCY_NAMES)},
        "cases": cases,
    }


def _pings_of(
    study: Study, arm: Arm, fetched: list[float], pages: Sequence[Page], searches: Sequence[tuple[list[int], int]]
) -> Iterator[dict[str, Any]]:
    spec, start = study.lines[0].spec, frecency_start()
    held = start if arm.line is None else np.array(fetched)
    ranking = Ranking(spec, held if arm.applies else start, held if arm.submits else None, arm.decays)
    asked = searches_from(*map(list, zip(*searches, strict=True)))
    seen = interact(ranking, page_table(pages, NOW), asked, np.arange(len(asked), dtype=np.uint64))
    typed = _typed(seen.rank)
    client = UUID(int=arm.share.as_integer_ratio()[0], version=4)
    version = -1 if arm.line is None else 3
    bodies = interaction_pings([client] * len(seen), arm.name, [version] * len(seen), seen, typed)
    observed = _observed(typed, seen.bookmarked)
    for (rows, chosen), what, body in zip(searches, observed, bodies, strict=True):
        yield {
            "arm": arm.name,
            "client": str(client),
            "pages": rows,
            "chosen": chosen,
            "observed": what,
            "ping": json.loads(body),
        }


def _observed(typed: Keystrokes, bookmarked: Any) -> Iterator[dict[str, Any]]:
    """Yield the observations of each interaction that a product reports to the browser's module, besides the choice."""
    for i, is_bookmarked in enumerate(bookmarked.tolist()):
        yield {
            "charactersTyped": int(typed.characters[i]),
            "keysPressed": int(typed.keys[i]),
            "keysAtFirstEntry": int(typed.keys_at_first_entry[i]),
            "milliseconds": int(typed.milliseconds[i]),
            "millisecondsAtFirstEntry": int(typed.milliseconds_at_first_entry[i]),
            "style": "bookmark" if is_bookmarked else "favicon",
            "sameAsSearch": False,
            "enter": bool(typed.enter[i]),
        }


def _typed(rank: Any) -> Keystrokes:
    several = np.arange(len(rank))
    chose = rank >= 0
    return Keystrokes(
        characters=several + 1,
        keys=several + 2,
        keys_at_first_entry=np.where(chose, 1, -1),
        milliseconds=several * 250,
        milliseconds_at_first_entry=np.where(chose, 250, -1),
        enter=chose & (several % 2 == 0),
    )


def _uploads() -> dict[str, Any]:
    """Return updates of several lengths, and their form in a ping after a line's upload links."""
    cases: dict[str, Any] = {
        "draws": list(_drawn_bits()),
        "masks": list(_masks()),
        "uploads": list(_sent(Draw(2024), (*_ALIKE, *_ROTATED))),
        "random": list(_sent_at_random(Draw(2026), _OF_LENGTHS)),
    }
    for upload in _other_examples():
        draw = Draw(int.from_bytes(hashlib.sha256(in_words(upload).encode()).digest()[:6], "big"))
        if _draws_nothing(upload):
            cases["uploads"] += _sent(draw, (upload,))
        else:
            cases["random"] += _sent_at_random(draw, tuple((m, (upload,)) for m in (1, 4, 9, 22)))
    return cases


def _other_examples() -> Iterator[Upload]:
    """Yield the examples of browsers' links that the lists here lack, such as new links.

    Each draws from a separate seed, so that a new link doesn't change the others' published cases.
    """
    listed = {*_ALIKE, *_ROTATED, *_AT_RANDOM}
    for link in EXAMPLES:
        if (link,) not in listed and traits_of(link).isdisjoint({"other draws", "private vector"}):
            yield (link,)


def _draws_nothing(upload: Upload) -> bool:
    """Return whether the payload of an update doesn't depend on a client's draws."""
    update = np.array([[0.5, -0.25, 0.125, 0.0]])
    sent = [sent_updates(sending(line_with(upload)), update, np.array([key], np.uint64)) for key in range(8)]
    return len({str(each.column if isinstance(each, Payloads) else each) for each in sent}) == 1


def _drawn_bits() -> Iterator[dict[str, Any]]:
    for seed in (0, 1, 7, 2**32, 2**53 - 1):
        key = np.array([seed], np.uint64)
        children = child_keys(key, np.arange(3))
        yield {"seed": seed, "draws": _in_hex(bits(key, 4)[0]), "children": _in_hex(children)}


def _in_hex(words: Any) -> list[str]:
    return [f"{word:016x}" for word in words.tolist()]


def _masks() -> Iterator[dict[str, Any]]:
    for seed in (1, 12345, 2**53 - 1):
        for m, keep in ((22, 0.25), (1000, 0.01), (10_345, 0.001)):
            kept = places(np.array([seed], np.uint64), weights_kept(keep, m), m)[0]
            yield {"seed": seed, "weights": m, "keep": keep, "places": kept.tolist()}


_ALIKE: tuple[Upload, ...] = (
    *((), (Dense(),), (Sign(zero="up"),), (Sign(zero="abstain"),)),
    *((Float32(),), (Signs(zero="up"),), (Signs(zero="abstain"),)),
)
"""Links without random draws."""

_ROTATED: tuple[Upload, ...] = ((Rotation(seed=5),), (Rotation(), Signs()))
"""More links without random draws; a rotation adds numbers, and a sum may be too large to send."""

_AT_RANDOM: tuple[Upload, ...] = (
    *(
        (Mask(keep=0.25),),
        (Mask(keep=0.25), Float32()),
        (Mask(keep=0.5), Levels(bits=4)),
        (Mask(keep=0.5), Steps(size=1.0)),
    ),
    *((Levels(bits=1),), (Levels(bits=2),), (Levels(bits=4),), (Levels(bits=8),), (Levels(bits=4, rotate=True),)),
    *((Steps(size=0.5),), (Steps(size=2.0),), (Steps(step=0.125),), (Rotation(seed=3), Levels(bits=2))),
)
"""Links that draw a seed or round at random."""

_LONG: tuple[Upload, ...] = ((Levels(bits=2),), (Levels(bits=1, rotate=True),))
"""Links whose long updates have several blocks, each with a header."""


_OF_LENGTHS = ((1, _AT_RANDOM), (4, _AT_RANDOM), (9, _AT_RANDOM), (22, _AT_RANDOM), (1030, _LONG))
"""Numbers of weights, each with the links that send updates of this length."""


def _sent(draw: Draw, uploads: Sequence[Upload]) -> Iterator[dict[str, Any]]:
    for m in (1, 3, 4, 5, 8, 9, 22, 64):
        edges = (0.0, -0.0, 5e-324, -1e30)
        update = [edges[draw.whole(0, 3)] if draw.chance(0.4) else draw.fraction() - 0.5 for _ in range(m)]
        for upload in uploads:
            update = [max(number, -1e20) for number in update] if upload in _ROTATED else update
            sent = sent_updates(sending(line_with(upload)), np.array([update]), np.zeros(1, np.uint64))
            told = (
                EncodedUpdate(sent.encoding, sent.column[0].as_py()) if isinstance(sent, Payloads) else sent[0].tolist()
            )
            yield {"upload": msgspec.to_builtins(upload), "update": update, "sent": msgspec.to_builtins(told)}


def _sent_at_random(draw: Draw, of_lengths: Iterable[tuple[int, Sequence[Upload]]]) -> Iterator[dict[str, Any]]:
    for m, uploads in of_lengths:
        for upload in uploads:
            shares = [0 if draw.chance(0.4) else draw.whole(-1024, 1024) for _ in range(m)]
            update = [share / 1024 * (30 if draw.chance(0.1) else 1) for share in shares]
            keys = np.array([draw.whole(0, 2**53 - 1)], np.uint64)
            sent = sent_updates(sending(line_with(upload)), np.array([update]), keys)
            assert isinstance(sent, Payloads)
            key = child_keys(keys, len(upload) - 1 if isinstance(upload[0], Rotation) else 0)
            drawn, head = _drawn_by(upload, m, key)
            payload = _not_deflated(sent.column[0].as_py(), head, drawn) if sent.encoding.endswith("steps") else None
            told = EncodedUpdate(sent.encoding, payload or sent.column[0].as_py())
            yield {
                "upload": msgspec.to_builtins(upload),
                "update": update,
                "seed": int(payload_seeds(key)[0]),
                "uniforms": drawn,
                "sent": msgspec.to_builtins(told),
            }


def _drawn_by(upload: Upload, m: int, key: Any) -> tuple[list[float], int]:
    """Return the random numbers for rounding, and the number of payload bytes before the rounded numbers."""
    masks, last = isinstance(upload[0], Mask), upload[-1]
    count = weights_kept(upload[0].keep, m) if isinstance(upload[0], Mask) else m
    if isinstance(last, Mask | Float32):
        return [], 0
    if isinstance(last, Levels) and last.rotate:
        count = padded_size(m)
    rounding = child_keys(child_keys(key, 2) if masks else key, 1)
    return uniforms(rounding, count)[0].tolist(), 12 if masks else 0


def _not_deflated(payload: bytes, head: int, drawn: list[float]) -> bytes:
    """Return a payload of steps as sent by clients that don't deflate."""
    multiples = payload[head + 4 :]
    return payload if len(multiples) == len(drawn) else payload[: head + 4] + zlib.decompress(multiples)


def _private() -> dict[str, Any]:
    """Return the vectors of private lines, ids for their versions, and draws from given bytes."""
    draw = Draw(2025)
    return {
        "vectors": list(_vectors(draw)),
        "ids": list(_ids(draw)),
        "draws": list(_draws()),
        "turns": list(_turns(draw)),
    }


def private_bytes(seed: str) -> Callable[[int], bytes]:
    """Return a source of reproducible random bytes: SHA-256 of "seed/0", then of "seed/1", and so on."""
    blocks = (hashlib.sha256(f"{seed}/{i}".encode()).digest() for i in itertools.count())
    stream = itertools.chain.from_iterable(blocks)
    return lambda count: bytes(itertools.islice(stream, count))


_CENTRAL = Central(epsilon=1.0, delta=1e-6, rounds=5, population=1000, noise_multiplier=4.0)
_PRIVACIES = (
    Privacy(central=_CENTRAL),
    Privacy(central=_CENTRAL, contribution=ClippedFlat(norm=2.5), loss=(-1.0, 3.0), contributions=3),
    Privacy(central=_CENTRAL, contribution=ClippedByKind(norms={"bonus": 2.0, "cutoff": 30.0}), left_out=("w1",)),
    Privacy(local=OneSign(epsilon=1.0), left_out=("w0",)),
    Privacy(local=OneSign(epsilon=3.3)),
    Privacy(local=LocalGaussian(epsilon=2.0, delta=1e-5)),
    Privacy(local=LocalGaussian(epsilon=8.0, delta=1e-6), contribution=ClippedFlat(norm=0.5), left_out=("w1",)),
)


def _vectors(draw: Draw) -> Iterator[dict[str, Any]]:
    step = Step(start=1, min=1, max=1)
    for m in (2, 3, 22):
        kinds: tuple[Any, ...] = ("bonus", "cutoff")
        weights = tuple(Weight(f"w{i}", 0.0, step, kind=kinds[i % 2]) for i in range(m))
        spec = ModelSpec(name="spec", model="linear-15", weights=weights)
        for privacy in _PRIVACIES:
            maker = Contributor(privacy, spec)
            for edges in ((0.0,), (0.0, -0.0, 1e30, -5e-324)):
                update = [edges[draw.whole(0, len(edges) - 1)] if draw.chance(0.3) else draw.fraction() * 60 - 30]
                update += [(draw.fraction() - 0.5) * 10 ** draw.whole(-3, 2) for _ in range(m - 1)]
                loss, top, seed = draw.fraction() * 4 - 1.5, draw.whole(0, 1), draw.uuid()
                chance = Chance(private_bytes(seed))
                [vector] = maker.vectors(np.array([update]), np.array([loss]), np.array([float(top)]), [chance])
                yield {
                    "privacy": published_privacy(privacy),
                    "weights": [{"name": weight.name, "kind": weight.kind} for weight in weights],
                    "update": update,
                    "loss": loss,
                    "top": bool(top),
                    "seed": seed,
                    "sigma": local_sigma(privacy, maker.frame),
                    "vector": vector.tolist(),
                    "payload": base64.b64encode(vector.astype("<i4").tobytes()).decode(),
                }


def _ids(draw: Draw) -> Iterator[dict[str, Any]]:
    arms = tuple(Arm(name=f"arm{i}", share=share) for i, share in enumerate((0.5, 0.3, 0.05)))
    study = Study(name="private", arms=arms, lines=())
    for _ in range(20):
        secret = bytes(draw.whole(0, 255) for _ in range(SECRET_BYTES))
        arm, version = arms[draw.whole(0, 2)].name, draw.whole(0, 1000)
        yield {
            "study": {"name": study.name, "arms": [{"name": one.name, "share": one.share} for one in arms]},
            "secret": secret.hex(),
            "line": "main",
            "version": version,
            "arm": arm,
            "id": str(rotating_id(study, secret, "main", version, arm)),
        }


def _turns(draw: Draw) -> Iterator[dict[str, Any]]:
    for contributions, rounds in ((1, 48), (3, 7), (10, 10), (5, 2)):
        privacy = Privacy(central=replace(_CENTRAL, rounds=rounds), contributions=contributions)
        for _ in range(8):
            secret, version = bytes(draw.whole(0, 255) for _ in range(SECRET_BYTES)), draw.whole(0, 100)
            yield {
                "study": "private",
                "secret": secret.hex(),
                "line": "main",
                "version": version,
                "contributions": contributions,
                "rounds": rounds,
                "turn": has_turn("private", secret, "main", version, privacy.turns),
            }


def _draws() -> Iterator[dict[str, Any]]:
    for what, argument in (("below", 1), ("below", 5), ("below", 1000), ("is_true", 0.3), ("is_true", 5.0)):
        chance = Chance(private_bytes(f"{what} {argument}"))
        method: Any = getattr(chance, what)
        yield {"what": what, "argument": argument, "drawn": [method(argument) for _ in range(30)]}
    for sigma in (1, 7, 100_000):
        chance = Chance(private_bytes(f"discrete_gaussian {sigma}"))
        yield {
            "what": "discrete_gaussian",
            "argument": sigma,
            "drawn": [chance.discrete_gaussian(sigma) for _ in range(30)],
        }


_ORDERED = OrderedCutoffs(weights=FRECENCY_NAMES[:4], gap=2.0)
_RPROP = LocalRProp(alpha=2.0, beta=0.6, step=Step(start=4.0, min=0.5, max=30.0), keep=True)
_PERSONAL: tuple[tuple[str, Personalization], ...] = (
    *(("frecency-2018", FineTune(rate=rate, steps=3)) for rate in (0.002, 0.5)),
    ("frecency-2018", FineTune(rate=0.03, frozen=("secondBucketCutoff", "typedVisitBonus"), proximal=0.25, steps=2)),
    ("frecency-2018", FineTune(rate=1.0, steps=2, frozen=("fourthBucketCutoff",), optimizer=_RPROP, shares=False)),
    ("frecency-2018", FineTune(rate=0.5, steps=2, proximal=1.5, optimizer=LocalRProp(), from_version=3)),
    ("frecency-2018", Vector(rate=30.0, from_version=2)),
    ("frecency-2018", Vector(rate=1.0, on=("thirdBucketCutoff", "linkVisitBonus"), steps=2, optimizer=_RPROP)),
    ("frecency-2018", Vector(rate=9.0, basis="random", size=1, on=("firstBucketWeight",), seed=5, steps=2)),
    ("linear-15", FineTune(rate=0.75, steps=2, frozen=("typedFirstBucket",), proximal=0.1)),
    ("linear-15", Vector(rate=0.75)),
)
_TRAININGS = 6


def _personal() -> dict[str, Any]:
    """Return successive trainings of personal models, and the bases of private vectors."""
    draw, pages = Draw(2031), drawn_pages()
    specs = {name: _spec_of(name) for name in ("frecency-2018", "linear-15")}
    trainings = [
        training
        for number, (name, personal) in enumerate(_PERSONAL)
        for training in _trainings(draw, number, specs[name], personal, pages)
    ]
    bases = [
        {"rows": rows, "size": size, "seed": seed, "basis": random_basis(rows, size, seed).ravel().tolist()}
        for rows, size, seed in ((1, 1, 0), (4, 3, 7), (22, 2, 2**53 - 1))
    ]
    return {
        "specs": {name: published_spec(spec) for name, spec in specs.items()},
        "trainings": trainings,
        "bases": bases,
    }


def _spec_of(name: str) -> ModelSpec:
    names, start = (
        (FRECENCY_NAMES, frecency_start()) if name == "frecency-2018" else (LINEAR_15_NAMES, linear_15_truth())
    )
    step = Step(start=1, min=1, max=3)
    weights = tuple(Weight(*each, step) for each in zip(names, start.tolist(), strict=True))
    bounds = (_ORDERED, NonNegative()) if name == "frecency-2018" else ()
    return ModelSpec(name=name, model=name, weights=weights, margin=25.0, constraints=bounds)


def _trainings(
    draw: Draw, number: int, spec: ModelSpec, personal: Personalization, pages: Sequence[Page]
) -> Iterator[dict[str, Any]]:
    """Yield a client's learning from searches, one version each, by the algorithm of the fleet's clients."""
    training = OneGradient(personal=personal)
    names = tuple(weight.name for weight in spec.weights)
    by_vector = isinstance(personal, Vector)
    trained, state = 0, None
    for version in range(1, _TRAININGS + 1):
        rows = draw.some(range(len(pages)), draw.whole(2, 10))
        chosen = draw.whole(-1 if version == 2 else 0, len(rows) - 1)
        shared = np.array([weight + draw.whole(0, 3) / 2 for weight in spec.start])
        shown = [pages[row] for row in rows]
        told = _best_first(spec, shared, shown)
        plain = _Plain(names, spec, tuple(shown[row] for row in told), told.index(chosen) if chosen >= 0 else -1)
        model = bounded(plain, spec, training)
        algorithm = algorithm_for(training, version)
        assert isinstance(algorithm, Personalizes)
        if state is None:
            state = {name: np.array(value)[None] for name, value in algorithm.init_state(model).items()}
            if by_vector:
                state["own_turn"] = np.array([1 + number % 2], np.uint8)
        one, key = Examples(np.zeros((1, 1, 1)), np.zeros((1, 1)), np.ones((1, 1))), np.zeros(1, np.uint64)
        before, applied = _told(state, trained), algorithm.personal_weights(model, shared, one, state)[0]
        sends = not isinstance(algorithm, MaySendNothing) or bool(algorithm.sends(key, state)[0])
        updates, after = algorithm.update(model, shared, one, key, state)
        state = dict(after)
        trained = trained + (not sends) if by_vector else int(state["own_trained"][0])
        yield {
            "spec": spec.name,
            "personal": msgspec.to_builtins(personal),
            "version": version,
            "weights": shared.tolist(),
            "pages": rows,
            "chosen": chosen,
            "before": before,
            "applied": applied.tolist(),
            "order": _best_first(spec, applied, shown),
            "scores": _scores_of(spec)(shared.tolist(), plain.shown),
            "loss": plain.losses(shared, None)[0],
            "update": (updates[0] + 0.0).tolist() if sends else None,
            "after": _told(state, trained),
        }


def _scores_of(spec: ModelSpec) -> _Scores:
    return _frecency_scores if spec.model == "frecency-2018" else _linear_scores


def _best_first(spec: ModelSpec, weights: Any, pages: Sequence[Page]) -> list[int]:
    scores = _scores_of(spec)(weights.tolist(), pages)
    return sorted(range(len(pages)), key=lambda row: -scores[row])


def _told(state: Mapping[str, Any], trained: int) -> dict[str, Any]:
    """Return the state that a client keeps, in the form of the browser's module."""
    own = {name.removeprefix("own_"): value[0].tolist() for name, value in state.items()}
    turn = {"turn": ("weights", "vector")[own["turn"] - 1]} if "turn" in own else {}
    memory = {"rate": own["rate"], "sign": own["sign"]} if "rate" in own else None
    return {"trained": trained, "numbers": own.get("vector", own.get("weights")), **turn, "memory": memory}


@dataclass(frozen=True)
class _Plain:
    """A model of one search, with sums in plain loops."""

    weight_names: tuple[str, ...]
    spec: ModelSpec
    shown: tuple[Page, ...]
    chosen: int

    @property
    def start(self) -> Any:
        return self.spec.start

    def losses(self, weights: Any, batch: Any) -> Any:
        return np.array([self._loss(each) for each in np.atleast_2d(weights)])

    def gradients(self, weights: Any, batch: Any) -> Any:
        each = np.atleast_2d(weights)
        return np.array([-descent_by_finite_differences(self._loss, one, self.spec.epsilon) for one in each])

    def predict(self, weights: Any, batch: Any) -> Any:
        raise NotImplementedError

    def _loss(self, weights: Any) -> float:
        return plain_loss(_scores_of(self.spec)(weights.tolist(), self.shown), self.chosen, self.spec.margin)


def _retry() -> dict[str, Any]:
    """Return the waits after failures, and the outcomes of answers to a ping."""
    return {"waits": list(_waits(Draw(2023))), "answers": [list(answer) for answer in ANSWERS]}


ANSWERS = (
    (200, None, "accepted", None),
    (204, None, "accepted", None),
    (400, None, "refused", None),
    (400, "60", "refused", None),
    (404, None, "refused", None),
    (408, None, "retry", None),
    (413, None, "refused", None),
    (425, None, "retry", None),
    (429, "120", "retry", 120.0),
    (429, "0", "retry", 0.0),
    (500, None, "retry", None),
    (503, "30", "retry", 30.0),
    (503, "soon", "retry", None),
    (507, "5", "retry", 5.0),
)
"""An answer's status and Retry-After, the ping's outcome, and the seconds that the server asks to wait."""


def _waits(draw: Draw) -> Iterator[dict[str, Any]]:
    for first, factor, longest in (
        (0.5, 2.0, 60.0),
        (5.0, 2.0, 3600.0),
        (1.0, 1.0, 1.0),
        (0.0, 2.0, 10.0),
        (3.0, 4.0, 1e5),
    ):
        backoff = Backoff(first=first, factor=factor, longest=longest)
        for failures in (1, 2, 3, 7, 20, 200):
            uniform, asked = draw.fraction(), draw.fraction() * 100 if draw.chance(0.5) else None
            wait = backoff.wait(failures, uniform, asked)
            yield {
                "settings": {"first": first, "factor": factor, "longest": longest},
                "failures": failures,
                "uniform": uniform,
                "retryAfter": asked,
                "wait": wait,
            }


TOPICS: dict[str, Callable[[], dict[str, Any]]] = {
    "pages": _pages,
    "enrolment": _enrolment,
    "model": _model_documents,
    "scores": _scores,
    "updates": _updates,
    "pings": _pings,
    "uploads": _uploads,
    "private": _private,
    "shares": lambda: shares(Draw(_SHARES)),
    "proofs": lambda: proofs(Draw(2043)),
    "personal": _personal,
    "features": lambda: features(Draw(2053)),
    "retry": _retry,
    "outcomes": outcomes,
}
"""The function that makes each topic's file, by the file's name."""


if __name__ == "__main__":
    write()
