"""Student's t: how much wider an interval is whose variance is itself an estimate."""

from typing import Final

_T_975: Final = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
"""The .975 quantiles of Student's t with 1, 2, ... 20 degrees of freedom (any table of t)."""


def student_t_975(degrees: int) -> float:
    """The .975 quantile of Student's t; beyond 20 degrees of freedom a little wider than it is.

    z + (z³ + z) / (4 df) with z = 1.95996 is the beginning of its expansion in 1/df (Fisher and Cornish, 1960) and is
    short by less than 0.3 % there; 1 % is added to be on the safe side.
    """
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = 1.959964
    return min(_T_975[-1], 1.01 * (z + (z**3 + z) / (4 * degrees)))
