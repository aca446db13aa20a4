"""The topic `proofs` of `docs/conformance/`: shares of bits, with proofs that they are bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedping.protocol.proofs.prio3 import NONCE_BYTES, RAND_BYTES, shard
from fedping.protocol.proofs.sum_vec import SumVec

if TYPE_CHECKING:
    from tests.conformance.draw import Draw

_LENGTHS = (1, 2, 7, 22, 52)


def proofs(draw: Draw) -> dict[str, Any]:
    """Return bits, and the shares and proofs that clients send."""
    return {"cases": [_case(draw, length, context) for length in _LENGTHS for context in ("", f"study|main|{length}")]}


def _case(draw: Draw, length: int, context: str) -> dict[str, Any]:
    bits = [draw.whole(0, 1) for _ in range(length)]
    nonce, rand = ([draw.whole(0, 255) for _ in range(size)] for size in (NONCE_BYTES, RAND_BYTES))
    shares = shard(
        SumVec.shortest(length),
        np.array([bits]),
        np.array([nonce], np.uint8),
        np.array([rand], np.uint8),
        context.encode(),
    )
    return {
        "bits": bits,
        "nonce": bytes(nonce).hex(),
        "rand": bytes(rand).hex(),
        "context": context,
        **{name: rows.tobytes().hex() for name, rows in shares._asdict().items()},
    }
