"""A model that goes on with its history says what it says when it reads everything again."""

from __future__ import annotations

import copy

import pytest
import torch
from headscope.kernels import Probes
from headscope.models import Cache, OutOfPages

EXPANDED = pytest.mark.parametrize("expanded", [False, True], ids=["own form", "expanded"])


@EXPANDED
def test_one_token_at_a_time_is_all_at_once(model, tokens, close, expanded):
    """Prompt first, then token by token, then two at once: every step's logits, for every configuration."""
    cache = Cache(model, 64, page_size=4, expanded=expanded)
    requests = cache.of(cache.add(), cache.add())
    with torch.no_grad():
        whole = model(tokens)
        steps = [model(part, cache=requests) for part in tokens.split([2, 1, 1, 1, 2], dim=1)]
    close(torch.cat(steps, dim=1), whole, 1e-11)
    assert cache.length(requests.requests[0]) == tokens.shape[1]


@pytest.mark.parametrize("path", ["reference", "torch"])
def test_every_path_decodes_alike(family_model, tokens, close, path):
    cache = Cache(family_model, 64, page_size=4)
    ids = cache.add(), cache.add()
    with torch.no_grad():
        family_model(tokens[:, :-1], cache=cache.of(*ids))
        requests = cache.of(*ids, path=path)
        last = family_model(tokens[:, -1:], cache=requests)
        close(last[:, 0], family_model(tokens)[:, -1], 1e-11)
    assert {step.decoded.path for step in requests.steps.values()} == {path}


def test_ragged_prompts_on_either_side(family_model, close):
    rows = [[3, 7, 1], [9], [2, 2, 11, 4]]
    cache = Cache(family_model, 64, page_size=4)
    ids = [cache.add() for _ in rows]
    padded = torch.tensor([[0, 3, 7, 1], [9, 0, 0, 0], [2, 2, 11, 4]])
    mask = torch.tensor([[0, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]])
    with torch.no_grad():
        first = family_model(padded, attention_mask=mask, cache=cache.of(*ids))
        second = family_model(torch.tensor([[5], [6], [8]]), cache=cache.of(*ids))
        for i, (row, then) in enumerate(zip(rows, (5, 6, 8), strict=True)):
            alone = family_model(torch.tensor([[*row, then]]))[0]
            close(first[i][mask[i].bool()], alone[:-1], 1e-11)
            close(second[i, 0], alone[-1], 1e-11)


def test_a_fork_goes_its_own_way(family_model, close):
    cache = Cache(family_model, 64, page_size=4)
    first = cache.add()
    with torch.no_grad():
        family_model(torch.tensor([[3, 7, 1, 4, 5, 6]]), cache=cache.of(first))
        second = cache.fork(first)
        both = family_model(torch.tensor([[8], [9]]), cache=cache.of(first, second))
        again = family_model(torch.tensor([[2], [2]]), cache=cache.of(second, first))
        for row, token in ((0, 8), (1, 9)):
            alone = family_model(torch.tensor([[3, 7, 1, 4, 5, 6, token, 2]]))[0]
            close(both[row, 0], alone[-2], 1e-11)
            close(again[1 - row, 0], alone[-1], 1e-11)


def test_a_pass_that_raises_leaves_histories_as_they_were(family_model, close):
    cache = Cache(family_model, 64, page_size=4)
    request = cache.add()
    with torch.no_grad():
        family_model(torch.tensor([[3, 7, 1]]), cache=cache.of(request))
        kept, free = cache.read(1, request), cache.ledger.free_pages

        def stumble(tensor, hook):
            raise RuntimeError("on purpose")

        with (
            pytest.raises(RuntimeError, match="on purpose"),
            family_model.hooks([("blocks.1.hook_resid_pre", stumble)]),
        ):
            family_model(torch.tensor([[5, 5, 5, 5]]), cache=cache.of(request))
        assert cache.ledger.free_pages == free
        for name, rows in cache.read(1, request).items():
            assert torch.equal(rows, kept[name])
        after = family_model(torch.tensor([[4]]), cache=cache.of(request))
        close(after[0, 0], family_model(torch.tensor([[3, 7, 1, 4]]))[0, -1], 1e-11)


def test_a_row_of_nothing_but_pads_stays_without_history(family_model, close):
    cache = Cache(family_model, 64, page_size=4)
    ids = cache.add(), cache.add()
    with torch.no_grad():
        family_model(
            torch.tensor([[3, 7], [0, 0]]), attention_mask=torch.tensor([[1, 1], [0, 0]]), cache=cache.of(*ids)
        )
        found = family_model(torch.tensor([[4], [5]]), cache=cache.of(*ids))
        close(found[0, 0], family_model(torch.tensor([[3, 7, 4]]))[0, -1], 1e-11)
        close(found[1, 0], family_model(torch.tensor([[5]]))[0, -1], 1e-11)
    assert [cache.tokens(i) for i in ids] == [[3, 7, 4], [5]]


def test_out_of_pages_is_said_and_nothing_changes(family_model):
    cache = Cache(family_model, 8, page_size=4)
    request = cache.add()
    with torch.no_grad():
        family_model(torch.tensor([[3, 7, 1]]), cache=cache.of(request))
        with pytest.raises(OutOfPages, match="2 pages are needed and 1 of 2 are free"):
            family_model(torch.tensor([[5] * 6]), cache=cache.of(request))
    assert cache.length(request) == 3


def test_recycled_pages_carry_nothing_over(family_model, close):
    """A request whose rows were NaN is freed; the next one on its pages sees none of it."""
    cache = Cache(family_model, 8, page_size=4)
    with torch.no_grad():
        for rows in cache.stored:
            for tensor in rows.values():
                tensor.fill_(torch.nan)
                tensor[..., :] = torch.nan
        ids = cache.add(), cache.add()
        cache_ok = Cache(family_model, 8, page_size=4)
        for rows, clean in zip(cache.stored, cache_ok.stored, strict=True):
            for name, tensor in rows.items():
                tensor[..., _width(cache, name) :] = clean[name][..., _width(cache, name) :]
        family_model(torch.tensor([[3], [4]]), cache=cache.of(*ids))
        found = family_model(torch.tensor([[5], [6]]), cache=cache.of(*ids))
        close(found[:, 0], family_model(torch.tensor([[3, 5], [4, 6]]))[:, -1], 1e-11)


def _width(cache, name):
    return next(stream.width for stream in cache.forms[0].streams if stream.name == name)


def test_an_edit_of_what_is_never_written_out_asks_for_an_expanded_cache(matrix, build):
    for name, point in (("lrkv", "hook_k_private"), ("mla", "hook_k")):
        model = build(matrix[name])
        cache = Cache(model, 8)
        hooks = model.hooks([(f"blocks.1.attn.{point}", lambda tensor, hook: tensor * 0)])
        with hooks, pytest.raises(ValueError, match=f"layer 1: {point} is hooked.*expanded=True"):
            model(torch.tensor([[1]]), cache=cache.of(cache.add()))


@pytest.mark.parametrize("point", ["hook_k", "hook_v", "hook_z", "hook_pattern", "hook_rot_q"])
def test_edits_of_single_tokens_go_on_alike_in_an_expanded_cache(family_model, tokens, close, point):
    def halve(tensor, hook):
        return tensor / 2

    name = point if f"blocks.1.attn.{point}" in family_model.hook_dict else "hook_q"
    cache = Cache(family_model, 64, page_size=4, expanded=True)
    with torch.no_grad(), family_model.hooks([(f"blocks.1.attn.{name}", halve)]):
        whole = family_model(tokens)
        requests = cache.of(cache.add(), cache.add())
        steps = [family_model(part, cache=requests) for part in tokens.split([3, 1, 1, 1, 1], dim=1)]
    close(torch.cat(steps, dim=1), whole, 1e-11)


def test_probes_see_the_pattern(family_model, tokens, close):
    """Entropy, masses, strongest positions and the parts of the output, against the hooked forward pass."""
    cache = Cache(family_model, 64, page_size=4)
    ids = cache.add(), cache.add()
    spans = torch.tensor([[[0, 3]], [[2, 7]]])
    with torch.no_grad():
        family_model(tokens[:, :-1], cache=cache.of(*ids))
        requests = cache.of(*ids, probes=Probes(top=2, spans=spans))
        family_model(tokens[:, -1:], cache=requests)
        _, seen = family_model.run_with_cache(tokens)
    for layer, step in requests.steps.items():
        pattern = seen[f"blocks.{layer}.attn.hook_pattern"][:, :, -1]
        looked = step.decoded.probes
        close(looked.entropy, -torch.special.xlogy(pattern, pattern).sum(-1), 1e-10)
        close(looked.span_mass[0, :, 0], pattern[0, :, :3].sum(-1), 1e-10)
        close(looked.span_mass[1, :, 0], pattern[1, :, 2:].sum(-1), 1e-10)
        close(looked.top_weights, pattern.topk(2).values, 1e-10)
        scores = seen[f"blocks.{layer}.attn.hook_attn_scores"][:, :, -1]
        close(looked.score.sum(-1), (pattern * scores).sum(-1), 1e-10)
        close(step.summands.sum(2), seen[f"blocks.{layer}.attn.hook_z"][:, -1], 1e-10)


def test_bytes_are_counted_by_token(matrix, build):
    model = build(matrix["lrkv"], torch.float32)  # 2 layers, 4 heads of 4, rank 2 stored as 8
    cache = Cache(model, 10, page_size=4)
    request = cache.add()
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3, 4, 5]]), cache=cache.of(request))
    assert cache.bytes_used(padded=False) == 5 * 2 * 4 * 2 * (4 + 4 * 2)
    assert cache.bytes_used() == 5 * 2 * 4 * 2 * (4 + 4 * 8)
    assert cache.bytes_allocated == 12 * 2 * 4 * 2 * (4 + 4 * 8)


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda m, c, r: m(torch.tensor([[1]]), cache=c), ValueError, "should be requests of a cache"),
        (lambda m, c, r: copy.deepcopy(m)(torch.tensor([[1]]), cache=c.of(r)), ValueError, "made for another model"),
        (lambda m, c, r: c.of(), ValueError, "at least one request"),
        (lambda m, c, r: c.of(r, r), ValueError, "each request can be there once"),
        (lambda m, c, r: c.of(99), KeyError, "request 99 does not live"),
        (
            lambda m, c, r: m(torch.tensor([[1], [2]]), cache=c.of(r)),
            ValueError,
            "2 rows of tokens came for 1 requests",
        ),
        (lambda m, c, r: m(torch.tensor([[1]]), cache=c.of(r), stop_at_layer=1), ValueError, "leave them out"),
        (
            lambda m, c, r: m(torch.tensor([[1]]), attention_mask=torch.tensor([[0]]), cache=c.of(r)),
            ValueError,
            "a token that is not a pad",
        ),
        (lambda m, c, r: Cache(m, 0), ValueError, "n_tokens should be >= 1"),
    ],
)
def test_what_does_not_fit_is_refused(matrix, build, unchecked, act, error, message):
    model = build(matrix["gqa"])
    cache = Cache(model, 8)
    with pytest.raises(error, match=message):
        act(model, cache, cache.add())
