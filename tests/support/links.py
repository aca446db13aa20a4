"""Lines with upload links."""

from fedping.protocol.links import Upload
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Line
from fedping.protocol.training import OneGradient, Training


def line_with(
    upload: Upload,
    pipeline: Pipeline | None = None,
    spec: ModelSpec | None = None,
    training: Training | None = None,
) -> Line:
    """Return the line 'main' with these links; without a spec, it has two weights."""
    if spec is None:
        weights = tuple(Weight(name, 0.0, Step(start=1, min=1, max=1)) for name in ("a", "b"))
        spec = ModelSpec(name="two", model="any", weights=weights)
    return Line(
        name="main", spec=spec, training=training or OneGradient(), upload=upload, pipeline=pipeline or Pipeline()
    )
