"""What a tracer shows of itself: in a line, and as a card in a notebook."""

from __future__ import annotations

from tracekit._util.clusters import count_text
from tracekit._util.markup import MAX_ROWS, clean_text, html_card
from tracekit.measure.question import Question
from tracekit.results.display import facts_table, line, model_text
from tracekit.results.tables import effect_columns, result_table


def tracer_text(question: Question) -> str:
    """What a tracer traces, in a line."""
    model = model_text(question.model_name, question.dtype)
    return clean_text(
        f"Tracer({question.registry.describe()} of {model}, {_examples(question)}, "
        f"{question.search_engine.metric.name}, {question.setup.intervention}"
        f"{_preferred(question)}{_explained(question)})"
    )


def _examples(question: Question) -> str:
    searched = question.search_engine.pairs
    text = count_text(len(searched), searched.clusters)
    if question.held_out_engine is not None:
        held_out = question.held_out_engine.pairs
        text += f" searched and {count_text(len(held_out), held_out.clusters)} held-out"
    return f"{text} examples of {searched.name}"


def _preferred(question: Question) -> str:
    """On how many examples the model prefers x, if it was run before: looking runs nothing."""
    if question.search_engine.known_full_effects is None or question.n_prefers_x is None:
        return ""
    run = " counterfactual runs" if question.direction == "denoising" else ""
    n_examples = len(question.search_engine.pairs)
    return f", x preferred on {question.n_prefers_x} of {n_examples}{run}"


def _explained(question: Question) -> str:
    shares = [f"{name}: {share:.2f}" for name, share in question.explained_variance.items()]
    return f", explained variance of {'; '.join(shares)}" if shares else ""


def tracer_html(question: Question) -> str:
    """A tracer: what it traces, and its last dozen results."""
    engine, results = question.search_engine, question.results
    facts = [
        ("model", model_text(question.model_name, question.dtype)),
        ("data", _examples(question) + _preferred(question)),
        ("components", question.registry.describe() + _explained(question)),
        ("metric", f"{engine.metric.name}: {engine.metric.axis_label}"),
        ("positions", str(question.setup.positions)),
        ("intervention", question.setup.intervention),
    ]
    if engine.known_full_effects is not None:
        facts.append(("all components", f"effect {engine.full_effects.mean():.4g}, searched"))
    shown, n_earlier = results[-MAX_ROWS:], len(results) - MAX_ROWS
    columns = ("method", *effect_columns(shown), "components")
    table = result_table(shown).only(*columns).html() if shown else line("No results yet: run().")
    earlier = line(f"and {n_earlier} earlier results") if n_earlier > 0 else ""
    return html_card("Tracer", facts_table(facts, "traced").html(), table, earlier)
