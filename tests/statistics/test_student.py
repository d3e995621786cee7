import numpy as np
import pytest

from loadgen.statistics.confidence import student_t_975


@pytest.mark.parametrize("degrees", [1, 2, 4, 9, 20])
def test_the_quantiles_are_those_of_students_t(degrees: int) -> None:
    # P(0 < T < t) = .475 with the density proportional to (1 + x²/df)^(-(df+1)/2), by the trapezoidal rule. What lies
    # beyond 10^7 is below 1e-7 for df = 1 and less for more.
    t = student_t_975(degrees)
    inside, outside = np.linspace(0, t, 200_001), np.geomspace(t, 1e7, 400_001)
    area, beyond = (float(np.trapezoid((1 + x * x / degrees) ** (-(degrees + 1) / 2), x)) for x in (inside, outside))
    assert area / (area + beyond) / 2 == pytest.approx(0.475, abs=1e-5)


@pytest.mark.parametrize(("degrees", "exact"), [(21, 2.0796), (30, 2.0423), (60, 2.0003), (1000, 1.9623)])
def test_beyond_the_table_they_are_at_most_one_and_a_half_percent_too_wide_and_never_too_narrow(
    degrees: int, exact: float
) -> None:
    assert exact <= student_t_975(degrees) <= 1.015 * exact
