"""Layers for networks whose clients have their own weights.

With a kernel per client, JAX's convolution becomes a grouped convolution, which takes 3 to 7 times as long as the
product of patches here (JAX issues 13800 and 26266).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from fedping.client_sim.learning.networks.network import jax_for


def convolution(
    x: Any,
    kernel: Any,
    window_strides: Sequence[int] = (1, 1),
    padding: str | Sequence[tuple[int, int]] = "SAME",
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    **more: Any,
) -> Any:
    """Return a convolution, computed as a product of patches; a replacement for ``jax.lax.conv_general_dilated``.

    Flax's modules accept it as their setting ``conv_general_dilated``.

    Args:
        x: images, shape (n, height, width, channels), or with any number of axes between the first and the last.
        kernel: shape (height, width, channels, outputs).
        window_strides: a step for each of these axes.
        padding: ``SAME``, ``VALID``, or the padding before and after each of these axes.
        lhs_dilation: as in JAX; values other than 1 use JAX's convolution.
        rhs_dilation: the distance between the kernel's values along each of these axes.
        dimension_numbers: as in JAX; another order of axes uses JAX's convolution.
        more: JAX's other settings; several groups use JAX's convolution.
    """
    jax = jax_for("a convolution")
    axes = x.ndim - 2
    dilation = tuple(rhs_dilation or (1,) * axes)
    if dimension_numbers is not None:
        layout = jax.lax.conv_dimension_numbers(x.shape, kernel.shape, dimension_numbers)
        last = (0, axes + 1, *range(1, axes + 1))
        plain = layout.lhs_spec == last == layout.out_spec and layout.rhs_spec == (axes + 1, axes, *range(axes))
    else:
        plain = True
    groups = more.get("feature_group_count", 1) * more.get("batch_group_count", 1)
    if not plain or groups > 1 or any(each != 1 for each in lhs_dilation or ()):
        more |= {"lhs_dilation": lhs_dilation, "rhs_dilation": rhs_dilation, "dimension_numbers": dimension_numbers}
        return jax.lax.conv_general_dilated(x, kernel, window_strides, padding, **more)
    sides, strides = kernel.shape[:axes], tuple(window_strides)
    spans = [1 + (side - 1) * apart for side, apart in zip(sides, dilation, strict=True)]
    pads: Any = padding
    if isinstance(padding, str):
        pads = jax.lax.padtype_to_pads(x.shape[1:-1], spans, strides, padding)
    x = jax.numpy.pad(x, ((0, 0), *((int(low), int(high)) for low, high in pads), (0, 0)))
    ends = [have - span + 1 for have, span in zip(x.shape[1:-1], spans, strict=True)]
    patches = jax.numpy.concatenate(list(_shifted(x, sides, dilation, ends, strides)), axis=-1)
    flat = patches.reshape(-1, patches.shape[-1]) @ kernel.reshape(-1, kernel.shape[-1])
    return flat.reshape(*patches.shape[:-1], kernel.shape[-1])


def _shifted(
    x: Any, sides: Sequence[int], dilation: Sequence[int], ends: Sequence[int], strides: Sequence[int]
) -> Iterator[Any]:
    """Yield the values that each position of a kernel is multiplied with."""
    for place in product(*map(range, sides)):
        shift = [at * apart for at, apart in zip(place, dilation, strict=True)]
        cut = (slice(low, low + end, step) for low, end, step in zip(shift, ends, strides, strict=True))
        yield x[(slice(None), *cut)]


def max_pool(x: Any, side: int = 2) -> Any:
    """Return the maxima of squares of images, shape (n, height, width, channels); incomplete squares are cut off."""
    n, height, width, channels = x.shape
    high, wide = height // side, width // side
    x = x[:, : high * side, : wide * side]
    return x.reshape(n, high, side, wide, side, channels).max(axis=(2, 4))


def dropout(x: Any, share: float, key: Any) -> Any:
    """Return the values with a random share set to 0 and the others scaled up; unchanged without a key."""
    if key is None or not share:
        return x
    jax = jax_for("dropout")
    there = jax.random.bernoulli(key, 1 - share, x.shape)
    return jax.numpy.where(there, x / (1 - share), 0)
