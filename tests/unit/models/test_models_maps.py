"""The right answer is known before any model exists: the maps, their agreement, and the continuation they give."""

import random
import subprocess
import sys

import pytest

from pytest_specdec.generation import Speculation
from pytest_specdec.models import ModelError, expected_continuation, expected_speculation, parse
from pytest_specdec.models.cache import IMPORTABLE
from pytest_specdec.models.maps import cycle, following, next_map, runner_up_map

TINY = parse("constructed:tiny")
ORDINARY = range(3, 1024)


def agreement(target, draft):
    """The share of the ordinary tokens that both models know on which they continue alike, in every class; 0 to 1."""
    ours, theirs = (list(zip(*following(recipe), strict=True)) for recipe in (target, draft))
    shared = range(3, min(len(ours), len(theirs)))
    return sum(ours[token] == theirs[token] for token in shared) / len(shared)


def test_the_targets_map_is_one_cycle_through_every_ordinary_token():
    following, token, visited = next_map(TINY), 3, []
    for _ in ORDINARY:
        token = following[token]
        visited.append(token)
    assert sorted(visited) == list(ORDINARY)
    assert token == 3


def test_the_map_never_changes_unnoticed():
    assert expected_continuation("constructed:tiny", [17], 6) == [775, 128, 701, 632, 74, 861]


def test_special_ids_continue_with_ordinary_tokens():
    assert next_map(TINY)[:3] == next_map(TINY)[3:6]


def test_no_map_leads_to_a_special_id():
    maps = [next_map(TINY), runner_up_map(TINY), next_map(parse("constructed:tiny:draft?alpha=0"))]
    assert min(map(min, maps)) >= 3


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.8, 0.999, 1.0])
@pytest.mark.parametrize("part", ["draft", "eagle"])
@pytest.mark.parametrize("memory", ["", "&memory=24"])
def test_the_agreement_is_alpha_exactly(alpha, part, memory):
    draft = parse(f"constructed:tiny:{part}?alpha={alpha}&seed=5{memory}")
    assert agreement(parse(f"constructed:tiny?seed=0{memory}"), draft) == (1021 - round((1 - alpha) * 1021)) / 1021


def test_another_seed_disagrees_elsewhere_and_another_map_seed_everywhere():
    drafts = [next_map(parse(f"constructed:tiny:draft?seed={seed}")) for seed in (0, 1)]
    assert drafts[0] != drafts[1]
    assert agreement(TINY, parse("constructed:tiny:draft?map_seed=1&alpha=1")) < 0.01


def test_the_runner_up_is_never_the_top_one():
    assert [token for token in range(1024) if runner_up_map(TINY)[token] == next_map(TINY)[token]] == []
    assert sorted(runner_up_map(TINY)[3:]) == list(ORDINARY)


def test_a_larger_vocabulary_agrees_on_all_shared_tokens_but_one():
    draft = parse("constructed:tiny:draft?vocab=1500&alpha=1")
    assert sorted(cycle(draft)) == list(range(3, 1500))
    assert agreement(TINY, draft) == 1020 / 1021


def test_a_smaller_vocabulary_walks_the_same_cycle():
    draft = parse("constructed:tiny:draft?vocab=512&alpha=1")
    assert cycle(draft) == tuple(token for token in cycle(TINY) if token < 512)


def test_the_continuation_starts_at_the_last_prompt_token():
    following = next_map(TINY)
    assert expected_continuation("constructed:tiny", [900, 3], 2) == [following[3], following[following[3]]]
    assert expected_continuation("constructed:tiny", [3], 0) == []


@pytest.mark.parametrize(
    ("model", "prompt", "said"),
    [
        ("constructed:tiny", [], "the prompt is empty"),
        ("constructed:tiny", [5, 1024], "token id 1024 lies outside its 1024 tokens"),
        ("constructed:tiny", [-1], "token id -1"),
        ("smollm2", [5], "'smollm2' has no known continuation"),
        ("gpt2", [5], "'gpt2' has no known continuation"),
    ],
)
def test_no_continuation_is_made_up(model, prompt, said):
    with pytest.raises(ModelError, match=said):
        expected_continuation(model, prompt, 4)


def test_speculation_is_foretold_step_by_step():
    """What vLLM counted for the same pair, prompts and γ, on a CPU in bfloat16."""
    drawn = random.Random(0)
    prompts = [[drawn.randrange(3, 1024) for _ in range(16)] for _ in range(16)]
    foretold = expected_speculation("constructed:tiny", "constructed:tiny:draft?alpha=0.8", prompts, n=64, gamma=4)
    assert foretold == Speculation(300, 1200, 734, (242, 201, 160, 131))


@pytest.mark.parametrize(("alpha", "drafts", "accepted"), [(1, 13, 52), (0, 63, 0)])
def test_speculation_at_the_ends_of_alpha(alpha, drafts, accepted):
    foretold = expected_speculation("constructed:tiny", f"constructed:tiny:draft?alpha={alpha}", [[9]], n=64, gamma=4)
    assert (foretold.drafts, foretold.accepted_tokens) == (drafts, accepted)


def test_acceptance_falls_as_powers_of_alpha():
    prompts = [[token] for token in ORDINARY]
    foretold = expected_speculation("constructed:tiny", "constructed:tiny:draft?alpha=0.8", prompts, n=64, gamma=4)
    shares = [accepted / foretold.drafts for accepted in foretold.accepted_per_position]
    assert shares == pytest.approx([0.8, 0.64, 0.512, 0.41], abs=0.01)


def test_a_large_vocabulary_needs_no_torch():
    code = IMPORTABLE + (
        "from pytest_specdec.models import expected_continuation, expected_speculation, resolve\n"
        "from pytest_specdec.models.truth import reads_of\n"
        "assert resolve('a/b') == 'a/b'\n"
        "assert len(expected_continuation('constructed:qwen3-8b', [5], 100)) == 100\n"
        "pair = 'constructed:llama-8b?memory=24', 'constructed:llama-8b:draft?memory=24'\n"
        "assert len(expected_continuation(pair[0], range(40), 100)) == 100\n"
        "assert 0 < expected_speculation(*pair, [range(40)], 100, 3).accepted_tokens\n"
        "assert len(reads_of(pair[0], 40, 100).prompt) == 32\n"
        "assert not {'torch', 'numpy', 'transformers', 'safetensors'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("model", ["tiny?seed=0", "tiny:draft?seed=0", "llama-8b:draft?memory=24"])
def test_four_times_the_vocabulary_is_four_times_the_work(lines_executed, model):
    """Not sixteen times, for a target's map, for a drafter's, and for those of a pair with memory."""
    few, many = (parse(f"constructed:{model}&vocab={size}&map_seed=77") for size in (3_000, 12_000))
    assert 3 < lines_executed(lambda: following(many)) / lines_executed(lambda: following(few)) < 5
