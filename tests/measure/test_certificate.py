"""Certificates: claims about a set, decided on pairs that the tracer has not seen."""

from __future__ import annotations

import html
import itertools
import json
from dataclasses import asdict, replace
from math import ceil

import numpy as np
import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components.masks import complement_of
from tracekit.components.members import members_of
from tracekit.errors import (
    ConfigError,
    DataWarning,
    PairsError,
    ResultFormatError,
    UnreliableResultWarning,
)
from tracekit.measure.certificate import _by_example, _Test, recorded_pairs
from tracekit.measure.question import Question
from tracekit.metrics import METRICS
from tracekit.results.certificate import Certificate

NAMES = ["L0H0", "L0H1", "L1H2", "L1H3"]


def weighted(pairs, weight):
    """The pairs, with a weight that depends on their number."""
    changed = [replace(pair, weight=weight(number)) for number, pair in enumerate(pairs)]
    return tk.PromptPairs(pairs=tuple(changed), name="weighted")


def some_pairs(count, seed, exchange=False):
    rows = tiny.rows(count, seed=seed, longest=1)
    for row in rows if exchange else ():
        row["x_ids"], row["y_ids"] = row["y_ids"], row["x_ids"]
    return tk.PromptPairs.from_ids(rows)


def change_of_x(clean, intervened):
    return intervened.x - clean.x


def traced(pairs, metric="probability-drop", **options):
    return tk.Tracer(tiny.shared_model("gpt2"), pairs, "head-outputs", metric, **options)


@pytest.fixture(scope="module")
def tracer():
    return traced(some_pairs(40, 3), "kl", held_out=some_pairs(150, 4))


@pytest.fixture(scope="module")
def faithfulness(tracer):
    """Of the set on the held-out pairs."""
    return tracer.faithfulness(NAMES).faithfulness[0]


@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_values_are_means_over_the_pairs_of_an_example(direction):
    pairs = some_pairs(6, 3).grouped([0, 1, 0, 2, 1, 3])
    engine = traced(pairs, direction=direction).engine
    chosen = tuple(range(4))
    sets = [chosen, complement_of(chosen, engine.n_components)]
    own, others = engine.set_effects(sets)
    full, rows = engine.full_effects, [[0, 2], [1, 4], [3], [5]]
    alone, remaining = (full - others, full - own) if direction == "noising" else (own, others)
    columns = {
        "effect": own,
        "share": own,
        "faithfulness": alone,
        "completeness": remaining,
        "full": full,
    }
    values = _by_example(engine, torch.stack([own, others]))
    assert len(values) == 4
    for value, row in zip(values, rows, strict=True):
        for name, column in columns.items():
            assert value[name] == pytest.approx(column[row].mean().item(), abs=1e-6)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_claims_far_from_what_the_set_does_are_decided(tracer, faithfulness):
    certificate = tracer.certify(NAMES, faithful=faithfulness - 0.6)
    assert certificate.verdict == "holds"
    low, high = certificate.claims[0].bounds[-1][1:]
    assert low >= faithfulness - 0.6
    assert high is None or high > faithfulness
    assert certificate.n_examples < 150
    failed = tracer.certify(NAMES, faithful=faithfulness + 0.6)
    assert failed.verdict == "fails"
    assert failed.claims[0].bounds[-1][2] < faithfulness + 0.6
    assert repr(failed).startswith("Fails for L0H0, L0H1, L1H2, L1H3: ")
    assert f"faithfulness at least {faithfulness + 0.6:.3g}: fails; lower bound " in repr(failed)
    assert "if no example is more than twice as extreme" in repr(failed)


def test_a_share_is_of_the_effect_of_all_components(tracer):
    everything = torch.ones(tracer.engine.n_components)
    share = tracer.evaluate(NAMES) / tracer.evaluate(everything)
    below = tracer.certify(NAMES, share=share - 0.6)
    above = tracer.certify(NAMES, share=share + 0.6)
    near = tracer.certify(NAMES, share=share)
    assert [each.verdict for each in (below, above, near)] == ["holds", "fails", "undecided"]
    low, high = near.claims[0].bounds[-1][1:]
    assert low < share < high


def test_sets_on_the_same_pairs_have_bounds_of_their_own(tracer):
    first, other = (tracer.certify(names, effect=0.0) for names in (NAMES, ["L2H0"]))
    fresh = traced(some_pairs(40, 3), "kl", held_out=some_pairs(150, 4))
    assert fresh.certify(["L2H0"], effect=0.0).claims == other.claims != first.claims


def test_a_claim_close_to_it_stays_undecided(tracer, faithfulness):
    certificate = tracer.certify(NAMES, faithful=faithfulness, effect=-1.0)
    assert certificate.verdict == "undecided"
    assert [claim.verdict for claim in certificate.claims] == ["undecided", "holds"]
    assert certificate.n_examples == tracer.held_out.n_distinct
    low, high = certificate.claims[0].bounds[-1][1:]
    assert low < faithfulness < high
    needed = tracer.certify(NAMES, faithful=faithfulness - 0.6, max_examples=16).claims[0].n_needed
    assert needed is None or needed > 16
    assert tracer.certify(NAMES, faithful=0.5, max_examples=20).n_examples == 20


def test_several_claims_share_the_level(tracer, faithfulness):
    def bounds(**claims):
        return tracer.certify(NAMES, faithful=faithfulness, **claims).claims[0].bounds[-1]

    _, low, high = bounds()
    _, low_of_two, high_of_two = bounds(complete=5.0)
    assert low_of_two < low < high < high_of_two


def test_a_bounded_metric_needs_no_assumption():
    tracer = traced(some_pairs(20, 3), held_out=some_pairs(40, 4))
    certificate = tracer.certify(NAMES, effect=-0.9)
    assert not certificate.is_assumed
    assert repr(certificate).endswith("however early or late the measurement ends.")


class TestWeights:
    """Claims are about weighted means, whatever the scale of the weights."""

    def claims(self, weight, metric="kl", share=1 / 3):
        pairs, fresh = some_pairs(20, 3), weighted(some_pairs(150, 4), weight)
        tracer = traced(pairs, metric, held_out=fresh)
        scores = tracer.faithfulness(NAMES)
        means = {"effect": scores.effects[0], "faithfulness": scores.faithfulness[0]}
        claims = {"effect": share * means["effect"], "faithful": means["faithfulness"] - 0.6}
        return means, tracer.certify(NAMES, **claims)

    def test_a_common_weight_changes_nothing(self):
        once, five = (self.claims(lambda _, w=w: w)[1] for w in (1.0, 5.0))
        assert [claim.verdict for claim in once.claims] == ["holds", "holds"]
        assert once.claims == five.claims

    def test_bounds_are_of_the_weighted_mean(self):
        """Batches differ in their mean weight, and the first is the lightest."""
        means, certificate = self.claims(lambda number: 1.0 + number // 30)
        for claim in certificate.claims:
            _, low, high = claim.bounds[-1]
            assert low is None or low < means[claim.quantity]
            assert high is None or high > means[claim.quantity]
        assert certificate.claims[1].verdict == "holds"
        _, certificate = self.claims(lambda number: 1.0 + number // 30, share=2.0)
        assert certificate.claims[1].verdict == "fails"

    @pytest.mark.parametrize(("heavy", "is_assumed"), [(1.0, False), (5.0, True)])
    def test_weights_may_exceed_the_bounds_of_a_metric(self, heavy, is_assumed):
        _, certificate = self.claims(lambda n: heavy if n > 20 else 1.0, "probability-drop")
        assert certificate.is_assumed == is_assumed


def test_a_full_effect_of_the_other_sign_decides_no_ratio(tracer):
    """A set that does all that all components do has a faithfulness of 1 whatever the sign is."""
    full = tracer.question.engine_of(some_pairs(200, 90), metric=change_of_x).full_effects
    parts = [some_pairs(200, 90).subset((s * full > 0).nonzero()[:, 0].tolist()) for s in (1, -1)]
    everything = torch.ones(tracer.engine.n_components)
    for searched, fresh in (parts, parts[::-1]):
        turned = traced(searched, change_of_x)
        with pytest.warns(UnreliableResultWarning, match="On all fresh pairs, it is not cer"):
            certificate = turned.certify(everything, faithful=0.5, effect=-9.0, pairs=fresh)
        assert [each.verdict for each in certificate.claims] == ["undecided", "holds"]
        assert certificate.claims[0].bounds[-1][1:] == (None, None)
        assert certificate.claims[0].n_needed is None


@pytest.mark.parametrize("mean", [-0.05, -0.1, 0.0])
def test_a_ratio_of_a_small_full_effect_is_rarely_misjudged(mean):
    """The full effect has the other sign or none, so no faithfulness of a half holds."""
    rng, n_wrong = np.random.default_rng(0), 0
    for _ in range(60):
        test = _Test("faithfulness", "", 0.5, 1.0, METRICS["kl"])
        for alone, full in rng.normal([0.8, mean], 1.0, (400, 2)):
            test.observe({"faithfulness": alone, "full": full, "weight": 1.0}, "", 0.05)
            if test.side(0.05):
                n_wrong += 1
                break
    assert n_wrong <= 6


class TestFreshPairs:
    def test_what_the_tracer_has_is_left_out(self, tracer, faithfulness):
        mixed = some_pairs(40, 3)[:10], some_pairs(30, 9)
        both = tk.PromptPairs(pairs=(*mixed[0], *mixed[1]), name="mixed")
        certificate = tracer.certify(NAMES, faithful=faithfulness, pairs=both)
        assert certificate.n_left_out >= 10
        assert certificate.n_examples == 40 - certificate.n_left_out
        assert certificate.dataset == "mixed"

    def test_so_are_mirrors_and_pairs_of_a_saved_result(self, tracer):
        result = tracer.run("mask-ig", budget=3)
        other = traced(some_pairs(20, 30), "kl")
        seen = some_pairs(40, 3)
        with pytest.raises(PairsError, match="40 were left out"):
            other.certify(result, faithful=0.5, pairs=seen)
        mirrored = seen.reversed()
        with pytest.raises(PairsError, match="There are no fresh pairs. 40 were left out"):
            tracer.certify(NAMES, faithful=0.5, pairs=mirrored)

    def test_an_endless_source_is_read_until_claims_are_decided(self, tracer, faithfulness):
        drawn = []

        def source():
            for seed in itertools.count(100):
                drawn.append(seed)
                yield some_pairs(10, seed)

        certificate = tracer.certify(NAMES, faithful=faithfulness - 0.6, pairs=source())
        assert certificate.verdict == "holds"
        assert len(drawn) == len(certificate.batches) < 40

    def test_a_source_that_repeats_itself_has_run_out(self, tracer, faithfulness):
        same = itertools.repeat(some_pairs(5, 3))
        with pytest.raises(PairsError, match="There are no fresh pairs. 5"):
            tracer.certify(NAMES, faithful=faithfulness, pairs=same)
        fresh = itertools.chain([some_pairs(5, 7)], same)
        certificate = tracer.certify(NAMES, faithful=faithfulness, pairs=fresh)
        assert (certificate.verdict, certificate.n_examples) == ("undecided", 5)

    def test_pairs_made_by_hand_cannot_be_loaded_again(self, tracer, faithfulness):
        certificate = tracer.certify(NAMES, faithful=faithfulness)
        with pytest.raises(PairsError, match="were made by hand, so they cannot be loaded again"):
            recorded_pairs(certificate, tracer.model)

    def test_without_any_there_is_an_error(self):
        with pytest.raises(PairsError, match="There are no fresh pairs. 0 were left out"):
            traced(some_pairs(12, 3), "kl").certify(NAMES, faithful=0.5)

    def test_pairs_of_a_group_of_the_tracer_are_counted_as_such(self):
        """Of other prompts, they are no fresh examples all the same."""
        first, second = (some_pairs(6, seed).grouped([*"aabbcc"]) for seed in (3, 60))
        text = "6 were left out: 6 share a group with pairs of the tracer"
        with pytest.raises(PairsError, match=text):
            traced(first, "kl").certify(NAMES, faithful=0.5, pairs=second)

    def test_groups_count_once_whatever_batch_they_are_in(self, tracer):
        batches = [some_pairs(8, seed).grouped(range(8)) for seed in range(50, 58)]
        certificate = tracer.certify(NAMES, effect=9.0, pairs=iter(batches))
        assert (certificate.n_examples, certificate.n_left_out) == (8, 56)
        with pytest.warns(DataWarning, match="no fresh pairs of other: all share prompts or gro"):
            certificate = tracer.certify(
                NAMES, effect=9.0, pairs={"first": batches[0], "other": batches[1]}
            )
        assert certificate.n_examples == 8
        assert [each.verdict for each in certificate.claims] == ["undecided"] * 3

    def test_pairs_that_a_search_trained_on_are_left_out(self):
        tracer = traced(some_pairs(40, 3), "kl")
        trained, new = some_pairs(200, 70), some_pairs(20, 71)
        batches = itertools.cycle([trained[:100], trained[100:]])
        result = tracer.run("dcm", epochs=2, training_pairs=batches, budget=3)
        again = tk.Tracer(tracer.model, some_pairs(20, 3), "head-outputs", "kl")
        for members, other in ((result, again), (NAMES, tracer)):
            both = tk.PromptPairs(pairs=(*trained, *new), name="both")
            assert other.certify(members, effect=99.0, pairs=both).n_examples <= 20

    def test_so_are_pairs_of_a_constraint(self):
        tracer = traced(some_pairs(40, 3), "kl")
        neutral = some_pairs(30, 72)
        constraint = tk.Constraint(pairs=neutral, at_most=99.0)
        result = tracer.run("top-k", budget=3, constraint=constraint)
        with pytest.raises(PairsError, match="30 were left out"):
            tracer.certify(result, effect=0.0, pairs=neutral)

    @pytest.mark.parametrize("role", ["searched", "constraint", "training", "front"])
    def test_pairs_that_share_a_prompt_or_a_group_with_these_are_known(self, role):
        """Whatever the rest of them is, also for a result that another tracer is asked about."""
        tracer = traced(some_pairs(40, 3), "kl")
        used = some_pairs(30, 3 if role == "searched" else 72).grouped([n // 3 for n in range(30)])
        options, questioned = {}, tracer
        if role == "searched":
            questioned = traced(used, "kl")
        elif role == "training":
            options["training_pairs"] = itertools.cycle([used])
        else:
            options["constraint"] = tk.Constraint(pairs=used, at_most=99.0)
        if role == "front":
            fresh = traced(some_pairs(20, 3), "kl")
            members = fresh.pareto(max_budget=2, statistics=False, **options)[0]
            certified = [(fresh, NAMES), (traced(some_pairs(20, 90), "kl"), members)]
        else:
            method = "dcm" if role == "training" else "top-k"
            if role == "training":
                options["epochs"] = 1
            result = questioned.run(method, budget=2, **options)
            certified = [(traced(some_pairs(20, 90), "kl"), result)]
        other = some_pairs(30, 95)
        same_prompt = [
            replace(pair, counterfactual=o.counterfactual, group=None)
            for pair, o in zip(used, other, strict=True)
            if len(pair.prompt_ids) == len(o.counterfactual_ids)
        ]
        same_group = [replace(o, group=p.group) for p, o in zip(used, other, strict=True)]
        for pairs in (same_prompt, same_group):
            assert pairs
            again = tk.PromptPairs(pairs=tuple(pairs), name="again")
            for each, members in certified:
                with pytest.raises(PairsError, match=f"{len(pairs)} were left out"):
                    each.certify(members, effect=0.0, pairs=again)

    def test_an_order_of_pairs_makes_no_examples(self, tracer):
        """Pairs of the same prompt with other counterfactuals are as independent as elsewhere."""
        first, other, mean = some_pairs(20, 97), some_pairs(20, 98), tracer.evaluate(NAMES)
        twice = [
            replace(pair, counterfactual=o.counterfactual)
            for pair, o in zip(first, other, strict=True)
            if len(pair.prompt_ids) == len(o.counterfactual_ids)
        ]
        whole = tk.PromptPairs(pairs=(*first, *twice), name="both")
        half = tk.PromptPairs(pairs=tuple(twice), name="half")
        counts = {
            tracer.certify(NAMES, effect=mean, pairs=pairs).n_examples
            for pairs in (whole, [first, half], [whole])
        }
        assert counts == {whole.n_distinct}

    @pytest.mark.parametrize("source", ["zero", "mean", "noise", "resample"])
    def test_a_saved_result_knows_its_prompts_under_every_source(self, source, tmp_path):
        pairs = some_pairs(30, 3)
        result = traced(pairs, "kl", source=source).run("top-k", budget=2)
        loaded = tk.TraceResult.load(result.save(tmp_path))
        other = traced(some_pairs(30, 80), "kl", source=source)
        with pytest.raises(PairsError, match="30 were left out"):
            other.certify(loaded, effect=0.0, pairs=pairs)

    def test_a_source_may_begin_with_many_known_batches(self, tracer):
        """They are new to the source, which has therefore not run out."""
        known = [some_pairs(40, 3)[n : n + 1] for n in range(40)] * 2
        known += [some_pairs(150, 4)[n : n + 1] for n in range(150)]
        source = itertools.chain(known, [some_pairs(20, 73)])
        assert tracer.certify(NAMES, effect=99.0, pairs=source).n_examples >= 19

    def test_fresh_pairs_resample_each_other_as_held_out_ones_do(self):
        held_out = some_pairs(60, 4)
        tracer = traced(some_pairs(20, 3), "kl", held_out=held_out, source="resample")
        mean = tracer.evaluate(NAMES, held_out=True)
        bound = tracer.certify(NAMES, effect=mean).claims[0].bounds[-1]
        certificate = tracer.certify(NAMES, effect=mean)
        (values,) = tracer.question.fresh_examples.values()
        assert sum(each["effect"] for each in values) / 60 == pytest.approx(mean, rel=1e-5)
        assert bound == certificate.claims[0].bounds[-1]

    def test_claims_without_bounds_say_so(self, tracer, faithfulness):
        certificate = tracer.certify(NAMES, faithful=faithfulness, max_examples=2)
        assert repr(certificate).splitlines()[1].endswith(": undecided; no bounds yet")

    def test_groups_are_one_example_and_stay_together(self, tracer):
        grouped = some_pairs(40, 50).grouped([number % 20 for number in range(40)])
        certificate = tracer.certify(NAMES, faithful=0.5, pairs=grouped)
        assert certificate.n_examples <= 20


class TestWordings:
    def test_each_is_tested_alone_and_all_together(self, tracer, faithfulness):
        wordings = {"first": some_pairs(60, 61), "second": some_pairs(60, 62)}
        claim = faithfulness - 0.6
        certificate = tracer.certify(NAMES, faithful=claim, pairs=wordings)
        assert [each.wording for each in certificate.claims] == ["", "first", "second"]
        numbers = [each.bounds[-1][0] for each in certificate.claims]
        assert numbers[0] == sum(numbers[1:]) == certificate.n_examples
        assert abs(numbers[1] - numbers[2]) <= 16
        assert f"faithfulness at least {claim:.3g} on second: " in repr(certificate)
        alone = tracer.certify(NAMES, faithful=claim, pairs=wordings["first"])
        before, after = alone.claims[0].bounds[15], certificate.claims[1].bounds[15]
        # Three claims share the level.
        assert after[1] is None or after[1] <= before[1]

    def test_one_that_fails_is_named(self, tracer, faithfulness):
        both = {"near": some_pairs(60, 61), "far": [some_pairs(60, 62).reversed()]}
        certificate = tracer.certify(NAMES, faithful=faithfulness + 0.6, pairs=both)
        assert certificate.verdict == "fails"
        failing = [str(each) for each in certificate.claims if each.verdict == "fails"]
        assert failing[0] in repr(certificate)


@pytest.fixture(scope="module")
def of_names(gpt2_tokenizer):
    """A tracer of `ioi` on a random model with the vocabulary of GPT-2."""
    torch.manual_seed(0)
    hf = tiny.hf_model("gpt2", vocab_size=len(gpt2_tokenizer))
    with pytest.warns(tk.errors.ModelWarning, match="hardly predicts plain English"):
        model = tk.load_model(hf, tokenizer=gpt2_tokenizer)
    pairs = tk.load_dataset("ioi", model, n=8)
    return tk.Tracer(model, pairs, "head-outputs", "logit-difference")


class TestGeneratedWordings:
    """Certificates on pairs of `tk.data.wordings`."""

    @pytest.mark.slow
    def test_each_is_measured_and_replayed(self, of_names, tmp_path):
        pairs = tk.data.wordings("ioi", of_names.model, n=4)
        claims = {"effect": 0.0, "max_examples": 48}
        certificate = of_names.certify(["L0H0", "L1H1"], pairs=pairs, **claims)
        assert [each.wording for each in certificate.claims] == ["", *pairs]
        assert [batch.wording for batch in certificate.batches[:6]] == [*pairs]
        for batch in certificate.batches:
            assert batch.origin.options["wording"] == batch.wording
        loaded = Certificate.load(certificate.save(tmp_path / "new" / "certificate.json"))
        again = recorded_pairs(loaded, of_names.model)
        assert [*again] == [*pairs]
        for repeated in (pairs, again):
            other = of_names.certify(["L0H0", "L1H1"], pairs=repeated, **claims)
            assert other.claims == certificate.claims
            assert other.batches == certificate.batches

    @pytest.mark.slow
    def test_one_that_fails_is_named(self, of_names):
        """The effect is above 0 on all chosen pairs of one wording, and below 0 on the others."""
        members, sources = ["L0H0", "L1H1", "L2H0"], {}
        chosen = members_of(members, of_names.registry)
        for wording, sign in (("friends", 1), ("surprise", -1)):
            pairs = tk.load_dataset("ioi", of_names.model, n=400, seed=1, wording=wording)
            effects = sign * of_names.question.engine_of(pairs).set_effects([chosen])[0]
            sources[wording] = pairs.subset((effects > 0).nonzero().flatten().tolist())
        certificate = of_names.certify(members, effect=0.0, pairs=sources)
        verdicts = {each.wording: each.verdict for each in certificate.claims}
        assert (verdicts["friends"], verdicts["surprise"]) == ("holds", "fails")
        assert certificate.verdict == "fails"
        assert "effect at least 0 on friends: holds" in repr(certificate)
        assert "effect at least 0 on surprise: fails" in repr(certificate)

    def test_pairs_with_groups_of_ones_own_are_made_by_hand(self, of_names):
        fresh = tk.load_dataset("ioi", of_names.model, n=8, seed=5).grouped([*"aabbccdd"])
        certificate = of_names.certify(["L0H0"], effect=99.0, pairs=fresh)
        with pytest.raises(PairsError, match="made by hand"):
            recorded_pairs(certificate, of_names.model)

    def test_a_source_without_fresh_pairs_is_replayed_too(self, of_names):
        """And batches come in their order where a source began with pairs that were known."""
        fresh = [tk.load_dataset("ioi", of_names.model, n=4, seed=seed) for seed in range(5, 10)]
        sources = {
            "known": [of_names.pairs],
            "later": [of_names.pairs, *fresh[:2]],
            "fresh": fresh[2:],
        }
        with pytest.warns(DataWarning, match="There are no fresh pairs of known"):
            certificate = of_names.certify(["L0H0"], effect=99.0, pairs=sources)
        pairs = recorded_pairs(certificate, of_names.model)
        assert [*pairs] == [*sources]
        with pytest.warns(DataWarning, match="There are no fresh pairs of known"):
            again = of_names.certify(["L0H0"], effect=99.0, pairs=pairs)
        order = ["later", "fresh", "later", "fresh", "fresh"]
        assert [batch.wording for batch in certificate.batches] == order
        assert (again.claims, again.batches) == (certificate.claims, certificate.batches)

    def test_a_data_set_is_loaded_once_for_all_its_batches(self, of_names, monkeypatch):
        pairs = tk.load_dataset("ioi", of_names.model, n=40, seed=5)
        sources = {"first": pairs[:20], "second": pairs[20:]}
        sources["third"] = tk.load_dataset("ioi", of_names.model, n=20, seed=6)
        certificate = of_names.certify(["L0H0"], effect=0.0, pairs=sources, max_examples=60)
        assert len(certificate.batches) == 6
        loads = []

        def count(name, model, **options):
            loads.append(options)
            return tk.load_dataset(name, model, **options)

        monkeypatch.setattr("tracekit.measure.certificate.load_dataset", count)
        again = recorded_pairs(certificate, of_names.model)
        assert loads == [{"n": 40, "seed": 5}, {"n": 20, "seed": 6}]
        assert [batch.fingerprint for batch in certificate.batches] == [
            again[name][number].fingerprint for number in (0, 1) for name in sources
        ]


class TestInterrupted:
    @pytest.mark.parametrize("n_batches", [0, 1, 2])
    def test_what_was_measured_is_kept(self, tracer, faithfulness, monkeypatch, n_batches):
        tracer.question.fresh_examples.clear()
        engine_of, calls = Question.engine_of, itertools.count()

        def interrupted(self, *args, **kwargs):
            if next(calls) == n_batches:
                raise KeyboardInterrupt
            return engine_of(self, *args, **kwargs)

        monkeypatch.setattr(Question, "engine_of", interrupted)
        if n_batches == 0:
            with pytest.raises(KeyboardInterrupt):
                tracer.certify(NAMES, faithful=faithfulness)
        else:
            certificate = tracer.certify(NAMES, faithful=faithfulness)
            assert certificate.verdict == "undecided"
            assert certificate.n_examples == 16 * n_batches
            # The next call is not interrupted, and measures what is left.
            again = tracer.certify(NAMES, faithful=faithfulness)
            assert again.n_examples == 150
            assert again.claims[0].bounds[: 16 * n_batches] == certificate.claims[0].bounds
            assert next(calls) == ceil(150 / 16) + 1


def test_a_saved_certificate_is_the_same(tracer, faithfulness, tmp_path):
    certificate = tracer.certify(NAMES, faithful=faithfulness - 0.6, complete=5.0)
    loaded = Certificate.load(certificate.save(tmp_path / "certificate.json"))
    assert asdict(loaded) == asdict(certificate)
    assert repr(loaded) == repr(certificate)
    saved = json.loads((tmp_path / "certificate.json").read_text())
    assert saved["claims"][0]["verdict"] == "holds"
    assert saved["labels"] == NAMES


class TestResults:
    """A result shows its last certificate."""

    @pytest.fixture
    def result(self, tracer):
        return tracer.run("mask-ig", budget=4)

    def test_it_is_printed_and_reported(self, tracer, result, tmp_path):
        assert "Certificate" not in repr(result)
        assert tracer.certify(result, effect=9.0).verdict == "fails"
        certificate = tracer.certify(result, effect=-9.0)
        summary = "Certificate (95 %, 32 fresh examples of pairs): effect at least -9: holds."
        assert certificate.summary == summary
        assert repr(result).splitlines()[1:] == [summary]
        assert summary in html.unescape(result._repr_html_())
        page = tk.report(result, tmp_path / "report.html").read_text(encoding="utf-8")
        assert f"{result.title}, 4 components: {summary}" in html.unescape(page)

    def test_it_is_saved_beside_the_result(self, tracer, result, tmp_path):
        certificate = tracer.certify(result, effect=-9.0)
        loaded = tk.TraceResult.load(result.save(tmp_path))
        assert loaded.certificates[0].summary == certificate.summary
        assert repr(loaded) == repr(result)
        (tmp_path / Certificate.FILE).write_text("{}")
        with pytest.raises(ResultFormatError, match="is not a certificate. Give one that"):
            tk.TraceResult.load(tmp_path)

    @pytest.mark.slow
    def test_it_is_not_taken_for_one_of_another_set_or_model(self, tracer, result, tmp_path):
        result.save(tmp_path)
        tracer.certify(NAMES, effect=-9.0).save(tmp_path / Certificate.FILE)
        assert tk.TraceResult.load(tmp_path).certificates == []
        pairs = {"pairs": some_pairs(40, 3), "held_out": some_pairs(150, 4)}
        another = tk.load_model(tiny.hf_model("gpt2", seed=5))
        others = {
            "model": tk.Tracer(another, components="head-outputs", metric="kl", **pairs),
            "metric": traced(pairs["pairs"], "probability-drop", held_out=pairs["held_out"]),
            "source": traced(pairs["pairs"], "kl", held_out=pairs["held_out"], source="zero"),
            "mean": traced(
                pairs["pairs"], "kl", held_out=pairs["held_out"], continuation_mean="arithmetic"
            ),
        }
        for other in others.values():
            other.certify(result, effect=-9.0).save(tmp_path / Certificate.FILE)
            assert tk.TraceResult.load(tmp_path).certificates == result.certificates == []

    @pytest.mark.parametrize(
        "options", [{"direction": "denoising"}, {"source": "mean"}, {"metric": change_of_x}]
    )
    def test_it_is_recognised_under_every_setup(self, options):
        metric = options.pop("metric", "probability-drop")
        tracer = traced(some_pairs(12, 3), metric, held_out=some_pairs(12, 4), **options)
        result = tracer.run("top-k", budget=2)
        assert tracer.certify(result, effect=0.0).is_of(result)
        assert len(result.certificates) == 1

    def test_wordings_are_named_where_a_claim_fails(self, tracer):
        certificate = tracer.certify(NAMES, effect=-9.0)
        (claim,) = certificate.claims
        verdicts = {"usual": "holds", "letter": "fails", "rare": "undecided"}
        of_wordings = [replace(claim, wording=w, verdict=v) for w, v in verdicts.items()]
        summary = replace(certificate, claims=(claim, *of_wordings)).summary
        assert summary.endswith("effect at least -9: holds; effect at least -9 on letter: fails.")


def test_a_figure_has_the_bounds_of_a_claim(tracer, faithfulness):
    certificate = tracer.certify(NAMES, faithful=faithfulness - 0.6, complete=5.0)
    figure = certificate.figure(1)
    upper = [high for _, _, high in certificate.claims[1].bounds if high is not None]
    assert upper
    assert list({trace.name: trace for trace in figure.data}["upper bound"].y) == upper
    assert "counterfactual patching" in figure.layout.title.subtitle.text
    assert figure.layout.shapes[0].y0 == 5.0
    assert certificate.figure().layout.yaxis.title.text == "faithfulness"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, ConfigError, "{}. Give faithful, complete, share or effect"),
        ({"faithful": float("nan")}, ConfigError, "{'faithfulness': nan}.*as finite numbers"),
        ({"faithful": 0.5, "level": 95}, ConfigError, "level is 95. .* between 0 and 1"),
        ({"faithful": 0.5, "max_examples": 0}, ConfigError, "max_examples is 0. .* at least 1"),
        ({"faithful": 0.5, "pairs": [5]}, PairsError, "pairs is 5. Give PromptPairs"),
    ],
)
def test_requests_that_cannot_be_answered(tracer, unchecked, options, error, text):
    with pytest.raises(error, match=text):
        tracer.certify(NAMES, **options)
