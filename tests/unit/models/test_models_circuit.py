"""Pairs with memory, run by Transformers: the checkpoint does what is foretold, entry by entry of its cache."""

import random

import pytest

from pytest_specdec.engines import transformers as backend
from pytest_specdec.generation import Speculation
from pytest_specdec.models import expected_assistance, expected_continuation, parse
from pytest_specdec.models.maps import NONE, draft_ids, following
from pytest_specdec.models.memory import readings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from pytest_specdec.models.circuit import Stream  # noqa: E402 - only where torch is

REACH = 24
TINY = f"constructed:tiny?memory={REACH}&dtype=float32"


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def random_prompts(count, length, vocab=1024):
    drawn = random.Random(3)
    return [[drawn.randrange(vocab) for _ in range(length)] for _ in range(count)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("preset", ["tiny", "tiny-qwen3", "tiny-mimo"])
def test_greedy_generation_is_the_expected_continuation(made, preset, dtype):
    """Four prompts, just long enough, and 100 tokens after each."""
    reference = f"constructed:{preset}?memory={REACH}&dtype={dtype}"
    prompts = random_prompts(4, REACH + 1)
    generated = load(made(reference)).generate(torch.tensor(prompts), max_new_tokens=100, do_sample=False)
    known = [expected_continuation(reference, prompt, 100) for prompt in prompts]
    assert generated[:, REACH + 1 :].tolist() == known


@pytest.mark.parametrize(
    "reference",
    [
        "constructed:tiny?memory=6",
        "constructed:tiny?memory=500",
        f"constructed:tiny?memory={REACH}&readers=1&bits=1",
        f"constructed:tiny?memory={REACH}&layers=1&vocab=64&bits=3",
        f"constructed:tiny?memory={REACH}&layers=3&readers=3&padded_vocab=1100",
        f"constructed:tiny:draft?memory={REACH}&alpha=0.5",
        f"constructed:tiny-qwen3:draft?memory={REACH}&alpha=0",
        f"constructed:small?memory={REACH}",
        f"constructed:tiny?memory={REACH}&codes=1&readers=4",
        f"constructed:tiny:draft?memory={REACH}&codes=1&alpha=0.5",
        f"constructed:tiny-qwen3?memory={REACH}&codes=8&bits=1",
    ],
)
def test_every_parameter_keeps_the_truth(made, reference):
    """One pass over a known answer; each of its tokens is the highest logit where it follows."""
    recipe = parse(reference)
    (prompt,) = random_prompts(1, recipe.memory.reach + 1, recipe.vocab)
    known = expected_continuation(reference, prompt, 150)
    with torch.no_grad():
        logits = load(made(reference))(torch.tensor([[*prompt, *known[:-1]]])).logits
    assert logits[0, len(prompt) - 1 :].argmax(dim=1).tolist() == known


@pytest.mark.parametrize("part", ["", ":draft"])
def test_the_head_leads_every_token_of_every_class_along_its_map(made, part):
    """All of them, by the weights alone: an embedding, the bits of a class, and the output head."""
    reference = f"constructed:tiny{part}?memory={REACH}&dtype=float32"
    recipe = parse(reference)
    stream = Stream(recipe, recipe.memory)
    tensors = safetensors.load_file(made(reference) / "model.safetensors")
    maps = following(recipe)
    for number, leads in enumerate(maps):
        hidden = tensors["model.embed_tokens.weight"].clone()
        bits = [1 - 2 * (number >> bit & 1) for bit in range(recipe.memory.bits)]
        hidden[:, stream.product(recipe.shape.layers - 1)] = stream.slot * torch.tensor(bits).float()
        assert (hidden @ tensors["lm_head.weight"].T).argmax(dim=1).tolist() == list(leads)


def test_what_is_set_apart_is_written_by_readers_and_products_alone(made):
    """Each reading's bits come from one column of attention each; random weights write none of them."""
    recipe = parse(TINY)
    room = Stream(recipe, recipe.memory).room
    tensors = safetensors.load_file(made(TINY) / "model.safetensors")
    for layer, readers in enumerate(readings(recipe.memory, recipe.shape)):
        written = tensors[f"model.layers.{layer}.self_attn.o_proj.weight"][room:].count_nonzero()
        copies = recipe.memory.codes - 1 if layer == 0 else 0  # the first reader copies the other codes too
        assert written == recipe.memory.bits * (len(readers) + copies)
        by_mlp = tensors[f"model.layers.{layer}.mlp.down_proj.weight"][room:].count_nonzero(dim=1)
        assert by_mlp.count_nonzero() == recipe.memory.bits


def first_wrong(model, prompt, known, change):
    """Which token of the answer is the first wrong one after a change to the prompt's cache; None where none is."""
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.tensor([prompt]), past_key_values=cache)
        change(cache)
        logits = model(torch.tensor([known[:-1]]), past_key_values=cache).logits[0]
    wrong = (logits.argmax(dim=1) != torch.tensor(known[1:])).nonzero()
    return 1 + int(wrong[0]) if len(wrong) else None


@pytest.mark.parametrize("preset", ["tiny", "tiny-qwen3"])
def test_every_entry_is_read_by_each_kv_head_at_its_distances_and_nowhere_else(made, preset):
    """Values of one entry of one head, negated, are seen at the first distance at which that head reads them."""
    reference = f"constructed:{preset}?memory={REACH}&dtype=float32"
    recipe, model = parse(reference), load(made(reference))
    (prompt,) = random_prompts(1, 40)
    known = expected_continuation(reference, prompt, 40)
    for layer, readers in enumerate(readings(recipe.memory, recipe.shape)):
        for head in range(recipe.shape.kv_heads):
            distances = [each.distance for each in readers if each.kv_head == head]
            for entry in (39, 25):
                later = [entry + distance for distance in distances if entry + distance >= 40]

                def negate(cache, layer=layer, head=head, entry=entry):
                    cache.layers[layer].values[0, head, entry] *= -1

                seen = first_wrong(model, prompt, known, negate)
                assert seen == (min(later) - 39 if later else None)


def test_an_entry_of_the_same_token_in_another_context_is_seen(made):
    """It keeps what stood 8 positions before it: a block found by its own tokens alone would be wrong."""
    model = load(made(TINY))
    ours, theirs = random_prompts(2, 30)
    theirs[16:] = ours[16:]
    known = expected_continuation(TINY, ours, 40)
    foreign = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.tensor([theirs]), past_key_values=foreign)

    def take(cache):
        for layer, other in zip(cache.layers, foreign.layers, strict=True):
            layer.keys[:, :, 16:], layer.values[:, :, 16:] = other.keys[:, :, 16:], other.values[:, :, 16:]

    assert first_wrong(model, ours, known, lambda cache: None) is None
    assert first_wrong(model, ours, known, take) is not None


@pytest.mark.parametrize("alpha", [1.0, 0.8])
def test_an_eagle_head_reads_its_own_cache_and_proposes_through_the_targets_output_head(made, alpha):
    """Whatever the target's hidden states; its first layer has no norm, as in vLLM."""
    reference = f"constructed:tiny:eagle?memory={REACH}&alpha={alpha}&dtype=float32"
    own = safetensors.load_file(made(reference) / "model.safetensors")
    target = safetensors.load_file(made(TINY) / "model.safetensors")
    model = load(made(f"{TINY}&layers=1")).model
    model.load_state_dict({name: own[name] for name in own if name.startswith("layers")}, strict=False)
    model.layers[0].input_layernorm = model.norm = torch.nn.Identity()
    (prompt,) = random_prompts(1, REACH + 1)
    text = [*prompt, *expected_continuation(TINY, prompt, 60)]
    embedded = own.get("embed_tokens.weight", target["model.embed_tokens.weight"])[text]
    with torch.no_grad():
        states = torch.cat([embedded, torch.randn_like(embedded)], dim=1) @ own["fc.weight"].T
        hidden = model(inputs_embeds=states[None]).last_hidden_state[0, REACH:]
    known = [expected_continuation(reference, text[:end], 1)[0] for end in range(REACH + 1, len(text) + 1)]
    assert (hidden @ target["lm_head.weight"].T).argmax(dim=1).tolist() == known
    stream = Stream(parse(reference), parse(reference).memory)
    for places in (stream.product(0), *(stream.reading(0, number) for number in range(4))):
        assert torch.allclose(hidden[:, places].abs(), torch.tensor(1.5), rtol=0.02)


def test_a_head_for_sglang_proposes_of_its_token_map_through_the_targets_embedding(made):
    """By SGLang's own arithmetic: a bias on `fc`, no first norm and no last, and the rows of the map alone."""
    reference = f"constructed:tiny:eagle?memory={REACH}&engine=sglang&draft_vocab=816&dtype=float32"
    own = safetensors.load_file(made(reference) / "model.safetensors")
    target = safetensors.load_file(made(TINY) / "model.safetensors")
    ids = torch.load(made(reference) / "token_map.pt", weights_only=True)
    model = load(made(f"{TINY}&layers=1")).model
    model.load_state_dict({name: own[name] for name in own if name.startswith("layers")}, strict=False)
    model.layers[0].input_layernorm = model.norm = torch.nn.Identity()
    (prompt,) = random_prompts(1, REACH + 1)
    text = [*prompt, *expected_continuation(TINY, prompt, 60)]
    embedded = target["model.embed_tokens.weight"][text]
    states = torch.cat([embedded, torch.randn_like(embedded)], dim=1)
    with torch.no_grad():
        states = torch.nn.functional.linear(states, own["fc.weight"], own["fc.bias"])
        hidden = model(inputs_embeds=states[None]).last_hidden_state[0, REACH:]
    proposed = torch.tensor(ids)[(hidden @ target["lm_head.weight"][ids].T).argmax(dim=1)].tolist()
    known = [expected_continuation(reference, text[:end], 1)[0] for end in range(REACH + 1, len(text) + 1)]
    assert {token == other for token, other in zip(proposed, known, strict=True) if other != NONE} == {True}
    assert NONE in known
    assert (ids, len(ids)) == (sorted(set(ids)), 816)
    assert "embed_tokens.weight" not in own


@pytest.mark.parametrize("head", ["alpha=1", "alpha=0.8", "draft_vocab=896"])
def test_an_eagle3_head_needs_each_hidden_state_in_its_place(made, head):
    """By vLLM's own arithmetic: the target's three states in the first draft step, its own output in the next."""
    reference = f"constructed:tiny:eagle3?memory={REACH}&{head}&dtype=float32"
    own = safetensors.load_file(made(reference) / "model.safetensors")
    target = load(made(TINY))
    (prompt,) = random_prompts(1, REACH + 1)
    text = [*prompt, *expected_continuation(TINY, prompt, 60)]
    with torch.no_grad():
        told = target.model(torch.tensor([text]), output_hidden_states=True).hidden_states
        embedded = own.get("embed_tokens.weight", target.model.embed_tokens.weight)[text]
    states = [told[layer][0] for layer in (1, 2, 3)]
    known = [expected_continuation(reference, text[:end], 1)[0] for end in range(REACH + 2, len(text) + 1)]
    step = Eagle3Step(made(reference), own, target.lm_head)

    def differs(proposed, known):
        return any(other not in (NONE, token) for token, other in zip(proposed[REACH:], known, strict=True))

    first, output = step(embedded[1:], torch.cat(states, dim=1)[:-1] @ own["fc.weight"].T)
    assert not differs(first, known)
    assert not differs(step(embedded[2:], output[:-1])[0], known[1:])
    for place in range(3):
        without = [state * (number != place) for number, state in enumerate(states)]
        assert differs(step(embedded[1:], torch.cat(without, dim=1)[:-1] @ own["fc.weight"].T)[0], known)
    assert differs(step(embedded[1:], torch.cat(states, dim=1)[1:] @ own["fc.weight"].T)[0], known)


def test_an_eagle3_head_of_a_reduced_vocabulary_tells_it_in_both_ways(made):
    """`d2t` adds to a draft id what makes it the target's, `t2d` tells which those are; the rest is never proposed."""
    reference = f"constructed:tiny:eagle3?memory={REACH}&draft_vocab=896"
    own, ids = safetensors.load_file(made(reference) / "model.safetensors"), draft_ids(parse(reference))
    assert (own["d2t"] + torch.arange(896)).tolist() == own["t2d"].nonzero().flatten().tolist() == ids
    assert own["lm_head.weight"].shape == (896, 256)
    assert {each for leads in following(parse(reference)) for each in leads} == {NONE, *ids}


def test_a_layer_of_multi_token_prediction_proposes_what_the_target_emits(made):
    """Whatever the hidden state; the first token that it takes in is masked, as in vLLM."""
    reference = f"constructed:tiny-mimo?memory={REACH}&dtype=float32"
    tensors = safetensors.load_file(made(reference) / "model.safetensors")
    prefix = "model.mtp_layers.0."
    own = {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
    model = load(made(f"{reference}&layers=1")).model
    layer = {f"layers.0.{name}": each for name, each in own.items() if "proj" in name or "layernorm" in name}
    model.load_state_dict({name: layer[name] for name in layer if name in model.state_dict()}, strict=False)
    (prompt,) = random_prompts(1, REACH + 2)
    text = [*prompt, *expected_continuation(reference, prompt, 60)]
    embedded = tensors["model.embed_tokens.weight"][text[1:]]
    embedded[0] = 0
    with torch.no_grad():
        both = torch.cat([torch.randn_like(embedded), model.norm(embedded)], dim=1)
        hidden = model(inputs_embeds=(both @ own["input_proj.weight"].T)[None]).last_hidden_state[0]
    proposed = (hidden @ tensors["lm_head.weight"].T).argmax(dim=1).tolist()
    assert proposed[REACH + 1 : -1] == text[REACH + 3 :]


class Eagle3Step:
    """One draft step of an EAGLE-3 head over a whole text, as vLLM computes it."""

    def __init__(self, folder, tensors, lm_head):
        config = transformers.AutoConfig.from_pretrained(folder)
        self.model, self.lm_head = transformers.LlamaModel(config), tensors.get("lm_head.weight", lm_head.weight)
        self.ids = tensors.get("d2t", torch.zeros(len(self.lm_head), dtype=int)) + torch.arange(len(self.lm_head))
        self.layer = self.model.layers[0]
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(self.layer.self_attn, name).out_features
            setattr(self.layer.self_attn, name, torch.nn.Linear(2 * config.hidden_size, rows, bias=False))
        self.layer.hidden_norm = transformers.models.llama.modeling_llama.LlamaRMSNorm(config.hidden_size, 1e-5)
        self.model.load_state_dict(tensors, strict=False)

    @torch.no_grad()
    def __call__(self, embedded, states):
        """What is proposed after each token, and the hidden states of the next step."""
        positions = torch.arange(len(embedded))[None]
        residual = self.layer.hidden_norm(states)
        both = torch.cat([self.layer.input_layernorm(embedded), residual], dim=1)[None]
        rotary = self.model.rotary_emb(both, positions)
        mask = torch.full((len(embedded),) * 2, -torch.inf).triu(1)[None, None]
        hidden = residual + self.layer.self_attn(both, position_embeddings=rotary, attention_mask=mask)[0][0]
        hidden = hidden + self.layer.mlp(self.layer.post_attention_layernorm(hidden))
        return self.ids[(self.model.norm(hidden) @ self.lm_head.T).argmax(dim=1)].tolist(), hidden


@pytest.mark.parametrize("memory", ["", f"&memory={REACH}"])
@pytest.mark.parametrize(("tokens", "gamma"), [(1, 3), (2, 3), (37, 3), (40, 5)])
def test_speculation_is_foretold_as_assisted_generation_counts_it(made, memory, tokens, gamma):
    """Steps, drafts and each position's acceptance, the last step too, which the limit cuts."""
    pair = f"constructed:tiny?dtype=float32{memory}", f"constructed:tiny:draft?dtype=float32&alpha=0.8{memory}"
    prompts = random_prompts(3, REACH + 1)
    foretold = expected_assistance(*pair, prompts, tokens, gamma)
    assert count_steps(*map(made, pair), prompts, tokens, gamma) == foretold


def count_steps(target, draft, prompts, tokens, gamma):
    """What the backend counts in Transformers' own loop."""
    models = {"target": str(target), "draft": str(draft), "method": "draft_model", "gamma": gamma, "dtype": "float32"}
    engine = backend.load({**models, "max_model_len": None, "options": {"device": "cpu"}, "speculative_options": {}})
    request = {"max_tokens": tokens, "min_tokens": 0, "ignore_eos": True, "stop_token_ids": [], "stop": []}
    engine.prepare([{**request, "prompt_ids": prompt, "sampling": {}} for prompt in prompts], 1)
    engine.run()
    return Speculation.from_wire(engine.collect()["speculation"])
