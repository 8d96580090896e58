"""The probe's table against the hooked forward pass, spans against the tokenizer, and transformers' models."""

from __future__ import annotations

import json

import headscope as hs
import numpy as np
import pandas as pd
import pytest
import torch
from headscope.probing import Span, probe_transformers, register, watching
from headscope.probing.spans import parse_spans

PROMPT = "def read(path):\n    with open(path) as handle:\n        return handle.read()\n\ndef write(path"


@pytest.fixture(scope="module")
def model():
    return hs.load("lrkv")


@pytest.fixture(scope="module")
def found(model):
    return hs.probe(model, PROMPT, spans=["call=open(path)", Span("start", 0, 3)], max_new_tokens=4)


def test_the_table_is_what_the_forward_pass_shows(model, found):
    """Every step again by one hooked pass over the whole text: entropy, distance, masses, parts of scores, outputs."""
    tokens = torch.tensor([found.tokens["token"].tolist()])
    _, seen = model.run_with_cache(tokens[:, :-1])
    span = found.record["spans"][0]
    for (step, layer), rows in found.table.groupby(["step", "layer"]):
        at = int(rows["query_pos"].iloc[0])
        assert at == found.record["prompt_tokens"] - 1 + step
        act = {name: seen[f"blocks.{layer}.attn.hook_{name}"][0] for name in ("rot_q", "k_shared", "k_private", "z")}
        pattern = seen[f"blocks.{layer}.attn.hook_pattern"][0, :, at, : at + 1]
        back = torch.arange(at, -1, -1).float()
        wanted = {
            "entropy": -torch.special.xlogy(pattern, pattern).sum(-1),
            "distance": pattern @ back,
            "mass_call": pattern[:, span["start"] : span["stop"]].sum(-1),
            "mass_start": pattern[:, :3].sum(-1),
            "top_weight": pattern.max(-1).values,
        }
        attn, where = model.attention(layer), torch.arange(at + 1)[None]
        for name, part in (("shared", act["k_shared"][:, None]), ("private", act["k_private"])):
            keys = attn.turn(part[None, : at + 1], where)[0].expand(-1, 8, -1)
            scores = torch.einsum("hd,phd->hp", act["rot_q"][at], keys) * attn.scale
            wanted[f"lift_{name}"] = (pattern * scores).sum(-1) - scores.mean(-1)
        values = {"shared": "v_shared", "private": "v_private"}
        for name, point in values.items():
            v = seen[f"blocks.{layer}.attn.hook_{point}"][0, : at + 1]
            v = v[:, None].expand(-1, 8, -1) if name == "shared" else v
            written = torch.einsum("hp,phd,hdm->hm", pattern, v, attn.W_O)
            wanted[f"output_{name}"] = written.norm(dim=-1)
        for name, truth in wanted.items():
            np.testing.assert_allclose(
                rows[name], truth.detach(), rtol=2e-4, atol=2e-5, err_msg=f"{name}, layer {layer}"
            )


def test_the_text_is_generates(model, found):
    assert PROMPT + found.text == model.generate(PROMPT, 4)


def test_an_induction_head_finds_what_followed_the_last_time(found):
    """What the ablation finds by disturbing (docs/interventions.md), a probe shows by looking."""
    first = found.table[found.table["step"] == 0].set_index(["layer", "head"])
    after_path = found.tokens[found.tokens["text"].isin(["):", ")"])]["position"].tolist()
    assert first.loc[(3, 3), "top_position"] in after_path
    assert first.loc[(2, 5), "top_position"] == found.record["prompt_tokens"] - 2
    assert first.loc[(2, 5), "lift_private"] > first.loc[(2, 5), "lift_shared"]


def test_saved_files_hold_the_same_numbers(found, tmp_path):
    found.save(tmp_path)
    data = json.loads((tmp_path / "probe.json").read_text())
    for read in (
        pd.DataFrame(data["rows"]),
        pd.read_csv(tmp_path / "probe.csv"),
        pd.read_parquet(tmp_path / "probe.parquet"),
    ):
        np.testing.assert_array_equal(read["entropy"], found.table["entropy"])
    assert data["record"]["generated"] == found.text
    assert {"entropy.png", "looked.png", "span-call.png", "private-share.png"} <= {p.name for p in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["mha", "mla"])
def test_what_has_no_private_part_says_so(name):
    found = hs.probe(name, [5, 6, 7], max_new_tokens=1)
    assert "private_share" not in found.table
    assert name.upper() in found.reading()


def test_an_edit_stays_in_force(model):
    from headscope.interventions import Zero, apply

    with apply(model, Zero(path="v_private", layers=(2,), heads=(5,))):
        edited = hs.probe(model, PROMPT, max_new_tokens=2)
    row = edited.table[(edited.table["layer"] == 2) & (edited.table["head"] == 5)]
    assert row["output_all"].notna().all(), "an edited private part needs an expanded cache, whose output has one part"


def test_spans_by_text_cover_its_tokens(model):
    tokens = model.tokenize(PROMPT)[0][0].tolist()
    (span,) = parse_spans(["call=open(path)"], PROMPT, tokens, model.tokenizer)
    text = model.tokenizer.decode(tokens[span.start : span.stop])
    assert "open(path)" in text
    assert "with" not in text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("call", "name=start:end or name=text"),
        ("call=path", "once but holds it 3 times"),
        ("call=nowhere", "holds it 0 times"),
        ("call=3:3", "from a position to a later one"),
        ("call=0:999", "runs to position 999, but the prompt has"),
        ("a b=0:1", "letters, digits"),
    ],
)
def test_spans_that_cannot_be_are_refused(model, given, message):
    with pytest.raises(ValueError, match=message):
        hs.probe(model, PROMPT, spans=[given], max_new_tokens=1)


def test_a_span_named_twice_is_refused(model):
    with pytest.raises(ValueError, match="named twice"):
        hs.probe(model, PROMPT, spans=["a=0:1", "a=1:2"], max_new_tokens=1)


def test_an_empty_prompt_is_refused(model):
    with pytest.raises(ValueError, match="prompt is empty"):
        hs.probe(model, [], max_new_tokens=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softcap": 5.0}, "all have caps on scores"),
        ({"window": 4}, "all have a window of 4 tokens, shorter than the history of 6"),
    ],
)
def test_what_cannot_be_decoded_in_one_step_is_refused_before_it_starts(options, message):
    from headscope.models import GroupedConfig, HookedModel, ModelConfig

    attention = GroupedConfig(n_heads=2, d_head=8, **options)
    capped = HookedModel(ModelConfig(d_model=16, n_layers=2, d_vocab=9, n_ctx=16, attention=attention))
    with pytest.raises(ValueError, match=message):
        hs.probe(capped, [1, 2, 3, 4], max_new_tokens=2)


def test_beyond_the_models_context_is_said(model):
    found = hs.probe(model, list(range(1, 260)), max_new_tokens=1)
    assert "Beyond position 256" in found.summary()


def test_a_prompt_of_another_kind_is_refused(model, unchecked):
    with pytest.raises(ValueError, match="one text, or the tokens of one"):
        hs.probe(model, ["a", "b"], max_new_tokens=1)


def test_a_watched_pattern_is_said(model):
    with model.hooks([("blocks.0.attn.hook_pattern", lambda t, hook: None)]):
        found = hs.probe(model, [1, 2, 3], max_new_tokens=1)
    assert 0 not in set(found.table["layer"]), "a layer whose pattern is written out is not decoded"


# -- transformers' own models -----------------------------------------------------------------------------------------


def small(kind):
    import transformers as tf

    torch.manual_seed(0)
    shape = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    makers = {
        "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**shape, intermediate_size=48, num_key_value_heads=2)),
        "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4)),
        "mistral": lambda: tf.MistralForCausalLM(
            tf.MistralConfig(**shape, intermediate_size=48, num_key_value_heads=1, sliding_window=4)
        ),
        "qwen3": lambda: tf.Qwen3ForCausalLM(
            tf.Qwen3Config(**shape, intermediate_size=48, num_key_value_heads=2, head_dim=8)
        ),
    }
    return makers[kind]().eval()


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "qwen3"])
def test_transformers_models_choose_the_same_tokens_as_with_sdpa(kind):
    model, prompt = small(kind), [5, 9, 33, 2, 7, 7]
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    wanted = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, 6), **options)[0].tolist()
    found = probe_transformers(model, prompt, max_new_tokens=8)
    assert found.tokens["token"].tolist() == wanted
    assert "cannot be told apart" in found.reading()
    register()
    model.set_attn_implementation("headscope")
    assert model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, 6), **options)[0].tolist() == wanted


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_transformers_probes_are_its_own_patterns(kind):
    """Mistral's window of 4 keeps and sees the last keys only: positions and spans still count from the first token."""
    model, prompt = small(kind), [5, 9, 33, 2, 7, 7]
    found = probe_transformers(model, prompt, max_new_tokens=3, spans=[Span("first", 0, 2), Span("later", 2, 5)])
    model.set_attn_implementation("eager")
    tokens = torch.tensor([found.tokens["token"].tolist()])
    with torch.no_grad():
        patterns = model(tokens, output_attentions=True).attentions
    for row in found.table.to_dict("records"):
        at = row["query_pos"]
        pattern = patterns[row["layer"]][0, row["head"], at, : at + 1]
        assert row["entropy"] == pytest.approx(float(-torch.special.xlogy(pattern, pattern).sum()), rel=1e-5)
        assert row["mass_first"] == pytest.approx(float(pattern[:2].sum()), rel=1e-5, abs=1e-7)
        assert row["mass_later"] == pytest.approx(float(pattern[2:5].sum()), rel=1e-5, abs=1e-7)
        assert row["top_position"] == int(pattern.argmax())


def test_a_mask_that_adds_biases_is_refused_and_not_read_as_hiding():
    from headscope.probing.hugging_face import attention

    q, k = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match="adds biases"):
        attention(torch.nn.Identity(), q, k, k, torch.tensor([[[[-0.5, -0.25, 0.0]]]]))


def test_watching_puts_back_what_was_there():
    from headscope.kernels import Probes

    model = small("llama")
    before = model.config._attn_implementation
    with pytest.raises(RuntimeError, match="stop"), watching(model, Probes()):
        raise RuntimeError("stop")
    assert model.config._attn_implementation == before


def test_capped_scores_are_refused_by_name():
    import transformers as tf

    torch.manual_seed(0)
    model = tf.Gemma2ForCausalLM(
        tf.Gemma2Config(
            vocab_size=60,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=48,
        )
    )
    with pytest.raises(ValueError, match="softcap"):
        probe_transformers(model, [1, 2, 3], max_new_tokens=1)
