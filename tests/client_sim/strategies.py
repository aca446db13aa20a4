"""Pages, weights and searches for property tests: small, and concentrated near the points where the rules change."""

import numpy as np
from hypothesis import strategies as st

from fedping.client_sim.models import Onward, Page, Searches, Visit, frecency_start, searches_from

NOW = 1_530_000_000_000_000
DAY = 86_400_000_000

# Whole days around the cutoffs and their neighbours, to the microsecond; the future too, because clocks can be wrong.
AGES = st.one_of(
    st.sampled_from([0, 3, 4, 5, 6, 13, 14, 15, 16, 30, 31, 32, 33, 89, 90, 91, 92, 400]).flatmap(
        lambda days: st.sampled_from([days * DAY - 1, days * DAY, days * DAY + 1])
    ),
    st.integers(-3 * DAY, 300 * DAY),
)
TYPES = st.integers(-1, 11)
VISITS = st.builds(
    Visit,
    time=AGES.map(lambda age: NOW - age),
    type=TYPES,
    origin_type=st.none() | TYPES,
    onward=st.sampled_from(Onward),
)
PAGES = st.builds(
    Page,
    visits=st.lists(VISITS, max_size=13).map(tuple),
    visit_count=st.integers(0, 30) | st.integers(0, 100_000),
    typed=st.booleans(),
    bookmarked=st.booleans(),
    is_query=st.booleans(),
)

CUTOFFS = st.integers(-2, 100) | st.sampled_from([4, 14, 31, 90]) | st.floats(-2, 100)
WHOLE_WEIGHTS = st.integers(-5, 5) | st.integers(-300, 3000)


def _weights(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    cutoffs = st.lists(CUTOFFS, min_size=4, max_size=4)
    others = st.lists(numbers, min_size=18, max_size=18)
    return st.tuples(cutoffs, others).map(lambda both: np.array([*both[0], *both[1]], dtype=np.float64))


FRECENCY_WEIGHTS = st.one_of(
    st.just(frecency_start()), _weights(WHOLE_WEIGHTS), _weights(st.floats(-300, 3000)), _weights(st.just(0.0))
)


@st.composite
def searches_over(draw: st.DrawFn, pages: int) -> Searches:
    """Draw searches with candidates among the pages, in any order, shared or not, some without a choice."""
    some_pages = st.lists(st.integers(0, pages - 1), max_size=5)
    candidates = draw(st.lists(some_pages, min_size=1, max_size=5))
    chosen = [draw(st.integers(-1, len(shown) - 1)) for shown in candidates]
    return searches_from(candidates, chosen)


def plain(searches: Searches) -> list[tuple[list[int], int]]:
    """Return each search as its candidates without padding, and the position of the chosen one."""
    rows = zip(searches.candidates.tolist(), searches.chosen.tolist(), strict=True)
    return [([page for page in shown if page >= 0], chosen) for shown, chosen in rows]
