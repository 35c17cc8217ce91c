"""The best players of HigherLower, against numbers computed by hand and against POPGym."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from figures.popgym.higher_lower import deals, return_without_memory, returns_of_counting


def test_three_cards_have_the_returns_of_a_computation_by_hand() -> None:
    """The player who counts always knows the final card. After the middle card, any guess is even."""
    decks = np.array(list(itertools.permutations(range(3))))
    assert returns_of_counting(decks).mean() == pytest.approx((2 + 1 + 2) / 3 / 3)
    assert return_without_memory(ranks=3, copies=1) == pytest.approx(2 / 3 * 2 / 3)


def test_counting_does_not_help_with_two_ranks() -> None:
    decks = np.array(sorted(set(itertools.permutations((0, 0, 1, 1)))))
    assert returns_of_counting(decks).mean() == pytest.approx(0.5)
    assert return_without_memory(ranks=2, copies=2) == pytest.approx(0.5)


def test_decks_have_all_cards() -> None:
    decks = deals(5, ranks=4, copies=3)
    assert np.array_equal(np.sort(decks, axis=1), np.tile(np.repeat(np.arange(4), 3), (5, 1)))
    assert not np.array_equal(decks[0], decks[1])
