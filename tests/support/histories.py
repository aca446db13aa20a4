"""Recorded histories of a line over its rounds, from which figures are drawn."""

import numpy as np

from fedping.analysis.curves import ArmCurve
from fedping.analysis.rounds import RoundTraffic, SubsampleQuality

ARMS = ["treatment", "control", "control-no-decay"]
CURVES = {
    "treatment": ArmCurve(tuple(range(8)), (80, 70, 60, 50, 40, 30, 20, 10), (0.4,) * 8, (600,) * 8),
    "control": ArmCurve(tuple(range(8)), (81.0,) * 8, (0.3,) * 8, (200,) * 8),
}
DAY_MS = 86_400_000
TRAFFIC = RoundTraffic(
    iterations=tuple(range(6)),
    ended_ms=tuple(17_000 * DAY_MS + hour * 3_600_000 for hour in (20, 22, 23, 25, 30, 40)),
    arms={"treatment": (6, 7, 8, 9, 10, 11), "control": (2, 2, 2, 3, 3, 4)},
)
QUALITY = SubsampleQuality(
    size=100,
    iterations=(3, 4, 9),
    pings=(1000, 150, 1000),
    update=np.array([[1.0, 3.0], [4.0, 4.0], [2.0, 6.0]]),
    signs=np.array([[0.0, 2.0], [4.0, 4.0], [2.0, 2.0]]),
    loss=np.array([[5.0, 7.0], [1.0, 1.0], [0.0, 1.0]]),
    skipped={0: 10},
)
