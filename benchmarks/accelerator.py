"""Rounds of pfl-research's CIFAR-10 task, compiled as a whole, on JAX's default device (a GPU if available).

    python -m benchmarks.accelerator [--rounds 300] [--runs 2] [--convolution patches lax] [--json] [--pfl]

50 of 1,000 clients take part in a round, each with 50 images of CIFAR-10's shape, in one epoch of batches of 10, with a
CNN of 1.6 million weights (two convolutions, pooling, two layers); the server uses the mean. The images are noise
around ten patterns, made here. A round's time is the time of a call of ``--every`` rounds (after the first, which
compiles) divided by the number of rounds; ``whole`` is the time of all rounds of a run, including compilation and the
evaluation of 10,000 images at the end of each call. Both are measured with each convolution: as patches and a product,
and JAX's own, which becomes a grouped convolution if clients have their own weights.

``--pfl`` runs pfl-research (pfl 0.6.0 with PyTorch) on the same images on the same device in the same call, if it is
installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Printed

import fedping
from fedping.client_sim.data import Iid, example_data
from fedping.client_sim.data.table import Target
from fedping.client_sim.learning import learner_for, model_spec
from fedping.client_sim.learning.networks import layers
from fedping.client_sim.sampling.samplers import Uniform
from fedping.experiments.laboratory.evaluation import measure
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.rounds.compiled import CompiledRounds
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.data import Data
from fedping.experiments.laboratory.settings.setup import Evaluation
from fedping.experiments.laboratory.tallies import Classification
from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.training import LocalSteps

SIDE, CHANNELS, CLASSES = 32, 3, 10
CLIENTS, COHORT, IMAGES, BATCH, RATE = 1_000, 50, 50, 10, 0.05
TEST = 10_000
SHAPES = {
    "conv1": (3, 3, CHANNELS, 32),
    "bias1": (32,),
    "conv2": (3, 3, 32, 64),
    "bias2": (64,),
    "full1": (14 * 14 * 64, 128),
    "bias3": (128,),
    "full2": (128, CLASSES),
    "bias4": (CLASSES,),
}


def network(convolve: Any) -> fedping.Network:
    """Return the CNN that uses ``convolve``, a function of (images, kernel)."""
    import jax
    from jax import numpy as jnp

    def init(key: Any) -> Any:
        keys = dict(zip(SHAPES, jax.random.split(key, len(SHAPES)), strict=True))
        return {
            name: jax.random.uniform(keys[name], shape, minval=-1, maxval=1) / math.sqrt(math.prod(shape[:-1]))
            if len(shape) > 1
            else jnp.zeros(shape)
            for name, shape in SHAPES.items()
        }

    def apply(weights: Any, x: Any) -> Any:
        found = jax.nn.relu(convolve(x, weights["conv1"]) + weights["bias1"])
        found = layers.max_pool(jax.nn.relu(convolve(found, weights["conv2"]) + weights["bias2"]))
        found = jax.nn.relu(found.reshape(len(found), -1) @ weights["full1"] + weights["bias3"])
        return found @ weights["full2"] + weights["bias4"]

    return fedping.Network(init, apply, shape=(SIDE, SIDE, CHANNELS))


@fedping.model("images-patches")
def images_patches() -> fedping.Network:
    """Return the CNN with convolutions as patches and a product."""
    return network(lambda x, kernel: layers.convolution(x, kernel, padding="VALID"))


@fedping.model("images-lax")
def images_lax() -> fedping.Network:
    """Return the CNN with JAX's own convolutions, as in Flax's modules."""
    from jax import lax

    order = ("NHWC", "HWIO", "NHWC")
    return network(lambda x, kernel: lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=order))


@cache
def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return synthetic images as rows, and their classes."""
    patterns = np.random.default_rng(0).standard_normal((CLASSES, SIDE * SIDE * CHANNELS), np.float32)
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, count)
    x = random.standard_normal((count, SIDE * SIDE * CHANNELS), np.float32) + 0.1 * patterns[y]
    return x, y


@dataclass(frozen=True)
class Measured:
    """A run's results, and its seconds: of a round, of the compiling call, and of all rounds with evaluations.

    ``digest`` is the digest of the last version's bytes, which depends only on the seed.
    """

    work: str
    device: str
    round_seconds: float
    first_call_seconds: float
    whole_seconds: float
    rounds: int
    accuracy: float
    digest: str = ""


def problem_of(convolution: str, rounds: int, every: int, seed: int) -> tuple[Setup, Problem]:
    """Return the experiment and its data."""
    spec = model_spec(f"images-{convolution}")
    target = Target("class", tuple(map(str, range(CLASSES))))
    train = example_data(*images(CLIENTS * IMAGES, seed), np.full(CLIENTS, IMAGES), target=target)
    test = example_data(*images(TEST, seed + 1000), np.array([TEST]), target=target)
    training = LocalSteps(epochs=1, batch=BATCH, rate=RATE)
    setup = Setup(
        model={"name": f"images-{convolution}"},
        data=Data(name="given"),
        partition=Iid(clients=CLIENTS),
        sampling=Uniform(clients=COHORT),
        training=training,
        pipeline=Pipeline(optimizer=GradientDescent(rate=1.0), weighting="examples", min_clients=1),
        evaluation=Evaluation(every=every),
        rounds=rounds,
        engine="jax",
    )
    nobody = test.only(np.zeros(TEST, np.bool_))
    problem = Problem(
        setup.line(spec), learner_for(spec, training), train, nobody, test, Classification(CLASSES), seed=seed
    )
    return setup, problem


def run(convolution: str, rounds: int, every: int, seed: int) -> Measured:
    """Run all rounds and return their costs and results."""
    import jax

    began = time.perf_counter()
    setup, problem = problem_of(convolution, rounds, every, seed)
    made, calls, accuracy = CompiledRounds(setup, problem), [], math.nan
    while sum(each[1] for each in calls) < rounds:
        call = time.perf_counter()
        done = 0
        while done < min(every, rounds - sum(each[1] for each in calls)):
            made.run([])
            done += 1
        calls.append((time.perf_counter() - call, done))
        accuracy = measure(problem, made.weights, local=False)["test"]["accuracy"]
    later = [seconds / done for seconds, done in calls[1:]] or [calls[0][0] / calls[0][1]]
    return Measured(
        f"fedping, {convolution}",
        str(jax.devices()[0].device_kind),
        statistics.median(later),
        calls[0][0],
        time.perf_counter() - began,
        rounds,
        accuracy,
        hashlib.sha256(made.weights.tobytes()).hexdigest()[:12],
    )


def with_pfl(rounds: int, seed: int) -> Measured | str:
    """Return the result of pfl-research's run in a separate process, or the reason why there is none."""
    worker = Path(__file__).parent / "peers" / "pfl_images_worker.py"
    command = [sys.executable, str(worker), str(rounds), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    told = [line for line in done.stdout.splitlines() if line.startswith("MEASURED ")]
    return Measured(**json.loads(told[-1].removeprefix("MEASURED "))) if told else done.stderr.strip()[-1500:]


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--every", type=int, default=50, help="rounds between two evaluations")
    parser.add_argument("--runs", type=int, default=1, help="runs, each with another seed")
    parser.add_argument("--convolution", nargs="+", choices=("patches", "lax"), default=["patches", "lax"])
    parser.add_argument("--pfl", type=int, default=0, metavar="ROUNDS", help="rounds of pfl-research; 0 for none")
    given = parser.parse_args()
    rows: list[Measured] = []
    for seed in range(given.runs):
        for convolution in given.convolution:
            rows.append(run(convolution, given.rounds, given.every, seed))
            print(rows[-1], file=sys.stderr, flush=True)
    if given.pfl:
        found = with_pfl(given.pfl, 0)
        if isinstance(found, str):
            print(f"pfl-research did not run: {found}", file=sys.stderr)
        else:
            rows.append(found)
    if given.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    printed = Printed("work", "device", "s a round", "s of the first call", "s of all rounds", "rounds", "accuracy")
    for row in rows:
        seconds = (f"{row.round_seconds:.4f}", f"{row.first_call_seconds:.1f}", f"{row.whole_seconds:.1f}")
        printed.add_row(row.work, row.device, *seconds, f"{row.rounds:,}", f"{row.accuracy:.3f}")
    Console(width=120).print(printed)


if __name__ == "__main__":
    main()
