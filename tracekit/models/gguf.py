"""GGUF files: models as llama.cpp keeps them, read by transformers.

Weights of few bits are widened: they keep their values, so that such a model is one of its own, not
the checkpoint that it was made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tracekit._util.warn import warn
from tracekit.errors import MissingExtraError, ModelWarning, UnsupportedModelError
from tracekit.models.checkpoint import Checkpoint
from tracekit.models.gguf_settings import completed
from tracekit.models.verification import Loader, listed


@dataclass(frozen=True, eq=False)
class GGUFModel:
    """A file whose header was read, and whose weights were not."""

    path: Path
    config: Any
    n_parameters: int

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> GGUFModel:
        """Reads the header.

        Raises:
            MissingExtraError: The package gguf is not installed.
            UnsupportedModelError: The file is cut short or damaged, or transformers or
                TransformerLens does not know its architecture.
        """
        path = checkpoint.folder / str(checkpoint.gguf)
        if find_spec("gguf") is None:
            raise MissingExtraError(
                f"{path.name} is read by the package gguf. Run pip install 'tracekit-lm[gguf]'."
            )
        from gguf import GGUFReader
        from transformer_lens.factories import architecture_adapter_factory
        from transformers import AutoConfig, AutoModelForCausalLM

        try:
            config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
            reader = GGUFReader(path)
            config, problems = completed(config, *_settings(reader))
            with torch.device("meta"):
                empty = AutoModelForCausalLM.from_config(config)
            problems += _unplaced(reader, empty)
        except Exception as error:  # Whatever it raises, there is nothing to go on with.
            raise UnsupportedModelError(
                f"{path} cannot be read ({error}). If it is cut short or damaged, fetch it again; "
                "else give a model of an architecture that transformers reads from GGUF."
            ) from error
        if problems:
            warn(
                f"{path.name} says how to compute what transformers cannot be told from it: "
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
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.path.parent, gguf_file=self.path.name)
        except Exception as error:  # Whatever it lacks, a model without one serves data of ids.
            warn(
                f"The tokenizer of {self.path.name} cannot be read "
                f"({type(error).__name__}: {error}). Give data as token ids, or a `tokenizer`.",
                ModelWarning,
            )
            return None


def _settings(reader: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of a file's architecture, and tensors of factors of rotary frequencies."""
    prefix, settings = f"{_read(reader, 'general.architecture')}.", {}
    for key in reader.fields:
        if key.startswith(prefix):
            settings[key.removeprefix(prefix)] = _read(reader, key)
    return settings, {each.name: each.data for each in reader.tensors if _is_rotary(each.name)}


def _read(reader: Any, key: str) -> Any:
    from gguf import GGUFValueType
    from transformers.modeling_gguf_pytorch_utils import read_field

    values = read_field(reader, key)
    return values if reader.fields[key].types[0] == GGUFValueType.ARRAY else values[0]


def _is_rotary(name: str) -> bool:
    return name.startswith("rope_")


def _unplaced(reader: Any, model: Any) -> list[str]:
    """Tensors of a file for which transformers' model has no place."""
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    made_for = TENSOR_PROCESSORS.get(_read(reader, "general.architecture"), TensorProcessor)
    places = get_gguf_hf_weights_map(model, made_for(config=model.config.to_dict()))
    names = [each.name for each in reader.tensors if not _is_rotary(each.name)]
    left = [n for n in names if n not in places and n.removesuffix(".weight") not in places]
    return [f"the tensors {listed(left)}"] if left else []
