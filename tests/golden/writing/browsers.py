"""Writes a browser's storage after pages of three studies: of interactions, a personal one and a private one."""

from pathlib import Path

from msgspec.structs import replace

from fedping.protocol.personalization import FineTune
from fedping.protocol.privacy import Central, Privacy
from fedping.protocol.study import Arm, Line, Study, public_json, public_study, study_from_toml
from fedping.protocol.training import OneGradient
from tests.golden.reading.browsers import CLIENTS, page
from tests.golden.writing.common import stored

ROOT = Path(__file__).parents[3]


def write(folder: Path) -> None:
    demo = study_from_toml(ROOT / "experiments" / "demo.toml")
    line = demo.lines[0]
    privacy = Privacy(
        central=Central(epsilon=3, delta=1e-6, rounds=5, population=1000, noise_multiplier=4.0),
        contributions=5,
        loss=(0.0, 100.0),
    )
    tuned = OneGradient(personal=FineTune(rate=1.0, steps=1))
    studies = [
        of("telling", line),
        of("personal", replace(line, training=tuned), personal=True),
        of("private", Line(name="main", spec=line.spec, privacy=privacy), pings="private-update"),
    ]
    assert tuple(each.name for each in studies) == CLIENTS
    store = stored(folder, *studies)
    for each in studies:
        (folder / each.name).mkdir()
        (folder / each.name / "study.json").write_bytes(public_json(public_study(store.study(each.name))))
        model = folder / "store" / each.name / "main" / "public" / "latest.json"
        (folder / each.name / "model.json").write_bytes(model.read_bytes())
        page(folder / each.name, "begin")


def of(name: str, line: Line, personal: bool = False, **more: str) -> Study:
    """Return a study whose clients are all in one arm."""
    arm = Arm(name="treatment", share=1.0, line="main", applies=True, submits=True, personal=personal)
    return Study(**{"name": name, "arms": (arm,), "lines": (replace(line, name="main"),), "enrolment": "hash", **more})
