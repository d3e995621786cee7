"""Lengths: quantiles by hand, their order and bounds, and means."""

import math
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.profile import Choice, Fixed, Histogram, Lengths, Lognormal, Normal, Uniform
from loadgen.workload.lengths import inverse_cdf, mean

ALMOST_1 = 1 - 2**-53
ONE_SIGMA = NormalDist().cdf(1)

fractions = st.floats(0, ALMOST_1)


@st.composite
def bounded_lengths(draw: st.DrawFn) -> tuple[Lengths, int, int]:
    """A distribution with the least and the largest length that it can give."""
    low = draw(st.integers(1, 500))
    high = low + draw(st.integers(0, 5000))
    kind = draw(st.sampled_from(["int", "fixed", "uniform", "normal", "lognormal", "choice", "histogram"]))
    if kind == "int":
        return low, low, low
    if kind == "fixed":
        return Fixed(value=low), low, low
    if kind == "uniform":
        return Uniform(min=low, max=high), low, high
    centre = draw(st.floats(0.5, 10_000))
    if kind == "normal":
        return Normal(mean=centre, sd=draw(st.floats(0, 5000)), min=low, max=high), low, high
    if kind == "lognormal":
        return Lognormal(mean=centre, cv=draw(st.floats(0, 5)), min=low, max=high), low, high
    values = draw(st.lists(st.integers(1, 5000), min_size=2, max_size=8, unique=True))
    weights = draw(st.lists(st.floats(0.01, 100), min_size=len(values), max_size=len(values)))
    if kind == "choice":
        return Choice(values=tuple(values), weights=tuple(weights)), min(values), max(values)
    return Histogram(edges=tuple(sorted(values)), weights=tuple(weights[1:])), min(values), max(values) - 1


@pytest.mark.parametrize(
    ("lengths", "u", "expected"),
    [
        (7, 0.3, 7),
        (Fixed(value=9), 0.9, 9),
        # Four values, a quarter each.
        (Uniform(min=3, max=6), 0.0, 3),
        (Uniform(min=3, max=6), 0.2499, 3),
        (Uniform(min=3, max=6), 0.25, 4),
        (Uniform(min=3, max=6), ALMOST_1, 6),
        (Normal(mean=100, sd=10), 0.5, 100),
        (Normal(mean=100, sd=10), ONE_SIGMA, 110),
        (Normal(mean=100, sd=10), 1 - ONE_SIGMA, 90),
        (Normal(mean=100, sd=10, min=95, max=105), ONE_SIGMA, 105),
        (Normal(mean=100, sd=10, min=95, max=105), 0.0, 95),
        (Normal(mean=5, sd=100), 0.01, 1),
        # cv = .75: the median is 100 / sqrt(1 + .75^2) = 100 / 1.25 = 80; one sigma = sqrt(ln 1.5625) = .66805 up it
        # is 80 exp(.66805) = 156.03, and one down 80 / 1.95043 = 41.02.
        (Lognormal(mean=100, cv=0.75), 0.5, 80),
        (Lognormal(mean=100, cv=0.75), ONE_SIGMA, 156),
        (Lognormal(mean=100, cv=0.75), 1 - ONE_SIGMA, 41),
        (Lognormal(mean=100, cv=0.75, max=120), ONE_SIGMA, 120),
        (Lognormal(mean=100, cv=0), 0.99, 100),
        (Choice(values=(8, 2)), 0.49, 2),
        (Choice(values=(8, 2)), 0.51, 8),
        (Choice(values=(5, 1), weights=(1, 3)), 0.749, 1),
        (Choice(values=(5, 1), weights=(1, 3)), 0.75, 5),
        (Choice(values=(1, 5, 9), weights=(0, 1, 0)), 0.0, 5),
        (Choice(values=(1, 5, 9), weights=(0, 1, 0)), ALMOST_1, 5),
        # A quarter of the weight on 10 .. 19, the rest on 20 .. 39: u = .625 is half-way into the second bin.
        (Histogram(edges=(10, 20, 40), weights=(1, 3)), 0.0, 10),
        (Histogram(edges=(10, 20, 40), weights=(1, 3)), 0.2499, 19),
        (Histogram(edges=(10, 20, 40), weights=(1, 3)), 0.25, 20),
        (Histogram(edges=(10, 20, 40), weights=(1, 3)), 0.625, 30),
        (Histogram(edges=(10, 20, 40), weights=(1, 3)), ALMOST_1, 39),
        (Histogram(edges=(10, 20, 40, 50), weights=(0, 1, 0)), 0.0, 20),
        (Histogram(edges=(10, 20, 40, 50), weights=(0, 1, 0)), ALMOST_1, 39),
    ],
)
def test_a_quantile_is_the_one_worked_out_by_hand(lengths: Lengths, u: float, expected: int) -> None:
    assert inverse_cdf(lengths)(u) == expected


@settings(deadline=None)
@given(bounded_lengths(), fractions, fractions)
def test_a_larger_fraction_never_gives_a_shorter_length(
    case: tuple[Lengths, int, int], one: float, other: float
) -> None:
    at = inverse_cdf(case[0])
    assert at(min(one, other)) <= at(max(one, other))


@settings(deadline=None)
@given(bounded_lengths(), fractions)
def test_a_length_stays_inside_its_bounds(case: tuple[Lengths, int, int], u: float) -> None:
    lengths, low, high = case
    assert low <= inverse_cdf(lengths)(u) <= high


@settings(deadline=None)
@given(bounded_lengths())
def test_the_mean_is_that_of_the_quantiles(case: tuple[Lengths, int, int]) -> None:
    lengths, low, high = case
    at, n = inverse_cdf(lengths), 500
    average = sum(at((i + 0.5) / n) for i in range(n)) / n
    # The midpoint rule over n points misses the integral of a monotone function by at most its rise over n. The mean is
    # itself one over 10,000 points for two kinds.
    assert average == pytest.approx(mean(lengths), abs=(high - low) * (1 / n + 1e-4) + 1e-6)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (7, 7.0),
        (Fixed(value=9), 9.0),
        (Uniform(min=3, max=6), 4.5),
        (Choice(values=(8, 2)), 5.0),
        (Choice(values=(5, 1), weights=(1, 3)), 2.0),
        # 14.5 and 29.5 are the means of 10 .. 19 and 20 .. 39: (14.5 + 3 x 29.5) / 4 = 25.75.
        (Histogram(edges=(10, 20, 40), weights=(1, 3)), 25.75),
    ],
)
def test_a_mean_is_exact_where_it_can_be(lengths: Lengths, expected: float) -> None:
    assert mean(lengths) == expected


def test_the_mean_of_a_clamped_lognormal_agrees_with_its_closed_form() -> None:
    m, cv, low, high = 512.0, 1.0, 200, 1000
    sigma = math.sqrt(math.log(1 + cv**2))
    mu = math.log(m) - sigma**2 / 2
    below, above = (math.log(low) - mu) / sigma, (math.log(high) - mu) / sigma
    phi = NormalDist().cdf
    # E[clamp(X)] = low P(X < low) + the integral of x between + high P(X > high); the integral of x over a stretch is m
    # times the normal share of that stretch shifted down by sigma.
    expected = low * phi(below) + m * (phi(above - sigma) - phi(below - sigma)) + high * (1 - phi(above))  # about 468
    # Rounding to whole numbers and 10,000 midpoints: (1000 - 200) / 10,000 = .08 at most.
    assert mean(Lognormal(mean=m, cv=cv, min=low, max=high)) == pytest.approx(expected, abs=0.1)


def test_the_mean_of_an_unclamped_lognormal_is_the_one_asked_for() -> None:
    # Too low by the end of the tail that the midpoints miss: .02 % at cv 1.
    assert mean(Lognormal(mean=512, cv=1)) == pytest.approx(512, rel=5e-4)
