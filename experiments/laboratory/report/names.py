"""How a report writes the names of metrics."""

from __future__ import annotations

_WRITTEN = {"auc": "AUC", "f1": "F1", "mse": "MSE", "rmse": "RMSE", "mae": "MAE", "r2": "R²"}


def shown_as(metric: str) -> str:
    """Return a metric's name as people write it, as in "AUC" or "F1 of 3"."""
    head, *rest = metric.split("_")
    return " ".join([_WRITTEN.get(head, head), *rest])
