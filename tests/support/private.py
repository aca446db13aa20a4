"""A study with a private line, and its clients' pings."""

import base64
import hashlib
import uuid
from typing import Any

import numpy as np

from fedping.protocol.enrolment import Assignment, hash_assignment
from fedping.protocol.privacy import Central, Local, Privacy, frame_of, vectors_of
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, Study

STUDY_FILE = """
name = "private"
pings = "private-update"

[[arms]]
name = "treatment"
share = 1.0
line = "main"
applies = true
submits = true

[[lines]]
name = "main"

[lines.spec]
name = "linear"
model = "linear-regression"
settings = { features = 1, intercept = false }

[[lines.spec.weights]]
name = "w0"
start = 0.0
step = { start = 1.0, min = 0.1, max = 3.0 }

[lines.privacy.central]
epsilon = 2.0
delta = 1e-6
rounds = 10
population = 10_000
sampling = 0.1
"""
"""The study file, as an operator writes it."""

PATH = "/submit/private/private-update/1"

CENTRAL = Central(epsilon=3.0, delta=1e-6, rounds=5, population=1000, noise_multiplier=4.0)


def private_study(m: int = 4, *, privacy: Privacy | None = None, local: Local | None = None, **more: Any) -> Study:
    """Return a study whose arms ``treatment`` and ``control`` follow a private line; the latter does not submit."""
    weights = tuple(Weight(f"w{i}", 0.0, Step(start=1.0, min=1e-6, max=3.0)) for i in range(m))
    settings = privacy or Privacy(central=CENTRAL, local=local)
    line = Line(name="main", spec=ModelSpec(name="small", model="linear-regression", weights=weights), privacy=settings)
    arms = (
        Arm(name="treatment", share=0.5, line="main", applies=True, submits=True),
        Arm(name="control", share=0.5, line="main"),
    )
    told = {"name": "private", "pings": "private-update", "enrolment": "hash", "arms": arms, "lines": (line,)}
    return Study(**told | more)


def vector(study: Study, update: list[float], loss: float = 0.25, top: float = 1.0) -> bytes:
    """Return the payload of an update's vector."""
    line = study.lines[0]
    assert line.privacy is not None
    frame = frame_of(line.privacy, line.spec)
    [made] = vectors_of(frame, np.array([update]), np.array([loss]), np.array([top]), line.privacy.loss)
    return made.astype("<i4").tobytes()


def private_ping(
    study: Study, payload: bytes | None = None, *, arm: str = "treatment", number: int = 0, **more: Any
) -> dict[str, Any]:
    """Return the JSON of a ping of a client of an arm; each number is another client."""
    sent = vector(study, [1.0, -2.0, 0.0, 3.0]) if payload is None else payload
    told = {
        "model_version": 0,
        "study_variation": arm,
        "update": {"encoding": "private", "payload": base64.b64encode(sent).decode()},
    } | more
    return {"clientId": str(client_of(study, arm, number)), "type": "private-update", "payload": told}


def client_of(study: Study, arm: str, number: int = 0) -> uuid.UUID:
    """Return the id of a client of an arm."""
    dealt = hash_assignment(study)
    assert isinstance(dealt, Assignment)
    ids = (uuid.UUID(bytes=hashlib.sha256(b"%d %d" % (number, k)).digest()[:16]) for k in range(10_000))
    return next(each for each in ids if dealt.arm_of(each) == arm)
