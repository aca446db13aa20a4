"""RProp on the client and on the server are one algorithm: the same gradients give the same steps, to the bit."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedping.client_sim.learning.local_optimizers import stepper_for
from fedping.protocol.local_optimizers import LocalRProp
from fedping.protocol.pipeline import RProp
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.server_jobs.optimize.optimizers import rprop

_UPHILL = st.sampled_from([-2.5, -1e-300, -0.0, 0.0, 1e-300, 0.3, 7.0])


@given(
    st.lists(st.tuples(_UPHILL, _UPHILL), min_size=1, max_size=12),
    st.floats(1.01, 3.0),
    st.floats(0.05, 0.95),
    st.sampled_from([Step(start=2.0, min=1.0, max=3.0), Step(start=0.1, min=1e-6, max=50.0)]),
)
def test_the_same_gradients_give_the_same_steps(
    gradients: list[tuple[float, float]], alpha: float, beta: float, step: Step
) -> None:
    spec = ModelSpec(name="two", model="any", weights=tuple(Weight(name=n, start=0.0, step=step) for n in "ab"))
    theirs = rprop(RProp(alpha=alpha, beta=beta), spec)
    mine = stepper_for(LocalRProp(alpha=alpha, beta=beta, step=step))
    assert mine is not None
    state, memory = theirs.init(spec), mine.init(1, 2, np.dtype(np.float64))
    for gradient in np.array(gradients):
        wanted, state = theirs.update(-gradient, state, np.zeros(2))
        found, memory = mine.step(gradient[None], memory)
        assert found[0].tobytes() == wanted.tobytes()
        assert memory["rate"][0].tobytes() == state["rate"].tobytes()
