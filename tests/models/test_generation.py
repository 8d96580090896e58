"""Generation with the cache against reading everything again, sampling against its definition, and Hugging Face's own."""

from __future__ import annotations

import pytest
import torch
from headscope.kernels import Probes
from headscope.models.generation import Sampling

PROMPTS = torch.tensor([[0, 3, 7, 1], [9, 0, 0, 0], [2, 2, 11, 4]])
MASK = torch.tensor([[0, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]])


def go_on(model, count=6, **options):
    return model.generate(PROMPTS, count, attention_mask=MASK, **options)


def test_with_the_cache_and_without_are_the_same_tokens(model):
    """Every configuration, prompts of lengths 3, 1 and 4 padded on either side."""
    assert torch.equal(go_on(model), go_on(model, use_cache=False))


def test_rows_generate_what_they_would_alone(family_model):
    together = go_on(family_model, temperature=1.5, seed=3)
    alone = family_model.generate(torch.tensor([[3, 7, 1]]), 6, temperature=1.5, seed=3)
    assert together[0, :9].tolist() == alone[0].tolist()


def test_sampling_is_seeded(family_model):
    first, again, other = (go_on(family_model, temperature=2.0, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_draws_follow_the_softmax():
    logits = torch.tensor([[2.0, 0.0, 1.0, -3.0]]).expand(4000, -1)
    drawn = Sampling(temperature=0.7, seed=5).chooser(4000).choose(logits)
    shares = torch.bincount(drawn, minlength=4) / 4000
    torch.testing.assert_close(shares, (logits[0] / 0.7).softmax(-1), rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("limit", "allowed"), [({"top_k": 2}, {0, 2}), ({"top_p": 0.5}, {0}), ({"top_p": 0.95}, {0, 1, 2})], ids=str
)
def test_top_k_and_top_p_leave_the_likeliest(limit, allowed):
    logits = torch.tensor([[2.0, 0.0, 1.0, -3.0]]).expand(500, -1)  # 0.66 0.09 0.24 0.004
    drawn = Sampling(temperature=1.0, **limit).chooser(500).choose(logits)
    assert set(drawn.tolist()) == allowed


def test_a_row_ends_at_its_end_of_sequence_and_the_others_go_on(family_model):
    free = go_on(family_model, 8)
    lengths = MASK.sum(1).tolist()
    ends = int(free[0, lengths[0] + 1])
    found = go_on(family_model, 8, eos_token_id=ends)
    for row, length in enumerate(lengths):
        wanted = free[row, length : length + 8].tolist()
        stop = wanted.index(ends) + 1 if ends in wanted else 8
        assert found[row, length : length + stop].tolist() == wanted[:stop]
        assert set(found[row, length + stop :].tolist()) <= {int(found[row, length + stop - 1])}


def test_streaming_yields_what_generate_returns_and_looks_at_every_step(family_model, run_all, close):
    whole = go_on(family_model, 4)
    steps = list(family_model.stream(PROMPTS, 4, attention_mask=MASK, probes=Probes(top=1)))
    for row, length in enumerate(MASK.sum(1).tolist()):
        assert [int(step.tokens[row]) for step in steps] == whole[row, length : length + 4].tolist()
    _, seen = run_all(family_model, whole[:1, : 3 + 3])
    pattern = seen["blocks.1.attn.hook_pattern"][0]  # the query at position 2 chose token 3, and so on
    for step in steps:
        looked = step.looked[1].decoded.probes
        row = pattern[:, 2 + step.index]
        close(looked.entropy[0], -torch.special.xlogy(row, row).sum(-1), 1e-10)


def test_tokens_come_back_as_text_where_asked():
    import headscope as hs

    model = hs.load("gqa")
    text = model.generate("import os", 3)
    tokens = model.to_tokens("import os")
    assert model.generate(tokens, 3, return_type="str") == [text]
    assert model.tokenizer.decode(model.generate("import os", 3, return_type="tokens")[0]) == text


def test_hooks_see_the_prompt_and_then_one_position_a_step(family_model):
    seen = []
    hook = ("blocks.1.attn.hook_z", lambda z, hook: seen.append(tuple(z.shape[:2])))
    with family_model.hooks(fwd_hooks=[hook]):
        go_on(family_model, 4)
    assert seen[1:] == [(3, 1)] * 3
    assert seen[0] == (3, 4)


def test_probes_change_nothing(family_model):
    steps = family_model.stream(PROMPTS, 6, attention_mask=MASK, probes=Probes(), path="reference")
    found = torch.stack([step.tokens for step in steps], dim=1)
    plain = go_on(family_model)
    assert found[0].tolist() == plain[0, 3:9].tolist()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_tokens_are_hugging_faces_own(tmp_path, kind):
    import headscope as hs
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if kind == "llama":
        shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        oracle = LlamaForCausalLM(LlamaConfig(vocab_size=60, num_key_value_heads=2, **shape))
    else:
        oracle = GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    oracle.eval().save_pretrained(tmp_path)
    prompt = torch.tensor([[5, 9, 33, 2]])
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    wanted = oracle.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, **options)
    assert torch.equal(hs.load(tmp_path).generate(prompt, 20, stop_at_eos=False), wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature should be finite"),
        ({"temperature": 1.0, "top_k": 0}, "top_k should be >= 1"),
        ({"temperature": 1.0, "top_p": 0.0}, r"top_p should be in the interval \(0, 1\] but got 0.0"),
        ({"top_k": 5}, "need a temperature above 0"),
        ({"return_type": "words"}, "return_type should be"),
        ({"count": 0}, "max_new_tokens should be an integer >= 1 but got 0"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_what_cannot_be_is_refused(matrix, build, unchecked, options, message):
    with pytest.raises(ValueError, match=message):
        go_on(build(matrix["gqa"]), **options)


def test_a_row_without_a_token_is_refused(matrix, build):
    with pytest.raises(ValueError, match="row 1 has no token"):
        build(matrix["gqa"]).generate(torch.tensor([[1], [2]]), attention_mask=torch.tensor([[1], [0]]))


@pytest.mark.parametrize(
    ("prompt", "message"), [((1, 2), "is tuple"), ([1, 2], "a list should hold texts"), ([], "one or more")]
)
def test_prompts_of_other_kinds_are_refused(matrix, build, unchecked, prompt, message):
    with pytest.raises(ValueError, match=message):
        build(matrix["gqa"]).generate(prompt)


def test_probes_without_a_cache_are_refused(matrix, build):
    with pytest.raises(ValueError, match="use_cache=True"):
        build(matrix["gqa"]).stream(torch.tensor([[1]]), probes=Probes(), use_cache=False)
