"""Constructed checkpoints do what their recipes say, read by Transformers: every token, not a sample of them."""

import hashlib
import json
from math import prod

import pytest

from pytest_specdec.models import expected_continuation, parse
from pytest_specdec.models.maps import next_map, runner_up_map
from pytest_specdec.models.recipe import EMBEDDING_SIZE, weights
from pytest_specdec.models.truth import ends_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from pytest_specdec.models.checkpoint import tensor_seed, write_constructed  # noqa: E402 - only where torch is


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")


def logits_after_every_token(folder, vocab):
    """The logits after the one-token prompts 0 to vocab − 1, in float32; shape (vocab, rows)."""
    with torch.no_grad():
        return load(folder)(torch.arange(vocab)[:, None]).logits[:, -1].float()


FOLLOWERS = [
    "constructed:tiny",
    "constructed:tiny?dtype=float32",
    "constructed:tiny?dtype=float32&margin=0.0001",
    "constructed:tiny?margin=0.02",
    "constructed:tiny?padded_vocab=1100",
    "constructed:tiny-qwen3",
    "constructed:tiny-qwen3:draft",
    "constructed:tiny:draft",
    "constructed:tiny:draft?alpha=0&seed=3",
    "constructed:tiny:draft?alpha=0.999",
    "constructed:tiny:draft?vocab=1500",
]


@pytest.mark.parametrize("reference", FOLLOWERS)
def test_greedy_follows_the_map_after_every_token(made, reference):
    recipe = parse(reference)
    greedy = logits_after_every_token(made(reference), recipe.vocab).argmax(dim=1).tolist()
    assert greedy == next_map(recipe)


@pytest.mark.parametrize("reference", ["constructed:tiny", "constructed:tiny?dtype=float32", "constructed:tiny:draft"])
def test_greedy_generation_is_the_expected_continuation(made, reference):
    prompt = list(range(500, 532))
    generated = load(made(reference)).generate(torch.tensor([prompt]), max_new_tokens=100, do_sample=False)
    assert generated[0, len(prompt) :].tolist() == expected_continuation(reference, prompt, 100)


@pytest.mark.parametrize(
    ("margin", "dtype"), [(0.001, "float32"), (0.05, "float32"), (0.2, "float32"), (0.2, "bfloat16")]
)
def test_the_runner_up_stands_the_margin_below_the_top(made, margin, dtype):
    reference = f"constructed:tiny?margin={margin}&dtype={dtype}"
    values, tokens = logits_after_every_token(made(reference), 1024).topk(2, dim=1)
    ratio = values[:, 1] / values[:, 0]
    assert tokens[:, 1].tolist() == runner_up_map(parse(reference))
    assert abs(ratio.mean() - (1 - margin)) < 0.03 * margin
    assert ratio.std() < 0.15 * margin


def test_a_margin_below_the_dtypes_step_makes_real_ties(made):
    logits = logits_after_every_token(made("constructed:tiny?margin=0.003"), 1024)
    top, second = logits.topk(2, dim=1).values.T
    assert (top - second).max() <= 2 * 0.0625
    assert ((top - second) == 0).sum() > 100


def test_without_a_margin_the_gap_is_large(made):
    top, second = logits_after_every_token(made("constructed:tiny"), 1024).topk(2, dim=1).values.T
    assert (top - second).min() > 4


def test_ends_are_eos_of_model_and_settings(made):
    """EOS itself, and one ordinary token in so many; a model without them has EOS alone."""
    ends = [2, *range(3, 1024, 500)]
    for file in ("config.json", "generation_config.json"):
        assert json.loads((made("constructed:tiny?ends=500") / file).read_text())["eos_token_id"] == ends
        assert json.loads((made("constructed:tiny") / file).read_text())["eos_token_id"] == 2
    assert ends_of("constructed:tiny?ends=500") == {*ends[1:]}


def test_padding_rows_are_never_chosen_and_are_no_words(made):
    folder = made("constructed:tiny?padded_vocab=1100")
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 1100
    assert len(transformers.AutoTokenizer.from_pretrained(folder)) == 1024
    assert logits_after_every_token(folder, 1024)[:, 1024:].abs().max() == 0


@pytest.mark.parametrize("shard_bytes", [10**9, 300_000])
def test_the_files_hold_the_tensors_of_the_layout(made, shard_bytes):
    folder = made("constructed:tiny", shard_bytes)
    held = {}
    for file in sorted(folder.glob("*.safetensors")):
        held |= {name: tuple(tensor.shape) for name, tensor in safetensors.load_file(file).items()}
    assert held == {weight.name: weight.shape for weight in weights(parse("constructed:tiny"))}


def test_sharded_and_whole_checkpoints_are_the_same_model(made):
    whole, sharded = made("constructed:tiny"), made("constructed:tiny", 300_000)
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in sharded.glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == files
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert index["metadata"]["total_size"] == 2 * sum(prod(w.shape) for w in weights(parse("constructed:tiny")))
    ours, theirs = load(whole).state_dict(), load(sharded).state_dict()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_the_same_recipe_gives_the_same_bytes(made, tmp_path):
    write_constructed(parse("constructed:tiny"), tmp_path)
    digests = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        for folder in (tmp_path, made("constructed:tiny"))
    ]
    assert digests[0] == digests[1]


def test_each_tensor_has_a_seed_of_its_own():
    seeds = {tensor_seed(seed, weight.name) for seed in (0, 1) for weight in weights(parse("constructed:tiny"))}
    assert len(seeds) == 2 * len(weights(parse("constructed:tiny")))


def test_another_seed_gives_other_weights_that_follow_the_same_map(made):
    other = made("constructed:tiny?seed=7")
    first, second = (load(folder).model.layers[0].mlp.up_proj.weight for folder in (made("constructed:tiny"), other))
    assert not torch.equal(first, second)
    assert logits_after_every_token(other, 1024).argmax(dim=1).tolist() == next_map(parse("constructed:tiny"))


@pytest.mark.parametrize("alpha", [1.0, 0.8])
def test_an_eagle_head_proposes_its_map_through_the_targets_output_head(made, alpha):
    reference = f"constructed:tiny:eagle?alpha={alpha}"
    head = safetensors.load_file(made(reference) / "model.safetensors")
    target = safetensors.load_file(made("constructed:tiny") / "model.safetensors")
    embedded = head.get("embed_tokens.weight", target["model.embed_tokens.weight"]).float()
    hidden = torch.cat([embedded, torch.randn_like(embedded)], dim=1) @ head["fc.weight"].float().T
    proposed = (hidden @ target["lm_head.weight"].float().T).argmax(dim=1).tolist()
    assert ("embed_tokens.weight" in head) == (alpha < 1)
    assert proposed == next_map(parse(reference))


def test_an_eagle_head_knows_the_embedding_of_another_targets_seed(made):
    own = safetensors.load_file(made("constructed:tiny:eagle?alpha=0.999&target_seed=7") / "model.safetensors")
    target = safetensors.load_file(made("constructed:tiny?seed=7") / "model.safetensors")
    same = (own["embed_tokens.weight"] == target["model.embed_tokens.weight"]).all(dim=1)
    assert same.sum() >= 1024 - 4


def test_each_of_medusas_heads_proposes_a_token_further_on(made):
    """From the hidden state of the last token but one, as the target leaves it."""
    reference = "constructed:tiny-qwen3:medusa?alpha=0.8&heads=3&dtype=float32"
    own = safetensors.load_file(made(reference) / "model.safetensors")
    target = safetensors.load_file(made("constructed:tiny-qwen3?dtype=float32") / "model.safetensors")
    hidden = target["model.embed_tokens.weight"] / EMBEDDING_SIZE
    agreed, leads = next_map(parse("constructed:tiny-qwen3")), next_map(parse(reference))
    before = list(range(1024))
    for head in range(3):
        before = [agreed[token] for token in before]
        block = hidden + torch.nn.functional.silu(hidden @ own[f"blocks.{head}.layers.0.weight"].T)
        assert (block @ own[f"lm_heads.{head}.weight"].T).argmax(dim=1).tolist() == [leads[token] for token in before]


def test_a_place_of_a_block_copies_the_state_so_many_positions_back(made):
    """By vLLM's own arithmetic: keys and values are made of the target's states, the queries of a mask token alone."""
    recipe = parse("constructed:tiny:dflash?alpha=0.8&dtype=float32")
    own = safetensors.load_file(made("constructed:tiny:dflash?alpha=0.8&dtype=float32") / "model.safetensors")
    target = safetensors.load_file(made("constructed:tiny?dtype=float32") / "model.safetensors")[
        "model.embed_tokens.weight"
    ]
    own |= {name.removeprefix("layers.0.self_attn."): each for name, each in own.items()}
    heads, size, rms = recipe.shape.heads, recipe.shape.head_dim, torch.nn.functional.rms_norm
    walk = [5, *expected_continuation("constructed:tiny", [5], 60)]

    def turned(name, places):
        vectors = rms((own[f"{name}_proj.bias"]).view(1, heads, 1, size), (size,)) * own[f"{name}_norm.weight"]
        angles = places[:, None] * recipe.shape.rope_theta ** -(torch.arange(0, size, 2) / size)
        whole = torch.cat([angles, angles], dim=1)
        halves = torch.cat([-vectors[..., size // 2 :], vectors[..., : size // 2]], dim=-1)
        return vectors * whole.cos() + halves * whole.sin()

    states = rms(target[walk[:50]].repeat(1, 3) @ own["fc.weight"].T, (256,))
    values = (states @ own["v_proj.weight"].T).view(1, 50, heads, size).transpose(1, 2)
    queries, keys = turned("q", torch.arange(51, 58)), turned("k", torch.arange(50))
    read = torch.nn.functional.scaled_dot_product_attention(queries, keys, values)[0].transpose(0, 1).reshape(7, 256)
    hidden = target[0] + read @ own["o_proj.weight"].T
    proposed = (rms(hidden, (256,)) @ own["lm_head.weight"].T).argmax(dim=1).tolist()
    assert proposed == [next_map(recipe)[walk[place - 1]] for place in range(51, 58)]


def test_the_tokenizer_names_ids_and_adds_nothing(made):
    tokenizer = transformers.AutoTokenizer.from_pretrained(made("constructed:tiny"))
    ids = [3, 17, 1023, 500]
    assert tokenizer.decode(ids) == "t3 t17 t1023 t500"
    assert tokenizer("t3 t17 t1023 t500").input_ids == ids
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.decode([1, 17, 2], skip_special_tokens=True) == "t17"
    assert tokenizer("t17 and text").input_ids == [17, 3, 3]


def test_the_tokenizer_has_a_chat_template(made):
    tokenizer = transformers.AutoTokenizer.from_pretrained(made("constructed:tiny"))
    messages = [{"role": "user", "content": "t5 t6"}, {"role": "assistant", "content": "t7"}]
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert ids == [5, 6, 7]
