"""GGUF files of the Llama architecture, as llama.cpp writes them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...errors import CheckpointError
from ...models.config import ModelConfig
from ...models.grouped import GroupedConfig
from ...models.mlp import MLPConfig
from ...models.norms import NormConfig
from ...models.rope import FrequencyFactors, LinearScaling, RopeScaling, Rotary, YarnScaling
from ..checkpoint import Layout, Source
from ..fields import count, number
from ..store import GGUFStore

ARCHITECTURES = ("llama",)


def layout(store: GGUFStore) -> Layout:
    """Read the metadata of a GGUF file.

    Raises
    ------
    CheckpointError
        If the architecture is another one, or a field is missing.
    """
    arch = store.need("general.architecture")
    if arch not in ARCHITECTURES:
        raise CheckpointError(
            f"general.architecture is {arch!r}; known: {', '.join(ARCHITECTURES)} "
            "(save the model as a Hugging Face directory instead, or add a family in checkpoints/families)"
        )
    heads, d_model = _size(store, f"{arch}.attention.head_count"), _size(store, f"{arch}.embedding_length")
    d_head = _size(store, f"{arch}.attention.key_length", d_model // heads)
    names = set(store.names())
    if store.field(f"{arch}.expert_count", 0):
        raise CheckpointError("a mixture of experts is not supported for GGUF")
    model = ModelConfig(
        d_model=d_model,
        n_layers=_size(store, f"{arch}.block_count"),
        d_vocab=store.shape("token_embd.weight")[0]
        if "token_embd.weight" in names
        else _size(store, f"{arch}.vocab_size"),
        n_ctx=_size(store, f"{arch}.context_length"),
        attention=GroupedConfig(
            n_heads=heads,
            n_kv_heads=_size(store, f"{arch}.attention.head_count_kv", heads),
            d_head=d_head,
            bias="blk.0.attn_q.bias" in names,
            output_bias="blk.0.attn_output.bias" in names,
        ),
        mlp=MLPConfig(d_mlp=_size(store, f"{arch}.feed_forward_length")),
        norm=NormConfig("rms", _real(store, f"{arch}.attention.layer_norm_rms_epsilon")),
        positions=_rotary(store, arch, d_head),
        tie_embeddings="output.weight" not in names,
    )
    return Layout("gguf-llama", model, _plan(model), ignored=(r"rope_freqs\.weight",))


def _rotary(store: GGUFStore, arch: str, d_head: int) -> Rotary:
    kind = store.field(f"{arch}.rope.scaling.type", "none")
    factor = _real(store, f"{arch}.rope.scaling.factor", 1.0)
    width = _size(store, f"{arch}.rope.dimension_count", d_head)
    scaling: RopeScaling | None = None
    if kind == "linear":
        scaling = LinearScaling(factor)
    elif kind == "yarn":
        scaling = YarnScaling(factor, _size(store, f"{arch}.rope.scaling.original_context_length"))
    elif kind != "none":
        raise CheckpointError(f"{arch}.rope.scaling.type should be none, linear or yarn but is {kind!r}")
    if "rope_freqs.weight" in store.names():
        if scaling is not None:
            raise CheckpointError(f"both rope_freqs.weight and rope scaling {kind!r} are given: expected one of them")
        if store.shape("rope_freqs.weight") != (width // 2,):
            raise CheckpointError(
                f"tensor 'rope_freqs.weight' has shape {store.shape('rope_freqs.weight')}; expected {(width // 2,)}"
            )
        scaling = FrequencyFactors(tuple(store.get("rope_freqs.weight").tolist()))
    base = _real(store, f"{arch}.rope.freq_base", 10000.0)
    return Rotary(base=base, width=None if width == d_head else width, scaling=scaling)


def _size(store: GGUFStore, key: str, default: int | None = None) -> int:
    return count(key, store.need(key) if default is None else store.field(key, default))


def _real(store: GGUFStore, key: str, default: float | None = None) -> float:
    return number(key, store.need(key) if default is None else store.field(key, default))


def _plan(model: ModelConfig) -> dict[str, Source]:
    attention = model.attention
    table: dict[str, tuple[str, Callable[[Tensor], Tensor] | None]] = {
        "ln1.w": ("attn_norm.weight", None),
        "ln2.w": ("ffn_norm.weight", None),
        "mlp.gate.weight": ("ffn_gate.weight", None),
        "mlp.up.weight": ("ffn_up.weight", None),
        "mlp.down.weight": ("ffn_down.weight", None),
    }
    for kind in ("weight", "bias") if attention.bias else ("weight",):
        table[f"attn.q.{kind}"] = (f"attn_q.{kind}", _unpermute(attention.n_heads))
        table[f"attn.k.{kind}"] = (f"attn_k.{kind}", _unpermute(attention.n_groups))
        table[f"attn.v.{kind}"] = (f"attn_v.{kind}", None)
    for kind in ("weight", "bias") if attention.output_bias else ("weight",):
        table[f"attn.o.{kind}"] = (f"attn_output.{kind}", None)
    made = {"embed.weight": Source.of("token_embd.weight"), "ln_final.w": Source.of("output_norm.weight")}
    if not model.tie_embeddings:
        made["unembed.weight"] = Source.of("output.weight")
    for layer in range(model.n_layers):
        for ours, (theirs, make) in table.items():
            made[f"blocks.{layer}.{ours}"] = Source.of(f"blk.{layer}.{theirs}", make)
    return made


def _unpermute(heads: int) -> Callable[[Tensor], Tensor]:
    """Return the function that undoes llama.cpp's reordering of a head's rows (pairs together) to half-split."""

    def undo(weight: Tensor) -> Tensor:
        pairs = weight.unflatten(0, (heads, -1, 2))
        return pairs.transpose(1, 2).flatten(0, 2)

    return undo
