"""Columns on Spark that several counts share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedping.analysis.study.metrics import Window
from fedping.protocol.enrolment import Assignment

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def dealt_arm(dealt: Assignment) -> Column:
    """Return the number of the arm that a client id is assigned to; null without one (`fedping.protocol.enrolment`)."""
    from pyspark.sql import functions as F  # noqa: N812

    digits = F.lower(F.hex("client_id"))
    parts = [F.substring(digits, start, length) for start, length in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))]
    digest = F.sha2(F.concat(F.lit(f"{dealt.study}\n"), F.concat_ws("-", *parts)), 256)
    number = F.lit(None).cast("int")
    for i, limit in reversed(list(enumerate(dealt.limits))):
        arm = F.lit(dealt.of[i] if dealt.of[i] >= 0 else None).cast("int")
        number = F.when(digest < limit.hex(), arm).otherwise(number)
    return number


def in_window(window: Window) -> Column:
    """Return whether a ping belongs to one of a window's versions."""
    from pyspark.sql import functions as F  # noqa: N812

    inside = F.lit(True)
    if window.first is not None:
        inside &= F.col("model_version") >= window.first
    return inside if window.last is None else inside & (F.col("model_version") <= window.last)


def counted_values(kind: str, rows: DataFrame) -> DataFrame:
    """Return rows (kind, arm, value, count) from rows (arm, value)."""
    from pyspark.sql import functions as F  # noqa: N812

    counts = rows.groupBy("arm", "value").agg(F.count(F.lit(1)).alias("count"))
    return counts.select(F.lit(kind).alias("kind"), "arm", "value", "count")


def on_grid(value: Column, digits: int) -> Column:
    """Return a number rounded to some significant digits, as a double; integers with no more digits are unchanged."""
    from pyspark.sql import functions as F  # noqa: N812

    value = value.cast("double")
    scale = F.pow(F.lit(10.0), F.lit(digits - 1) - F.floor(F.log10(F.abs(value))))
    small = (value == F.rint(value)) & (F.abs(value) < 10.0**digits)
    return F.when(small, value).otherwise(F.rint(value * scale) / scale)
