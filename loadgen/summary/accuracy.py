"""How often the answers of a choice were right."""

from collections import Counter

import msgspec


class Accuracy(msgspec.Struct, frozen=True):
    """How often the answers of a choice were the expected ones, over the completed requests of the window whose right
    label is known."""

    share: float
    correct: int
    judged: int


def accuracy_of(judged: Counter[int]) -> Accuracy | None:
    """From how many were right, under 1, and how many were not, under 0; None where there are none."""
    total = judged.total()
    return Accuracy(judged[1] / total, judged[1], total) if total else None
