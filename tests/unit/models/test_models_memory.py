"""Pairs with memory on paper: what is read, which token follows, and what is refused."""

from collections import Counter
from itertools import chain, pairwise
from operator import eq, ne

import pytest

from pytest_specdec.models import ModelError, expected_continuation, expected_speculation, parse
from pytest_specdec.models.maps import codes, following, next_map
from pytest_specdec.models.memory import readings
from pytest_specdec.models.recipe import folder_name
from pytest_specdec.models.reference import PRESETS
from pytest_specdec.models.truth import reads_of

REACH = 24
TINY = f"constructed:tiny?memory={REACH}"
ONE_CODE = f"{TINY}&codes=1"
PROMPT = list(range(500, 500 + REACH + 1))


def models_with_memory():
    parts = ("", ":draft", ":eagle")
    references = [f"constructed:{preset}{part}?memory={REACH}" for preset in PRESETS for part in parts]
    return [each for each in references if not ("eagle" in each and ("qwen3" in each or "mimo" in each))]


@pytest.mark.parametrize("reference", [*models_with_memory(), f"{TINY}&layers=3", f"{TINY}&readers=1", ONE_CODE])
def test_the_net_distances_alone_are_read_an_odd_number_of_times(reference):
    """Those of heads that find what was copied before count from there."""
    recipe = parse(reference)
    made = [reader for layer in readings(recipe.memory, recipe.shape) for reader in layer]
    times = Counter(reader.distance + reader.hops * recipe.memory.hop for reader in made)
    assert sorted(distance for distance, count in times.items() if count % 2) == [1, 8, 16, 24]
    assert max(times) == REACH


@pytest.mark.parametrize("preset", PRESETS)
def test_every_kv_head_of_every_layer_of_a_target_is_read(preset):
    recipe = parse(f"constructed:{preset}?memory={REACH}")
    for layer in readings(recipe.memory, recipe.shape):
        assert {reader.kv_head for reader in layer} == set(range(recipe.shape.kv_heads))


@pytest.mark.parametrize("preset", PRESETS)
def test_no_layer_cancels_what_it_reads(preset):
    """A fault of one whole layer changes some distance an odd number of times."""
    recipe = parse(f"constructed:{preset}?memory={REACH}")
    for layer in readings(recipe.memory, recipe.shape):
        assert 1 in {count % 2 for count in Counter((reader.distance, reader.hops) for reader in layer).values()}


@pytest.mark.parametrize("preset", PRESETS)
def test_what_cancels_is_read_of_one_code(preset):
    """Every code at every distance an even number of times, but for the four that decide."""
    recipe = parse(f"constructed:{preset}?memory={REACH}")
    made = [reader for layer in readings(recipe.memory, recipe.shape) for reader in layer]
    times = Counter((reader.distance + reader.hops * recipe.memory.hop, reader.code) for reader in made)
    assert sorted(each for each, count in times.items() if count % 2) == [(1, 1), (8, 0), (16, 2), (24, 3)]


def test_readers_of_an_entry_read_different_codes():
    """So a foreign token must have several same codes to go unseen in any KV head of any layer."""
    recipe = parse(TINY)
    readers = chain(*readings(recipe.memory, recipe.shape))
    found = {(each.layer, each.kv_head, each.code) for each in readers}
    assert sorted(Counter(each[:2] for each in found).values()) == [3, 3, 4, 4, 4, 4, 4, 4]


def test_what_cancels_is_read_of_entries_at_two_places_where_it_can_be():
    """Of an own entry and of a copy: so a fault of all layers does not cancel."""
    recipe = parse(TINY)
    times = Counter((each.distance, each.hops, each.code) for each in chain(*readings(recipe.memory, recipe.shape)))
    assert sum(count % 2 for count in times.values()) > sum(count % 2 == 0 for count in times.values())


def test_every_layer_reads_as_far_back_as_the_model():
    """An entry that is overwritten late is read after that, unless it is the very oldest."""
    recipe = parse(TINY)
    furthest = [max(each.distance for each in layer) for layer in readings(recipe.memory, recipe.shape)]
    assert furthest == [REACH] * 4


@pytest.mark.parametrize("preset", ["tiny", "tiny-qwen3", "small"])
def test_what_cancels_is_read_by_two_layers(preset):
    """Where there are distances enough, a layer reads each of them once."""
    recipe = parse(f"constructed:{preset}?memory={REACH}")
    for layer in readings(recipe.memory, recipe.shape):
        assert len({(reader.distance, reader.hops) for reader in layer}) == len(layer)


def test_reads_are_counted_from_the_prompts_end_to_the_last_step():
    """One reader of distance 1 in a model of four readers, 30 + 10 tokens: positions 0 to 38 are taken in."""
    reads = reads_of(f"constructed:tiny:draft?memory={REACH}", 30, 10)
    assert reads.prompt[0][29] == 1 + 1  # at distance 1 by position 30, at 8 by 37; 16 and 24 lie beyond the end
    assert reads.prompt[0][5] == 0  # position 29 read it, within the prompt
    assert reads.prompt[0][6:15] == (1,) * 8 + (2,)
    assert reads.output[0] == (2, 1, 1, 1, 1, 1, 1, 1, 0)


def test_what_no_head_reads_is_never_read():
    reads = reads_of("constructed:tiny", 30, 10)
    assert (reads.prompt, reads.output) == (((0,) * 30,) * 4, ((0,) * 9,) * 4)


def test_the_walk_never_changes_unnoticed():
    assert expected_continuation(TINY, PROMPT, 6) == [794, 529, 77, 78, 560, 365]


def test_the_digest_never_changes_unnoticed():
    assert folder_name(parse(TINY)) == "tiny-target-7f0d45ebd431dc7e"


def test_every_parameter_of_memory_changes_the_digest():
    references = [
        "constructed:tiny",
        TINY,
        "constructed:tiny?memory=25",
        f"{TINY}&readers=3",
        f"{TINY}&bits=1",
        ONE_CODE,
    ]
    assert len({folder_name(parse(each)) for each in references}) == len(references)


def test_each_class_emits_tokens_of_its_own_and_none_is_special():
    emitted = [set(each) for each in following(parse(TINY))]
    assert [len(each & other) for each, other in pairwise(emitted)] == [0, 0, 0]
    assert set.union(*emitted) == set(range(3, 1024))


def test_codes_are_equally_frequent():
    recipe = parse(TINY)
    assert sorted(Counter(codes(recipe, recipe.memory)[3:]).values()) == [255, 255, 255, 256]


def test_a_disagreeing_token_disagrees_in_every_class():
    ours, theirs = (following(parse(each)) for each in (TINY, f"constructed:tiny:draft?memory={REACH}&alpha=0"))
    assert [sum(map(eq, *maps)) for maps in zip(ours, theirs, strict=True)] == [0, 0, 0, 0]


def test_a_token_at_each_net_distance_decides_and_no_other_does():
    recipe = parse(TINY)
    coded = list(zip(*(codes(recipe, recipe.memory, number) for number in range(4)), strict=True))
    after = expected_continuation(TINY, PROMPT, 1)
    deciding = set()
    for back in range(1, REACH + 1):
        other = next(token for token in range(3, 1024) if all(map(ne, coded[token], coded[PROMPT[-1 - back]])))
        changed = [*PROMPT[: -1 - back], other, *PROMPT[len(PROMPT) - back :]]
        deciding |= {back} if expected_continuation(TINY, changed, 1) != after else set()
    assert deciding == {1, 8, 16, 24}


@pytest.mark.parametrize("length", [1, REACH])
def test_a_prompt_that_is_not_longer_than_the_reach_is_refused(length):
    """By the name of the model that reads further, be it the drafter."""
    short, draft = PROMPT[:length], f"constructed:tiny:draft?memory={REACH}"
    said = (
        f"the prompt has {length} tokens, and the model reads 24 tokens back; give prompts of 25 tokens or more",
        f"no expected continuation for {TINY!r}",
        f"no expected continuation for {draft!r}",
    )
    asked = (
        lambda: expected_continuation(TINY, short, 4),
        lambda: expected_speculation(TINY, "constructed:tiny:draft", [short], 4, 2),
        lambda: expected_speculation("constructed:tiny", draft, [short], 4, 2),
    )
    for ask, named in zip(asked, (said[1], said[1], said[2]), strict=True):
        with pytest.raises(ModelError) as caught:
            ask()
        assert str(caught.value) == f"{named}: {said[0]}"


WRONG = {
    "constructed:tiny?memory=5": ["memory='5' is no value", "6..100000"],
    "constructed:tiny?memory=99999999": ["memory='99999999' is no value", "6..100000"],
    "constructed:tiny?readers=2": ["readers belongs to memory; give memory=N as well"],
    "constructed:tiny:draft?bits=2": ["bits belongs to memory"],
    "constructed:tiny?memory=24&bits=4": ["bits='4' is no value", "1..3"],
    "constructed:tiny?codes=2": ["codes belongs to memory"],
    "constructed:tiny?memory=24&codes=9": ["codes='9' is no value", "1..8"],
    "constructed:tiny?memory=24&readers=9": ["readers=9 is not within 1..8, the heads of a layer"],
    "constructed:tiny?memory=24&layers=1&readers=3": ["memory reads 4 distances with 3 readers in all; raise readers"],
    "constructed:tiny?memory=24&bits=3": [
        "126 of 256 elements are left",
        "281 are needed; lower layers, readers, bits or codes",
    ],
    "constructed:tiny?memory=24&margin=0.1": ["a pair with memory has no margin and no layers_share"],
}


@pytest.mark.parametrize(("reference", "said"), WRONG.items(), ids=WRONG)
def test_a_memory_that_cannot_be_had_is_named_with_the_remedy(reference, said):
    with pytest.raises(ModelError) as caught:
        parse(reference)
    assert [piece for piece in (repr(reference), *said) if piece not in str(caught.value)] == []


def test_no_single_map_is_made_up():
    with pytest.raises(ModelError, match="tiny-target has memory: no single map"):
        next_map(parse(TINY))


def test_more_than_a_block_of_dflash_is_not_foretold():
    """Its last places would read states that are not there yet."""
    asked = ("constructed:tiny", "constructed:tiny:dflash?block=4", [PROMPT], 8)
    assert expected_speculation(*asked, 3).drafts > 0
    with pytest.raises(ModelError, match="fills in 3 tokens at a time: a γ of 4 is more"):
        expected_speculation(*asked, 4)
