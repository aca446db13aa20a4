"""Writes a line with three versions for every optimizer, aggregation, constraint, weighting and clipping."""

from pathlib import Path

import numpy as np

from fedping.model_store import open_store
from fedping.model_store.decisions import continue_at, rollback
from fedping.protocol.limits import Limits, UpdateLimits
from fedping.protocol.pipeline import (
    Adagrad,
    Adam,
    CenteredClip,
    ClipByNorm,
    ClipByQuantile,
    GeometricMedian,
    GradientDescent,
    Krum,
    MeanOfSigns,
    Median,
    Momentum,
    Quorum,
    Recluster,
    RProp,
    Staleness,
    TrimmedMean,
    Yogi,
)
from fedping.protocol.spec import Block, ModelSpec, NonNegative, OrderedCutoffs, Weight
from fedping.protocol.stopping_settings import EarlyStop, IterationByClients, IterationBySigns
from tests.golden.writing.common import STEP, WHEN, grown, land, line, play, stored, study, weights

STEPS = ClipByQuantile(units="step", multiple=0.5)
LINES = (
    line("rprop", optimizer=RProp(rate_rounding="half_even")),
    line("quorum", optimizer=RProp(quorum=Quorum()), clip=STEPS),
    line("descent", optimizer=GradientDescent(rate=0.5, decay="1/sqrt(t)"), clip=ClipByNorm(norm=2.0)),
    line("plain", weighting="ping", most_votes=3),
    line("momentum", optimizer=Momentum(rate=0.25, beta=0.5, nesterov=True), staleness=Staleness(most=2)),
    line("late", staleness=Staleness(most=3, weight="1/(1+a)", on="step")),
    line("adam", optimizer=Adam(rate=0.125), weighting="examples", most_votes=20),
    line("yogi", optimizer=Yogi(rate=0.125, decay="1/t")),
    line("adagrad", optimizer=Adagrad(rate=0.5, beta1=0.5)),
    line("signs", aggregate=MeanOfSigns(), optimizer=RProp()),
    line("votes", aggregate=MeanOfSigns(zero="up"), weighting="examples"),
    line("median", aggregate=Median(), bucketing=2),
    line("trimmed", aggregate=TrimmedMean(share=0.25)),
    line("geometric", aggregate=GeometricMedian(), clip=ClipByQuantile(quantile=0.75)),
    line("krum", aggregate=Krum(hostile=0.25, keep=3)),
    line("centered", aggregate=CenteredClip(radius=1.0, beta=0.5)),
    line(
        "recluster",
        spec=ModelSpec(
            name="recluster",
            model="k-means",
            settings={"clusters": 3, "features": 2},
            weights=tuple(
                [Weight(name=f"c{i}", start=float(i * i % 5), step=STEP) for i in range(6)]
                + [Weight(name=f"n{i}", start=0.0, step=STEP) for i in range(3)]
            ),
        ),
        aggregate=Recluster(),
        optimizer=GradientDescent(rate=1.0),
    ),
    line(
        "clamped",
        spec=ModelSpec(
            name="clamped", model="any", weights=weights(3, integer=True), constraints=(NonNegative(),), margin=0.5
        ),
    ),
    line(
        "shifted",
        spec=ModelSpec(name="shifted", model="any", weights=weights(3), constraints=(NonNegative(mode="shift"),)),
    ),
    line(
        "pushed",
        spec=ModelSpec(
            name="pushed",
            model="any",
            weights=weights(4),
            constraints=(OrderedCutoffs(weights=("w0", "w1", "w2"), gap=0.5, first=0.25),),
        ),
    ),
    line(
        "trimming",
        spec=ModelSpec(
            name="trimming",
            model="any",
            weights=weights(4),
            constraints=(NonNegative(), OrderedCutoffs(weights=("w1", "w3"), mode="trim")),
        ),
    ),
    line(
        "blocks",
        spec=ModelSpec(
            name="blocks",
            model="any",
            weights=weights(1),
            blocks=(Block(name="b", shape=(3, 4), step=STEP), Block(name="c", shape=(2,), step=STEP)),
        ),
        optimizer=Adam(rate=0.125),
    ),
    line("limited", limits=UpdateLimits(weight=2.5, norm=4.0)),
    line("by-clients", length=IterationByClients(clients=8, most=600.0)),
    line("by-signs", length=IterationBySigns(z=0.5, share=0.5), optimizer=RProp()),
    line("stopping", early_stopping=EarlyStop(arm="stopping-trains", patience=3, smooth=1)),
    line("about-to-stop", early_stopping=EarlyStop(arm="about-to-stop-trains", patience=3, smooth=1)),
)


def write(folder: Path) -> None:
    made = study("lines", LINES, limits=Limits(examples=30, loss=(0.0, 2.5)))
    store = stored(folder, made)
    grown(folder, made)
    for name in ("momentum", "late"):
        # pings of version 1 landed after its round count in the next one
        land(folder / "landing", made, name, 1, at=9, crowd="late", clients=5)
    play(folder, "lines", "stopping", "stopped")
    land(folder / "landing", made, "stopping", 5, at=5)
    rollback(open_store(folder / "store"), "lines", "rprop", 1, created=WHEN, code_version="golden")
    continue_at(open_store(folder / "store"), "lines", "rprop", 9, created=WHEN, code_version="golden")
    newest = store.lines.newest("lines", "rprop")
    land(folder / "landing", made, "rprop", newest, at=20)
    # one client that sends all its pings twice, and one with larger updates than all others
    loud = np.full((1, 4), 1e20, np.float32)
    land(folder / "landing", made, "quorum", 3, at=21, crowd="loud", clients=1, updates=loud)
    land(folder / "landing", made, "plain", 3, at=22, clients=12)
