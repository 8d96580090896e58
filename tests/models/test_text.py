"""Text in and out, with a tokenizer of one token a letter."""

from __future__ import annotations

import pytest
import torch
from headscope.errors import HeadscopeError, TokenizerError
from headscope.models import HookedModel


class Letters:
    """a = 0, b = 1, ...; callable, as Hugging Face's tokenizers are."""

    def __init__(self, pad_token_id: int | None = 0) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, text: str):
        raise AssertionError("a tokenizer is no factory")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        start = [18] if add_special_tokens else []  # s starts a text
        return start + [ord(letter) - ord("a") for letter in text]

    def decode(self, tokens) -> str:
        return "".join(chr(ord("a") + int(token)) for token in torch.as_tensor(tokens).reshape(-1))


@pytest.fixture
def speaker(family_model: HookedModel) -> HookedModel:
    family_model.tokenizer = Letters()
    return family_model


def test_text_is_tokens(speaker: HookedModel):
    with torch.no_grad():
        assert torch.equal(speaker("bed"), speaker(torch.tensor([[18, 1, 4, 3]])))
        assert torch.equal(speaker("bed", "loss"), speaker(torch.tensor([18, 1, 4, 3]), "loss"))


def test_texts_of_unlike_length_are_padded_and_masked(speaker: HookedModel, close):
    """Token 0 is a letter, a, and the pad as well."""
    with torch.no_grad():
        logits = speaker(["baa", "cafebab"])
        close(logits[:1, :4], speaker("baa"))
        close(logits[1:], speaker("cafebab"))
        both = speaker(["baa", "cafebab"], "loss")
        close(both, (3 * speaker("baa", "loss") + 7 * speaker("cafebab", "loss")) / 10, 1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_sides(speaker: HookedModel, side: str):
    tokens, mask = speaker.tokenize(["ab", "c"], padding_side=side)
    short, kept = ([0, 18, 2], [0, 1, 1]) if side == "left" else ([18, 2, 0], [1, 1, 0])
    assert tokens.tolist() == [[18, 0, 1], short]
    assert mask.tolist() == [[1, 1, 1], kept]


def test_no_pad_token(family_model: HookedModel):
    """One text works, texts of one length work, others are told what to do."""
    family_model.tokenizer = Letters(pad_token_id=None)
    assert family_model.to_tokens("abc").tolist() == [[18, 0, 1, 2]]
    assert family_model.to_tokens(["ab", "cd"]).tolist() == [[18, 0, 1], [18, 2, 3]]
    with pytest.raises(TokenizerError, match=r"no pad token.*pad_token"):
        family_model(["ab", "c"])


def test_no_tokenizer(family_model: HookedModel):
    for call in (
        lambda: family_model("abc"),
        lambda: family_model.to_tokens("abc"),
        lambda: family_model.to_string(torch.tensor([1])),
        lambda: family_model.to_single_token("a"),
    ):
        with pytest.raises(TokenizerError, match="no tokenizer"):
            call()
    assert issubclass(TokenizerError, HeadscopeError)


def test_back_to_text(speaker: HookedModel):
    assert speaker.to_string(torch.tensor([1, 4, 3])) == "bed"
    assert speaker.to_string(torch.tensor([[1, 4, 3], [0, 3, 3]])) == ["bed", "add"]
    assert speaker.to_str_tokens("bed") == ["s", "b", "e", "d"]
    assert speaker.to_str_tokens(torch.tensor([1, 4, 3])) == ["b", "e", "d"]
    assert speaker.to_single_token("c") == 2
    with pytest.raises(ValueError, match=r"'cc'.*2"):
        speaker.to_single_token("cc")


def test_residual_directions(speaker: HookedModel):
    table = speaker.unembed.weight
    for token in ("c", 2, torch.tensor(2)):
        assert torch.equal(speaker.tokens_to_residual_directions(token), table[2])
    tokens = torch.tensor([[1, 2], [3, 1]])
    assert torch.equal(speaker.tokens_to_residual_directions(tokens), table[tokens])


def test_tokenizer_is_loaded_when_first_needed(config):
    loaded = []

    def load() -> Letters:
        loaded.append(1)
        return Letters()

    model = HookedModel(config, tokenizer=load)
    model(torch.tensor([[1, 2]]))
    assert loaded == []
    assert model.to_tokens("a").tolist() == [[18, 0]]
    model.to_tokens("b")
    assert loaded == [1]
    model.tokenizer = None
    assert model.tokenizer is None
