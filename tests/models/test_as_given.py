"""What is traced computes the logits of the model as it was given, or the model is refused."""

from __future__ import annotations

import types

import peft
import pytest
import torch
import transformers
from torch.nn.utils import parametrizations, parametrize, prune

import tracekit as tk
from tests import tiny
from tracekit.errors import ModelWarning, UnsupportedModelError
from tracekit.models import verification
from tracekit.models.hooked import weights_digest

IDS = torch.arange(1, 10)[None]
EXACT = 1e-4
"""Of logits of up to 10, or 460 where an embedding is changed."""


def llama(**options):
    return tiny.hf_model("llama", **options)


def lora(*targets, tied=False, base=None, **options):
    config = peft.LoraConfig(
        r=4, lora_alpha=16, target_modules=[*targets], init_lora_weights=False, **options
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return peft.get_peft_model(
            llama(tie_word_embeddings=tied) if base is None else base, config
        ).eval()


def changed(make, change):
    """A model from `make` after `change`."""
    model = make()
    change(model)
    return model


def two_adapters(*active):
    model = lora("q_proj")
    second = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model.add_adapter("second", second)
    model.base_model.set_adapter(list(active))
    return model.eval()


def partly_merged():
    return changed(
        lambda: two_adapters("default", "second"),
        lambda model: model.base_model.merge_adapter(["default"]),
    )


def with_adapter_of_transformers(*, is_on):
    model = llama()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model.add_adapter(peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    if not is_on:
        model.disable_adapters()
    return model.eval()


def token_embeddings(*, tied=False, is_on=True):
    """A model whose adapter replaces the embeddings of two tokens."""
    config = peft.TrainableTokensConfig(target_modules=["embed_tokens"], token_indices=[1, 5])
    return with_random_tokens(
        peft.get_peft_model(llama(tie_word_embeddings=tied), config), is_on=is_on
    )


def with_random_tokens(model, *, is_on=True):
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "trainable_tokens" in name:
            parameter.data.normal_(generator=generator)
    if not is_on:
        model.base_model.disable_adapter_layers()
    return model.eval()


def larger(output):
    if isinstance(output, tuple):
        return (1.5 * output[0], *output[1:])
    if torch.is_tensor(output):
        return 1.5 * output
    output.logits = 1.5 * output.logits
    return output


def hooked(where, of=llama):
    """A model with a plain hook of torch."""
    model = of()
    model.get_submodule(where).register_forward_hook(lambda module, args, output: larger(output))
    return model


def pre_hooked(where):
    model = llama()

    def enlarge(module, args, options):
        if args:
            return (1.5 * args[0], *args[1:]), options
        return args, {**options, "hidden_states": 1.5 * options["hidden_states"]}

    model.get_submodule(where).register_forward_pre_hook(enlarge, with_kwargs=True)
    return model


def with_forward(where, *, is_closure):
    """A model one of whose modules has another forward."""
    model = llama()
    module = model.get_submodule(where)
    kind, before = type(module), module.forward
    if is_closure:
        module.forward = lambda *args, **options: larger(before(*args, **options))
    else:
        module.forward = types.MethodType(
            lambda self, *args, **options: larger(kind.forward(self, *args, **options)), module
        )
    return model


class Larger(torch.nn.Module):
    """Puts a module of its own around another."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **options):
        return larger(self.inner(*args, **options))


class ReluMLP(torch.nn.Module):
    """An MLP with the names of Llama's."""

    def __init__(self, mlp):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj

    def forward(self, x):
        return self.down_proj(self.gate_proj(x).relu() * self.up_proj(x))


class AddLowRank(torch.nn.Module):
    """LoRA as a parametrisation."""

    def __init__(self, weight):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.a = torch.nn.Parameter(torch.randn(weight.shape[0], 2, generator=generator))
        self.b = torch.nn.Parameter(torch.randn(2, weight.shape[1], generator=generator))

    def forward(self, weight):
        return weight + 0.3 * self.a @ self.b


def replaced(where, kind):
    model = llama()
    parent, _, name = where.rpartition(".")
    setattr(model.get_submodule(parent), name, kind(model.get_submodule(where)))
    return model


def norms_doubled(module):
    """Weight norm, and other norms than those of the weights."""
    made = parametrizations.weight_norm(module)
    made.parametrizations.weight.original0.data *= 2


def old_norms_doubled(module):
    torch.nn.utils.weight_norm(module).weight_g.data *= 2


def at(where, change, **options):
    return changed(lambda: llama(**options), lambda model: change(model.get_submodule(where)))


def pruned(module):
    prune.l1_unstructured(module, "weight", amount=0.3)


def low_rank(module):
    parametrize.register_parametrization(module, "weight", AddLowRank(module.weight))


def own_attention():
    def doubled(module, query, key, value, mask, scaling=None, **options):
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        scores = 2 * scaling * query @ key.mT
        later = torch.full(scores.shape[-2:], -torch.inf).triu(1)
        return ((scores + later).softmax(-1) @ value).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("doubled", doubled)
    return changed(llama, lambda model: model.set_attn_implementation("doubled"))


def quantised():
    dynamic = torch.ao.quantization.quantize_dynamic
    return dynamic(llama(), {torch.nn.Linear}, dtype=torch.qint8)


def compiled(model):
    return torch.compile(model)


def compiled_in_place(model):
    model.compile()
    return model


def compiled_in_part():
    return replaced("model.layers.1.mlp", torch.compile)


def prompt_tuned():
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    return peft.get_peft_model(llama(), config).eval()


ATTENTION, MLP, OUT = "model.layers.1.self_attn", "model.layers.1.mlp", "self_attn.o_proj"
DOWN = f"{MLP}.down_proj"
PARTS = (MLP, DOWN, f"model.layers.0.{OUT}", f"{MLP}.act_fn", "model.layers.1", "model.norm")
TRACED = {
    "lm_head, tied": lambda: lora("lm_head", tied=True),
    "embed_tokens, tied": lambda: lora("embed_tokens", tied=True),
    "both, tied": lambda: lora("lm_head", "embed_tokens", tied=True),
    "lm_head": lambda: lora("lm_head"),
    "embed_tokens": lambda: lora("embed_tokens"),
    "all layers": lambda: lora("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"),
    "dora": lambda: lora("q_proj", "o_proj", use_dora=True),
    "modules to save": lambda: lora("q_proj", modules_to_save=["lm_head"]),
    "modules to save, tied": lambda: lora("q_proj", tied=True, modules_to_save=["embed_tokens"]),
    "tokens": lambda: lora("q_proj", trainable_token_indices=[1, 5]),
    "tokens, tied": lambda: with_random_tokens(
        lora("q_proj", tied=True, trainable_token_indices=[1, 5])
    ),
    "tokens, off": lambda: with_random_tokens(
        lora("q_proj", trainable_token_indices=[1, 5]), is_on=False
    ),
    "tokens, tied, off": lambda: with_random_tokens(
        lora("q_proj", tied=True, trainable_token_indices=[1, 5]), is_on=False
    ),
    **{
        f"only tokens, {tied=}, {is_on=}": lambda tied=tied, is_on=is_on: token_embeddings(
            tied=tied, is_on=is_on
        )
        for tied in (False, True)
        for is_on in (True, False)
    },
    "off": lambda: changed(
        lambda: lora("q_proj"), lambda model: model.base_model.disable_adapter_layers()
    ),
    "merged": lambda: changed(lambda: lora("q_proj"), lambda model: model.merge_adapter()),
    "merged, then off": lambda: changed(
        lambda: changed(lambda: lora("q_proj"), lambda model: model.merge_adapter()),
        lambda model: model.base_model.disable_adapter_layers(),
    ),
    "first of two": lambda: two_adapters("default"),
    "second of two": lambda: two_adapters("second"),
    "two": lambda: two_adapters("default", "second"),
    "partly merged": partly_merged,
    "adapters in adapters": lambda: lora("v_proj", base=lora("q_proj")),
    "tuner": lambda: lora("q_proj").base_model,
    "base with adapters": lambda: lora("q_proj").get_base_model(),
    "of transformers, on": lambda: with_adapter_of_transformers(is_on=True),
    "of transformers, off": lambda: with_adapter_of_transformers(is_on=False),
    **{f"hook at {part}": lambda part=part: hooked(part) for part in ("", "lm_head", *PARTS)},
    **{f"hook before {part}": lambda part=part: pre_hooked(part) for part in (MLP, DOWN)},
    **{
        f"{change.__name__} {part}": lambda change=change, part=part: at(part, change)
        for change in (
            pruned,
            norms_doubled,
            old_norms_doubled,
            parametrizations.spectral_norm,
            low_rank,
        )
        for part in (f"model.layers.1.{OUT}", DOWN)
    },
    "pruned lm_head": lambda: at("lm_head", pruned),
    "low_rank lm_head, tied": lambda: at("lm_head", low_rank, tie_word_embeddings=True),
    "own MLP": lambda: replaced(MLP, ReluMLP),
    "own projection": lambda: replaced(f"model.layers.1.{OUT}", Larger),
    "no final norm": lambda: replaced("model.norm", lambda norm: torch.nn.Identity()),
    **{
        f"forward of {part}, {is_closure}": lambda part=part, is_closure=is_closure: with_forward(
            part, is_closure=is_closure
        )
        for part in (MLP, DOWN, "model.layers.1", "model.norm", "lm_head", "")
        for is_closure in (False, True)
    },
    "compiled": lambda: compiled(llama()),
    "compiled in place": lambda: compiled_in_place(llama()),
    "compiled in part": compiled_in_part,
    "compiled twice": lambda: compiled(compiled(llama())),
    "adapters compiled": lambda: compiled(lora("q_proj")),
    "adapters compiled in place": lambda: compiled_in_place(lora("lm_head", tied=True)),
    "adapters in compiled": lambda: lora("q_proj", base=compiled(llama())),
}
"""Models whose logits the traced one must have."""
REFUSED = {
    "virtual tokens": (prompt_tuned, "without the PeftModelForCausalLM around it, which adds"),
    "hook around adapters": (
        lambda: hooked("", lambda: lora("q_proj")),
        "without the PeftModel around it, which adds something of its own, such as .* or a hook",
    ),
    "hook around compiled": (
        lambda: hooked("", lambda: compiled(llama())),
        "without the OptimizedModule around it",
    ),
    "hook at attention": (
        lambda: hooked(ATTENTION),
        f"leaves out how these were changed: hooks were left at {ATTENTION}. Undo the change, or",
    ),
    "hook before attention": (
        lambda: pre_hooked(ATTENTION),
        f"hooks were left at {ATTENTION}. Undo the change",
    ),
    "forward of attention": (
        lambda: with_forward(ATTENTION, is_closure=False),
        f"the forward of {ATTENTION} was replaced. Undo",
    ),
    "function for attention": (
        lambda: with_forward(ATTENTION, is_closure=True),
        f"these were changed: the forward of {ATTENTION} was replaced. Undo",
    ),
    "own attention function": (
        own_attention,
        "its attention is 'doubled', which was registered by other code. Undo the change",
    ),
    "own attention": (
        lambda: replaced(ATTENTION, Larger),
        f"parts of it are not those of a LlamaForCausalLM: {ATTENTION} is a .*Larger. Put those",
    ),
    "no MLP": (lambda: replaced(MLP, lambda mlp: torch.nn.Identity()), f"{MLP} is a torch.nn.*Id"),
    "own head": (lambda: replaced("lm_head", Larger), "lm_head is a .*Larger. Put those parts"),
    "quantised": (quantised, "self_attn.q_proj is a torch.*quantized.*Linear.* Put those parts"),
}
"""Models that TransformerLens computes differently or not at all, and the reason."""


def logits_of(model):
    # Compiled models are run as they are written, which computes the same.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        return model(IDS).logits


@pytest.mark.parametrize("name", TRACED)
def test_what_is_traced_computes_the_logits_as_given(name):
    given = TRACED[name]()
    expected = logits_of(given)
    traced = tk.load_model(given)
    torch.testing.assert_close(traced(IDS).detach(), expected, atol=EXACT, rtol=1e-5)
    torch.testing.assert_close(logits_of(given), expected, atol=EXACT, rtol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_compute_others_is_refused_with_the_reason(name):
    make, reason = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=reason):
        tk.load_model(make())


def test_base_and_tuned_model_of_one_object_are_two_models():
    """A block of `disable_adapter` used to give the tuned model twice."""
    model = lora("q_proj")
    tuned = tk.load_model(model)
    with model.disable_adapter():
        base = tk.load_model(model)
        torch.testing.assert_close(base(IDS).detach(), logits_of(model), atol=EXACT, rtol=1e-5)
    assert (tuned(IDS) - base(IDS)).abs().max() > 1
    assert weights_digest(base) == weights_digest(tk.load_model(llama()))
    assert weights_digest(base) != weights_digest(tuned)


@pytest.mark.slow
def test_models_with_the_same_parameters_that_compute_others_have_other_digests():
    same_parameters = [
        llama,
        TRACED[f"pruned {DOWN}"],
        TRACED["pruned lm_head"],
        TRACED["own MLP"],
        TRACED[f"forward of {MLP}, False"],
        lambda: with_adapter_of_transformers(is_on=True),
        lambda: with_adapter_of_transformers(is_on=False),
    ]
    digests = [weights_digest(tk.load_model(make())) for make in same_parameters]
    assert len({*digests}) == len(digests)
    assert digests == [weights_digest(tk.load_model(make())) for make in same_parameters]


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_folder_with_an_adapter_has_the_logits_of_the_adapter_before_it_is_merged(target, tmp_path):
    llama(tie_word_embeddings=True).save_pretrained(tmp_path / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = lora(target, base=base)
    model.save_pretrained(tmp_path / "adapter")
    traced = tk.load_model(tmp_path / "adapter")
    torch.testing.assert_close(traced(IDS).detach(), logits_of(model), atol=EXACT, rtol=1e-5)


def test_adapters_in_bfloat16_are_not_merged():
    """Merged weights are rounded, and a guard that allows that lets other models through."""
    given = lora("q_proj").bfloat16()
    given.base_model.disable_adapter_layers()
    traced = tk.load_model(given)
    assert any("lora_A" in name for name, _ in traced.original_model.named_parameters())
    bare = tk.load_model(llama().bfloat16())
    assert torch.equal(traced(IDS), bare(IDS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("where", [ATTENTION, f"model.layers.0.{OUT}", MLP, "model.norm"])
def test_small_foreign_hooks_in_16_bits_are_traced_or_refused(where, dtype):
    """A change of 1 % is less than 16 bits round, so logits in float32 are compared."""
    given = llama().to(dtype)
    before = {name: value.clone() for name, value in given.state_dict().items()}
    hook = given.get_submodule(where).register_forward_hook(
        lambda module, args, output: (
            (1.01 * output[0], *output[1:]) if isinstance(output, tuple) else 1.01 * output
        )
    )
    if where == ATTENTION:
        with pytest.raises(UnsupportedModelError, match=f"hooks were left at {ATTENTION}. Undo"):
            tk.load_model(given)
        hook.remove()
        assert torch.equal(given(IDS).logits, llama().to(dtype)(IDS).logits)
    traced = tk.load_model(given)
    assert traced(IDS).dtype == dtype
    torch.testing.assert_close(traced(IDS).detach(), logits_of(given), atol=0.2, rtol=0)
    assert all(torch.equal(before[name], value) for name, value in given.state_dict().items())


def test_hooks_that_only_record_are_allowed_in_16_bits():
    given, seen = llama().bfloat16(), []
    given.get_submodule(ATTENTION).register_forward_hook(lambda *parts: seen.append(len(parts)))
    tk.load_model(given)
    assert seen


def test_other_parts_in_16_bits_are_traced():
    given = replaced(MLP, ReluMLP).bfloat16()
    traced = tk.load_model(given)
    torch.testing.assert_close(traced(IDS).detach(), logits_of(given), atol=0.2, rtol=0)


def test_models_that_memory_does_not_hold_in_float32_are_traced_with_a_warning(monkeypatch):
    def fails(tensor):
        raise torch.OutOfMemoryError

    given = hooked(MLP).bfloat16()
    monkeypatch.setattr(torch.Tensor, "float", fails)
    with pytest.warns(ModelWarning, match="memory does not hold LlamaForCausalLM in float32"):
        assert verification.record_float32_reference(given, "LlamaForCausalLM") is None
    assert {each.dtype for each in given.parameters()} == {torch.bfloat16}


def test_the_given_model_stays_as_it_was(tmp_path):
    model = llama().train()
    model.model.norm.eval()
    model.lm_head.weight.requires_grad_(False)
    names, before = list(model.state_dict()), {k: v.clone() for k, v in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    takes_gradients = [parameter.requires_grad for parameter in model.parameters()]
    traced = tk.load_model(model)
    tk.Tracer(traced, tiny.pairs(), "head-outputs").run("top-k", budget=2)
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == takes_gradients
    assert list(model.state_dict()) == names
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(before[name], value) for name, value in again.state_dict().items())
    assert not model.load_state_dict(before).missing_keys
    model.set_attn_implementation("eager")
    assert model(IDS, output_attentions=True).attentions[0].shape == (1, 4, 9, 9)


def test_weights_of_the_given_model_are_those_of_the_traced_one():
    """No memory is taken for a second copy, and training goes on in both."""
    model = llama()
    traced = tk.load_model(model)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(2)
    torch.testing.assert_close(traced(IDS), model(IDS).logits, atol=EXACT, rtol=1e-5)
    model.double()
    assert traced(IDS).dtype == torch.float32
