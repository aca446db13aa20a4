"""Runs a framework's compressors on a file of vectors, for `benchmarks.peers.compression`.

Each compressor is called as in its framework, for a single client; encoding and decoding are one call.
"""

# mypy: ignore-errors
from __future__ import annotations

import sys
import time
import zlib

import numpy as np


def fedjax_ways(m):
    """Return FedJAX's compressors by name.

    Each takes a vector and returns the decoded vector, the bits per weight and the sent bytes.
    """
    import jax
    import jax.numpy as jnp
    from fedjax.aggregators import compression

    key = jax.random.PRNGKey(1)
    aggregators = {
        "levels 1": compression.uniform_stochastic_quantizer(2, key),
        "levels 2": compression.uniform_stochastic_quantizer(4, key),
        "levels 2, arithmetic code": compression.uniform_stochastic_quantizer(4, key, "arithmetic"),
        "levels 4": compression.uniform_stochastic_quantizer(16, key),
        "levels 1, rotated": compression.rotated_uniform_stochastic_quantizer(2, key),
        "levels 2, rotated": compression.rotated_uniform_stochastic_quantizer(4, key),
        "levels 4, rotated": compression.rotated_uniform_stochastic_quantizer(16, key),
        "DRIVE": compression.structured_drive_quantizer(key),
        "TernGrad": compression.terngrad_quantizer(key),
    }

    def way(aggregator):
        state = aggregator.init()

        def run(vector):
            nonlocal state
            before = state.num_bits
            found, state = aggregator.apply([(b"client", {"w": jnp.asarray(vector)}, 1.0)], state)
            decoded = np.asarray(found["w"])
            return decoded, (float(state.num_bits) - float(before)) / m, decoded.tobytes()

        return run

    return {name: way(aggregator) for name, aggregator in aggregators.items()}


def flsim_ways(m):
    """Return FLSim's channels by name.

    Each takes a vector and returns the decoded vector, the bits per weight and the sent bytes.
    """
    import torch
    from flsim.channels.message import Message
    from flsim.channels.scalar_quantization_channel import ScalarQuantizationChannel, ScalarQuantizationChannelConfig
    from flsim.channels.sparse_mask_channel import SparseMaskChannel, SparseMaskChannelConfig
    from omegaconf import OmegaConf

    class Module(torch.nn.Module):
        def __init__(self, vector):
            super().__init__()
            self.w = torch.nn.Parameter(torch.from_numpy(vector[None, :].copy()))

    class Model:
        def __init__(self, vector):
            self.module = Module(vector)

        def fl_get_module(self):
            return self.module

    def way(channel):
        def run(vector):
            message = channel._on_client_before_transmission(Message(Model(vector)))
            handed = message.model_state_dict["w"]
            handed_on = (handed.int_repr() if handed.is_quantized else handed.detach()).numpy().tobytes()
            said = 8 * channel._calc_message_size_client_to_server(message) / m
            decoded = channel._on_server_after_reception(message).model_state_dict["w"]
            return decoded.detach().numpy()[0], said, handed_on

        return run

    def quantized(bits):
        return ScalarQuantizationChannel(**OmegaConf.structured(ScalarQuantizationChannelConfig(n_bits=bits)))

    def masked(keep, method):
        return SparseMaskChannel(
            **OmegaConf.structured(SparseMaskChannelConfig(proportion_of_zero_weights=1 - keep, sparsity_method=method))
        )

    channels = {f"levels {bits}": quantized(bits) for bits in (1, 2, 4, 8)}
    channels |= {"mask .1": masked(0.1, "random"), "largest .1": masked(0.1, "topk")}
    return {name: way(channel) for name, channel in channels.items()}


def main(library, vectors, found, draws):
    """Write each compressor's result for each vector, repeated ``draws`` times, to a file."""
    sent = np.load(vectors)
    told = {}
    for name, way in {"FedJAX": fedjax_ways, "FLSim": flsim_ways}[library](sent.shape[1]).items():
        way(sent[0])  # compiles
        decoded = np.empty((int(draws), *sent.shape), np.float32)
        said = []
        began = time.process_time()
        for draw in decoded:
            for place, vector in enumerate(sent):
                draw[place], bits, handed = way(vector)
                said.append(bits)
        seconds = (time.process_time() - began) / len(said)
        bits = (8 * len(each) / sent.shape[1] for each in (handed, zlib.compress(handed, 6)))
        told[f"{name}/decoded"] = decoded
        told[f"{name}/told"] = np.array([np.mean(said), *bits, seconds])
    np.savez(found, **told)


if __name__ == "__main__":
    main(*sys.argv[1:])
