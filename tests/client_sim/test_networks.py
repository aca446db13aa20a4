"""Networks as models: named arrays, keys, modes, and modules of Flax and Equinox."""

from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from fedping.client_sim.learning import cohort_updates, learner_for, model_spec
from fedping.client_sim.learning.algorithms import algorithm_for, with_more
from fedping.client_sim.learning.batch import Examples, with_keys_of_step
from fedping.client_sim.learning.checking import check_buffers
from fedping.client_sim.learning.models.network import Network as BuiltIn
from fedping.client_sim.learning.personal.method import named
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.pipeline import Adam, GradientDescent, Pipeline
from fedping.protocol.spec import Numbers
from fedping.protocol.training import LocalSteps, OneGradient
from fedping.protocol.weights import start_values

pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("equinox")

import equinox
import jax
from flax import linen, nnx
from jax import numpy as jnp

import fedping
from fedping.client_sim.learning.networks.layers import convolution, max_pool
from fedping.client_sim.learning.networks.tree_model import TreeModel, has_convolutions, tree_model
from tests.support import networks

KEYS = np.arange(3, dtype=np.uint64) + np.uint64(2**63)
NAMES = {
    "of-linen": ["body.bias", "body.kernel", "head.bias", "head.kernel"],
    "of-nnx": ["body.bias", "body.kernel", "head.bias", "head.kernel"],
    "of-equinox": ["body.weight", "body.bias", "head.weight", "head.bias"],
}


def examples(features: int = 64, classes: int = 4, seed: int = 0) -> Examples:
    random = np.random.default_rng(seed)
    weight = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0.0]])
    return Examples(random.normal(size=(3, 5, features)), random.integers(0, classes, (3, 5)), weight)


def model_of(name: str) -> tuple[TreeModel, np.ndarray]:
    spec = model_spec(name, {"classes": 4, "seed": 2})
    model = learner_for(spec)
    assert isinstance(model, TreeModel)
    assert [block.name for block in spec.blocks] == NAMES[name]
    return model, spec.start_array


@pytest.mark.parametrize("name", NAMES)
def test_a_module_gets_its_arrays_its_mode_and_its_keys(name: str) -> None:
    model, start = model_of(name)
    batch = examples()
    dropped = [model.gradients(start, with_keys_of_step(batch, KEYS, step)) for step in (0, 0, 1)]
    np.testing.assert_array_equal(dropped[0], dropped[1])
    assert (np.abs(dropped[2] - dropped[0])[:2].max(axis=1) > 1e-3).all(), "another step, other keys"
    losses, gradients = model.losses_and_gradients(start, batch)
    assert (np.abs(gradients - dropped[0])[:2].max(axis=1) > 1e-3).all(), "nothing is dropped outside training"
    assert not gradients[2].any()
    np.testing.assert_allclose(losses, model.losses(start, batch), rtol=1e-6)
    of_training = model.losses_and_gradients(start, with_keys_of_step(batch, KEYS, 0))
    np.testing.assert_array_equal(of_training[0], model.losses(start, batch))
    shares = model.predict(np.tile(start, (3, 1)), batch)
    np.testing.assert_allclose(shares, model.predict(start, batch), atol=1e-6)
    chosen = np.take_along_axis(shares, batch.y[..., None], axis=2)[..., 0]
    np.testing.assert_allclose(losses[:2], [-np.log(chosen[0]).mean(), -np.log(chosen[1, :3]).mean()], rtol=1e-5)


def test_gradients_are_those_of_the_module_itself() -> None:
    module = networks.OfLinen(4, quick=False)
    model, start = model_of("of-linen")
    batch = examples()

    def loss(weights: Any, x: Any, y: Any) -> Any:
        log_odds = module.apply({"params": weights}, x.reshape(-1, 8, 8, 1))
        return -jax.nn.log_softmax(log_odds)[jnp.arange(len(y)), y].mean()

    weights = model.network.structure.tree(jnp.asarray(start, "float32"))
    for client, count in ((0, 5), (1, 3)):
        value, slopes = jax.value_and_grad(loss)(weights, batch.x[client, :count], batch.y[client, :count])
        found, gradients = model.losses_and_gradients(start, batch)
        assert found[client] == pytest.approx(float(value), rel=1e-5)
        np.testing.assert_allclose(gradients[client], model.network.structure.flat(slopes), atol=2e-6)


def test_what_a_client_draws_depends_on_no_other_client() -> None:
    model, start = model_of("of-nnx")
    training, batch = LocalSteps(rate=0.1, epochs=2, batch=2), examples()
    together = cohort_updates(model, training, start, batch, KEYS).updates
    for client in (0, 1):
        alone = Examples(*(each[[client]] for each in (batch.x, batch.y, batch.weight)))
        np.testing.assert_allclose(
            cohort_updates(model, training, start, alone, KEYS[[client]]).updates[0], together[client], atol=1e-6
        )


def test_many_examples_come_to_the_mean_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    model, start = model_of("of-linen")
    random = np.random.default_rng(1)
    many = Examples(random.normal(size=(2, 300, 64)), random.integers(0, 4, (2, 300)), np.ones((2, 300)))
    many = with_keys_of_step(many, KEYS[:2], 3)
    losses, gradients = model.losses_and_gradients(start, many)
    monkeypatch.setattr("fedping.client_sim.learning.networks.tree_model._NUMBERS", 1)
    again, same = model.losses_and_gradients(start, many)
    np.testing.assert_allclose(again, losses, rtol=1e-6)
    np.testing.assert_allclose(same, gradients, atol=1e-6)


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((2, 0), (1, 3))])
@pytest.mark.parametrize(("strides", "dilation"), [((1, 1), (1, 1)), ((2, 3), (1, 1)), ((1, 2), (2, 1))])
def test_a_product_of_patches_is_a_convolution(padding: Any, strides: Any, dilation: Any) -> None:
    random = np.random.default_rng(0)
    x, kernel = random.normal(size=(2, 9, 8, 3)).astype("float32"), random.normal(size=(3, 2, 3, 4)).astype("float32")
    numbers = ("NHWC", "HWIO", "NHWC")
    wanted = jax.lax.conv_general_dilated(x, kernel, strides, padding, None, dilation, numbers)
    found = convolution(x, kernel, strides, padding, None, dilation, numbers)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_slow_convolutions_are_found() -> None:
    for quick in (True, False):
        network = fedping.flax_network(networks.OfLinen(4, quick=quick), (8, 8, 1))
        assert has_convolutions(network) is not quick
    assert has_convolutions(fedping.equinox_network(lambda key: networks.OfEquinox(4, key), 64))


def test_maxima_of_squares() -> None:
    x = np.arange(30.0).reshape(1, 5, 6, 1)
    np.testing.assert_array_equal(max_pool(x)[0, ..., 0], [[7, 9, 11], [19, 21, 23]])


class LinenNorm(linen.Module):
    @linen.compact
    def __call__(self, x, train=False):  # type: ignore[no-untyped-def]
        x = linen.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)
        return linen.Dense(2, name="head")(x)


class NnxNorm(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.norm(x))


class EquinoxNorm(equinox.Module):
    norm: equinox.nn.BatchNorm

    def __init__(self, key: Any) -> None:
        self.norm = equinox.nn.BatchNorm(4, "batch", mode="batch")

    def __call__(self, x: Any, state: Any) -> Any:
        return self.norm(x, state)


@pytest.mark.parametrize(
    ("make", "instead"),
    [
        (lambda: fedping.flax_network(LinenNorm(), 4), "flax.linen.GroupNorm"),
        (lambda: fedping.flax_network(NnxNorm, 4), "flax.nnx.GroupNorm"),
        (lambda: fedping.equinox_network(EquinoxNorm, 4), "equinox.nn.GroupNorm"),
        (lambda: fedping.equinox_network(equinox.nn.make_with_state(EquinoxNorm), 4), "equinox.nn.GroupNorm"),
    ],
)
def test_batch_norm_is_refused_with_what_to_use(make: Any, instead: str) -> None:
    with pytest.raises(InvalidSettings, match=f"buffers, such as .*Use group norm .{instead}"):
        make()


@pytest.mark.parametrize("make", [LinenNorm(), NnxNorm], ids=["linen", "nnx"])
def test_statistics_move_as_the_module_moves_them_whatever_the_rate(make: Any) -> None:
    model = tree_model("norm", fedping.flax_network(make, 4, buffers="average"), 0)
    assert [block.name for block in model.arrays] == [
        "head.bias", "head.kernel", "norm.bias", "norm.mean", "norm.scale", "norm.var",
    ]  # fmt: skip
    batch = examples(4, 2)
    training = LocalSteps(rate=0.25, steps=2, proximal=0.5)
    updates, losses, _ = cohort_updates(model, training, model.start, batch, KEYS)
    np.testing.assert_array_equal(updates[2], 0)
    module, start = LinenNorm(), model.network.structure.tree(jnp.asarray(model.start, "float32"))
    for client, count in ((0, 5), (1, 3)):
        x, y, tree = jnp.asarray(batch.x[client, :count], "float32"), batch.y[client, :count], start
        for _ in range(2):

            def loss(weights: Any, x: Any = x, y: Any = y, tree: Any = tree) -> Any:
                stats = {"norm": {name: tree["norm"][name] for name in ("mean", "var")}}
                outputs, after = module.apply(
                    {"params": weights, "batch_stats": stats}, x, train=True, mutable=["batch_stats"]
                )
                return -jax.nn.log_softmax(outputs)[jnp.arange(len(y)), y].mean(), after["batch_stats"]["norm"]

            weights = {"head": tree["head"], "norm": {name: tree["norm"][name] for name in ("bias", "scale")}}
            slopes, stats = jax.grad(loss, has_aux=True)(weights)
            stepped = jax.tree_util.tree_map(
                lambda now, slope, first: first + (now - first - 0.25 * slope) / (1 + 0.25 * 0.5),
                weights, slopes, {"head": start["head"], "norm": {n: start["norm"][n] for n in ("bias", "scale")}},
            )  # fmt: skip
            tree = {"head": stepped["head"], "norm": stepped["norm"] | stats}
        moved = model.network.structure.flat(tree) - model.start
        np.testing.assert_allclose(updates[client], moved, atol=2e-6)
        assert np.abs(updates[client, model.buffers]).max() > 0.01
    np.testing.assert_allclose(losses[:2], model.losses(model.start, batch)[:2], rtol=1e-6)


def test_what_would_come_to_nothing_with_statistics_is_refused() -> None:
    averaged = tree_model("norm", fedping.flax_network(LinenNorm(), 4, buffers="average"), 0)
    local = tree_model("norm", fedping.flax_network(LinenNorm(), 4, buffers="local"), 0)
    steps = {"algorithm": "local", "rate": 0.1, "steps": 1}
    kept = msgspec.convert(steps | {"personal": {"by": "partly_local", "rate": 0.1, "local": ["norm"]}}, LocalSteps)
    shared = msgspec.convert(steps, LocalSteps)
    mean, adam = Pipeline(optimizer=GradientDescent()), Pipeline(optimizer=Adam(rate=0.1))
    check_buffers(averaged, shared, mean)
    check_buffers(with_more(local, kept), kept, adam)
    for model, training, pipeline, says in (
        (averaged, OneGradient(), mean, "'norm.mean', which move only in local steps of plain descent"),
        (averaged, shared, adam, "a server takes that adds the mean"),
        (local, shared, mean, "are to be local, and the training shares them"),
    ):
        with pytest.raises(InvalidSettings, match=says):
            check_buffers(model, training, pipeline)
    with pytest.raises(InvalidSettings, match="'buffers' of the network names an unknown array 'c'"):
        tree_model("plain", fedping.Network(arrays, plain, 4, buffers=("c",)), 0).buffers  # noqa: B018


def arrays(key: Any) -> Any:
    return {"a": jnp.ones((4, 3)), "b": [jnp.zeros(3), jnp.ones(())]}


def plain(weights: Any, x: Any) -> Any:
    return x @ weights["a"] + weights["b"][0] * weights["b"][1]


def test_lists_and_single_numbers_are_blocks() -> None:
    model = tree_model("plain", fedping.Network(arrays, plain, 4), 0)
    assert [(block.name, block.shape) for block in model.arrays] == [("a", (4, 3)), ("b.0", (3,)), ("b.1", (1,))]
    np.testing.assert_array_equal(model.start, [1] * 12 + [0] * 3 + [1])
    assert model.weight_names[-1] == "b.1[0]"


def fails(weights: Any, x: Any) -> Any:
    return x @ weights["a"].T


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (
            lambda: fedping.Network(arrays, fails, 4),
            "'apply' of the network failed, given weights and x of shape .1, 4.",
        ),
        (
            lambda: fedping.Network(arrays, lambda w, x: w["a"].sum(), 4),
            r"returned an array of shape \(\), .* each example",
        ),
        (lambda: fedping.Network(arrays, plain, 4, "squared_error"), "a squared error is of one number"),
        (lambda: fedping.Network(arrays, plain, 4, lambda o, y: o.mean()), r"'loss'.*an array of shape \(\) for one"),
        (lambda: fedping.Network(arrays, plain, 4, lambda o, y: None), "'loss' of the network returned a NoneType"),
        (lambda: fedping.Network(arrays, plain, 4, lambda o, y: o[:, 0] * 1j), "array of complex64.*no gradient"),
        (lambda: fedping.Network(arrays, plain, 4, lambda o, y: y.astype(int)), "array of int32.*no gradient"),
        (lambda: fedping.Network(arrays, plain, 4, predict=lambda o: o[..., None, None]), "predicts an array of shape"),
        (
            lambda: fedping.Network(lambda key: {"n": jnp.arange(3)}, plain, 4),
            "'n' of the network is an array of int32",
        ),
        (lambda: fedping.Network(lambda key: {}, plain, 4), "has no arrays"),
        (lambda: fedping.Network(lambda key: {"a": jnp.zeros((0, 2))}, plain, 4), r"'a'.*shape \[0, 2\]"),
        (
            lambda: fedping.Network(lambda key: {"a": jnp.full(3, jnp.nan)}, lambda w, x: x @ w["a"][:, None], 3),
            "finite",
        ),
        (lambda: fedping.Network(arrays, plain, (0,)), "shape of a network's examples"),
        (lambda: fedping.Network(arrays, plain, 4, "hinge"), "loss of a network is 'hinge'"),  # type: ignore[arg-type]
        (lambda: fedping.flax_network(3, 4), "flax_network is given a int"),
        (lambda: fedping.equinox_network(lambda key: 3, 4), "returned a int"),
    ],
)
def test_what_does_not_fit_is_one_sentence(network: Any, sentence: str) -> None:
    with pytest.raises(InvalidSettings, match=sentence):
        tree_model("plain", network(), 0)


def test_examples_that_do_not_fit_and_losses_that_are_not_finite() -> None:
    model, start = model_of("of-linen")
    with pytest.raises(FedpingError, match=r"examples of shape \[8, 8, 1\], 64 numbers, but the examples have 63"):
        model.losses(start, examples(63))
    with pytest.raises(FedpingError, match="4 classes, but an example has the class 4"):
        model.gradients(start, examples(64, 5, seed=1))
    bad = examples()
    bad.x[1, 0] = np.nan
    with pytest.raises(FedpingError, match="loss of the model 'of-linen' is nan for the client at 1"):
        model.gradients(start, bad)


def test_a_network_without_an_output_for_each_class_is_refused() -> None:
    fedping.model("odd-classes")(odd_classes)
    with pytest.raises(FedpingError, match="has classes = 3, but predicts 4 numbers"):
        model_spec("odd-classes", {"classes": 3})


def odd_classes(*, classes: int) -> Any:
    """Return a network with four outputs, for any number of classes."""
    return fedping.flax_network(networks.OfLinen(4), (8, 8, 1))


PERSONAL: dict[str, Any] = {
    "FedPer": {"by": "partly_local", "rate": 0.2},
    "FedRep": {"by": "partly_local", "rate": 0.2, "order": "local_first", "steps": 3},
    "FedRecon": {"by": "reconstruct", "rate": 0.2, "steps": 2},
}


def hidden_layer() -> tuple[BuiltIn, TreeModel]:
    """Return a built-in network, and the same network as a tree with the same start values in another order."""
    built_in = BuiltIn(features=6, classes=3, hidden=(5,), seed=4, l2=0.0, precision="float64")
    same = {"hidden.kernel": "W1", "hidden.bias": "b1", "head.kernel": "W2", "head.bias": "b2"}
    starts = {block.name: start_values(block) for block in built_in.arrays}
    model = learner_for(model_spec("of-functions", {"features": 6, "classes": 3, "width": 5, "dropout": 0.0}))
    assert isinstance(model, TreeModel)
    blocks = [replace(block, start=Numbers(numbers=tuple(starts[same[block.name]]))) for block in model.blocks]
    return built_in, TreeModel("of-functions", model.network, tuple(blocks), "float64")


def sorted_as_tree(values: np.ndarray, shared: bool = False) -> np.ndarray:
    """Return the values of W1, b1, W2 and b2, shape (k, 53), in the tree's order; if ``shared``, only W1 and b1."""
    one, of_one, two, of_two = np.split(values, [30, 35, 50], axis=-1)
    return np.concatenate([of_one, one] if shared else [of_two, two, of_one, one], axis=-1)


@pytest.mark.parametrize("method", PERSONAL)
def test_a_layer_stays_with_the_client_as_in_the_built_in_network(method: str) -> None:
    found = []
    batch = examples(6, 3)
    for model, local in zip(hidden_layer(), (["W2", "b2"], ["head"]), strict=True):
        settings = {
            "algorithm": "local",
            "rate": 0.3,
            "epochs": 2,
            "batch": 2,
            "personal": PERSONAL[method] | {"local": local},
        }
        training = msgspec.convert(settings, LocalSteps)
        published, algorithm = with_more(model, training), algorithm_for(training)
        state = {name: np.stack([value] * 3) for name, value in algorithm.init_state(published).items()}
        for _ in range(2):
            updates, losses, state = cohort_updates(published, training, published.start, batch, KEYS, state)
        own = algorithm.personal_weights(published, published.start, batch, state)
        found.append((updates, losses, own))
    (updates, losses, own), (of_tree, same_losses, of_tree_own) = found
    np.testing.assert_allclose(of_tree, sorted_as_tree(updates, shared=True), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(same_losses, losses, rtol=1e-9)
    np.testing.assert_allclose(of_tree_own, sorted_as_tree(own), rtol=1e-6, atol=1e-7)
    assert np.abs(updates[:2]).max() > 0.01


def test_a_layer_that_there_is_not_is_told_with_those_that_there_are() -> None:
    settings = {"algorithm": "local", "rate": 0.3, "steps": 1, "personal": PERSONAL["FedPer"] | {"local": ["heads"]}}
    with pytest.raises(InvalidSettings, match="'heads', and the model has no block of that name"):
        with_more(hidden_layer()[1], msgspec.convert(settings, LocalSteps))
    frozen = named(hidden_layer()[1], ["head", "hidden.bias"], "frozen")
    assert frozen.tolist() == [True] * 23 + [False] * 30


def test_local_steps_agree_with_the_built_in_network() -> None:
    built_in, tree = hidden_layer()
    training, batch = LocalSteps(rate=0.3, epochs=3, batch=2, proximal=0.1), examples(6, 3)
    updates, losses, _ = cohort_updates(built_in, training, built_in.start, batch, KEYS)
    of_tree, same_losses, _ = cohort_updates(tree, training, tree.start, batch, KEYS)
    np.testing.assert_allclose(of_tree, sorted_as_tree(updates), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(same_losses, losses, rtol=1e-12)
    predictions, there = built_in.predict(built_in.start, batch), batch.weight > 0
    np.testing.assert_allclose(tree.predict(tree.start, batch)[there], predictions[there], rtol=1e-12)
