"""The metrics of one run in long form: a row a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pyarrow as pa

Split: TypeAlias = Literal["train", "validation", "test", "local", "local_worst"]
"""What a metric is of: the cohort as it trained; all clients' validation or test examples together; the mean over the
clients, each on its own test examples; the mean over the worst tenth of them."""

METRICS_SCHEMA = pa.schema(
    [
        ("variant", pa.string()),
        ("seed", pa.int64()),
        ("fold", pa.int16()),
        ("round", pa.int32()),
        ("split", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
    ]
)
"""``fold`` is null without cross-validation; ``round`` is after how many rounds, 0 the start model."""


@dataclass
class MetricLog:
    """Collects the metrics of one run."""

    variant: str
    seed: int
    fold: int | None
    rows: list[tuple[int, str, str, float]] = field(default_factory=list)

    def add(self, round_: int, split: Split, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of one split after a round."""
        self.rows.extend((round_, split, name, float(value)) for name, value in metrics.items())

    def table(self) -> pa.Table:
        """Return all of them as :data:`METRICS_SCHEMA` has it."""
        count = len(self.rows)
        rounds, splits, names, values = zip(*self.rows, strict=True) if count else ((), (), (), ())
        who = [[self.variant] * count, [self.seed] * count, [self.fold] * count]
        arrays = [*who, rounds, splits, names, values]
        columns = [pa.array(column, field.type) for column, field in zip(arrays, METRICS_SCHEMA, strict=True)]
        return pa.table(columns, schema=METRICS_SCHEMA)
