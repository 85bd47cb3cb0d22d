"""What the model says in a run: its first choices, and how far it is from the clean run.

An effect says how far a metric moved, and not where to: y may be the first choice then, or a token
that is neither x nor y, where the set breaks the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.ranks import Ranks
from tracekit._util.table import value_text
from tracekit.components import ComponentSet
from tracekit.engine.batch import Batch
from tracekit.engine.clean_run import assemble, repeated
from tracekit.engine.prepared import PreparedData
from tracekit.metrics import ContinuationLogProbs, Reading, kl


def choices_in(
    data: PreparedData, other: PreparedData | None, sets: Sequence[ComponentSet]
) -> Float[Tensor, "run 4"]:
    """What is said in the clean run, the counterfactual one, and with each of some sets replaced.

    On how many pairs x is the first choice, and on how many y; the means of log P(x) / P(y) and of
    the KL from the clean run. Every token of x is the first choice or, by a metric of token sets,
    one that counts as x. NaN: there is no y, or no counterfactual run (`other` begins from it).
    """
    reads: tuple[Reading, ...] = ("argmax", "distribution", "rank", "token-sets")
    reads = reads if "token-sets" in data.metric.reads else reads[:2]
    masks = torch.zeros(len(sets), data.n_components, device=data.device)
    for mask, members in zip(masks, sets, strict=True):
        mask[list(members)] = 1
    sums = torch.zeros(2 + len(sets), 4, device=data.device)
    with data.measuring():
        for batch in data.batches:
            runs = [data.forward_pass.log_probs(batch, [], reads=reads)]
            if other is not None:
                again = other.batches_of(batch.examples.cpu(), of_all_ranks=True)
                parts = [
                    (
                        (each.examples[:, None] == batch.examples).nonzero()[:, 1],
                        other.forward_pass.log_probs(each, [], reads=reads),
                    )
                    for each in again
                ]
                runs.append(assemble(parts, len(batch.examples), Ranks()))
            runs = runs[::-1] if data.metric.direction == "denoising" else runs
            for row, run in zip(sums, runs, strict=False):
                row += _summed(batch, runs[0], run)[0]
            # Without a set, `passes` would run the counterfactual prompts all the same.
            for _, some, run in data.passes(masks, [batch] if sets else [], reads=reads):
                sums[2:][some] += _summed(batch, runs[0], run)
    data.account.count(len(sets) * data.n_examples)
    (sums,) = data.ranks.add(sums.cpu())
    sums[:, 2:] /= data.n_examples
    sums[1] = nan if other is None else sums[1]
    return sums


def _summed(
    batch: Batch, clean: ContinuationLogProbs, run: ContinuationLogProbs
) -> Float[Tensor, "run 4"]:
    """Sums over a batch, of one run or of several after each other."""
    n, x, y = len(batch.examples), run.require("x_is_argmax"), run.y_is_argmax
    if run.x_set is not None:
        chosen = run.require("first_choice").reshape(-1, n, 1, 1)
        x, y = (batch.token_sets == chosen).any(-1).unbind(-1)
        y = None if run.y_set is None else y
    far, lacking = kl(repeated(clean, len(run.x) // n), run), torch.full_like(run.x, nan)
    parts = (x, y, None if run.y is None else run.x - run.y, far)
    rows = [(lacking if each is None else each).to(run.x).reshape(-1, n).sum(1) for each in parts]
    return torch.stack(rows, 1)


def rows_of(choices: Float[Tensor, "run 4"] | None, n: int) -> list[dict[str, Any]]:
    """A row for each run of n pairs, the set last; None for what there is not."""
    rows, measured = [], [] if choices is None else choices.tolist()
    for run, sums in zip(("clean", "counterfactual", "set"), measured, strict=False):
        x, y, odds, far = (each if isfinite(each) else None for each in sums)
        if x is not None:
            firsts = {"first_x": int(x), "first_y": None if y is None else int(y)}
            neither = None if y is None else int(n - x - y)
            rows.append(
                {"run": run, "n": n, **firsts, "neither": neither, "log_odds": odds, "kl": far}
            )
    return rows


def said_of(choices: Float[Tensor, "run 4"] | None, n: int) -> str:
    """Whether a set flips the behaviour, in words; empty where that was not measured."""
    rows = rows_of(choices, n)

    def told(name: str, unit: str = "", first: int = 0) -> str:
        values = [value_text(row[name], ".2g") for row in rows]
        beside = [f"{row['run']} {value}" for row, value in zip(rows, values, strict=True)]
        brackets = f" ({', '.join(beside[first:-1])})" if beside[first:-1] else ""
        return f"{values[-1]}{unit}{brackets}"

    if not rows:
        return ""
    said, none = f"x first on {told('first_x', f' of {n}')}", [row["neither"] for row in rows]
    if none[-1] is not None:
        said += f", y on {told('first_y')}"
        if 2 * none[-1] > n >= 2 * none[0]:
            broken = ": the set breaks the model" * (2 * max(none[:-1]) <= n)
            said += f", neither on {told('neither')}{broken}"
    return f"{said}; KL from clean {told('kl', ' nats', 1)}"
