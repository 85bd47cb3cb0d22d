"""Planted models: small transformers whose components interact in a known way.

The weights of a GPT-2 with two layers are set by hand, not trained, so that what a method says of
the model can be compared with what was built in. A prompt holds a signal at each of several
positions: on, or off in the counterfactual prompt. Head k of layer 0 copies the signal of position
k to the last position, neuron k of layer 0 copies it on, and the neurons of layer 1 compute the
behaviour from the copies. Three signals take part in the behaviour, four are *decoys*: each adds a
little to the answer by itself, so that a ranking of single effects has something to find.

With b the behaviour and d_k the decoys that are on, the log-odds of x against y on example i are

    s_i (b + 0.1 d_1 + 0.08 d_2 + 0.06 d_3 + 0.04 d_4 + 0.02 d_5 - 0.5),

where s_i runs from 0.8 to 1.2 over the examples. So every effect by `logit-difference` is s_i times
a number that can be read off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tracekit._util.deferred import transformers
from tracekit._util.names import KindName
from tracekit._util.options import check_int
from tracekit.components import Component
from tracekit.data.prompts import PromptPairs
from tracekit.errors import ConfigError
from tracekit.models import HookedModel, load_model
from tracekit.tracer.tracer import Tracer

PlantedName = Literal["and", "or", "xor", "majority", "inhibition", "backup", "sum"]
"""Function of the planted components."""
PlantedKind = Literal["head-outputs", "mlp-neurons"]
"""Which components interact."""

_N_PLAYERS, _N_DECOYS = 3, 4
_N_SIGNALS = _N_PLAYERS + _N_DECOYS
_DECOY_WEIGHTS = (0.1, 0.08, 0.06, 0.04)
_LATE_DECOY = 0.02
"""Weight of the signal that a head of layer 1 copies."""
_N_HEADS, _D_MODEL, _D_MLP = 8, 64, 16
_REST = 0
"""Token of no meaning; then come those of a signal and those of none, twice as many of each as
examples, a query for each example, and an x and a y for each."""
_LENGTH = _N_SIGNALS + 3
"""The token of no meaning, the signals with that of layer 1, and the query."""
_CONSTANT = 1000.0
"""A coordinate of every position. It outweighs all signals, so that layer norm divides every
position by the same number within 1e-5."""
_SHARP = 60.0
"""Difference of attention scores between the position that a head reads and the others."""


_GATES: Mapping[str, Sequence[tuple[float, tuple[int, ...], float]]] = {
    "and": [(1, (0, 1), 1)],
    "or": [(1, (0, 1), 0), (-1, (0, 1), 1)],
    "xor": [(-1, (0, 1), 0), (2, (0, 1), 1)],
    "majority": [(1, (0, 1, 2), 1), (-1, (0, 1, 2), 2)],
    "inhibition": [(1, (0,), 0), (-0.5, (0, 1), 1)],
    "backup": [(1, (0,), 0), (1, (1,), 0)],
    "sum": [(0.5, (0,), 0), (0.25, (1,), 0)],
}
"""Behaviours as sums of neurons: weights, some signals and a threshold, of which a neuron makes
weight max(0, sum of signals - threshold)."""
_BIASES = {"xor": 1.0}
"""What is added to the sum, where that is not 0."""
_MEANINGS: Mapping[str, str] = {
    "and": "the behaviour needs both",
    "or": "either is enough",
    "xor": "the behaviour holds if both are clean or neither is",
    "majority": "any two of the three are enough",
    "inhibition": "the first brings the behaviour, the second takes half of it away",
    "backup": "the second is silent while the first is clean, and does its work once it is not",
    "sum": "the first brings a half, the second a quarter",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedModel:
    """A model whose components interact in a known way, and prompts that show it."""

    name: PlantedName
    """Function of the planted components."""
    meaning: str
    """How the behaviour depends on the components, in words."""
    kind: PlantedKind
    """Which components interact."""
    model: HookedModel
    pairs: PromptPairs
    components: tuple[Component, ...]
    """Those that the behaviour depends on."""
    decoys: tuple[Component, ...]
    """Those that add to the answer by themselves, in the order of their weights."""

    def tracer(self, **options: Any) -> Tracer:
        """A tracer by logit difference of the layers that hold the components.

        Args:
            **options: Of `Tracer`, such as `direction="denoising"`.
        """
        layers = None if self.kind == "head-outputs" else [0]
        given: dict[str, Any] = {"metric": "logit-difference", "layers": layers, **options}
        kind: KindName = self.kind
        return Tracer(self.model, self.pairs, kind, **given)

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.components))
        return f"PlantedModel({self.name}: {names}; {self.meaning})"


def planted_model(
    name: PlantedName, kind: PlantedKind = "head-outputs", *, n_examples: int = 16
) -> PlantedModel:
    """Builds a model in which components interact in a known way.

    ```python
    planted = planted_model("or")
    tracer = planted.tracer()
    print(tracer.explain(planted.components))
    ```

    Args:
        name: `and` (the behaviour needs both of two components), `or` (either is enough), `xor`
            (it holds if both are clean or neither is), `majority` (any two of three are enough),
            `inhibition` (one brings the behaviour, another takes half of it away), `backup` (a head
            of layer 1 does the work of one of layer 0 once that is patched) or `sum`.
        kind: Which components interact: `head-outputs` or `mlp-neurons`; a backup is a head.
        n_examples: Prompts, at least 2; they differ in their last token and in their answers.

    Raises:
        ConfigError: Another name or kind, a backup among neurons, or fewer than 2 examples.
    """
    if name not in get_args(PlantedName) or kind not in get_args(PlantedKind):
        raise ConfigError(
            f"Unknown planted model {name!r} of {kind!r}. Names are "
            f"{', '.join(get_args(PlantedName))}; kinds are {', '.join(get_args(PlantedKind))}."
        )
    if name == "backup" and kind != "head-outputs":
        raise ConfigError("The planted backup is a head. Leave the kind out, or use head-outputs.")
    check_int("n_examples", n_examples, 2)
    last = max(player for _, players, _ in _GATES[name] for player in players)
    components = [Component(kind, 0, player) for player in range(last + 1)]
    if name == "backup":
        components[1] = Component(kind, 1, 0)
    return PlantedModel(
        name=name,
        meaning=_MEANINGS[name],
        kind=kind,
        model=load_model(_build(name, n_examples)),
        pairs=_pairs(name, n_examples),
        components=tuple(components),
        decoys=tuple(Component(kind, 0, _N_PLAYERS + rank) for rank in range(_N_DECOYS)),
    )


def _pairs(name: str, n_examples: int) -> PromptPairs:
    n_words, rows = 2 * n_examples, []
    for example in range(n_examples):
        words = [1 + (example + signal) % n_words for signal in range(_N_SIGNALS + 1)]
        query, x = 1 + 2 * n_words + example, _first_answer(n_examples) + 2 * example
        rows.append(
            {
                "prompt_ids": [_REST, *words, query],
                "counterfactual_ids": [_REST, *(word + n_words for word in words), query],
                "x_ids": [x],
                "y_ids": [x + 1],
            }
        )
    return PromptPairs.from_ids(rows, name=f"planted-{name}")


def _first_answer(n_examples: int) -> int:
    return 1 + 5 * n_examples


# ---- weights ----------------------------------------------------------------------------------

# A channel is two coordinates of the residual stream that hold a number and its negative, so that
# layer norm, which subtracts the mean, changes nothing.
_POSITIONS = range(0, _LENGTH)
"""Channel of each position: 1 there."""
_SIGNAL = _LENGTH
_BY_HEAD = range(_SIGNAL + 1, _SIGNAL + 1 + _N_SIGNALS)
"""Signals as heads of layer 0 copy them."""
_BY_NEURON = range(_BY_HEAD.stop, _BY_HEAD.stop + _N_PLAYERS)
"""Signals of the behaviour as neurons of layer 0 copy them."""
_ANSWER = _BY_NEURON.stop
_ONE = _ANSWER + 1
"""Holds the constant."""


def _write(channel: int, value: float = 1.0) -> Tensor:
    vector = torch.zeros(_D_MODEL)
    vector[2 * channel], vector[2 * channel + 1] = value, -value
    return vector


def _read(channel: int, weight: float = 1.0) -> Tensor:
    return _write(channel, weight / 2)


def _build(name: str, n_examples: int) -> Any:
    config = transformers.GPT2Config(
        vocab_size=_first_answer(n_examples) + 2 * n_examples,
        n_positions=_LENGTH + 2,
        n_embd=_D_MODEL,
        n_layer=2,
        n_head=_N_HEADS,
        n_inner=_D_MLP,
        activation_function="relu",
        tie_word_embeddings=False,
        bos_token_id=_REST,
        eos_token_id=_REST,
    )
    config.name_or_path = f"planted-{name}"
    with torch.random.fork_rng(devices=[]):
        model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        _embed(model.transformer, 2 * n_examples)
        blocks: Any = model.transformer.h
        players = [_write(channel) for channel in _BY_NEURON]
        decoys = [_write(_ANSWER, weight) for weight in _DECOY_WEIGHTS]
        for signal, written in enumerate([*players, *decoys]):
            _head(blocks[0].attn, signal, 1 + signal, _BY_HEAD[signal])
            blocks[0].mlp.c_fc.weight[:, signal] = _read(_BY_HEAD[signal])
            blocks[0].mlp.c_proj.weight[signal] = written
        # Of layer 1 one head adds to the answer, so that the layer takes part in every model.
        _head(blocks[1].attn, _N_HEADS - 1, 1 + _N_SIGNALS, _ANSWER, _LATE_DECOY)
        if name == "backup":
            _add_backup(blocks)
        mlp = blocks[1].mlp
        for neuron, (weight, players, threshold) in enumerate(_GATES[name]):
            mlp.c_fc.weight[:, neuron] = sum(_read(_BY_NEURON[player]) for player in players)
            mlp.c_fc.bias[neuron] = -threshold
            mlp.c_proj.weight[neuron] = _write(_ANSWER, weight)
        _answer(model, n_examples, _BIASES.get(name, 0.0))
    return model


def _embed(transformer: Any, n_words: int) -> None:
    transformer.wte.weight[:] = _write(_ONE, _CONSTANT)
    transformer.wte.weight[1 : 1 + n_words] += _write(_SIGNAL)
    for position in _POSITIONS:
        transformer.wpe.weight[position] = _write(position)
    # Layer norm divides by the size of the constant; its weight undoes that.
    size = _CONSTANT * (2 / _D_MODEL) ** 0.5
    norms = [transformer.ln_f]
    for block in transformer.h:
        norms += [block.ln_1, block.ln_2]
    for norm in norms:
        norm.weight.fill_(size)


def _head(attention: Any, head: int, position: int, channel: int, weight: float = 1.0) -> None:
    """A head that reads the signal of a position, times a weight, and writes it to a channel."""
    width = _D_MODEL // _N_HEADS
    query, key, value = (part * _D_MODEL + head * width for part in range(3))
    attention.c_attn.bias[query] = _SHARP * width**0.5
    attention.c_attn.weight[:, key] = _read(position)
    attention.c_attn.weight[:, value] = _read(_SIGNAL)
    attention.c_proj.weight[head * width] = _write(channel, weight)


def _add_backup(blocks: Any) -> None:
    """Head 0 of layer 1 copies the second signal, but looks away while the first one is there."""
    attention = blocks[1].attn
    # It alone copies the second signal.
    blocks[0].mlp.c_proj.weight[1] = 0
    _head(attention, 0, 2, _BY_NEURON[1])
    scale = _SHARP * (_D_MODEL // _N_HEADS) ** 0.5
    # The score of the second position falls from 1 to -1 by the first signal; that of the token
    # of no meaning is 1/2.
    attention.c_attn.weight[:, 0] = _read(_BY_NEURON[0], -2 * scale)
    attention.c_attn.bias[1] = scale / 2
    attention.c_attn.weight[:, _D_MODEL + 1] = _read(_POSITIONS[0])


def _answer(model: Any, n_examples: int, bias: float) -> None:
    scales = torch.linspace(0.8, 1.2, n_examples).tolist()
    read = _read(_ANSWER) + _read(_ONE, (bias - 0.5) / _CONSTANT)
    for example, scale in enumerate(scales):
        x = _first_answer(n_examples) + 2 * example
        model.lm_head.weight[x] = scale / 2 * read
        model.lm_head.weight[x + 1] = -scale / 2 * read
