"""The hooked wrapper: one decoder-only transformer around any attention variant, with TransformerLens's interface."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from .attention import Attention
from .block import Block, Table
from .config import ModelConfig
from .factors import Factors
from .generation import Generating
from .hooks import HookedRoot
from .lens import LensViews
from .memory import Requests
from .scores import soft_cap
from .text import TextInterface

ReturnType = Literal["logits", "loss", "both"] | None


class HookedModel(LensViews, TextInterface, Generating, HookedRoot):
    """A decoder-only transformer whose every step can be read and edited.

    Parameters
    ----------
    config
        What to build; weights are drawn at random from torch's global generator. ValueError if it is a model that can
        only be measured (`ModelConfig.not_built`).
    tokenizer
        A Hugging Face tokenizer, or a function that returns one when text first comes; None: tokens only.

    Notes
    -----
    Hook points carry TransformerLens's names (``blocks.{l}.attn.hook_q``, ``hook_embed``, ...); see `Attention` and the
    variants for the added ones. `config` is headscope's configuration, `cfg` the same under TransformerLens's names.

    Examples
    --------
    >>> import torch
    >>> from headscope.models import HookedModel, LRKVConfig, ModelConfig
    >>> model = HookedModel(ModelConfig(d_model=32, n_layers=1, d_vocab=50, n_ctx=16,
    ...                                 attention=LRKVConfig(n_heads=4, d_head=8, rank=2)))
    >>> logits, cache = model.run_with_cache(torch.tensor([3, 1, 4]))
    >>> cache["blocks.0.attn.hook_k_private"].shape
    torch.Size([1, 3, 4, 8])
    """

    def __init__(self, config: ModelConfig, tokenizer: Any | Callable[[], Any] | None = None) -> None:
        super().__init__()
        if config.not_built is not None:
            raise ValueError(f"a model cannot be built with {config.not_built}")
        self.config = config
        self._tokenizer = tokenizer
        self.embed = Table(config.d_vocab, config.d_model, std=0.02)
        self.hook_embed = HookPoint()
        if config.positions == "learned":
            self.pos_embed = Table(config.n_ctx, config.d_model, std=0.02)
            self.hook_pos_embed = HookPoint()
        self.embed_norm = config.build_norm(config.embed_norm)
        self.blocks = nn.ModuleList(Block(config.at(layer)) for layer in range(config.n_layers))
        self.ln_final = config.norm.build(config.d_model)
        self.unembed = Table(config.d_vocab, config.d_model, std=config.d_model**-0.5, bias=config.unembed_bias)
        if config.tie_embeddings:
            self.unembed.weight = self.embed.weight
        with torch.no_grad():  # the residual stream keeps its size however many blocks add to it
            for block in self.layers:
                block.attn.o.weight.mul_((2 * config.n_layers) ** -0.5)
                if block.has_mlp:
                    block.mlp.scale_out_((2 * config.n_layers) ** -0.5)
        self.setup()

    # -- running ------------------------------------------------------------------------------------------------------

    def forward(
        self,
        input: str | list[str] | Int[Tensor, "batch pos"] | Int[Tensor, " pos"] | Float[Tensor, "batch pos d_model"],
        return_type: ReturnType = "logits",
        *,
        attention_mask: Int[Tensor, "batch pos"] | Bool[Tensor, "batch pos"] | None = None,
        positions: Int[Tensor, "batch pos"] | None = None,
        loss_per_token: bool = False,
        prepend_bos: bool | None = None,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
        cache: Requests | None = None,
    ) -> Any:
        """Run the model.

        Parameters
        ----------
        input
            Text, a list of texts, tokens ``[batch, pos]`` or ``[pos]``; with `start_at_layer` a residual stream.
        return_type
            ``"logits"`` ``[batch, pos, d_vocab]``, ``"loss"`` (mean next-token cross-entropy in nats, pads left out),
            ``"both"`` or None.
        attention_mask
            1 for a token, 0 for a pad, on either side. Pads are never attended to and attend to nothing.
        positions
            Position of each token; by default counted from the first token that is not a pad.
        loss_per_token
            Loss as ``[batch, pos - 1]`` instead of its mean.
        prepend_bos
            For text: as in `tokenize`.
        start_at_layer, stop_at_layer
            Run only the blocks from the one to before the other (negative counts from the end). With
            `stop_at_layer` the residual stream before that block is returned.
        cache
            Requests to go on with, a row each: tokens are appended to their histories, and attend to them. What
            comes back is of the new tokens. If the pass raises, histories are as they were.

        Raises
        ------
        IndexError
            If a token is outside the vocabulary, or a layer does not exist.
        ValueError
            If shapes do not fit, or the input is longer than learned positions reach.
        OutOfPages
            If the cache has too little room for the new tokens.
        TokenizerError
            If text is given and there is no tokenizer.
        """
        if isinstance(input, str | list):
            input, text_mask = self.tokenize(input, prepend_bos=prepend_bos)
            attention_mask = text_mask if attention_mask is None else attention_mask
        first, last = self._layer_range(start_at_layer, stop_at_layer)
        if start_at_layer is None and input.ndim == 1:
            input = input[None]
        mask = self._mask(attention_mask, input)
        if cache is not None:
            if positions is not None or start_at_layer is not None or stop_at_layer is not None:
                raise ValueError("with a cache, positions are its own and all layers run: leave them out")
            resid = self._go_on(input, mask, cache)
        else:
            resid = self._run(input, mask, positions, slice(first, last), embedded=start_at_layer is not None)
        if stop_at_layer is not None:
            return resid
        if return_type is None:
            return None
        logits = self._unembed(resid)
        if return_type == "logits":
            return logits
        if start_at_layer is not None:
            raise ValueError(f"return_type={return_type!r} needs tokens: it is not available with start_at_layer")
        loss = next_token_loss(logits, input, mask, per_token=loss_per_token)
        if return_type == "loss":
            return loss
        if return_type == "both":
            return logits, loss
        raise ValueError(f"return_type should be 'logits', 'loss', 'both' or None but got {return_type!r}")

    def _run(
        self,
        input: Tensor,
        mask: Tensor,
        positions: Tensor | None,
        layers: slice,
        embedded: bool,
    ) -> Float[Tensor, "batch pos d_model"]:
        if positions is None:
            positions = (mask.long().cumsum(-1) - 1).clamp_min(0)
        elif positions.shape != input.shape[:2]:
            raise ValueError(f"positions should be {tuple(input.shape[:2])} but are {tuple(positions.shape)}")
        resid = self._check_resid(input) if embedded else self._embed(input, positions)
        visible = None if bool(mask.all()) else self._visible(mask)
        for block in self.layers[layers]:
            resid = block(resid, positions, visible)
        return resid

    def _go_on(self, tokens: Tensor, mask: Tensor, requests: Requests) -> Float[Tensor, "batch pos d_model"]:
        """Append tokens to the requests' histories and run all blocks on them."""
        if not isinstance(requests, Requests):
            raise ValueError(f"cache should be requests of a cache, cache.of(…), but is {type(requests).__name__}")
        if requests.cache.model is not self:
            raise ValueError("this cache was made for another model: its rows mean nothing here")
        if len(tokens) != len(requests.requests):
            raise ValueError(f"{len(tokens)} rows of tokens came for {len(requests.requests)} requests")
        if not bool(mask.any(1).all() if tokens.shape[1] == 1 else mask.any()):
            raise ValueError("there should be a token that is not a pad, and one for each request if they come singly")
        with requests.extended(tokens, mask) as extension:
            resid = self._embed(tokens, extension.positions)
            for index, block in enumerate(self.layers):
                resid = block(resid, extension.positions, None, extension.layer(index))
        return resid

    def _layer_range(self, start: int | None, stop: int | None) -> tuple[int, int]:
        count = self.config.n_layers
        bounds = []
        for name, value, default in (("start_at_layer", start, 0), ("stop_at_layer", stop, count)):
            layer = default if value is None else value + count if value < 0 else value
            if not 0 <= layer <= count:
                raise IndexError(f"{name}={value} does not exist: this model has layers 0–{count - 1}")
            bounds.append(layer)
        return bounds[0], bounds[1]

    def _mask(self, mask: Tensor | None, input: Tensor) -> Bool[Tensor, "batch pos"]:
        if input.ndim < 2:
            raise ValueError(f"the input should be [batch, pos] but has shape {tuple(input.shape)}")
        if mask is None:
            return torch.ones(input.shape[:2], dtype=torch.bool, device=input.device)
        if mask.shape != input.shape[:2]:
            raise ValueError(f"attention_mask should be {tuple(input.shape[:2])} but is {tuple(mask.shape)}")
        return mask.to(input.device).bool()

    @staticmethod
    def _visible(mask: Bool[Tensor, "batch pos"]) -> Bool[Tensor, "batch 1 query_pos key_pos"]:
        count = mask.shape[1]
        causal = torch.ones(count, count, dtype=torch.bool, device=mask.device).tril()
        return (causal & mask[:, None, :] & mask[:, :, None])[:, None]

    def _check_resid(self, resid: Tensor) -> Tensor:
        if resid.ndim != 3 or resid.shape[-1] != self.config.d_model:
            raise ValueError(
                f"with start_at_layer the input should be [batch, pos, {self.config.d_model}] "
                f"but is {tuple(resid.shape)}"
            )
        return resid

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        if tokens.ndim != 2 or tokens.dtype.is_floating_point:
            raise ValueError(f"tokens should be integers [batch, pos] but are {tokens.dtype} {tuple(tokens.shape)}")
        if tokens.numel() and not (int(tokens.min()) >= 0 and int(tokens.max()) < self.config.d_vocab):
            raise IndexError(
                f"tokens should be in 0–{self.config.d_vocab - 1} "
                f"but reach from {int(tokens.min())} to {int(tokens.max())}"
            )
        resid = F.embedding(tokens, self.embed.weight) * self.config.embed_scale
        resid = self.hook_embed(resid if self.embed_norm is None else self.embed_norm(resid))
        if self.config.positions != "learned":
            return resid
        if positions.numel() and int(positions.max()) >= self.config.n_ctx:
            raise ValueError(
                f"positions reach {int(positions.max())} but the model has learned {self.config.n_ctx} (n_ctx)"
            )
        return resid + self.hook_pos_embed(F.embedding(positions, self.pos_embed.weight))

    def _unembed(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_vocab"]:
        logits = self.ln_final(resid) @ self.W_U
        if self.unembed.bias is not None:
            logits = logits + self.unembed.bias
        return logits if self.config.logit_softcap is None else soft_cap(logits, self.config.logit_softcap)

    # -- weights and parts --------------------------------------------------------------------------------------------

    def attention(self, layer: int) -> Attention:
        """Return a layer's attention; IndexError names the range."""
        if not 0 <= layer < self.config.n_layers:
            raise IndexError(f"layer {layer} does not exist: this model has layers 0–{self.config.n_layers - 1}")
        return self.layers[layer].attn

    def factors(self, layer: int, *, fold_norm: bool = True) -> Factors:
        """Return a layer's bilinear forms in factored shape."""
        self.attention(layer)
        return self.layers[layer].factors(layer, fold_norm=fold_norm)

    def describe(self) -> dict[str, Any]:
        """Return where the weights come from: no file, but the hash of their names and bytes."""
        digest = hashlib.sha256()
        for name, tensor in self.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        kinds = sorted({str(p.dtype).removeprefix("torch.") for p in self.parameters()})
        return {
            "path": None,
            "family": "model in memory",
            "sha256": digest.hexdigest(),
            "stored_dtypes": kinds,
        }


def next_token_loss(
    logits: Float[Tensor, "batch pos d_vocab"],
    tokens: Int[Tensor, "batch pos"],
    mask: Bool[Tensor, "batch pos"],
    *,
    per_token: bool = False,
) -> Float[Tensor, ""] | Float[Tensor, "batch pred"]:
    """Cross-entropy in nats of each token given those before it.

    Where the predicting token or the predicted one is a pad, the per-token loss is zero and the mean leaves it out.
    A mean over no token at all is a ValueError.
    """
    counted = mask[:, 1:] & mask[:, :-1]
    if not per_token and not bool(counted.any()):
        raise ValueError("there is no token to score: a loss needs two neighbouring tokens that are not pads")
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    loss = loss.view(counted.shape) * counted
    return loss if per_token else loss.sum() / counted.sum()


def n_parameters(config: ModelConfig) -> int:
    """Return how many parameters a model of this configuration has, tied ones counted once; no weight is drawn."""

    def count(layer: int) -> tuple[int, int]:
        with torch.device("meta"):  # one layer of each kind: many take long even without weights
            one = HookedModel(config.at(layer).with_(n_layers=1))
        block = sum(p.numel() for p in one.blocks.parameters())
        ends = sum(p.numel() for p in one.parameters()) - block
        if config.keys_of(layer) != layer:
            attention = one.attention(0)
            block -= sum(p.numel() for name, p in attention.named_parameters() if attention.makes_keys(name))
        return ends, block

    kinds = config.by_layer or (None,) * config.n_layers
    counted = {kind: count(kinds.index(kind)) for kind in dict.fromkeys(kinds)}
    return counted[kinds[0]][0] + sum(counted[kind][1] for kind in kinds)
