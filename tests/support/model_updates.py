"""A study of model updates, and its pings."""

import json
import uuid
from typing import Any, Literal

import msgspec
import numpy as np

from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.study import Arm, Study
from tests.support.versions import small_study

STUDY = "models"
PATH = f"/submit/{STUDY}/model-update/1"


def model_study(m: int = 3, weighting: Literal["client", "ping", "examples"] = "examples") -> Study:
    """Return a study of model updates with three arms: one trains the line, one follows it, one has no line."""
    small = small_study(STUDY, m=m)
    pipeline = Pipeline(optimizer=GradientDescent(), weighting=weighting, min_clients=1)
    line = msgspec.structs.replace(small.lines[0], pipeline=pipeline)
    treatment, control = (msgspec.structs.replace(arm, share=0.4) for arm in small.arms)
    arms = (treatment, control, Arm(name="plain", share=0.2))
    return Study(name=STUDY, pings="model-update", arms=arms, lines=(line,))


def model_ping_json(m: int = 3, **payload: Any) -> dict[str, Any]:
    """Return a ping of an arm that submits, with the given payload fields replaced."""
    valid = {
        "model_version": 0,
        "study_variation": "treatment",
        "update": [0.5 * i for i in range(m)],
        "loss": 1.5,
        "examples": 7,
    }
    return {"clientId": str(uuid.UUID(int=1)), "type": "model-update", "payload": valid | payload}


def model_lines(count: int, m: int = 3, seed: int = 0, first_document: int = 0) -> list[bytes]:
    """Return the lines of a batch: pings of different clients, with random updates and example counts."""
    rng = np.random.default_rng(seed)
    return [
        json.dumps(
            {
                **model_ping_json(m, update=rng.normal(size=m).tolist(), examples=int(rng.integers(1, 50))),
                "clientId": str(uuid.UUID(bytes=rng.bytes(16), version=4)),
                "documentId": str(uuid.UUID(int=first_document + k)),
            }
        ).encode()
        for k in range(count)
    ]
