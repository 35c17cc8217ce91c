"""Compute the best possible mean return of HigherLower, with and without memory.

    python -m figures.popgym.higher_lower

The guesses do not change the order of the cards. So the best player counts the cards, and guesses what is more likely
with the remaining ones. Its mean return is simulated. The best player without memory knows only the current card.
"""

from __future__ import annotations

import numpy as np

from figures.common.command_line import script_parser

RANKS = 13
COPIES = 4
"""Cards of each rank in one deck."""


def deals(count: int, ranks: int = RANKS, copies: int = COPIES, seed: int = 0) -> np.ndarray:
    """Return shuffled decks: ranks from 0, int [count, ranks * copies]."""
    cards_of_deck = np.repeat(np.arange(ranks), copies)
    return np.random.default_rng(seed).permuted(np.tile(cards_of_deck, (count, 1)), axis=1)


def returns_of_counting(decks: np.ndarray) -> np.ndarray:
    """Return what the best player gets with each deck: [count].

    A correct guess gives 1 divided by the number of cards, a wrong one the negative of this, and an equal rank 0.
    """
    count, cards = decks.shape
    ranks = np.arange(decks.max() + 1)
    remaining = (decks[:, :, None] == ranks).sum(axis=1)
    returns = np.zeros(count)
    for card, following in zip(decks.T[:-1], decks.T[1:], strict=True):
        remaining[np.arange(count), card] -= 1
        higher = (remaining * (ranks > card[:, None])).sum(axis=1)
        lower = (remaining * (ranks < card[:, None])).sum(axis=1)
        returns += np.where(higher >= lower, 1, -1) * np.sign(following - card) / cards
    return returns


def return_without_memory(ranks: int = RANKS, copies: int = COPIES) -> float:
    """Return the mean return of the best player who knows only the current card.

    All other cards are equally likely to follow. If there are h higher ones and l lower ones, the expected number of
    correct minus wrong guesses is |h − l| / (cards − 1). A game has cards − 1 guesses, so this divisor cancels out.
    """
    return sum(copies * abs(ranks - 1 - 2 * rank) for rank in range(ranks)) / ranks / (ranks * copies)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--decks", type=int, default=1, help="decks per game: 1 is HigherLowerEasy, 2 Medium, 3 Hard")
    parser.add_argument("--episodes", type=int, default=100_000, help="simulated games")
    options = parser.parse_args()
    copies = COPIES * options.decks
    returns = returns_of_counting(deals(options.episodes, copies=copies))
    error = returns.std() / np.sqrt(len(returns))
    print(f"best possible mean return {returns.mean():.4f} ± {error:.4f} (standard error)")
    print(f"without memory {return_without_memory(copies=copies):.4f}")


if __name__ == "__main__":
    main()
