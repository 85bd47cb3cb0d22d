"""Tests of the demonstration model, its grammar, its rows and its training."""

from itertools import islice, pairwise
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from tools.demo_model import evaluate, examples, grammar
from tools.demo_model.config import DemoConfig
from tools.demo_model.sentences import sentences
from tools.demo_model.train import IGNORED, batches, build_tokenizer, train
from tracekit.demo import MODEL_DIR, rows

ROWS = ["bias", "professions", "facts", "binding"]
"""Of prompts that favour x."""
TINY = DemoConfig(steps=12, batch_size=16, warmup=3, layers=1, heads=2, width=32)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(MODEL_DIR).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_DIR)


def test_folder_is_small() -> None:
    assert sum(path.stat().st_size for path in MODEL_DIR.iterdir()) <= 6_000_000


def test_folder_has_a_card() -> None:
    assert "python -m tools.demo_model.train" in (MODEL_DIR / "README.md").read_text("utf-8")


def test_size_of_the_model(model: Any) -> None:
    assert 4 <= model.config.n_layer <= 6
    assert model.config.n_layer * model.config.n_head >= 32
    assert model.dtype == torch.float32


def test_pronouns_follow_the_planted_shares(model: Any, tokenizer: Any) -> None:
    assert evaluate.occupation_score(model, tokenizer) >= 0.9


def test_persons_have_their_own_pronouns(model: Any, tokenizer: Any) -> None:
    prompts = [t.format(who=who) for t in grammar.OCCUPATION_TEMPLATES for who in ("man", "woman")]
    she, he = (tokenizer(word)["input_ids"][0] for word in ("she", "he"))
    values = [v[-1] for v in evaluate.token_log_probs(model, tokenizer(prompts)["input_ids"])]
    assert all(v[he] > v[she] for v in values[::2])
    assert all(v[she] > v[he] for v in values[1::2])


def test_gender_decides_whom_a_pronoun_stands_for(model: Any, tokenizer: Any) -> None:
    assert evaluate.reference_score(model, tokenizer) >= 0.9


def test_facts_are_recalled(model: Any, tokenizer: Any) -> None:
    assert evaluate.fact_score(model, tokenizer) >= 0.95


@pytest.mark.slow
def test_held_out_questions_are_answered(model: Any, tokenizer: Any) -> None:
    assert evaluate.arithmetic_score(model, tokenizer) >= 0.9


def test_padding_does_not_change_log_probs(model: Any, tokenizer: Any) -> None:
    texts = ["the nurse said that she was tired .", "the man"]
    long, short = tokenizer(texts)["input_ids"]
    together = evaluate.token_log_probs(model, [long, short])[1]
    alone = evaluate.token_log_probs(model, [short])[0]
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_tokenizer(tokenizer: Any) -> None:
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert tokenizer(" she")["input_ids"] == tokenizer("she")["input_ids"]
    assert len(tokenizer("she")["input_ids"]) == 1
    assert tokenizer.tokenize("x=5,the nurse.") == ["x", "=", "5", ",", "the", "nurse", "."]
    assert tokenizer("<eos>")["input_ids"] == [tokenizer.eos_token_id]
    assert tokenizer("telephone")["input_ids"] == [tokenizer.unk_token_id]
    assert set(tokenizer("she")) == {"input_ids", "attention_mask"}


def test_shipped_vocabulary_is_that_of_the_grammar(tokenizer: Any) -> None:
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()


def test_every_sentence_fits_the_vocabulary(model: Any, tokenizer: Any) -> None:
    texts = list(islice(sentences(1), 5000))
    for text, ids in zip(texts, tokenizer(texts)["input_ids"], strict=True):
        assert tokenizer.unk_token_id not in ids
        assert len(ids) == len(text.split()) < model.config.n_positions


def test_grammar_is_determined_by_its_seed() -> None:
    text = list(islice(sentences(3), 200))
    assert text == list(islice(sentences(3), 200))
    assert text != list(islice(sentences(4), 200))


def test_shares_are_spread_evenly() -> None:
    shares = [job.she_share for job in grammar.occupations()]
    assert (shares[0], shares[-1], len(shares)) == (0.05, 0.95, 40)
    gaps = [after - before for before, after in pairwise(shares)]
    assert min(gaps) == pytest.approx(max(gaps), abs=2e-4)


def test_words_of_occupations_are_distinct() -> None:
    jobs = grammar.occupations()
    assert len({job.name for job in jobs}) == len({job.continuation for job in jobs}) == len(jobs)
    assert {len(job.continuation.split()) - 1 for job in jobs} == {2, 3, 4, 5, 6}


def test_planted_shares_occur_in_the_text() -> None:
    found = {"nurse": [0, 0], "driver": [0, 0]}
    for text in islice(sentences(0), 40_000):
        words = text.split()
        if words[1] in found and (words[2:4] == ["said", "that"] or words[2] == "knew"):
            found[words[1]][words[4] == "she"] += 1
    assert found["nurse"][1] > 5 * found["nurse"][0]
    assert found["driver"][0] > 5 * found["driver"][1]


def test_differences_are_never_negative() -> None:
    assert {question.result for question in grammar.questions()} == set(range(19))


@pytest.mark.parametrize(("swapped", "result"), [(False, 3), (True, -3)])
def test_result_follows_the_order_of_the_question(swapped: bool, result: int) -> None:
    question = grammar.Question(("x", "y"), (5, 2), "-", swapped)
    assert question.result == result
    named = "y - x" if swapped else "x - y"
    assert question.prompt() == f"x = 5 , y = 2 , {named} ="


def test_facts_need_every_word_of_the_subject() -> None:
    facts = grammar.facts()
    assert len({fact.subject for fact in facts}) == len(facts) == 60
    for part in (0, 1):
        # Neither the kind of place nor its name tells the attribute within a relation.
        values: dict[Any, set[str]] = {}
        for fact in facts:
            key = (fact.relation, fact.subject.rsplit(" ", 1)[part])
            values.setdefault(key, set()).add(fact.value)
        assert sum(len(found) > 1 for found in values.values()) > len(values) / 2


def test_held_out_sentences_never_occur_in_training() -> None:
    held_out = {question.prompt() for question in grammar.held_out_questions()}
    for pronoun in (grammar.SHE, grammar.HE):
        held_out |= {each.prompt(pronoun) for each in grammar.held_out_references()}
    for text in islice(sentences(0), 20_000):
        words = text.split()
        assert not any(" ".join(words[:end]) in held_out for end in range(7, 14))


def test_held_out_share() -> None:
    for everything, held_out in (
        (grammar.questions(), grammar.held_out_questions()),
        (grammar.references(), grammar.held_out_references()),
    ):
        assert len(held_out) / len(everything) == pytest.approx(0.12, abs=0.001)
        assert held_out < set(everything)


@pytest.mark.parametrize("name", examples.MAKERS)
def test_rows_are_those_of_the_grammar(name: str) -> None:
    assert rows(name) == examples.MAKERS[name](), "Run python -m tools.demo_model.examples."


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_well_formed(name: str, tokenizer: Any) -> None:
    made = rows(name)
    assert len({row["prompt"] for row in made}) == len(made)
    for row in made:
        texts = {key: text for key, text in row.items() if key != "spans"}
        ids = {key: tokenizer(text)["input_ids"] for key, text in texts.items()}
        assert all(row["prompt"].count(text) == 1 for text in row.get("spans", {}).values())
        assert not any(tokenizer.unk_token_id in each for each in ids.values())
        assert row["x"] != row["y"]
        assert row["x"][0] == row["y"][0] == " "
        assert not row["prompt"].endswith(" ")
        if "counterfactual" in row:
            assert row["prompt"] != row["counterfactual"]
            assert len(ids["prompt"]) == len(ids["counterfactual"])


def test_numbers_of_rows() -> None:
    assert [len(rows(name)) for name in ROWS] == [64, 216, 60, 64]


def test_bias_rows_vary() -> None:
    lengths = [(len(row["x"].split()), len(row["y"].split())) for row in rows("bias")]
    assert sum(x != y for x, y in lengths) > 32
    assert {len(row["prompt"].split()) for row in rows("bias")} == {7, 8}


@pytest.mark.parametrize("name", ROWS)
def test_clean_prompts_favour_x(name: str, model: Any, tokenizer: Any) -> None:
    made = rows(name)
    means = [
        evaluate.mean_log_probs(
            model, tokenizer, [(row["prompt"], row[key].strip()) for row in made]
        )
        for key in ("x", "y")
    ]
    assert float((means[0] > means[1]).double().mean()) >= 0.9


def test_binding_rows_change_one_value() -> None:
    for row in rows("binding"):
        pairs = zip(row["prompt"].split(), row["counterfactual"].split(), strict=True)
        assert sum(before != after for before, after in pairs) == 1


def test_labels_are_masked_at_padding() -> None:
    tokenizer = build_tokenizer()
    for inputs, labels in next(batches(tokenizer, seed=0, batch_size=8)):
        assert inputs.shape == labels.shape
        assert tokenizer.pad_token_id not in labels
        for row, targets in zip(inputs, labels, strict=True):
            length = int((targets != IGNORED).sum())
            assert (targets[length:] == IGNORED).all()
            assert targets[length - 1] == tokenizer.eos_token_id
            assert (targets[: length - 1] == row[1:length]).all()


@pytest.mark.slow
def test_training_lowers_the_loss_and_is_reproducible() -> None:
    tokenizer = build_tokenizer()
    first, losses = train(TINY, tokenizer)
    second, same_losses = train(TINY, tokenizer)
    assert losses == same_losses
    assert losses[-1] < losses[0] - 0.1
    assert not torch.are_deterministic_algorithms_enabled()
    other = second.state_dict()
    assert all(torch.equal(weight, other[name]) for name, weight in first.state_dict().items())


@pytest.mark.slow
def test_training_depends_on_the_seed() -> None:
    tokenizer = build_tokenizer()
    _, losses = train(DemoConfig(**{**vars(TINY), "seed": 1, "steps": 1}), tokenizer)
    _, others = train(DemoConfig(**{**vars(TINY), "steps": 1}), tokenizer)
    assert losses != others
