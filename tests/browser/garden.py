"""Shared data of the extension's tests: a history of pages about gardens, a study, and Python's results for both."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedping.client_sim.models import FRECENCY_NAMES, Page, Visit, VisitType, frecency_start
from fedping.client_sim.models.arrays import FloatArray
from fedping.client_sim.models.reference import descent_by_finite_differences, frecency
from fedping.model_store import open_store
from fedping.model_store.store import ModelStore
from fedping.protocol.personalization import Personalization
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, Study
from fedping.protocol.training import OneGradient
from fedping.server_jobs.optimize import first_versions
from tests.browser.harness.seeds import Seed
from tests.browser.harness.waiting import wait_for
from tests.browser.users import User
from tests.conformance.vectors import plain_loss
from tests.support.versions import WHEN

LINK, TYPED = VisitType.LINK, VisitType.TYPED
SEEDS = (
    Seed("http://news.example/garden", "Garden news", ((60.5, TYPED),)),
    Seed("http://tools.example/", "Garden tools", ((1.5, LINK), (2.5, LINK))),
    Seed("http://shop.example/?garden", "Shop", ((1.6, LINK),), bookmarked=True),
    Seed("http://club.example/garden", "The garden club", ((20.5, LINK),), bookmarked=True),
    Seed("http://seeds.example/", "Seeds for a garden", ((20.6, LINK),)),
    Seed("http://bank.example/", "Bank", ((0.5, TYPED),)),
)
MARGIN = 25.0
START: list[float] = frecency_start().tolist()


def study(personal: Personalization | None = None) -> Study:
    """Return a study of one arm with steps so large that one choice changes the order."""
    long, short = Step(start=60, min=1, max=60), Step(start=1, min=1, max=1)
    weights = tuple(
        Weight(name, start, long if "Bonus" in name else short, integer=True)
        for name, start in zip(FRECENCY_NAMES, START, strict=True)
    )
    spec = ModelSpec(name="frecency", model="frecency-2018", weights=weights, margin=MARGIN)
    training = OneGradient(personal=personal)
    line = Line(name="main", spec=spec, pipeline=Pipeline(min_clients=1), training=training)
    arm = Arm(name="treatment", share=1.0, line="main", applies=True, submits=True, personal=personal is not None)
    return Study(name="garden", arms=(arm,), lines=(line,))


def garden_store(folder: Path, personal: Personalization | None = None) -> ModelStore:
    """Return a new store with that study and its version 0."""
    store, made = open_store(folder / "store", create=True), study(personal)
    store.create_study(made, first_versions(made, created=WHEN, code_version="test"))
    return store


def seeded() -> dict[str, Page]:
    """Return the pages about gardens as pages of the Python models, by address."""
    return {seed.url: seed.page() for seed in SEEDS if seed.title != "Bank"}


def page_of(told: dict[str, Any]) -> Page:
    """Return a page of the extension as a page of the Python models."""
    visits = tuple(Visit(int(visit["time"] * 1000), visit["type"]) for visit in told["visits"])
    return Page(visits, told["visitCount"], told["typed"], told["bookmarked"])


def scores_by(weights: Sequence[float], pages: Sequence[Page]) -> list[int]:
    now = time.time_ns() // 1000
    """Return Python's current scores of pages."""
    return [frecency(np.array(weights, float), page, now) for page in pages]


def ranked_by(weights: Sequence[float], pages: dict[str, Page]) -> list[str]:
    """Return the addresses in the order of Python's scores."""
    scores = dict(zip(pages, scores_by(weights, list(pages.values())), strict=True))
    assert len(set(scores.values())) == len(scores), "equal scores say nothing of an order"
    return sorted(pages, key=lambda url: -scores[url])


def update_of(pages: Sequence[Page], chosen: int) -> list[float]:
    """Return the update of a choice, computed by Python from the start values."""

    def loss(weights: FloatArray) -> float:
        return plain_loss(scores_by(weights.tolist(), pages), chosen, MARGIN)

    update: list[float] = descent_by_finite_differences(loss, np.array(START)).tolist()
    return update


def set_study(user: User, server: str) -> None:
    """Set the server and the study on the settings page."""
    user.open("options/options.html")
    wait_for(lambda: user.text("#version"), "the page, which fills in what is set")
    user.fill("#ingest", server)
    user.fill("#study", "garden")
    user.click("#save", allowing=True)
    user.says("#message", "Saved")


def take_part(user: User, server: str) -> None:
    """Set the server and the study, and agree."""
    set_study(user, server)
    user.click("#consent", allowing=True)
    user.says("#arm", "treatment")


def choose(user: User, place: int) -> None:
    """Choose a page in the address bar, and wait until it has loaded, in whichever tab is then in front."""
    url = user.type("garden")[place]
    user.choose(place)
    wait_for(lambda: user.address() == url, f"the page {url}")
