"""Networks that predict the next symbol of a text: an LSTM for characters, and a transformer for words."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from fedping.client_sim.learning.models.arrays import Precision
from fedping.client_sim.learning.networks.layers import dropout
from fedping.client_sim.learning.networks.network import Network, jax_for
from fedping.client_sim.learning.networks.shipped import (
    Arrays,
    StartOf,
    dense,
    glorot,
    init_of,
    normal,
    ones,
    shipped,
    zeros,
)
from fedping.client_sim.learning.networks.tree_model import TreeModel
from fedping.client_sim.learning.settings import Settings
from fedping.protocol.errors import InvalidSettings

LSTM, TRANSFORMER = "lstm", "transformer"

Scored: TypeAlias = Literal["all", "last"]
"""The symbols in a loss: each next symbol of a sequence, or only the symbol after its end."""


class Sequences(NamedTuple):
    """Examples of both networks: sequences of symbols' numbers, and the symbol after each.

    Attributes:
        length: the number of symbols of a sequence.
        symbols: number of symbols.
        scored: the symbols in the loss.
        padding: the number that stands for no symbol; None without padding.
    """

    length: int
    symbols: int
    scored: Scored
    padding: int | None

    @classmethod
    def of(cls, settings: Settings) -> Sequences:
        """Return the sequences that the settings ``features``, ``classes``, ``scored`` and ``padding`` describe."""
        length, symbols = settings.whole("features"), settings.whole("classes", least=2)
        scored = cast("Scored", settings.choice("scored", ("all", "last")))
        padding = settings.whole("padding", least=0) if settings.has("padding") else None
        if padding is not None and padding >= symbols:
            raise InvalidSettings(
                f"the setting 'padding' of the model '{settings.model}' is {padding}, and there are {symbols} classes, "
                "from 0; set it to the number of the symbol that stands for none"
            )
        return cls(length, symbols, scored, padding)

    def losses(self, outputs: Any, y: Any, x: Any) -> Any:
        """Return each sequence's mean cross-entropy over its symbols, given log-odds, shape (n, length, symbols)."""
        jax = jax_for("a network")
        jnp = jax.numpy
        nexts = jnp.concatenate([x[:, 1:], y[:, None].astype(x.dtype)], axis=1).astype("int32")
        counts = jnp.ones(nexts.shape, outputs.dtype)
        if self.padding is not None:
            counts = counts * (nexts != self.padding)
        if self.scored == "last":
            outputs, nexts, counts = outputs[:, -1:], nexts[:, -1:], counts[:, -1:]
        of = jnp.take_along_axis(outputs, nexts[..., None], axis=-1)[..., 0]
        each = jax.nn.logsumexp(outputs, axis=-1) - of
        return (each * counts).sum(axis=1) / jnp.maximum(counts.sum(axis=1), 1)

    def network(self, arrays: Arrays, apply: Any) -> Network:
        """Return the network of these arrays and of a function that returns log-odds, shape (n, length, symbols)."""
        return Network(
            init_of(arrays),
            apply,
            (self.length,),
            loss=self.losses,
            predict=lambda outputs: outputs[:, -1],
            predicts="log_odds",
            vocabulary=self.symbols,
        )


def lstm(settings: Settings) -> TreeModel:
    """Return a network of LSTM layers that predicts the next character (McMahan et al. 2017, Reddi et al. 2021).

    An example is a sequence of ``features`` numbers of characters, and its class is the next character; ``classes`` is
    the number of characters. ``embedding`` (8) is the width of a character, ``units`` the width of each layer ("256,
    256"). ``scored`` are the characters in the loss: ``all`` that follow another, or only the ``last``, without those
    whose number is ``padding``. Further settings are ``seed`` (0) and ``precision`` (``float32`` or ``float64``).
    """
    sequences = Sequences.of(settings)
    embedding, seed = settings.whole("embedding", 8), settings.whole("seed", 0, least=0)
    units = settings.wholes("units", 256) if settings.has("units") else (256, 256)
    precision = cast("Precision", settings.choice("precision", ("float32", "float64")))
    arrays = _lstm_arrays(sequences.symbols, embedding, units)
    return shipped(LSTM, _lstm(sequences, embedding, units), arrays, seed, precision)


def _lstm_arrays(symbols: int, embedding: int, units: tuple[int, ...]) -> Arrays:
    arrays: dict[str, tuple[tuple[int, ...], StartOf]] = {"embedding.table": ((symbols, embedding), normal(0.05))}
    width = embedding
    for number, each in enumerate(units, 1):
        arrays[f"lstm{number}.kernel"] = ((width, 4 * each), glorot(width, 4 * each))
        arrays[f"lstm{number}.recurrent"] = ((each, 4 * each), normal(1 / math.sqrt(each)))
        arrays[f"lstm{number}.bias"] = ((4 * each,), zeros)
        width = each
    return arrays | dense("head", width, symbols)


@lru_cache(maxsize=32)
def _lstm(sequences: Sequences, embedding: int, units: tuple[int, ...]) -> Network:
    def apply(weights: Any, x: Any) -> Any:
        jax = jax_for(f"the model '{LSTM}'")
        jnp = jax.numpy
        states = weights["embedding.table"][x.astype("int32")]
        for number, width in enumerate(units, 1):
            inputs = states @ weights[f"lstm{number}.kernel"] + weights[f"lstm{number}.bias"]
            recurrent = weights[f"lstm{number}.recurrent"]

            def step(carry: Any, now: Any, recurrent: Any = recurrent) -> Any:
                output, cell = carry
                enters, forgets, new, leaves = jnp.split(now + output @ recurrent, 4, axis=-1)
                # The forget gate's bias has an additional 1, so that it begins open (Jozefowicz et al. 2015).
                cell = jax.nn.sigmoid(forgets + 1) * cell + jax.nn.sigmoid(enters) * jnp.tanh(new)
                output = jax.nn.sigmoid(leaves) * jnp.tanh(cell)
                return (output, cell), output

            first = jnp.zeros((len(x), width), inputs.dtype)
            states = jax.lax.scan(step, (first, first), inputs.swapaxes(0, 1))[1].swapaxes(0, 1)
        return states @ weights["head.kernel"] + weights["head.bias"]

    return sequences.network(_lstm_arrays(sequences.symbols, embedding, units), apply)


class _Shape(NamedTuple):
    """The sizes of a transformer: its width, layers, heads and dropout."""

    width: int
    layers: int
    heads: int
    dropout: float


def transformer(settings: Settings) -> TreeModel:
    """Return a small transformer that predicts the next word (Vaswani et al. 2017; layer norm first, as GPT-2).

    An example is a sequence of ``features`` numbers of words, and its class is the next word; ``classes`` is the number
    of words. ``width`` (64) is the width of a word, ``layers`` (2) and ``heads`` (4) are their numbers, and ``dropout``
    (0.1) is the dropped share. ``scored`` and ``padding`` have the meanings of the model ``lstm``. Further settings are
    ``seed`` (0) and ``precision`` (``float32`` or ``float64``).
    """
    sequences = Sequences.of(settings)
    shape = _Shape(
        settings.whole("width", 64),
        settings.whole("layers", 2),
        settings.whole("heads", 4),
        settings.number("dropout", 0.1),
    )
    seed = settings.whole("seed", 0, least=0)
    precision = cast("Precision", settings.choice("precision", ("float32", "float64")))
    if shape.width % shape.heads:
        raise InvalidSettings(
            f"the model '{TRANSFORMER}' has width = {shape.width}, which {shape.heads} heads don't divide; set 'width' "
            "to a multiple of 'heads'"
        )
    if shape.dropout >= 1:
        raise InvalidSettings(
            f"the setting 'dropout' of the model '{TRANSFORMER}' is {shape.dropout:g}; set it below 1"
        )
    return shipped(TRANSFORMER, _transformer(sequences, shape), _transformer_arrays(sequences, shape), seed, precision)


def _transformer_arrays(sequences: Sequences, shape: _Shape) -> Arrays:
    width = shape.width
    arrays: dict[str, tuple[tuple[int, ...], StartOf]] = {
        "embedding.table": ((sequences.symbols, width), normal(0.02)),
        "embedding.places": ((sequences.length, width), normal(0.02)),
        "norm.scale": ((width,), ones),
        "norm.bias": ((width,), zeros),
        "head.bias": ((sequences.symbols,), zeros),
    }
    for layer in range(1, shape.layers + 1):
        for norm in (f"layer{layer}.norm1", f"layer{layer}.norm2"):
            arrays |= {f"{norm}.scale": ((width,), ones), f"{norm}.bias": ((width,), zeros)}
        arrays |= dense(f"layer{layer}.attention", width, 3 * width) | dense(f"layer{layer}.joined", width, width)
        arrays |= dense(f"layer{layer}.hidden", width, 4 * width) | dense(f"layer{layer}.output", 4 * width, width)
    return arrays


@lru_cache(maxsize=32)
def _transformer(sequences: Sequences, shape: _Shape) -> Network:
    def apply(weights: Any, x: Any, key: Any) -> Any:
        jax = jax_for(f"the model '{TRANSFORMER}'")
        jnp, count = jax.numpy, 1 + 2 * shape.layers
        keys = iter(jax.random.split(key, count) if key is not None and shape.dropout else [None] * count)

        def dense_by(name: str, x: Any) -> Any:
            return x @ weights[f"{name}.kernel"] + weights[f"{name}.bias"]

        def norm_by(name: str, x: Any) -> Any:
            centred = x - x.mean(axis=-1, keepdims=True)
            scaled = centred / jnp.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)
            return scaled * weights[f"{name}.scale"] + weights[f"{name}.bias"]

        def attended(name: str, x: Any) -> Any:
            n, length, width = x.shape
            parts = dense_by(f"{name}.attention", x).reshape(n, length, 3, shape.heads, width // shape.heads)
            query, key_, value = jnp.moveaxis(parts, 2, 0)
            scores = jnp.einsum("nqhd,nkhd->nhqk", query, key_) / math.sqrt(width // shape.heads)
            before = jnp.tril(jnp.ones((length, length), bool))
            shares = jax.nn.softmax(jnp.where(before, scores, -1e9), axis=-1)
            found = jnp.einsum("nhqk,nkhd->nqhd", shares, value).reshape(n, length, width)
            return dense_by(f"{name}.joined", found)

        table = weights["embedding.table"]
        state = dropout(table[x.astype("int32")] + weights["embedding.places"], shape.dropout, next(keys))
        for layer in range(1, shape.layers + 1):
            name = f"layer{layer}"
            state = state + dropout(attended(name, norm_by(f"{name}.norm1", state)), shape.dropout, next(keys))
            hidden = jax.nn.gelu(dense_by(f"{name}.hidden", norm_by(f"{name}.norm2", state)))
            state = state + dropout(dense_by(f"{name}.output", hidden), shape.dropout, next(keys))
        return norm_by("norm", state) @ table.T + weights["head.bias"]

    def without_keys(weights: Any, x: Any) -> Any:
        return apply(weights, x, None)

    arrays = _transformer_arrays(sequences, shape)
    return sequences.network(arrays, apply if shape.dropout else without_keys)
