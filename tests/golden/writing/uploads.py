"""Writes a line with three versions for every list of upload links."""

from pathlib import Path

from fedping.protocol.links import Dense, Eden, Float32, Levels, LowRank, Mask, Rotation, Sign, Signs, Steps, Upload
from fedping.protocol.pipeline import MeanOfSigns
from fedping.protocol.spec import Block, ModelSpec
from fedping.protocol.training import LocalSteps
from tests.golden.writing.common import STEP, grown, line, stored, study, weights

UPLOADS: dict[str, Upload] = {
    "dense": (Dense(),),
    "float32": (Float32(),),
    "sign": (Sign(),),
    "signs": (Signs(zero="up"),),
    "mask": (Mask(keep=0.25),),
    "independent": (Mask(keep=0.25, draw="independent"),),
    "levels": (Levels(bits=2),),
    "rotated-levels": (Levels(bits=4, rotate=True),),
    "rotation": (Rotation(seed=5), Levels(bits=8)),
    "eden": (Eden(bits=2),),
    "steps": (Steps(size=0.5),),
    "masked-steps": (Mask(keep=0.5), Steps(size=1.0)),
    "masked-floats": (Mask(keep=0.5), Float32()),
}
LINES = tuple(
    line(name, upload=upload, m=24, **({"aggregate": MeanOfSigns()} if name.startswith("sign") else {}))
    for name, upload in UPLOADS.items()
)
MATRIX = ModelSpec(name="low-rank", model="any", weights=weights(2), blocks=(Block(name="b", shape=(6, 5), step=STEP),))
LINES += (line("low-rank", spec=MATRIX, upload=(LowRank(rank=2),), training=LocalSteps(rate=0.5, epochs=1)),)


def write(folder: Path) -> None:
    made = study("uploads", LINES)
    stored(folder, made)
    grown(folder, made)
