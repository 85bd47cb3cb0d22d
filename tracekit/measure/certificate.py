"""Certificates: whether claims about a set hold on pairs that nobody has looked at.

Pairs are measured in batches until bounds on faithfulness, completeness or effect decide each
claim. The bounds hold at every look (`betting.py`), so the number of pairs need not be fixed.
Claims about a ratio of mean effects are claims about a mean: the faithfulness is at least phi if
the mean of `own - phi * full` is at least 0, where `own` is what the set does alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.deferred import pd
from tracekit._util.markup import printable
from tracekit._util.options import as_path, check_whole, shortened
from tracekit.components.masks import complement_of
from tracekit.components.members import ComponentsLike, members_of
from tracekit.data.counterfactuals import PromptCounterfactual
from tracekit.data.pair import Ids, PromptPair, independent
from tracekit.data.prompts import PromptPairs
from tracekit.engine.engine import Engine
from tracekit.errors import ConfigError, PairsError, UnknownNameError
from tracekit.figures.charts import Chart, lines
from tracekit.figures.style import data_and_model
from tracekit.measure.betting import Bets
from tracekit.measure.question import Question
from tracekit.results.display import Tabular
from tracekit.results.result import TraceResult
from tracekit.results.storage import versions
from tracekit.search.targets import require_full_effect

Verdict = Literal["holds", "fails", "undecided"]
Bounds = tuple[int, float | None, float | None]
"""Number of examples, lower and upper bound; None: there is none yet."""
_BATCH = 16
"""Independent examples between two looks at the bounds, where pairs are given at once."""
_GRID = np.linspace(-1, 3, 801)
"""Values of faithfulness and completeness that bounds can take; effects: shares of that of all."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim, and what pairs say of it."""

    quantity: str
    """`faithfulness`, `completeness` or `effect`."""
    at_least: bool
    """Whether the quantity is to be at least `value`, or at most."""
    value: float
    verdict: Verdict
    n_needed: int | None
    """Independent examples by which it would be decided if further ones are like these."""
    bounds: tuple[Bounds, ...]
    """After each example; all hold together."""

    def __str__(self) -> str:
        """The claim in words."""
        return f"{self.quantity} at {'least' if self.at_least else 'most'} {self.value:.3g}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Certificate(Tabular):
    """What fresh pairs say of claims about a set; `print` says it in words."""

    claims: tuple[Claim, ...]
    level: float
    """Probability with which no bound of any claim is ever wrong."""
    labels: tuple[str, ...]
    """Members of the set."""
    n_examples: int
    """Independent examples that were measured."""
    n_seen: int
    """Pairs that were left out, as the tracer has them or an earlier batch had."""
    interrupted: bool
    """Whether Ctrl-C ended it."""
    fingerprints: tuple[str, ...]
    """Of the pairs of each batch."""
    dataset: str
    metric: str
    model: str
    weights_digest: str
    source: str
    direction: str
    is_assumed: bool
    """Whether bounds assume that no example is more than twice as extreme as those before it: where
    the metric is unbounded."""
    versions: Mapping[str, str]

    @property
    def verdict(self) -> Verdict:
        """`fails` if a claim fails, `holds` if all hold, else `undecided`."""
        verdicts = {claim.verdict for claim in self.claims}
        if "fails" in verdicts:
            return "fails"
        return "undecided" if "undecided" in verdicts else "holds"

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per claim, its last bounds and its verdict."""
        rows = [
            {
                "claim": str(claim),
                "low": claim.bounds[-1][1],
                "high": claim.bounds[-1][2],
                "verdict": claim.verdict,
                "n_needed": claim.n_needed,
            }
            for claim in self.claims
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        names = ", ".join(self.labels[:6]) + (", ..." if len(self.labels) > 6 else "")
        text = [
            f"{self.verdict.capitalize()} for {names}: {self.n_examples} fresh examples of "
            f"{self.dataset}, {self.model}, {self.metric}, {self.source}, {self.direction}."
        ]
        for claim in self.claims:
            _, low, high = claim.bounds[-1]
            ends = ["none" if end is None else f"{end:.3g}" for end in (low, high)]
            line = f"  {claim}: {claim.verdict}; bounds {' to '.join(ends)}"
            if claim.n_needed is not None:
                line += f"; about {claim.n_needed} examples would decide it"
            text.append(line)
        assumed = ", if no example is more than twice as extreme as those before it"
        text.append(
            f"All bounds hold together, at every look, with a probability of {self.level:g}"
            f"{assumed * self.is_assumed}."
        )
        return printable("\n".join(text))

    def figure(self, quantity: str | None = None) -> go.Figure:
        """The bounds on a claimed quantity as they narrow; by default of the first claim."""
        claims = {claim.quantity: claim for claim in self.claims}
        if quantity is not None and quantity not in claims:
            raise UnknownNameError("quantity", quantity, claims)
        claim = self.claims[0] if quantity is None else claims[quantity]
        rows = [
            {"n": n, "bound": bound, "line": name}
            for n, *both in claim.bounds
            for name, bound in zip(("lower bound", "upper bound"), both, strict=True)
            if bound is not None
        ]
        chart = Chart(
            frame=pd.DataFrame(rows),
            x="n",
            y="bound",
            series="line",
            axis_titles=("fresh examples", claim.quantity),
            title=data_and_model(self.dataset, self.model),
            subtitle=f"{claim}: {claim.verdict}; {len(self.labels)} components",
        )
        return lines(chart, reference=(claim.value, "claimed"))

    def save(self, path: str | Path) -> Path:
        """Writes the certificate as JSON."""
        path = as_path("path", path)
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Reads a certificate that `save` wrote."""
        fields = json.loads(as_path("path", path).read_text(encoding="utf-8"))
        claims = [
            Claim(**claim | {"bounds": tuple(map(tuple, claim["bounds"]))})
            for claim in fields["claims"]
        ]
        sequences = {name: tuple(fields[name]) for name in ("labels", "fingerprints")}
        return cls(**fields | sequences | {"claims": tuple(claims)})


def certify(
    question: Question,
    members: ComponentsLike,
    *,
    faithful: float | None = None,
    complete: float | None = None,
    effect: float | None = None,
    pairs: PromptPairs | Iterable[PromptPairs] | None = None,
    level: float = 0.95,
    max_examples: int = 1000,
) -> Certificate:
    """Measures fresh pairs until bounds decide whether claims about a set hold.

    The bounds hold however often one looks, so more pairs may be added until they decide. What they
    are about is the source of the pairs, this model and this metric. Every independent example
    counts once, whatever the number of its pairs. Ctrl-C returns what was measured until then.

    Args:
        question: The question.
        members: A set as in `evaluate`, or a mask of zeros and ones.
        faithful: Claim: the faithfulness is at least this.
        complete: Claim: the completeness is at most this.
        effect: Claim: the mean effect is at least this, in units of the metric.
        pairs: Pairs, or an iterable of them that may be endless, such as a generator of data sets
            with one seed each. Pairs that the tracer has, or that came before, are left out and
            counted. None: the held-out pairs.
        level: Probability with which no bound is ever wrong, of all claims together; in (0, 1).
        max_examples: Independent examples after which claims stay undecided.

    Raises:
        ConfigError: No claim was given, or a level or a number that cannot be.
        PairsError: There are no fresh pairs.
        MaskError, ComponentError: About the set.
        MetricError: All components together have no effect.
    """
    check_whole("max_examples", max_examples)
    if not 0 < level < 1:
        raise ConfigError(f"level is {shortened(level)}. Give a probability between 0 and 1.")
    given = {"faithfulness": faithful, "completeness": complete, "effect": effect}
    claimed = {name: float(value) for name, value in given.items() if value is not None}
    if not claimed:
        raise ConfigError("No claim was given. Give faithful, complete or effect, e.g. .8.")
    chosen, alpha = members_of(members, question.registry), (1 - level) / len(claimed)
    sets = [chosen, complement_of(chosen, len(question.registry))]
    scale = question.search_engine.full_effects.mean().item()
    sign = 1 if scale > 0 else -1
    if claimed.keys() != {"effect"}:
        require_full_effect(question.search_engine, sign)
    bets = {
        name: _bets(question.search_engine, name, value, scale) for name, value in claimed.items()
    }
    bounds: dict[str, list[Bounds]] = {name: [] for name in claimed}
    fresh = _FreshPairs(question, members, includes_held_out=pairs is None)
    fingerprints, n_examples, interrupted = list[str](), 0, False
    try:
        for batch in fresh.batches(question.held_out_pairs if pairs is None else pairs):
            engine = question.engine_of(batch)
            fingerprints.append(batch.fingerprint)
            for values in _by_example(engine, engine.set_effects(sets, "certificate")):
                if n_examples < max_examples:
                    n_examples += 1
                    for name, each in bets.items():
                        if name == "effect":
                            each.observe(values[name], 1.0)
                        else:
                            each.observe(sign * values[name], sign * values["full"])
                        bounds[name].append((n_examples, *each.interval(alpha)))
            if n_examples >= max_examples or all(_side(each, alpha) for each in bets.values()):
                break
    except KeyboardInterrupt:
        interrupted = True
    if not n_examples:
        if interrupted:
            raise KeyboardInterrupt
        raise PairsError(
            f"There are no fresh pairs: {fresh.n_seen} were left out, as the tracer has them. Give "
            "others as pairs, e.g. of another seed, or give the tracer held_out pairs."
        )
    return Certificate(
        claims=tuple(
            _decided(name, value, bets[name], bounds[name], alpha)
            for name, value in claimed.items()
        ),
        level=level,
        labels=tuple(question.registry.label(member) for member in chosen),
        n_examples=n_examples,
        n_seen=fresh.n_seen,
        interrupted=interrupted,
        fingerprints=tuple(fingerprints),
        dataset=fresh.dataset,
        metric=question.search_engine.metric.name,
        model=question.model_name,
        weights_digest=question.model_facts.weights_digest,
        source=question.source,
        direction=question.direction,
        is_assumed=bets[next(iter(bets))].bounds is None,
        versions=versions(),
    )


class _FreshPairs:
    """Takes batches of pairs, and leaves out what the tracer or an earlier batch had."""

    def __init__(
        self, question: Question, members: ComponentsLike, *, includes_held_out: bool
    ) -> None:
        """Notes the pairs of a question, and the prompts that a saved result was selected on."""
        self.n_seen, self.dataset = 0, ""
        self._digests = {*members.searched.prompts} if isinstance(members, TraceResult) else set()
        self._prompts, self._counterfactuals = set[Ids](), set[Ids]()
        self._groups = {pair.group for pair in question.pairs} - {None}
        self._note(question.pairs)
        if not includes_held_out and question.held_out_pairs is not None:
            self._note(question.held_out_pairs)

    def batches(self, pairs: PromptPairs | Iterable[PromptPairs] | None) -> Iterator[PromptPairs]:
        """Batches without pairs that were seen; pairs of one example stay together."""
        for batch in _split(pairs) if isinstance(pairs, PromptPairs) else pairs or ():
            fresh = [number for number, pair in enumerate(batch) if not self._is_seen(pair)]
            self.n_seen += len(batch) - len(fresh)
            self._note(batch)
            self.dataset = batch.name
            if fresh:
                yield batch.subset(fresh)

    def _is_seen(self, pair: PromptPair) -> bool:
        other = _counterfactual_prompt(pair)
        return (
            pair.prompt_ids in self._prompts | self._counterfactuals
            or other in self._prompts
            or pair.group in self._groups
            or pair.prompts_digest in self._digests
        )

    def _note(self, pairs: PromptPairs) -> None:
        self._prompts |= {pair.prompt_ids for pair in pairs}
        self._counterfactuals |= {_counterfactual_prompt(pair) for pair in pairs} - {()}


def _counterfactual_prompt(pair: PromptPair) -> Ids:
    """The other prompt of a pair; empty where its values come from elsewhere."""
    other = pair.counterfactual
    return other.ids if isinstance(other, PromptCounterfactual) else ()


def _split(pairs: PromptPairs) -> Iterator[PromptPairs]:
    """Batches of pairs, each with whole examples."""
    by_example: dict[int, list[int]] = {}
    for number, example in enumerate(independent(pairs)):
        by_example.setdefault(example, []).append(number)
    examples = [*by_example.values()]
    for first in range(0, len(examples), _BATCH):
        yield pairs.subset(sorted(chain(*examples[first : first + _BATCH])))


def _bets(engine: Engine, quantity: str, value: float, scale: float) -> Bets:
    """Bets on the claimed value, which comes first, and on others around it."""
    thetas = np.array([value, *(_GRID * (scale if quantity == "effect" else 1))])
    lowest, highest, _ = engine.metric.bounds
    if not np.isfinite([lowest, highest]).all():
        return Bets(thetas)
    width, largest = highest - lowest, max(abs(lowest), abs(highest))
    if quantity == "effect":
        return Bets(thetas, largest + np.abs(thetas))
    return Bets(thetas, width + largest * np.abs(thetas))


def _by_example(engine: Engine, effects: Float[Tensor, "side example"]) -> list[dict[str, float]]:
    """Quantities of each independent example: means over its pairs."""
    own, others, full = *effects, engine.full_effects
    alone, remaining = full - others, full - own
    if engine.metric.direction == "denoising":
        alone, remaining = own, others
    # An engine scales the weights of its own pairs to a mean of 1; batches share one scale.
    scale = fmean(pair.weight for pair in engine.pairs)
    table = scale * torch.stack([own, alone, remaining, full])
    names = ("effect", "faithfulness", "completeness", "full")
    examples = torch.tensor(independent(engine.pairs))
    return [
        dict(zip(names, table[:, examples == example].mean(1).tolist(), strict=True))
        for example in dict.fromkeys(examples.tolist())
    ]


def _side(bets: Bets, alpha: float) -> int:
    """On which side of the claimed value the mean is: 1 above, -1 below, 0 if undecided."""
    above, below = bets.most[:, 0] >= np.log(2 / alpha)
    return int(above) - int(below)


def _decided(
    quantity: str,
    value: float,
    bets: Bets,
    bounds: list[Bounds],
    alpha: float,
) -> Claim:
    at_least = quantity != "completeness"
    side = _side(bets, alpha)
    growth = bets.log_capital[:, 0].max() / bets.n_examples
    n_needed = ceil(np.log(2 / alpha) / growth) if side == 0 and growth > 0 else None
    return Claim(
        quantity=quantity,
        at_least=at_least,
        value=value,
        verdict="undecided" if side == 0 else "holds" if (side > 0) == at_least else "fails",
        n_needed=n_needed,
        bounds=tuple(bounds),
    )
