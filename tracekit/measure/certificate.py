"""Whether claims about a set hold on pairs that nobody has looked at; `certify` is the entry.

Pairs are measured in batches until the bounds of `Bets`, which hold at every look, decide each
claim. A claim about a ratio of mean effects is one about a mean: the faithfulness is at least
phi if the mean of `alone - phi * full` is at least 0. No example is divided by.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from tracekit._util.options import check_int, short_repr
from tracekit._util.progress import report_waiting
from tracekit._util.versions import versions
from tracekit._util.warn import warn
from tracekit.components.masks import complement_of
from tracekit.components.members import ComponentsLike, members_of
from tracekit.data.pair import MOST_STALE, SeenPrompts
from tracekit.data.prompts import PromptPairs
from tracekit.data.registry import load_dataset, load_origin
from tracekit.engine.engine import Engine
from tracekit.engine.sources import Resample, as_source
from tracekit.errors import ConfigError, DataWarning, PairsError, UnreliableResultWarning
from tracekit.measure.question import Question
from tracekit.metrics import Metric
from tracekit.models import HookedModel
from tracekit.results.certificate import Bounds, Certificate, Claim, PairsBatch
from tracekit.results.faithfulness import own_and_missing_effects
from tracekit.results.result import TraceResult
from tracekit.search.targets import require_full_effect

_BATCH = 16
"""Independent examples in a batch of pairs that are given at once."""
_GRID = np.linspace(-1, 3, 801)
"""Values that bounds of faithfulness and completeness take; effects: in units of all components."""
Source = PromptPairs | Iterable[PromptPairs]


def certify(
    question: Question,
    members: ComponentsLike,
    *,
    faithful: float | None = None,
    complete: float | None = None,
    share: float | None = None,
    effect: float | None = None,
    pairs: Source | Mapping[str, Source] | None = None,
    level: float = 0.95,
    max_examples: int = 1000,
) -> Certificate:
    """Measures fresh pairs until bounds decide whether claims about a set hold.

    The bounds hold after every example, so pairs may be added until they decide. Each independent
    example counts once, whatever the number of its pairs. Ctrl-C returns what was measured so far,
    and the same call goes on from there, if its sources can be iterated again.

    Args:
        question: The question.
        members: A set as in `evaluate`, or a mask of zeros and ones.
        faithful: Claims that the faithfulness is at least this.
        complete: Claims that the completeness is at most this.
        share: Claims that the effect is at least this share of the effect of all components.
        effect: Claims that the mean effect is at least this, in units of the metric.
        pairs: Pairs, or an iterable of them that may be endless, such as one data set per seed;
            None: the held-out pairs. A mapping from names to such sources, e.g. what
            `tk.data.wordings` returns, also tests each claim on every source alone. Pairs whose
            prompts the tracer or an earlier batch had are left out.
        level: Probability that no bound of any claim is ever wrong, between 0 and 1.
        max_examples: Independent examples after which open claims stay undecided.

    Raises:
        ConfigError: No claim, or a level or a number of examples that cannot be.
        PairsError: There are no fresh pairs.
        MaskError, ComponentError: About the set.
        MetricError: All components together have no effect.
    """
    check_int("max_examples", max_examples)
    if not 0 < level < 1:
        raise ConfigError(f"level is {short_repr(level)}. Give a probability between 0 and 1.")
    values = {"faithfulness": faithful, "completeness": complete, "share": share, "effect": effect}
    claimed = {name: float(value) for name, value in values.items() if value is not None}
    if not claimed or not np.isfinite([*claimed.values()]).all():
        raise ConfigError(
            f"The claims are {claimed}. Give faithful, complete, share or effect, as finite "
            "numbers."
        )
    engine, chosen = question.search_engine, members_of(members, question.registry)
    full = engine.full_effects.mean().item()
    if claimed.keys() != {"effect"}:
        require_full_effect(engine, 1 if full > 0 else -1)
    given = question.held_out_pairs if pairs is None else pairs
    sources = given if isinstance(given, Mapping) else {"": given or ()}
    tests = [
        _Test(quantity, wording, value, full, engine.metric)  # type: ignore[arg-type]
        for quantity, value in claimed.items()
        for wording in dict.fromkeys(["", *sources])
    ]
    alpha = (1 - level) / len(tests)
    fresh = _FreshPairs(question, members, is_held_out_seen=pairs is not None)
    sets = [chosen, complement_of(chosen, len(question.registry))]
    n_examples, batches, weights = 0, list[PairsBatch](), list[float]()
    try:
        for wording, batch in fresh.batches(sources):  # type: ignore[arg-type]
            weights += [pair.weight for pair in batch]
            if len({*weights}) > 1:
                for test in tests:
                    # Weighted effects may exceed those of the metric.
                    test.bets.bounds = test.sign_bets.bounds = None
            key = chosen, batch.fingerprint
            if key not in question.fresh_examples:
                engine = question.engine_of(batch)
                with report_waiting(
                    f"{n_examples} examples so far", shown=question.config.progress
                ):
                    effects = engine.set_effects(sets, "certificate")
                question.fresh_examples[key] = _by_example(engine, effects)
            # Engines scale the weights of their own pairs to a mean of 1; batches share one scale.
            scale = fmean(pair.weight for pair in batch) / weights[0]
            for values in question.fresh_examples[key]:
                if n_examples < max_examples:
                    n_examples += 1
                    example = {name: scale * value for name, value in values.items()}
                    for test in tests:
                        test.observe(example, wording, alpha)
            batches.append(
                PairsBatch(wording=wording, fingerprint=batch.fingerprint, origin=batch.origin)
            )
            if n_examples >= max_examples or all(test.side(alpha) for test in tests):
                break
    except KeyboardInterrupt:
        if not n_examples:
            raise
    _check_sources(tests, fresh, max_examples, alpha)
    certificate = Certificate(
        claims=tuple(test.claim(alpha) for test in tests),
        level=level,
        is_assumed=tests[0].bets.bounds is None,
        labels=tuple(map(question.registry.label, chosen)),
        n_examples=n_examples,
        n_left_out=fresh.n_left_out,
        dataset=fresh.dataset,
        batches=tuple(batches),
        max_examples=max_examples,
        metric=question.search_engine.metric.name,
        intervention=question.setup.intervention,
        source_seed=question.setup.source_seed,
        continuation_mean=question.setup.continuation_mean,
        model=question.model_name,
        weights_digest=question.model_facts.weights_digest,
        versions=versions(),
    )
    if isinstance(members, TraceResult) and certificate.is_of(members):
        members.certificates.append(certificate)
    return certificate


def recorded_pairs(certificate: Certificate, model: HookedModel) -> dict[str, list[PromptPairs]]:
    """The pairs of a certificate, loaded again for a model, as `pairs` of `certify`.

    Raises:
        PairsError: They were made by hand, or have changed.
        TracekitError: Of data sets and files, as in `load_dataset`.
    """
    batches = {claim.wording: list[PromptPairs]() for claim in certificate.claims if claim.wording}
    whole: dict[str, PromptPairs] = {}
    for batch in certificate.batches:
        if batch.origin is None:
            raise PairsError(
                "The pairs of the certificate were made by hand, so they cannot be loaded again. "
                "Certify with pairs of a data set or a file."
            )
        key = f"{batch.origin.dataset} {batch.origin.options}"
        whole[key] = whole.get(key) or load_dataset(
            batch.origin.dataset, model, **batch.origin.options
        )
        pairs = load_origin(batch.origin, model, whole[key])
        if pairs.fingerprint != batch.fingerprint:
            raise PairsError(
                f"The pairs of {batch.origin.dataset} are not those of the certificate: the data "
                "or the tokenizer has changed. Restore them, or certify the set again."
            )
        batches.setdefault(batch.wording, []).append(pairs)
    return batches


_N_OBSERVED_FIRST = 10
"""Examples before the first bet, which say how large values are."""
_STAKE = 0.9
"""Largest share of the capital that the most extreme possible example can lose."""
_RUIN = 1e-12


@dataclass(eq=False)
class Bets:
    """Bets on where the mean of `value - theta * unit` is above 0 and below 0, for several theta.

    Before each example a bet is placed on the sign of a mean, from the examples so far. If the mean
    has the other sign or is 0, bets gain nothing on average, so a capital that ever grows to
    1 / alpha is evidence at level alpha, however often one looks (Waudby-Smith and Ramdas 2024,
    Estimating means of bounded random variables by betting). That needs stakes that cannot be lost
    whole: values are bounded, or assumed to be at most twice as far from 0 as the most extreme one
    so far.

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


@dataclass(eq=False)
class _Test:
    """A claim that is being tested, on the examples of one source or of all."""

    quantity: str
    wording: str
    value: float
    full: float
    """Mean effect of all components on the searched examples."""
    metric: Metric
    bounds: list[Bounds] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Bets on the claim, and on the sign of the mean effect of all components.

        A bound on the mean of `alone - phi * full` bounds a ratio only if the mean effect of all
        components has the sign of `full`. Nothing is decided before bets on this sign have won, so
        a wrong sign and a wrong bound cannot both cost error probability.
        """
        # The claimed value comes first.
        is_effect = self.is_effect
        thetas = np.array([self.value, *(_GRID * (abs(self.full) or 1 if is_effect else 1))])
        lowest, highest, _ = self.metric.bounds
        largest = max(abs(lowest), abs(highest))
        spread = None
        if np.isfinite(largest):
            # Of a ratio, the value of an example is a difference of effects.
            value, unit = (largest, 1.0) if is_effect else (highest - lowest, largest)
            spread = value + unit * np.abs(thetas)
        self.bets = Bets(thetas, spread)
        self.sign_bets = Bets(np.zeros(1), None if spread is None else np.array([largest]))

    @property
    def is_effect(self) -> bool:
        """Whether the claim is about a mean effect, rather than a ratio of two."""
        return self.quantity == "effect"

    def has_meaning(self, alpha: float) -> bool:
        """Whether it is about an effect, or a ratio whose reference has the sign of `full`."""
        return self.is_effect or bool(self.sign_bets.most[0, 0] >= np.log(1 / alpha))

    def observe(self, example: Mapping[str, float], wording: str, alpha: float) -> None:
        """Adds an example of a source."""
        if self.wording not in ("", wording):
            return
        sign = 1 if self.full > 0 else -1
        self.sign_bets.observe(sign * example["full"], 0.0)
        if self.is_effect:
            self.bets.observe(example["effect"], example["weight"])
        else:
            self.bets.observe(sign * example[self.quantity], sign * example["full"])
        low, high = self.bets.interval(alpha) if self.has_meaning(alpha) else (None, None)
        self.bounds.append((self.bets.n_examples, low, high))

    def side(self, alpha: float) -> int:
        """1 where the quantity is above the claimed value, -1 where it is below, else 0."""
        above, below = self.bets.most[:, 0] >= np.log(2 / alpha)
        return int(above) - int(below) if self.has_meaning(alpha) else 0

    def claim(self, alpha: float) -> Claim:
        side, is_at_least = self.side(alpha), self.quantity != "completeness"
        growth = self.bets.log_capital[:, 0].max() / max(1, self.bets.n_examples)
        is_open = side == 0 and self.has_meaning(alpha)
        return Claim(
            quantity=self.quantity,
            wording=self.wording,
            value=self.value,
            verdict="undecided" if side == 0 else "holds" if (side > 0) == is_at_least else "fails",
            n_needed=ceil(np.log(2 / alpha) / growth) if is_open and growth > 0 else None,
            bounds=tuple(self.bounds),
        )


class _FreshPairs:
    """Takes pairs from sources, but for those that the tracer or an earlier batch had."""

    def __init__(
        self, question: Question, members: ComponentsLike, *, is_held_out_seen: bool
    ) -> None:
        """Notes the pairs of a question, and the prompts that a saved result was selected on."""
        self.n_left_out, self.n_of_groups, self.dataset = 0, 0, ""
        self._resamples = isinstance(as_source(question.setup.source), Resample)
        self._is_by_prompt = question.source != "counterfactual"
        self._seen, self._drawn = SeenPrompts(question.pairs), set[Hashable]()
        self._seen.digests |= question.seen_prompts.digests
        if isinstance(members, TraceResult):
            self._seen.digests |= {*members.run.seen_prompts}
        if is_held_out_seen:
            self._seen.add(question.held_out_pairs or ())

    def batches(self, sources: Mapping[str, Source]) -> Iterator[tuple[str, PromptPairs]]:
        """A batch of each source in turn, with its name."""
        fresh = {
            name: self._fresh(self._split(each) if isinstance(each, PromptPairs) else iter(each))
            for name, each in sources.items()
        }
        while fresh:
            for name in list(fresh):
                if (batch := next(fresh[name], None)) is None:
                    del fresh[name]
                else:
                    yield name, batch

    def _fresh(self, batches: Iterator[PromptPairs]) -> Iterator[PromptPairs]:
        """What is fresh of each batch, until batches only repeat earlier ones."""
        n_stale = 0
        for batch in batches:
            if not isinstance(batch, PromptPairs):
                raise PairsError(f"A batch of pairs is {short_repr(batch)}. Give PromptPairs.")
            self.n_of_groups += sum(map(self._seen.has_group, batch))
            # Pairs that share a group with a known one are known, too.
            self._seen.add([pair for pair in batch if self._seen.has(pair)])
            keys = [
                {pair.prompt_ids if self._is_by_prompt else pair.independence_key, pair.group}
                for pair in batch
            ]
            is_new = [self._drawn.isdisjoint(each - {None}) for each in keys]
            fresh = [n for n, pair in enumerate(batch) if is_new[n] and not self._seen.has(pair)]
            n_stale = 0 if any(is_new) else n_stale + 1
            self.n_left_out += len(batch) - len(fresh)
            self._drawn.update(*keys)
            self.dataset = self.dataset or batch.name
            if fresh:
                yield batch.subset(fresh)
            if n_stale == MOST_STALE:
                return

    def _split(self, pairs: PromptPairs) -> Iterator[PromptPairs]:
        """Batches of pairs, each with whole examples; one where they resample each other."""
        size = pairs.n_distinct if self._resamples else _BATCH
        for examples in torch.arange(pairs.n_distinct).split(size):
            yield pairs.subset(torch.isin(pairs.examples, examples).nonzero()[:, 0].tolist())


def _by_example(engine: Engine, effects: Float[Tensor, "2 example"]) -> list[dict[str, float]]:
    """The quantities of each independent example, from effects of a set and of its complement.

    They are times the weights of its pairs, whose mean over the engine's pairs is 1.
    """
    own, others, full = *effects, engine.full_effects
    alone, remaining = own_and_missing_effects(own, others, full, engine.metric.direction)
    weights = engine.pairs.weights
    weights = torch.ones_like(full) if weights is None else weights.to(full)
    table = torch.stack([own, own, alone, remaining, full, weights])
    names = ("effect", "share", "faithfulness", "completeness", "full", "weight")
    return [
        dict(zip(names, table[:, engine.pairs.examples == example].mean(1).tolist(), strict=True))
        for example in range(engine.pairs.n_distinct)
    ]


def _check_sources(
    tests: Sequence[_Test], fresh: _FreshPairs, max_examples: int, alpha: float
) -> None:
    """Refuses sources without a fresh pair; warns if one has none, or an unclear full effect."""
    without = {test.wording for test in tests if not test.bounds}
    if "" in without:
        raise PairsError(
            f"There are no fresh pairs. {fresh.n_left_out} were left out: {fresh.n_of_groups} "
            "share a group with pairs of the tracer, the others have prompts of the tracer, of its "
            "searches or of earlier pairs. Give pairs of other groups and prompts, or the tracer "
            "held_out pairs."
        )
    if without and tests[0].bets.n_examples < max_examples:
        warn(
            f"There are no fresh pairs of {', '.join(sorted(without))}: all share prompts or "
            "groups with the tracer, its searches or earlier pairs. Claims about them stay "
            "undecided. Give every source prompts and groups of its own.",
            DataWarning,
        )
    unclear = {t.wording or "all fresh pairs" for t in tests if not t.has_meaning(alpha)} - without
    if unclear:
        warn(
            f"On {', '.join(sorted(unclear))}, it is not certain that all components together "
            "move the metric the way they do on the searched pairs. Claims about ratios of effects "
            "stay undecided there. Give more pairs of the same task, or claim an effect.",
            UnreliableResultWarning,
        )
