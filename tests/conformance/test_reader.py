"""A client written from docs/conformance/README.md alone: plain Python with the standard library, without fedping.

Signatures, key agreement and ciphers, which a platform provides, come from a package.

If it passes, the page and the files are sufficient for a client in any language.
"""

import base64
import hashlib
import hmac
import json
import math
import operator
import struct
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from Crypto.Hash import TurboSHAKE128
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Page: TypeAlias = dict[str, Any]
Scores: TypeAlias = Callable[[list[float], list[Page], int], list[float]]

FOLDER = Path(__file__).parents[2] / "docs" / "conformance"
DAY = 86_400_000
FIELD = 2**64 - 2**32 + 1


def given(topic: str) -> Any:
    return json.loads((FOLDER / f"{topic}.json").read_text())


PAGES, NOW = given("pages")["pages"], given("pages")["now"]


def position(study: str, client: str) -> float:
    return fraction(f"{study}\n{client}")


def gets_first(study: str, line: str, staged: dict[str, Any], client: str) -> bool:
    return fraction(f"{study}\n{line}\n{staged['iteration']}\n{client}") < float(staged["share"])


def fraction(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def arm_of(study: dict[str, Any], client: str) -> str | None:
    where, upper = position(study["name"], client), 0.0
    for piece in study.get("pieces", []):
        if where < piece["end"]:
            return None if piece["arm"] is None else str(piece["arm"])
    if "pieces" in study:
        return None
    for arm in study["arms"]:
        upper += arm["share"]
        if where < upper:
            return str(arm["name"])
    return None


def start_weights(weights: list[dict[str, Any]]) -> list[float]:
    return [math.floor(w["start"] + 0.5) if w["integer"] else w["start"] for w in weights]


def takes(document: dict[str, Any], weights: list[dict[str, Any]]) -> bool:
    version, names, model = (document.get(key) for key in ("iteration", "names", "model"))
    return (
        isinstance(version, int)
        and version >= 0
        and names == [weight["name"] for weight in weights]
        and isinstance(model, list)
        and len(model) == len(weights)
        and all(isinstance(number, int | float) and abs(number) <= 1e30 for number in model)
    )


def sample(page: Page) -> list[list[Any]]:
    return sorted(page["visits"], key=lambda visit: -visit[0])[:10]


def age(time: float, now: int) -> int:
    return math.floor((now - time) / DAY)


def linear_15(weights: list[float], pages: list[Page], now: int) -> list[float]:
    return [linear_15_of(weights, page, now) for page in pages]


def linear_15_of(weights: list[float], page: Page, now: int) -> float:
    visits = sample(page)
    points = 0.0
    for time, kind, _, _ in visits:
        if kind in (1, 2, 3):
            points += weights[5 * (kind - 1) + sum(age(time, now) > cutoff for cutoff in (4, 14, 31, 90))]
    return page["visitCount"] / len(visits) * points if visits else 0.0


def frecency_2018(weights: list[float], pages: list[Page], now: int) -> list[float]:
    return [frecency_of(weights, page, now) for page in pages]


def frecency_of(weights: list[float], page: Page, now: int) -> float:
    cutoffs, buckets = weights[:4], weights[4:9]
    embed, framed, link, typed, bookmark, download, permanent, temporary, source, default = weights[9:19]
    unvisited_bookmark, unvisited_typed, reload = weights[19:]
    bonuses = [default, link, typed, bookmark, embed, permanent, temporary, download, framed, reload]
    visits = sample(page) if page["visitCount"] > 0 else []
    if not visits:
        bonus = unvisited_bookmark + (unvisited_typed if page["typed"] else 0)
        score = math.ceil(single(single(buckets[0]) * single(single(bonus) / 100)))
        return score if page["bookmarked"] and not page["isQuery"] else 0
    points = 0.0
    for time, own, origin, onward in visits:
        kind = origin if own in (5, 6) and origin is not None else own
        is_source = onward == 1 or (onward == 2 and kind != 2)
        bonus = source if is_source else bonuses[kind] if 1 <= kind <= 9 else default
        bonus = bonus + bookmark if page["bookmarked"] else bonus
        days = age(time, now)
        bucket = next((k for k, cutoff in enumerate(cutoffs) if days <= cutoff), 4)
        points = single(points + single(buckets[bucket] * bonus / 100))
    if points == 0:
        return -1
    return math.ceil(single(single(math.ceil(points) * single(page["visitCount"])) / len(visits)))


def single(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


SCORES: dict[str, Scores] = {"linear-15": linear_15, "frecency-2018": frecency_2018}


def a_day_later(score: float) -> float:
    return math.floor(0.975 * score + 0.5) if score > 20 else score


def stored(scores: list[float], pages: list[Page], now: int) -> list[float]:
    left = []
    for score, page in zip(scores, pages, strict=True):
        for _ in range(age(sample(page)[0][0], now) if page["visits"] else 0):
            score = a_day_later(score)
        left.append(score)
    return left


def best_first(scores: list[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda place: -scores[place])


def loss_of(scores: list[float], chosen: int, margin: float) -> float:
    total = 0.0
    for place, score in enumerate(scores):
        if chosen >= 0 and place != chosen:
            total += max(0.0, score + margin - scores[chosen])
    return total


def update_of(weights: list[float], epsilon: float, loss_at: Callable[[list[float]], float]) -> list[float]:
    def moved(k: int, by: float) -> float:
        return loss_at([*weights[:k], weights[k] + by, *weights[k + 1 :]])

    return [(moved(k, -epsilon) - moved(k, epsilon)) / (2 * epsilon) for k in range(len(weights))]


def draws(key: int, count: int) -> list[int]:
    return [mixed((key + k * GOLDEN) % 2**64) for k in range(1, count + 1)]


def child(key: int, number: int) -> int:
    return mixed(mixed(key) ^ (number * GOLDEN + 1) % 2**64)


def mixed(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


GOLDEN = 0x9E3779B97F4A7C15


def places(seed: int, keep: float, m: int) -> list[int]:
    k = max(1, math.floor(keep * m + 0.5))
    edges = [j * m // k for j in range(k + 1)]
    drawn = [draw >> 32 for draw in draws(seed, k)]
    return [start + (b * (end - start) >> 32) for start, end, b in zip(edges, edges[1:], drawn, strict=False)]


def rotated(numbers: list[float], seed: int, rounded: Callable[[float], float]) -> list[float]:
    done: list[float] = []
    key, block = child(seed, 0), 0
    while len(done) < len(numbers):
        size = min(1024, 2 ** ((len(numbers) - len(done)).bit_length() - 1))
        bits = [draw >> i & 1 for draw in draws(child(key, block), -(-size // 64)) for i in range(64)]
        scale = rounded(math.sqrt(1 / size))
        block_numbers = zip(numbers[len(done) :][:size], bits, strict=False)
        turned = [rounded(-number * scale if bit else number * scale) for number, bit in block_numbers]
        half = size // 2
        while half:
            for i in (i for i in range(size) if not i & half):
                one, other = turned[i], turned[i + half]
                turned[i], turned[i + half] = rounded(one + other), rounded(one - other)
            half //= 2
        done += turned
        block += 1
    return done


def signs(link: dict[str, Any], update: list[float]) -> bytes:
    if link["zero"] == "up" or link["link"] == "sign":
        bits = [b for h in update for b in ([h >= 0] if link["zero"] == "up" else [h > 0, h < 0])]
        return sum(bit << place for place, bit in enumerate(bits)).to_bytes(-(-len(bits) // 8), "little")
    digits = [(h > 0) - (h < 0) + 1 for h in update] + [1] * (-len(update) % 5)
    return bytes(sum(d * 3**i for i, d in enumerate(digits[k : k + 5])) for k in range(0, len(digits), 5))


def levels(link: dict[str, Any], numbers: list[float], seed: int, uniforms: list[float]) -> bytes:
    numbers, bits, heads, fields = [single(h) for h in numbers], link["bits"], b"", 0
    if link["rotate"]:
        rest = len(numbers) % 1024
        numbers += [0.0] * (2 ** (rest - 1).bit_length() - rest if rest else 0)
        numbers = rotated(numbers, seed, single)
    for start in range(0, len(numbers), 1024):
        block = numbers[start : start + 1024]
        lo, hi = min(block), max(block)
        heads += struct.pack("<2f", lo, hi)
        for k, h in enumerate(block, start):
            t = (h - lo) / (hi - lo) * (2**bits - 1) if hi > lo else 0
            fields |= min(math.floor(t + uniforms[k]), 2**bits - 1) << k * bits
    seeded = struct.pack("<Q", seed) if link["rotate"] else b""
    return seeded + heads + fields.to_bytes(-(-len(numbers) * bits // 8), "little")


def steps(link: dict[str, Any], numbers: list[float], uniforms: list[float]) -> bytes:
    rms = math.sqrt(sum(h * h for h in numbers) / len(numbers))
    exact = max(link["step"] or min(link["size"] * rms, 1e30), max(map(abs, numbers)) / 127)
    step = single(exact)
    if step < exact:
        (step,) = struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", step))[0] + 1))
    counts = [math.floor(h / step + u) if step else 0 for h, u in zip(numbers, uniforms, strict=True)]
    return struct.pack(f"<f{len(counts)}b", step, *counts)


def values(link: dict[str, Any], numbers: list[float], seed: int, uniforms: list[float]) -> bytes:
    match link["link"]:
        case "levels":
            return levels(link, numbers, seed, uniforms)
        case "steps":
            return steps(link, numbers, uniforms)
        case "float32":
            return struct.pack(f"<{len(numbers)}f", *numbers)
        case other:
            raise NotImplementedError(f"this reader, which is written from the README alone, has no link '{other}' yet")


def sent(
    upload: list[dict[str, Any]], update: list[float], seed: int = 0, uniforms: list[float] | None = None
) -> list[float] | dict[str, str]:
    links, uniforms = [link for link in upload if link["link"] not in ("dense", "rotation")], uniforms or []
    for link in upload:
        update = rotated(update, link["seed"], float) if link["link"] == "rotation" else update
    if not links:
        return update
    first, last = links[0], links[-1]
    tags = {
        "signs": "signs-up" if last.get("zero") == "up" else "signs",
        "levels": f"levels-{'r-' if last.get('rotate') else ''}{last.get('bits')}",
    }
    tag = tags.get(last["link"], last["link"])
    if first["link"] == "mask":
        kept = [update[k] for k in places(seed, first["keep"], len(update))]
        if first is last:
            payload = struct.pack(f"<Q{len(kept)}f", seed, *kept)
        else:
            tag, payload = f"mask-{tag}", struct.pack("<QI", seed, len(kept)) + values(last, kept, seed, uniforms)
    elif last["link"] in ("sign", "signs"):
        payload = signs(last, update)
    else:
        payload = values(last, update, seed, uniforms)
    return {"encoding": tag, "payload": base64.b64encode(payload).decode()}


def wait(settings: dict[str, float], failures: int, uniform: float, asked: float | None) -> float:
    ceiling = min(settings["longest"], settings["first"] * settings["factor"] ** (failures - 1))
    waited = ceiling * (0.5 + 0.5 * uniform)
    return waited if asked is None else max(waited, asked + settings["first"] * uniform)


def becomes(status: int, header: str | None) -> tuple[str, float | None]:
    if 200 <= status <= 299:
        return "accepted", None
    if status >= 500 or status in (408, 425, 429):
        return "retry", float(header) if header is not None and header.isdigit() else None
    return "refused", None


def ping(study: dict[str, Any], model: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    arm = next(each for each in study["arms"] if each["name"] == case["arm"])
    line = next(each for each in study["lines"] if arm["line"] in (None, each["name"]))
    spec, start = line["spec"], start_weights(line["spec"]["weights"])
    scores_by = SCORES[spec["model"]]
    pages = [PAGES[row] for row in case["pages"]]
    scores = scores_by(model["model"] if arm["applies"] else start, pages, NOW)
    scores = stored(scores, pages, NOW) if arm["decays"] else scores
    order = best_first(scores)
    pages, scores = [pages[place] for place in order], [scores[place] for place in order]
    chosen = order.index(case["chosen"]) if case["chosen"] >= 0 else -1

    def loss_at(weights: list[float]) -> float:
        return loss_of(scores_by(weights, pages, NOW), chosen, spec["margin"])

    observed, chose = case["observed"], chosen >= 0
    payload = {
        "model_version": model["iteration"] if arm["line"] else -1,
        "study_variation": arm["name"],
        "update": update_of(model["model"], spec["epsilon"], loss_at) if arm["submits"] else None,
        "loss": loss_of(scores, chosen, spec["margin"]),
        "frecency_scores": scores,
        "num_suggestions_displayed": len(scores),
        "rank_selected": chosen,
        "bookmark_and_history_num_suggestions_displayed": len(scores),
        "bookmark_and_history_rank_selected": chosen,
        "num_chars_typed": observed["charactersTyped"],
        "num_key_down_events": observed["keysPressed"],
        "num_key_down_events_at_selecteds_first_entry": observed["keysAtFirstEntry"] if chose else -1,
        "time_start_interaction": 0,
        "time_end_interaction": observed["milliseconds"],
        "time_at_selecteds_first_entry": observed["millisecondsAtFirstEntry"] if chose else -1,
        "selected_style": observed["style"] if chose else "",
        "selected_url_was_same_as_search_string": int(observed["sameAsSearch"]) if chose else -1,
        "enter_was_pressed": int(observed["enter"]),
        "study_addon_version": "fedping-sim-1",
    }
    return {"clientId": case["client"], "type": "frecency-update", "payload": payload}


def test_enrolment() -> None:
    vectors = given("enrolment")
    assert [position(study, client) for study, client, _ in vectors["positions"]] == [
        expected for _, _, expected in vectors["positions"]
    ]
    for case in vectors["staged"]:
        named = case["study"], case["line"], case["staged"]
        assert [gets_first(*named, client) for client, _ in case["clients"]] == [first for _, first in case["clients"]]
    for case in vectors["studies"]:
        assert [arm_of(case["study"], client) for client, _ in case["clients"]] == [arm for _, arm in case["clients"]]


def test_models() -> None:
    vectors = given("model")
    for case in vectors["start"]:
        assert start_weights(case["weights"]) == case["start"]
    weights = vectors["line"]["spec"]["weights"]
    for case in vectors["documents"]:
        assert takes(case["document"], weights) == case["taken"], case["what"]


def test_scores() -> None:
    vectors = given("scores")
    for case in vectors["scores"]:
        assert SCORES[case["model"]](case["weights"], PAGES, NOW) == case["scores"]
    for case in vectors["stored"]:
        assert stored(case["scores"], PAGES, NOW) == case["stored"]
    assert [a_day_later(score) for score, _ in vectors["decayed"]] == [left for _, left in vectors["decayed"]]


@pytest.mark.parametrize("model", SCORES)
def test_updates(model: str) -> None:
    searches = [search for search in given("updates")["searches"] if search["model"] == model]
    assert searches
    for search in searches:
        pages = [PAGES[row] for row in search["pages"]]

        def loss_at(
            weights: list[float], pages: list[Page] = pages, search: dict[str, Any] = search, model: str = model
        ) -> float:
            return loss_of(SCORES[model](weights, pages, NOW), search["chosen"], search["margin"])

        assert best_first(SCORES[model](search["weights"], pages, NOW)) == search["order"]
        assert loss_at(search["weights"]) == search["loss"]
        assert update_of(search["weights"], search["epsilon"], loss_at) == search["update"]


def test_pings() -> None:
    vectors = given("pings")
    for case in vectors["cases"]:
        assert ping(vectors["study"], vectors["model"], case) == case["ping"]


def sent_value(outcome: dict[str, Any], value: Any) -> Any:
    if outcome["kind"] == "count":
        return math.floor(min(max(value, 0), outcome["most"]) + 0.5)
    if outcome["kind"] == "number":
        low, high, step = outcome["low"], outcome["high"], outcome["round"]
        return min(low + math.floor((min(max(value, low), high) - low) / step + 0.5) * step, high)
    if outcome["kind"] == "category":
        return value if value in outcome["values"] else None
    return value


def outcome_id(choice: str, column: str, secret: str | None) -> str:
    text = "\n".join([*([secret] if secret else []), choice, column])
    digest = bytearray(hashlib.sha256(text.encode()).digest()[:16])
    digest[6], digest[8] = 0x80 | digest[6] & 15, 0x80 | digest[8] & 63
    return str(UUID(bytes=bytes(digest)))


def age_of(chosen: int, at: int) -> int:
    return max(0, at - chosen) // 3_600_000


def hours_of(outcome: dict[str, Any]) -> int:
    within = outcome["within"]
    return int(within[:-1]) * (24 if within.endswith("d") else 1)


def list_ping(declared: dict[str, dict[str, Any]], case: dict[str, Any]) -> dict[str, Any]:
    sent = {name: sent_value(declared[name], value) for name, value in case["observed"].items()}
    payload = {"model_version": case["version"], "study_variation": case["arm"], **case["learned"], **case["shown"]}
    payload |= {name: value for name, value in sent.items() if value is not None}
    return {"clientId": case["client"], "type": "list-update", "payload": payload}


def outcome_ping(outcome: dict[str, Any], case: dict[str, Any]) -> dict[str, Any] | None:
    if (age := age_of(case["chosen"], case["at"])) >= hours_of(outcome):
        return None
    payload = {"model_version": case["version"], "study_variation": case["arm"], "age": age}
    payload |= {"choice": case["choice"]} if outcome.get("linked") else {}
    payload |= {outcome["name"]: sent_value(outcome, case["value"])}
    return {"clientId": case["client"], "type": "outcome", "payload": payload}


def test_outcomes() -> None:
    vectors = given("outcomes")
    declared = {outcome["name"]: outcome for outcome in vectors["study"]["outcomes"]}
    for case in vectors["clipped"]:
        assert sent_value(declared[case["outcome"]], case["value"]) == case["sent"]
    for case in vectors["ids"]:
        assert outcome_id(case["choice"], case["column"], case.get("secret")) == case["id"]
    for case in vectors["ages"]:
        assert age_of(case["chosen"], case["at"]) == case["age"]
    for case in vectors["lists"]:
        assert list_ping(declared, case) == case["ping"]
    for case in vectors["later"]:
        outcome = declared[case["column"]]
        assert outcome_ping(outcome, case) == case["ping"]
        assert (
            outcome_id(case["choice"], case["column"], None if outcome.get("linked") else case["secret"]) == case["id"]
        )


class Draws:
    def __init__(self, seed: str) -> None:
        self.seed, self.block, self.left = seed, 0, b""

    def take(self, count: int) -> bytes:
        while len(self.left) < count:
            self.left += hashlib.sha256(f"{self.seed}/{self.block}".encode()).digest()
            self.block += 1
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def below(self, n: int) -> int:
        b = (n - 1).bit_length()
        size = math.ceil(b / 8)
        while True:
            number = int.from_bytes(self.take(size), "big") >> (8 * size - b)
            if number < n:
                return number

    def decays(self, a: int, b: int) -> bool:
        while a > b:
            if not self.decays(1, 1):
                return False
            a -= b
        k = 1
        while self.below(b * k) < a:
            k += 1
        return k % 2 == 1

    def is_true(self, epsilon: float) -> bool:
        while self.below(2) != 1:
            if self.decays(math.floor(2**20 * epsilon), 2**20):
                return False
        return True

    def discrete_laplace(self, t: int) -> int:
        while True:
            u = self.below(t)
            if not self.decays(u, t):
                continue
            v = 0
            while self.decays(1, 1):
                v += 1
            found, negative = u + t * v, self.below(2) == 1
            if found or not negative:
                return -found if negative else found

    def discrete_gaussian(self, sigma: int) -> int:
        t = sigma + 1
        while True:
            y = self.discrete_laplace(t)
            if self.decays((abs(y) * t - sigma**2) ** 2, 2 * sigma**2 * t**2):
                return y


def private_id(case: dict[str, Any]) -> str:
    counter = 0
    while True:
        told = f"{case['study']['name']}|{case['line']}|{case['version']}|{counter}"
        data = bytearray(hmac.digest(bytes.fromhex(case["secret"]), told.encode(), "sha256")[:16])
        data[6], data[8] = data[6] & 0x0F | 0x80, data[8] & 0x3F | 0x80
        found = str(UUID(bytes=bytes(data)))
        if arm_of(case["study"], found) == case["arm"]:
            return found
        counter += 1


def private_vector(case: dict[str, Any]) -> list[int]:
    privacy, weights, update = case["privacy"], case["weights"], case["update"]
    by, local, draws = privacy["contribution"], privacy["local"], Draws(case["seed"])
    kept = [k for k, weight in enumerate(weights) if weight["name"] not in privacy["left_out"]]
    vector = [0] * len(weights)
    if by["by"] == "signs":
        for k in kept:
            vector[k] = 64 * ((update[k] > 0) - (update[k] < 0))
        bound = 64 * math.sqrt(len(kept))
    else:
        group_of = [weight["kind"] if by["by"] == "kind" else "" for weight in weights]
        groups = {group_of[k] for k in kept}
        for group in groups:
            norm = by["norms"][group] if by["by"] == "kind" else by["norm"]
            mine = [k for k in kept if group_of[k] == group]
            scaled = [update[k] / (norm / 2**14) for k in mine]
            size = math.hypot(*scaled)
            for k, number in zip(mine, scaled, strict=True):
                vector[k] = math.trunc(number * min(1, 2**14 / size) if size else number)
        bound = 2**14 * math.sqrt(len(groups))
    metric = max(1, round(bound / 4))
    low, high = privacy["loss"]
    loss = round((min(max(case["loss"], low), high) - low) / (high - low) * metric)
    if local is None:
        return [*vector, metric, loss, metric * case["top"]]
    if local["mechanism"] == "one-sign":
        place = kept[draws.below(len(kept))]
        up = vector[place] > 0 if vector[place] else draws.below(2) == 1
        sign = 64 if up == draws.is_true(local["epsilon"]) else -64
        vector = [sign if k == place else 0 for k in range(len(weights))]
    else:
        most = min(math.ceil(bound) + 8 * case["sigma"], 2**24 - 1)
        for k in kept:
            vector[k] = min(max(vector[k] + draws.discrete_gaussian(case["sigma"]), -most), most)
        z, epsilon, phi = case["sigma"] / (2 * bound), local["epsilon"], NormalDist().cdf
        delta = phi(1 / (2 * z) - epsilon * z) - math.exp(epsilon) * phi(-1 / (2 * z) - epsilon * z)
        assert delta <= local["delta"] * (1 + 1e-6)
    return [*vector, metric, 0, 0]


def test_private() -> None:
    vectors = given("private")
    for case in vectors["draws"]:
        draw = getattr(Draws(f"{case['what']} {case['argument']}"), case["what"])
        assert [draw(case["argument"]) for _ in case["drawn"]] == case["drawn"]
    for case in vectors["ids"]:
        assert private_id(case) == case["id"]
    for case in vectors["turns"]:
        told = f"{case['study']}|{case['line']}|{case['version']}|turn"
        drawn = hmac.digest(bytes.fromhex(case["secret"]), told.encode(), "sha256")[:6]
        assert (int.from_bytes(drawn, "big") / 2**48 < case["contributions"] / case["rounds"]) is case["turn"]
    assert {case["turn"] for case in vectors["turns"]} == {True, False}
    for case in vectors["vectors"]:
        assert private_vector(case) == case["vector"]
        assert base64.b64encode(struct.pack(f"<{len(case['vector'])}i", *case["vector"])).decode() == case["payload"]


def test_uploads() -> None:
    vectors = given("uploads")
    for case in vectors["draws"]:
        assert [f"{draw:016x}" for draw in draws(case["seed"], len(case["draws"]))] == case["draws"]
        assert [f"{child(case['seed'], number):016x}" for number in range(len(case["children"]))] == case["children"]
    for case in vectors["masks"]:
        assert places(case["seed"], case["keep"], case["weights"]) == case["places"]
    for case in vectors["uploads"]:
        assert sent(case["upload"], case["update"]) == case["sent"]
    for case in vectors["random"]:
        assert sent(case["upload"], case["update"], case["seed"], case["uniforms"]) == case["sent"], case["upload"]


def test_retries() -> None:
    vectors = given("retry")
    for case in vectors["waits"]:
        got = wait(case["settings"], case["failures"], case["uniform"], case["retryAfter"])
        assert got == pytest.approx(case["wait"], rel=1e-12, abs=0)
    for status, header, what, seconds in vectors["answers"]:
        assert becomes(status, header) == (what, seconds)


def bounded(spec: dict[str, Any], weights: list[float], mine: set[int]) -> list[float]:
    weights = list(weights)
    names = [weight["name"] for weight in spec["weights"]]
    for constraint in spec["constraints"]:
        if constraint["constraint"] == "non_negative":
            weights = [0.0 if k in mine and weight < 0 else weight for k, weight in enumerate(weights)]
    for constraint in spec["constraints"]:
        if constraint["constraint"] == "ordered_cutoffs":
            places, gap = [names.index(name) for name in constraint["weights"]], constraint["gap"]
            highest = math.inf
            for place in reversed(places):
                if place in mine:
                    weights[place] = min(weights[place], highest)
                highest = (highest if place in mine else weights[place]) - gap
            least = constraint["first"]
            for place in places:
                if place in mine:
                    weights[place] = max(weights[place], least)
                least = weights[place] + gap
    return weights


def basis(rows: int, size: int, seed: int) -> list[float]:
    key = int.from_bytes(hashlib.sha256(f"{seed}\nU".encode()).digest()[:8], "little")
    drawn = draws(key, 6 * rows * size)
    sums = (sum((d >> 32) + d % 2**32 for d in drawn[6 * k : 6 * k + 6]) for k in range(rows * size))
    return [1 / math.sqrt(size) * (t / 2**32 - 6) for t in sums]


def stepped(
    personal: dict[str, Any], moved: list[float], memory: Any, descent_at: Callable[[list[float]], list[float]]
) -> tuple[list[float], Any]:
    optimizer, proximal, moved = personal["optimizer"], personal.get("proximal", 0), list(moved)
    rprop = optimizer if optimizer["optimizer"] == "rprop" else None
    if rprop and not rprop["keep"]:
        memory = {"rate": [rprop["step"]["start"]] * len(moved), "sign": [0] * len(moved)}
    memory = memory and {name: list(each) for name, each in memory.items()}
    for _ in range(personal["steps"]):
        for k, down in enumerate(descent_at(moved)):
            if rprop is None:
                moved[k] = (moved[k] + personal["rate"] * down) / (1 + personal["rate"] * proximal)
                continue
            slope = down - proximal * moved[k]
            sign = (slope > 0) - (slope < 0)
            if turned := sign * memory["sign"][k]:
                size = memory["rate"][k] * (rprop["alpha"] if turned > 0 else rprop["beta"])
                memory["rate"][k] = min(max(size, rprop["step"]["min"]), rprop["step"]["max"])
            memory["sign"][k] = sign
            moved[k] += personal["rate"] * (memory["rate"][k] * sign)
    return moved, memory if rprop and rprop["keep"] else None


Trained: TypeAlias = tuple[list[float], list[float] | None, dict[str, Any]]
"""The weights that rank, the update if one is sent, and the state that stays on the device."""


def by_fine_tuning(
    case: dict[str, Any], spec: dict[str, Any], descent: Callable[[list[float]], list[float]]
) -> Trained:
    personal, kept, w = case["personal"], case["before"], case["weights"]
    mine = {k for k, weight in enumerate(spec["weights"]) if weight["name"] not in personal["frozen"]}
    applied = list(w)
    if kept["trained"]:
        for k, own in zip(sorted(mine), kept["numbers"], strict=True):
            applied[k] = own
        applied = bounded(spec, applied, mine)
    if case["version"] < personal["from_version"]:
        return applied, descent(w), kept

    def at(moved: list[float]) -> list[float]:
        return [a + b for a, b in zip(w, moved, strict=True)]

    def free(moved: list[float]) -> list[float]:
        return [down if k in mine else 0.0 for k, down in enumerate(descent(at(moved)))]

    begin = [a - b for a, b in zip(applied, w, strict=True)]
    moved, memory = stepped(personal, begin, kept["memory"], free)
    own = bounded(spec, at(moved), mine)
    stays = {"trained": kept["trained"] + 1, "numbers": [own[k] for k in sorted(mine)], "memory": memory}
    return applied, descent(w) if personal["shares"] else None, stays


def by_vector(case: dict[str, Any], spec: dict[str, Any], descent: Callable[[list[float]], list[float]]) -> Trained:
    personal, kept, w = case["personal"], case["before"], case["weights"]
    names = [weight["name"] for weight in spec["weights"]]
    places = sorted(names.index(name) for name in personal["on"] or names)
    size = personal["size"] or len(places)
    one = [[float(i == j) for j in range(size)] for i in range(len(places))]
    if is_random := personal["basis"] == "random":
        entries = basis(len(places), size, personal["seed"])
        one = [entries[i * size : (i + 1) * size] for i in range(len(places))]

    def beyond(v: list[float]) -> list[float]:
        weights = list(w)
        for place, row in zip(places, one, strict=True):
            weights[place] += sum(u * each for u, each in zip(row, v, strict=True))
        return weights

    def whole(v: list[float]) -> list[float]:
        return bounded(spec, beyond(v), set(places)) if any(v) else list(w)

    def pulled(v: list[float]) -> list[float]:
        down = descent(whole(v))
        return [sum(row[j] * down[place] for place, row in zip(places, one, strict=True)) for j in range(size)]

    applied = whole(kept["numbers"])
    if case["version"] < personal["from_version"]:
        return applied, descent(w), kept
    if kept["turn"] == "weights":
        return applied, descent(w), {**kept, "turn": "vector"}
    v, memory = stepped(personal, kept["numbers"], kept["memory"], pulled)
    there, allowed = beyond(v), whole(v)
    if not is_random:
        v = [
            number if there[place] == allowed[place] else allowed[place] - w[place]
            for number, place in zip(v, places, strict=True)
        ]
    stays = {"trained": kept["trained"] + 1, "numbers": [single(number) for number in v], "turn": "weights"}
    return applied, None, {**stays, "memory": memory}


def test_personal() -> None:
    vectors = given("personal")
    for case in vectors["trainings"]:
        spec = vectors["specs"][case["spec"]]
        scores_by, given_pages = SCORES[spec["model"]], [PAGES[row] for row in case["pages"]]
        told = best_first(scores_by(case["weights"], given_pages, NOW))
        pages, place = [given_pages[row] for row in told], told.index(case["chosen"]) if case["chosen"] >= 0 else -1

        def loss_at(
            w: list[float],
            pages: list[Page] = pages,
            place: int = place,
            spec: dict[str, Any] = spec,
        ) -> float:
            return loss_of(SCORES[spec["model"]](w, pages, NOW), place, spec["margin"])

        def descent(
            weights: list[float],
            spec: dict[str, Any] = spec,
            loss_at: Callable[[list[float]], float] = loss_at,
        ) -> list[float]:
            return update_of(weights, spec["epsilon"], loss_at)

        learn = by_fine_tuning if case["personal"]["by"] == "fine_tune" else by_vector
        assert learn(case, spec, descent) == (case["applied"], case["update"], case["after"])
        assert best_first(scores_by(case["applied"], given_pages, NOW)) == case["order"]
        assert (scores_by(case["weights"], pages, NOW), loss_at(case["weights"])) == (case["scores"], case["loss"])
    for case in vectors["bases"]:
        assert basis(case["rows"], case["size"], case["seed"]) == case["basis"]


def takes_offer(study: dict[str, Any], offer: dict[str, str]) -> bool:
    """Return whether an offer is valid, by a package's Ed25519; sealing itself checks the key."""
    line = study["lines"][0]
    privacy, shared, central = line["privacy"], line["privacy"]["shared"], line["privacy"]["central"]
    said = b"fedping offer v1\n" + hashlib.sha256(offer["terms"].encode()).digest()
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(shared["helper"])).verify(
            bytes.fromhex(offer["signature"]), said
        )
        terms = json.loads(offer["terms"])
    except (InvalidSignature, ValueError):
        return False
    weights = [weight["name"] for weight in line["spec"]["weights"]]
    kept = [name for name in weights if name not in privacy["left_out"]]
    squared = 4096 * len(kept) if privacy["contribution"]["by"] == "signs" else 2**28  # by norm: one group
    metric = max(1, round(math.sqrt(squared) / 4))
    noise = central["noise_multiplier"] * math.sqrt(squared + 3 * metric**2) if central else 0
    promised = {**(central or {}), "contributions": privacy["contributions"]}
    names = ("epsilon", "delta", "rounds", "contributions", "noise_multiplier")
    promise = {name: promised[name] for name in names} if central else None
    key = bytes.fromhex(terms["key"])
    return (
        terms["format"] == 1
        and (terms["helper"], terms["study"], terms["line"]) == (shared["helper"], study["name"], line["name"])
        and set(terms["arms"]) == {arm["name"] for arm in study["arms"] if arm["line"] == line["name"]}
        and terms["numbers"] == len(weights) + 3
        and (terms["seal"], terms["proofs"]) == (shared["seal"], shared["proofs"])
        and terms.get("metric", 0) == (metric if shared["proofs"] else 0)
        and terms["min_batch"] >= shared["min_batch"]
        and terms.get("promise") == promise
        and terms["sigma"] >= (1 - 1e-9) * noise
        and len(key) == {"x25519": 32, "mlkem768-x25519": 1216}[terms["seal"]]
        and any(key)
    )


def labelled(*parts: bytes, key: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def hpke(dh: bytes, sent: bytes, public: bytes, info: bytes) -> tuple[bytes, bytes]:
    """Return the key and nonce of the first message in RFC 9180's base mode."""
    kem, suite, none = b"HPKE-v1KEM\x00\x20", b"HPKE-v1HPKE\x00\x20\x00\x01\x00\x01", bytes(32)
    prk = labelled(kem, b"eae_prk", dh, key=none)
    secret = labelled(b"\x00\x20", kem, b"shared_secret", sent, public, b"\x01", key=prk)
    hashes = (labelled(suite, name, given, key=none) for name, given in ((b"psk_id_hash", b""), (b"info_hash", info)))
    context = b"\0" + b"".join(hashes)
    last = labelled(suite, b"secret", key=secret)
    key = labelled(b"\x00\x10", suite, b"key", context, b"\x01", key=last)[:16]
    return key, labelled(b"\x00\x0c", suite, b"base_nonce", context, b"\x01", key=last)[:12]


def test_shares() -> None:
    vectors = given("shares")
    for case in vectors["masks"]:
        assert [f"{word:016x}" for word in share_mask(case["seed"], len(case["words"]))] == case["words"]
    offers: dict[int, dict[str, Any]] = {}
    for case in vectors["offers"]:
        offers.setdefault(case["study"], case)
        assert hashlib.sha256(case["offer"]["terms"].encode()).digest()[:8].hex() == case["id"]
        assert takes_offer(vectors["studies"][case["study"]], case["offer"]) is case["taken"], case["what"]
    assert {case["taken"] for case in vectors["offers"]} == {True, False}
    for case in vectors["payloads"]:
        study, d = vectors["studies"][case["study"]], len(case["vector"])
        offer, line = offers[case["study"]], study["lines"][0]["name"]
        place = f"{study['name']}|{line}|{case['version']}|{case['arm']}|{case['document']}|{d}|{offer['id']}"
        assert case["info"] == f"fedping share v1|{place}"
        if study["lines"][0]["privacy"]["shared"]["proofs"]:
            share, sealed = proven_shares(case, f"{study['name']}|{line}|{case['version']}|{case['arm']}|{d}")
        else:
            words = zip(case["vector"], share_mask(case["seed"], d), strict=True)
            share = struct.pack(f"<{d}Q", *((number - word) % 2**64 for number, word in words))
            sealed = bytes.fromhex(case["seed"])
        payload, head = base64.b64decode(case["payload"]), bytes.fromhex(offer["id"]) + share
        assert payload.startswith(head)
        assert (case["ephemeral"] is None) == (len(payload) == len(head) + 1168)
        if case["ephemeral"] is not None:
            own = X25519PrivateKey.from_private_bytes(bytes.fromhex(case["ephemeral"]))
            public = bytes.fromhex(json.loads(offer["offer"]["terms"])["key"])
            sent, dh = own.public_key().public_bytes_raw(), own.exchange(X25519PublicKey.from_public_bytes(public))
            key, nonce = hpke(dh, sent, public, case["info"].encode())
            assert payload == head + sent + AESGCM(key).encrypt(nonce, sealed, b"")


def proven_shares(case: dict[str, Any], place: str) -> tuple[bytes, bytes]:
    """Return the leader's share of a vector of signs, and the data sealed for the helper."""
    *signs, metric, loss, top = case["vector"]
    bits, left, weights = [*(sign > 0 for sign in signs), *(sign < 0 for sign in signs)], metric, []
    while left:
        weights.append(-(-left // 2))
        left -= weights[-1]
    for weight in weights:
        bits.append(loss >= weight)
        loss -= weight * bits[-1]
    rand = hashlib.shake_128(b"fedping proof rand v1" + bytes.fromhex(case["seed"])).digest(128)
    context = f"fedping proof v1|{place}|{metric}".encode()
    leader, public, helper = prio3(list(map(int, [*bits, top > 0])), UUID(case["document"]).bytes, rand, context)
    return leader + public, helper


def test_proofs() -> None:
    for case in given("proofs")["cases"]:
        nonce, rand = bytes.fromhex(case["nonce"]), bytes.fromhex(case["rand"])
        shares = prio3(case["bits"], nonce, rand, case["context"].encode())
        assert shares == tuple(bytes.fromhex(case[name]) for name in ("leader", "public", "helper"))


def prio3(bits: list[int], nonce: bytes, rand: bytes, context: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the shares for the leader, for both servers, and for the helper."""
    s, b, own_b, q = (rand[start : start + 32] for start in range(0, 128, 32))
    helper = drawn(xof(context, 1, s, b"\x01"), len(bits))
    leader = [(bit - share) % FIELD for bit, share in zip(bits, helper, strict=True)]
    public = xof(context, 7, own_b, b"\0" + nonce + packed_numbers(leader))(32)
    public += xof(context, 7, b, b"\x01" + nonce + packed_numbers(helper))(32)
    joint = xof(context, 3, xof(context, 6, bytes(32), public)(32), b"\x03")
    secret, proofs = xof(context, 4, q, b"\x03"), []
    chunk = min((2 * c + 2 * least_points(len(bits), c) - 1, c) for c in range(1, len(bits) + 1))[1]
    points = least_points(len(bits), chunk)
    for _ in range(3):
        w, r = drawn(secret, 2 * chunk), drawn(joint, -(-len(bits) // chunk))
        proofs += [*w, *gadget_values(bits, w, r, chunk, points)]
    shares = drawn(xof(context, 2, s, b"\x03\x01"), len(proofs))
    proofs = [(number - share) % FIELD for number, share in zip(proofs, shares, strict=True)]
    return packed_numbers([*leader, *proofs]) + own_b, public, s + b


def least_points(length: int, chunk: int) -> int:
    points = 1
    while points <= -(-length // chunk):
        points *= 2
    return points


def gadget_values(bits: list[int], w: list[int], r: list[int], chunk: int, points: int) -> list[int]:
    """Return the values of G at all places except the last, by Lagrange's formula."""
    alpha, beta = (pow(7, (FIELD - 1) // order, FIELD) for order in (points, 2 * points))
    found = []
    for k in range(2 * points - 1):
        place, value = pow(beta, k, FIELD), 0
        basis = [basis_value(alpha, points, i, place) for i in range(points)]
        for j in range(chunk):
            x = [bits[i * chunk + j] if i * chunk + j < len(bits) else 0 for i in range(len(r))]
            u = [w[2 * j], *(pow(random, j + 1, FIELD) * bit for random, bit in zip(r, x, strict=True))]
            v = [w[2 * j + 1], *(bit - 1 for bit in x)]
            value += sum(map(operator.mul, u, basis)) * sum(map(operator.mul, v, basis))
        found.append(value % FIELD)
    return found


def basis_value(alpha: int, points: int, i: int, place: int) -> int:
    """Return the value, at a place, of the polynomial that is 1 at alpha's i-th power and 0 at the others."""
    above, below = 1, 1
    for other in range(points):
        if other != i:
            above = above * (place - pow(alpha, other, FIELD)) % FIELD
            below = below * (pow(alpha, i, FIELD) - pow(alpha, other, FIELD)) % FIELD
    return above * pow(below, -1, FIELD) % FIELD


def xof(context: bytes, use: int, seed: bytes, binder: bytes) -> Callable[[int], bytes]:
    tag = bytes.fromhex("1200ffffffff00") + bytes([use]) + context
    message = struct.pack("<H", len(tag)) + tag + bytes([32]) + seed + binder
    read: Callable[[int], bytes] = TurboSHAKE128.new(domain=1, data=message).read
    return read


def drawn(read: Callable[[int], bytes], count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        number = int.from_bytes(read(8), "little")
        found += [number] if number < FIELD else []
    return found


def packed_numbers(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def share_mask(seed: str, d: int) -> tuple[int, ...]:
    return struct.unpack(f"<{d}Q", hashlib.shake_128(b"fedping mask v1" + bytes.fromhex(seed)).digest(8 * d))


LN2_HIGH, LN2_LOW = 6.93147180369123816490e-1, 1.90821492927058770002e-10


def own_exp(x: float) -> float:
    if x < -700:
        return 0.0
    k = math.floor(x * 1.4426950408889634 + 0.5)
    h, low = x - k * LN2_HIGH, k * LN2_LOW
    r = h - low
    t, p = r * r, 4.13813679705723846039e-8
    for a in (-1.65339022054652515390e-6, 6.61375632143793436117e-5, -2.77777777770155933842e-3):
        p = a + t * p
    p = 1.66666666666666019037e-1 + t * p
    c = r - t * p
    return (1 - ((low - (r * c) / (2 - c)) - h)) * 2.0**k


def own_log(x: float) -> float:
    m, k = math.frexp(x)
    if m < 0.7071067811865476:
        m, k = m * 2, k - 1
    f = m - 1
    s = f / (2 + f)
    z, p = s * s, 1.479819860511658591e-1
    for a in (1.531383769920937332e-1, 1.818357216161805012e-1, 2.222219843214978396e-1, 2.857142874366239149e-1):
        p = a + z * p
    for a in (3.999999999940941908e-1, 6.666666666666735130e-1):
        p = a + z * p
    r, h = z * p, 0.5 * f * f
    return k * LN2_HIGH - ((h - (s * (h + r) + k * LN2_LOW)) - f)


def own_log1p(x: float) -> float:
    u = 1 + x
    return own_log(u) + (x - (u - 1)) / u


def as_number(x: Any) -> float | None:
    is_number = isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)
    return float(x) if is_number else None


def as_text(x: Any) -> str | None:
    is_text = isinstance(x, str) and not any("\ud800" <= letter <= "\udfff" for letter in x)
    return x if is_text else None


def as_flag(x: Any) -> bool | None:
    return x if isinstance(x, bool) else None


def limited(x: float, low: float | None, high: float | None) -> float:
    return low if low is not None and x < low else high if high is not None and x > high else x


def scaled(x: float, feature: dict[str, Any]) -> float:
    return single(limited((x - feature.get("center", 0.0)) / feature["spread"], -1e9, 1e9))


def own_values(feature: dict[str, Any], query: dict[str, Any], item: dict[str, Any]) -> list[float] | None:
    """Return the values of a feature, without its indicator for missing; None if it is missing."""
    kind = feature["kind"]
    if kind in ("equal", "product"):
        one, other = query.get(feature["query"]), item.get(feature["item"])
        q, x = as_number(one), as_number(other)
        if kind == "product":
            return (
                None if q is None or x is None else [scaled(limited(q * x, feature["low"], feature["high"]), feature)]
            )
        for kind_of in (as_number, as_text, as_flag):
            if kind_of(one) is not None and kind_of(other) is not None:
                return [float(kind_of(one) == kind_of(other))]
        return None
    field = (query if feature["on"] == "query" else item).get(feature["field"] or feature["name"])
    if kind == "flag":
        return None if as_flag(field) is None else [float(field)]
    if kind == "category":
        listed = [*feature["values"], *([None] if feature["other"] else [])]
        found = [0.0] * len(listed)
        if as_text(field) is None:
            return None
        if field in listed or feature["other"]:
            found[listed.index(field) if field in listed else -1] = 1.0
        return found
    if kind == "hashed":
        if as_text(field) is None:
            return None
        found = [0.0] * feature["buckets"]
        found[math.floor(fraction(f"{feature['name']}\n{field}") * feature["buckets"])] = 1.0
        return found
    if kind == "counts":
        if not isinstance(field, dict):
            return None
        numbers = [as_number(field.get(text)) for text in feature["values"]]
        logs = [own_log1p(max(x, 0.0)) if feature["log"] and x is not None else x for x in numbers]
        return [0.0 if x is None else scaled(x, feature) for x in logs]
    number = as_number(field)
    if number is None:
        return None
    if kind == "bucket":
        found = [0.0] * (len(feature["cutoffs"]) + 1)
        found[sum(number > cutoff for cutoff in feature["cutoffs"])] = 1.0
        return found
    if kind == "spline":
        knots = feature["knots"]
        found = [0.0] * len(knots)
        if number <= knots[0]:
            found[0] = 1.0
        elif number >= knots[-1]:
            found[-1] = 1.0
        else:
            k = max(place for place, knot in enumerate(knots) if knot <= number)
            t = (number - knots[k]) / (knots[k + 1] - knots[k])
            found[k], found[k + 1] = single(1 - t), single(t)
        return found
    within = limited(number, feature["low"], feature["high"])
    return [scaled(own_log1p(within) if feature["log"] else within, feature)]


class Ranking:
    """A spec with features, and the positions of its weights."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.by_name = {feature["name"]: feature for feature in spec["features"]}
        self.offsets = max(spec["places"] - 1, 0)
        self.single = len(spec["weights"]) - self.offsets
        own = [feature for feature in spec["features"] if feature.get("on") != "query"]
        self.ordered = sorted(own, key=lambda feature: feature["kind"] in ("hashed", "cross"))

    def every(self, feature: dict[str, Any], query: dict[str, Any], item: dict[str, Any]) -> list[float]:
        if feature["kind"] == "cross":
            rows, columns = (self.every(self.by_name[name], query, item) for name in feature["of"])
            return [single(a * b) for a in rows for b in columns]
        found = own_values(feature, query, item)
        if not feature["missing"]:
            return found if found is not None else [0.0] * self.width(feature)
        return [*found, 0.0] if found is not None else [*([0.0] * self.width(feature)), 1.0]

    def width(self, feature: dict[str, Any]) -> int:
        """Return the number of a feature's values, without its indicator for missing."""
        kind = feature["kind"]
        if kind == "hashed":
            return int(feature["buckets"])
        if kind == "bucket":
            return len(feature["cutoffs"]) + 1
        if kind == "spline":
            return len(feature["knots"])
        if kind in ("category", "counts"):
            return len(feature["values"]) + int(feature.get("other", False))
        return 1

    def dense(self, query: dict[str, Any], item: dict[str, Any]) -> list[float]:
        """Return all values of an item, including zeros."""
        return [value for feature in self.ordered for value in self.every(feature, query, item)]

    def position(self, row: int) -> int:
        return row if row < self.single else row + self.offsets

    def values(self, query: dict[str, Any], item: dict[str, Any]) -> list[list[float]]:
        return [[self.position(row), value] for row, value in enumerate(self.dense(query, item)) if value]

    def parts(self, weights: list[float]) -> tuple[list[float], list[float], list[float]]:
        hidden = self.spec["hidden"]
        inner, bias, out = (
            len(weights) - 2 * hidden - hidden * self.total,
            len(weights) - 2 * hidden,
            len(weights) - hidden,
        )
        return weights[inner:bias], weights[bias:out], weights[out:]

    @property
    def total(self) -> int:
        return sum(len(self.every(feature, {}, {})) for feature in self.ordered)

    def units(self, weights: list[float], values: list[float]) -> list[float]:
        inner, bias, _ = self.parts(weights)
        z, hidden = list(bias), self.spec["hidden"]
        for row, value in enumerate(values):
            for unit in range(hidden if value else 0):
                z[unit] += inner[row * hidden + unit] * value
        return z

    def score(self, weights: list[float], values: list[float]) -> float:
        total = 0.0
        for row, value in enumerate(values):
            if value:
                total += weights[self.position(row)] * value
        if self.spec["hidden"]:
            for z, out in zip(self.units(weights, values), self.parts(weights)[2], strict=True):
                if z > 0:
                    total += out * z
        return total

    def place(self, at: int) -> int | None:
        return self.single + min(at, self.offsets) - 1 if at and self.offsets else None

    def learn(self, case: dict[str, Any]) -> tuple[Any, list[float], int]:
        """Return the loss as a function of weights, the update, and the number of items that count."""
        items, chosen = case["items"], case["chosen"]
        count = len(items) if case["seen"] is None else min(max(case["seen"], chosen + 1), len(items))
        places = [at for at in range(count) if self.offsets or at not in case["pinned"]]
        if chosen not in places:
            return lambda _: 0.0, [0.0] * len(case["weights"]), 0
        values, i = [self.dense(case["query"], items[at]) for at in places], places.index(chosen)

        def both(weights: list[float]) -> tuple[float, list[float]]:
            offsets = [self.place(at) for at in places]
            scores = [self.score(weights, each) for each in values]
            f = [s + (0.0 if at is None else weights[at]) for s, at in zip(scores, offsets, strict=True)]
            return loss_and_pulls(self.spec, f, i)

        weights = case["weights"]
        if self.spec["gradient"] == "finite_differences":
            return lambda w: both(w)[0], differences(lambda w: both(w)[0], weights, self.spec["epsilon"]), len(places)
        return lambda w: both(w)[0], self.analytic(weights, values, places, both(weights)[1]), len(places)

    def analytic(
        self, weights: list[float], values: list[list[float]], places: list[int], pulls: list[float]
    ) -> list[float]:
        update, hidden = [0.0] * len(weights), self.spec["hidden"]
        out = len(weights) - hidden
        inner = out - hidden - hidden * self.total
        for each, at, pull in zip(values, places, pulls, strict=True):
            for row, value in enumerate(each):
                update[self.position(row)] += pull * value if value else 0.0
            where = self.place(at)
            if where is not None:
                update[where] += pull
            for unit, z in enumerate(self.units(weights, each) if hidden else []):
                if z > 0:
                    update[out + unit] += pull * z
                    b = pull * weights[out + unit]
                    update[out - hidden + unit] += b
                    for row, value in enumerate(each):
                        update[inner + row * hidden + unit] += b * value if value else 0.0
        return update


def differences(loss: Callable[[list[float]], float], weights: list[float], epsilon: float) -> list[float]:
    found = []
    for k, weight in enumerate(weights):
        less, more = [*weights], [*weights]
        less[k], more[k] = weight - epsilon, weight + epsilon
        found.append((loss(less) - loss(more)) / (2 * epsilon))
    return found


def loss_and_pulls(spec: dict[str, Any], f: list[float], i: int) -> tuple[float, list[float]]:
    if spec["loss"] == "softmax":
        e, total = [own_exp(each - max(f)) for each in f], 0.0
        for each in e:
            total += each
        pulls = [-(each / total) for each in e]
        pulls[i] = 1 - e[i] / total
        return own_log(total) - (f[i] - max(f)), pulls
    loss, pulls = 0.0, [0.0] * len(f)
    for j, each in enumerate(f):
        if j == i:
            continue
        over, d = each + spec["margin"] - f[i], each - f[i]
        if spec["loss"] == "hinge" and over > 0:
            loss, pull = loss + over, 1.0
        elif spec["loss"] == "pairwise":
            q = own_exp(-abs(d))
            loss, pull = loss + (max(d, 0.0) + own_log1p(q)), (1.0 if d > 0 else q) / (1 + q)
        else:
            continue
        pulls[j], pulls[i] = -pull, pulls[i] + pull
    return loss, pulls


def start_of_block(block: dict[str, Any]) -> list[float]:
    count, start = math.prod(block["shape"]), block["start"]
    if start["values"] == "zeros":
        return [0.0] * count
    if start["values"] == "numbers":
        return list(start["numbers"]) if len(start["numbers"]) > 1 else list(start["numbers"]) * count
    digest = hashlib.sha256(f"{start['seed']}\n{block['name']}".encode()).digest()
    key = int.from_bytes(digest[:8], "little")
    return [start["scale"] * (2 * ((bits >> 11) / 2**53) - 1) for bits in draws(key, 6 * count)[::6]]


def test_functions_and_hashes() -> None:
    functions = {"exp": own_exp, "log": own_log, "log1p": own_log1p}
    for name, x, expected in given("features")["functions"]:
        assert functions[name](x) == expected, (name, x)
    for name, text, expected in given("features")["hashes"]:
        assert fraction(f"{name}\n{text}") == expected


def test_specs_values_and_lists_of_features() -> None:
    vectors = given("features")
    rankings = [Ranking(case["spec"]) for case in vectors["specs"]]
    for case in vectors["specs"]:
        spec = case["spec"]
        assert case["names"][: len(spec["weights"])] == [weight["name"] for weight in spec["weights"]]
        blocks = [number for block in spec["blocks"] for number in start_of_block(block)]
        assert [*start_weights(spec["weights"]), *blocks] == case["start"]
    for case in vectors["values"]:
        assert rankings[case["spec"]].values(case["query"], case["item"]) == case["values"]
    for case in vectors["lists"]:
        ranking = rankings[case["spec"]]
        scores = [ranking.score(case["weights"], ranking.dense(case["query"], item)) for item in case["items"]]
        assert scores == case["scores"]
        rest = iter(sorted((j for j in range(len(scores)) if j not in case["pinned"]), key=lambda j: -scores[j]))
        assert [j if j in case["pinned"] else next(rest) for j in range(len(scores))] == case["order"]
        loss, update, _ = ranking.learn(case)
        assert loss(case["weights"]) == case["loss"]
        assert update == case["update"]


def test_swaps() -> None:
    for case in given("features")["swaps"]:
        shown, pinned = list(case["ranked"]), case["pinned"]
        pairs = [at for at in range(len(shown) - 1) if at not in pinned and at + 1 not in pinned]
        if pairs and case["draws"][0] < case["explore"]:
            at = pairs[math.floor(case["draws"][1] * len(pairs))]
            shown[at], shown[at + 1] = shown[at + 1], shown[at]
        assert shown == case["shown"]
