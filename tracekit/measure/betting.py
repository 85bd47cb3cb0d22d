"""Confidence sequences by betting: bounds that hold however often one looks at them.

Before each example a bet is placed on the sign of a mean, from the examples so far. If the mean has
the other sign or is 0, bets gain nothing on average, so a capital that ever grows to 1 / alpha is
evidence at level alpha (Waudby-Smith and Ramdas 2024, Estimating means of bounded random variables
by betting). That needs stakes that cannot be lost whole: values are bounded, or assumed to be at
most twice as far from 0 as the most extreme one so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy import ndarray

_N_OBSERVED_FIRST = 10
"""Examples before the first bet, which say how large values are."""
_STAKE = 0.9
"""Largest share of the capital that the most extreme possible example can lose."""
_RUIN = 1e-12


@dataclass(eq=False)
class Bets:
    """Bets on where the mean of `value - theta * unit` is above 0 and below 0, for several theta.

    With values of an effect and a unit of 1, theta is compared with the mean of the values; with a
    reference effect as the unit, with a ratio of means, for which no example is divided by.
    """

    thetas: Float[ndarray, " theta"]
    bounds: Float[ndarray, " theta"] | None = None
    """Largest absolute values that are possible; None: twice the largest so far."""
    n_examples: int = 0
    log_capital: Float[ndarray, "side theta"] = field(init=False)
    """Logarithms of the capital of bets that the mean is above 0, and below 0."""
    most: Float[ndarray, "side theta"] = field(init=False)
    """The largest of each so far."""

    def __post_init__(self) -> None:
        self.log_capital = np.zeros((2, len(self.thetas)))
        self.most = self.log_capital.copy()
        self._sum, self._squares, self._largest = np.zeros((3, len(self.thetas)))

    def observe(self, value: float | Float[ndarray, " theta"], unit: float) -> None:
        """Settles the bets on an example; its value is one number, or one for each theta."""
        outcome = value - self.thetas * unit
        if self.n_examples >= _N_OBSERVED_FIRST:
            largest = 2 * self._largest if self.bounds is None else self.bounds
            most = _STAKE / np.maximum(largest, _RUIN)
            # The stake that grows fastest for small means: the mean over the mean square.
            stake = np.clip(self._sum / np.maximum(self._squares, _RUIN), -most, most)
            for side, sign in enumerate((1, -1)):
                gain = sign * np.maximum(sign * stake, 0) * outcome
                self.log_capital[side] += np.log(np.maximum(1 + gain, _RUIN))
            self.most = np.maximum(self.most, self.log_capital)
        self._sum, self._squares = self._sum + outcome, self._squares + outcome**2
        self._largest = np.maximum(self._largest, np.abs(outcome))
        self.n_examples += 1

    def interval(self, alpha: float) -> tuple[float | None, float | None]:
        """The mean is above one theta and below another, of those tried; None: above or below none.

        Beyond all theta, e.g. above the largest, 1, one end is open: (1, None).
        """
        order = np.argsort(self.thetas)
        above, below = (self.most >= np.log(2 / alpha))[:, order]
        n_low, n_high = (int(np.cumprod(side).sum()) for side in (above, below[::-1]))
        low = float(self.thetas[order[n_low - 1]]) if n_low else None
        return low, float(self.thetas[order[-n_high]]) if n_high else None
