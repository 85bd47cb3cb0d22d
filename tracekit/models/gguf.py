"""GGUF files: models as llama.cpp keeps them, read by transformers with widened weights.

transformers leaves out most settings of the header without a word: here every setting of the
architecture is the configuration's, is put into it, or is named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from math import isclose, log
from pathlib import Path
from typing import Any

import torch

from tracekit._util.deferred import transformers
from tracekit._util.table import join_labels
from tracekit._util.warn import warn
from tracekit.errors import MissingExtraError, ModelWarning, UnsupportedModelError
from tracekit.models.checkpoint import Checkpoint
from tracekit.models.verification import Loader

Settings = dict[str, Any]

_TABLE = Path(__file__).with_name("gguf_settings.json")
_LIKE: dict[str, list[Any]] = json.loads(_TABLE.read_text(encoding="utf-8"))
"""By key, the value that changes nothing, and the names in configurations."""
_SIZES = _LIKE.pop("sizes")
"""Keys of shapes, which the weights show too, and of how the file was made."""
_ROTARY = "rope_"
_GATES = {1: "softmax", 2: "sigmoid", 3: "softmax"}
_SCALARS = {"gemma2": {26: 0, 42: 0, 46: 1}, "gemma3_text": {18: 0, 26: 0, 34: 0, 48: 0, 62: 1}}
"""By layers, whether a Gemma divides queries by the root of its width per head, not of 256."""


@dataclass(frozen=True, eq=False)
class GGUFModel:
    """A file whose header was read, and whose weights were not."""

    path: Path
    config: Any
    n_parameters: int

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> GGUFModel:
        """Reads the header; refuses a file that cannot be read or whose architecture is unknown."""
        path = checkpoint.folder / str(checkpoint.gguf)
        if find_spec("gguf") is None:
            raise MissingExtraError(
                f"{path.name} is read by the package gguf. Run pip install 'tracekit-lm[gguf]'."
            )
        from gguf import GGUFReader
        from transformer_lens.factories import architecture_adapter_factory

        try:
            config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
            reader = GGUFReader(path)
            start = f"{_read_value(reader, 'general.architecture')}."
            keys = [key for key in reader.fields if key.startswith(start)]
            settings = {key.removeprefix(start): _read_value(reader, key) for key in keys}
            rotary = {e.name: e.data for e in reader.tensors if e.name.startswith(_ROTARY)}
            config, problems = complete_config(config, settings, rotary)
            with torch.device("meta"):
                empty = transformers.AutoModelForCausalLM.from_config(config)
            problems += _unplaced_tensors(reader, empty)
        except Exception as error:  # Any error means that the file cannot be read.
            raise UnsupportedModelError(
                f"{path} cannot be read ({error}). If it is cut short or damaged, fetch it again; "
                "else give a model of an architecture that transformers reads from GGUF."
            ) from error
        if problems:
            warn(
                f"{path.name} has settings that transformers does not take from it: "
                f"{'; '.join(problems)}. The numbers may differ from those of the model. Give it "
                "as a directory in Hugging Face layout.",
                ModelWarning,
            )
        if type(empty).__name__ not in architecture_adapter_factory.SUPPORTED_ARCHITECTURES:
            raise UnsupportedModelError(
                f"{path} holds a {type(empty).__name__}, which TransformerLens does not support. "
                "Give a model of another architecture."
            )
        return cls(path, config, sum(each.numel() for each in empty.parameters()))

    def load(self, loader: Loader, dtype: torch.dtype) -> Any:
        """The model of transformers, with weights in a floating type."""
        model = loader.from_pretrained(
            self.path.parent, config=self.config, gguf_file=self.path.name, dtype=dtype
        )
        # Plain floating weights from now on, which transformers writes as such.
        model.hf_quantizer, model.is_quantized = None, False
        delattr(model.config, "quantization_config")
        return model

    def tokenizer(self) -> Any:
        """The file's own tokenizer; None, with a warning, if transformers cannot read it."""
        try:
            return transformers.AutoTokenizer.from_pretrained(
                self.path.parent, gguf_file=self.path.name
            )
        except Exception as error:  # A model without a tokenizer can still read token ids.
            warn(
                f"The tokenizer of {self.path.name} cannot be read "
                f"({type(error).__name__}: {error}). Give data as token ids, or a `tokenizer`.",
                ModelWarning,
            )
            return None


def _read_value(reader: Any, key: str) -> Any:
    from gguf import GGUFValueType
    from transformers.modeling_gguf_pytorch_utils import read_field

    values = read_field(reader, key)
    return values if reader.fields[key].types[0] == GGUFValueType.ARRAY else values[0]


def _unplaced_tensors(reader: Any, model: Any) -> list[str]:
    from transformers import modeling_gguf_pytorch_utils as loading

    architecture = _read_value(reader, "general.architecture")
    made_for = loading.TENSOR_PROCESSORS.get(architecture, loading.TensorProcessor)
    places = loading.get_gguf_hf_weights_map(model, made_for(config=model.config.to_dict()))
    names = [each.name for each in reader.tensors if not each.name.startswith(_ROTARY)]
    left = [n for n in names if n not in places and n.removesuffix(".weight") not in places]
    return [f"the tensors {join_labels(left, most=5)}"] if left else []


def complete_config(
    config: Any, settings: Settings, tensors: Mapping[str, Any]
) -> tuple[Any, list[str]]:
    """Adds a file's settings to a configuration; also returns those that do not fit."""
    left = {key: value for key, value in settings.items() if key not in _SIZES}
    changes: Settings = {}
    problems: list[str] = []
    for step in (_apply_rotary, _apply_window, _apply_query_scale, _apply_values):
        problems += step(config, left, tensors, changes)
    problems += [f"{key} = {_value_text(value)}" for key, value in left.items()]
    pad = getattr(config, "pad_token_id", None)
    if pad is not None and pad >= config.vocab_size:
        # A default of the architecture, which files without a tokenizer do not overwrite.
        changes["pad_token_id"] = None
    if changes:
        config = type(config).from_dict({**config.to_dict(), **changes})
    return config, problems


def _value_text(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) < 60 else f"{text[:56]} ..."


def _apply_values(config: Any, left: Settings, _: Any, changes: Settings) -> Iterator[str]:
    head_dim = changes.get("head_dim", left.get("attention.key_length", _head_dim(config)))
    if left.get("attention.value_length", head_dim) in (head_dim, getattr(config, "v_head_dim", 0)):
        left.pop("attention.value_length", None)
    gate = _GATES.get(left.get("expert_gating_func", 0))
    if gate is not None and getattr(config, "scoring_func", "softmax") == gate:
        del left["expert_gating_func"]
    if "attention.max_alibi_bias" in left and (
        config.model_type == "bloom" or getattr(config, "alibi", False)
    ):
        del left["attention.max_alibi_bias"]
    for key, (neutral, *names) in _LIKE.items():
        if key not in left:
            continue
        value = left.pop(key)
        name = next((name for name in names if hasattr(config, name)), None)
        if name is None:
            # A weight's shape says it, or it changes nothing.
            is_unset = value == 0 and neutral == 1 and not isinstance(value, bool)
            if neutral is not None and value != neutral and not is_unset:
                yield f"{key} = {_value_text(value)}"
        elif not isinstance(value, list):
            own = getattr(config, name) or 0
            are_numbers = isinstance(own, (int, float)) and isinstance(value, (int, float))
            if not (isclose(own, value, rel_tol=1e-5) if are_numbers else own == value):
                changes[name] = value


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _apply_window(config: Any, left: Settings, _: Any, changes: Settings) -> Iterator[str]:
    window = left.pop("attention.sliding_window", None)
    # Older files of some architectures have it under this name.
    window = left.pop("sliding_window", window)
    pattern = left.pop("attention.sliding_window_pattern", None)
    if window is not None:
        has_none = not hasattr(config, "sliding_window") or hasattr(config, "use_sliding_window")
        if not has_none and (config.sliding_window or 0) != window:
            changes["sliding_window"] = window or None
        if has_none and window:
            yield f"attention.sliding_window = {window}"
    if pattern is not None:
        n_layers = config.num_hidden_layers
        if isinstance(pattern, int):
            pattern = [bool(pattern and (layer + 1) % pattern) for layer in range(n_layers)]
        names = ["sliding_attention" if each else "full_attention" for each in pattern]
        if getattr(config, "layer_types", None) is None:
            yield f"attention.sliding_window_pattern = {_value_text(pattern)}"
        elif list(config.layer_types) != names:
            changes["layer_types"] = names


def _apply_query_scale(config: Any, left: Settings, _: Any, changes: Settings) -> Iterator[str]:
    """What Gemma divides the queries by; llama.cpp knows it by the number of layers."""
    if not hasattr(config, "query_pre_attn_scalar"):
        return
    scale = left.pop("attention.scale", 0)
    by_width = _SCALARS.get(config.model_type, {}).get(config.num_hidden_layers)
    if scale:
        changes["query_pre_attn_scalar"] = scale**-2
    elif by_width is not None:
        per_head = config.hidden_size // config.num_attention_heads
        changes["query_pre_attn_scalar"] = per_head if by_width else _head_dim(config)
    else:
        yield (
            f"query_pre_attn_scalar, which no GGUF file says ({config.query_pre_attn_scalar} is "
            f"taken; no published size has {config.num_hidden_layers} layers)"
        )


def _apply_rotary(
    config: Any, left: Settings, tensors: Mapping[str, Any], changes: Settings
) -> Iterator[str]:
    given = {key: left.pop(key) for key in list(left) if key.startswith("rope.")}
    settings = [f"{key} = {_value_text(value)}" for key, value in given.items()]
    before = getattr(config, "rope_parameters", None)
    if not before:
        # Some write 0 for none.
        written = [text for text, value in zip(settings, given.values(), strict=True) if value]
        yield from (*written, *tensors)
        return
    is_nested = any(isinstance(value, Mapping) for value in before.values())
    if is_nested and "full_attention" not in before:
        yield from (*settings, *tensors)
        return
    after = {**(before["full_attention"] if is_nested else before)}
    given.pop("rope.scaling.finetuned", None)
    if "rope.freq_base" in given:
        after["rope_theta"] = given.pop("rope.freq_base")
    whole = {**before, "full_attention": after} if is_nested else after
    if is_nested and "rope.freq_base_swa" in given:
        theta = given.pop("rope.freq_base_swa")
        whole["sliding_attention"] = {**before["sliding_attention"], "rope_theta": theta}
    dims = given.pop("rope.dimension_count", None)
    head_dim = left.get("attention.key_length", _head_dim(config))
    share = after.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    if dims and dims != int(head_dim * (1 if share is None else share)):
        if share is None:
            yield f"rope.dimension_count = {dims}"
        else:
            after["partial_rotary_factor"] = dims / head_dim
    scaled, unused = _rotary_scaling(given, tensors, config)
    if scaled:
        lasting = ("rope_theta", "partial_rotary_factor")
        after = {key: after[key] for key in lasting if key in after} | scaled
        whole = {**whole, "full_attention": after} if is_nested else after
    if whole != before:
        changes["rope_parameters"] = whole
        original = after.get("original_max_position_embeddings")
        if original and hasattr(config, "original_max_position_embeddings"):
            changes["original_max_position_embeddings"] = original
    yield from unused


def _rotary_scaling(
    settings: Settings, tensors: Mapping[str, Any], config: Any
) -> tuple[Settings, list[str]]:
    rest = {key.removeprefix("rope.scaling."): value for key, value in settings.items()}
    factor = rest.pop("factor", 0) or rest.pop("rope.scale_linear", 0)
    kind = rest.pop("type", "linear" if factor not in (0, 1) else "none")
    original = rest.pop("original_context_length", 0) or config.max_position_embeddings
    attention = rest.pop("attn_factor", 0) or rest.pop("yarn_attn_factor", 0)
    factors = {name: [float(each) for each in value] for name, value in tensors.items()}
    scaled: Settings = {}
    short = factors.pop("rope_factors_short.weight", None)
    long = factors.pop("rope_factors_long.weight", None)
    frequencies = factors.pop("rope_freqs.weight", None)
    if short and long:
        scaled = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        scaled["original_max_position_embeddings"] = original
        scaled["factor"] = config.max_position_embeddings / original
        scaled |= {"attention_factor": attention} if attention else {}
        kind, factor, attention = "none", 0, 0
    elif frequencies and kind == "none":
        # The same factors at any length: what llama.cpp divides the frequencies by.
        scaled = {"rope_type": "longrope", "short_factor": frequencies, "long_factor": frequencies}
        scaled["attention_factor"] = attention or 1.0
        scaled["original_max_position_embeddings"] = config.max_position_embeddings
        factor, attention, frequencies = 0, 0, None
    elif kind == "linear" and factor not in (0, 1):
        scaled = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn" and factor:
        scaled = {"rope_type": "yarn", "factor": factor}
        scaled["original_max_position_embeddings"] = original
        for name in ("beta_fast", "beta_slow"):
            if value := rest.pop(f"yarn_{name}", 0):
                scaled[name] = value
        if attention:
            scaled["attention_factor"] = attention * (1 + 0.1 * log(factor))
            attention = 0
    unused = {
        **({} if kind in ("none", "linear") or scaled else {"type": kind, "factor": factor}),
        **({"attn_factor": attention} if attention not in (0, 1) else {}),
        **{key: value for key, value in rest.items() if value},
    }
    if rest.get("yarn_ext_factor") == 1 and kind == "yarn":
        unused.pop("yarn_ext_factor")
    lost = [*factors, *(["rope_freqs.weight"] if frequencies else [])]
    if scaled and config.model_type == "gpt_oss":
        scaled["truncate"] = False
    return scaled, [f"rope.scaling.{k} = {_value_text(v)}" for k, v in unused.items()] + lost
