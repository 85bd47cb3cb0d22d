"""Pairs that a search trains on and that are drawn for it, from a source without end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tracekit._util.files import json_digest
from tracekit._util.options import short_repr
from tracekit.data.pair import MOST_STALE, PromptPair, SeenPrompts
from tracekit.data.prompts import PromptPairs
from tracekit.data.registry import EndlessPairs
from tracekit.engine.engine import Engine
from tracekit.errors import PairsError
from tracekit.measure.question import Question
from tracekit.results.result import TrainingPairs


class TrainingSource:
    """Draws pairs for the searches on a question, none of which it has, and records them."""

    def __init__(self, question: Question, source: Iterable[PromptPairs]) -> None:
        """Takes a source of batches; one that cannot be iterated again goes on where it was."""
        if isinstance(source, PromptPairs) or not isinstance(source, Iterable):
            raise PairsError(
                f"training_pairs is {short_repr(source)}. Give pairs without end, such as "
                "tk.data.endless_pairs('ioi', model), or another iterable of PromptPairs."
            )
        self._question, self._source = question, source
        self._n_pairs_of: dict[str, int] = {}
        self.seen_prompts = SeenPrompts()
        """The pairs that were drawn so far."""

    def engines(self) -> Iterator[Engine]:
        """Engines of as many new pairs as the question searches, or a few more, without end."""
        for pairs in self._batches():
            self._n_pairs_of[pairs.fingerprint] = len(pairs)
            self.seen_prompts.add(pairs)
            self._question.seen_prompts.add(pairs)
            yield self._question.engine_of(pairs)

    @property
    def drawn(self) -> TrainingPairs:
        """The pairs that were drawn so far."""
        return TrainingPairs(
            n_pairs=sum(self._n_pairs_of.values()),
            fingerprint=json_digest({"batches": list(self._n_pairs_of)}),
            code=self._source.code() if isinstance(self._source, EndlessPairs) else None,
        )

    def _batches(self) -> Iterator[PromptPairs]:
        question, batch, n_stale = self._question, list[PromptPair](), 0
        seen = SeenPrompts([*question.pairs, *(question.held_out_pairs or ())])
        for pairs in self._source:
            if not isinstance(pairs, PromptPairs):
                raise PairsError(
                    f"A batch of training pairs is {short_repr(pairs)}. Give PromptPairs."
                )
            new = [pair for pair in pairs if not seen.has(pair)]
            n_stale = 0 if new else n_stale + 1
            batch += new
            if len(batch) >= len(question.pairs):
                yield replace(pairs, pairs=tuple(batch), origin=None)
                batch = []
            if n_stale == MOST_STALE:
                break
        raise PairsError(
            f"The source of training pairs has run out of new pairs, after {self.drawn.n_pairs} of "
            "them. Give one without end, take fewer epochs, or leave out training_pairs."
        )
