"""What a model reference means, and what a wrong one is told."""

import pytest

from pytest_specdec.models import ModelError, parse
from pytest_specdec.models.recipe import DraftRecipe, EagleRecipe, SmolLM2Recipe, TargetRecipe


def test_a_bare_preset_is_the_target():
    recipe = parse("constructed:tiny")
    assert isinstance(recipe, TargetRecipe)
    assert (recipe.shape.hidden, recipe.shape.layers, recipe.vocab, recipe.dtype) == (256, 4, 1024, "bfloat16")


def test_parameters_reach_the_recipe():
    recipe = parse("constructed:tiny:draft?alpha=0.9&seed=3&layers=2&dtype=float32&padded_vocab=1088")
    assert isinstance(recipe, DraftRecipe)
    assert (recipe.alpha, recipe.seed, recipe.shape.layers, recipe.dtype) == (0.9, 3, 2, "float32")
    assert (recipe.vocab, recipe.rows) == (1024, 1088)


def test_an_eagle_head_has_one_layer_of_the_targets_width():
    recipe = parse("constructed:small:eagle")
    assert isinstance(recipe, EagleRecipe)
    assert (recipe.shape.hidden, recipe.shape.layers, recipe.alpha) == (512, 1, 1.0)
    assert parse("constructed:tiny-qwen3:eagle").shape.architecture == "llama"  # as heads for Qwen3 are


def test_smollm2_with_and_without_parameters():
    assert parse("smollm2") == SmolLM2Recipe()
    assert parse("smollm2?layers=4&dtype=float32") == SmolLM2Recipe(layers=4, dtype="float32")


@pytest.mark.parametrize(
    "plain", ["meta-llama/Llama-3.1-8B", "/models/constructed:tiny", "./smollm2", "smollm2-360m", ""]
)
def test_every_other_string_is_none_of_ours(plain):
    assert parse(plain) is None


WRONG = {
    "constructed:tinny": ["unknown preset 'tinny'", "did you mean 'tiny'?", "qwen3-8b"],
    "constructed:": ["unknown preset ''"],
    "constructed:tiny:drafft": ["unknown part 'drafft'", "did you mean 'draft'?"],
    "constructed:tiny:": ["unknown part ''", "draft, eagle"],
    "constructed:tiny:draft?alhpa=1": ["unknown parameter 'alhpa'", "did you mean 'alpha'?", "map_seed"],
    "constructed:tiny?alpha=0.5": ["unknown parameter 'alpha'", "margin"],
    "constructed:tiny:eagle?layers=2": ["unknown parameter 'layers'"],
    "constructed:tiny:draft?alpha=1.1": ["alpha='1.1' is no value", "[0, 1]"],
    "constructed:tiny:draft?alpha=nan": ["alpha='nan' is no value"],
    "constructed:tiny:draft?alpha": ["alpha='' is no value"],
    "constructed:tiny:draft?alpha=0.5&alpha=0.6": ["'alpha' is given twice"],
    "constructed:tiny?margin=1": ["margin='1' is no value", "[0.0001, 1)"],
    "constructed:tiny?dtype=int4": ["dtype='int4' is no value", "bfloat16"],
    "constructed:tiny?seed=-1": ["seed='-1' is no value", "≥ 0"],
    "constructed:tiny?padded_vocab=512": ["padded_vocab=512 is smaller than vocab=1024"],
    "constructed:tiny:eagle?draft_vocab=9": ["draft_vocab wants a pair with memory, and engine=sglang"],
    "constructed:tiny:eagle?engine=vllm": ["engine='vllm' is no value; expected sglang"],
    "constructed:tiny:eagle?engine=sglang&alpha=0.9": ["leaves no alpha: give draft_vocab=N"],
    "constructed:tiny:eagle3?memory=24&draft_vocab=1022": ["draft_vocab=1022 is not within 1..1021"],
    "constructed:tiny:eagle3?memory=24&draft_vocab=9&alpha=0.9": ["draft_vocab=9 leaves no alpha"],
    "constructed:tiny:medusa?memory=24": ["unknown parameter 'memory'"],
    "constructed:tiny:dflash?block=1": ["block='1' is no value", "≥ 2"],
    "smollm2?layers=31": ["layers='31' is no value", "1..30"],
    "smollm2?layer=3": ["unknown parameter 'layer'", "did you mean 'layers'?"],
}


@pytest.mark.parametrize(("reference", "said"), WRONG.items(), ids=WRONG)
def test_a_wrong_reference_is_named_with_the_bad_piece_and_the_valid_ones(reference, said):
    with pytest.raises(ModelError) as caught:
        parse(reference)
    message = str(caught.value)
    assert repr(reference) in message
    assert [piece for piece in said if piece not in message] == []
    assert "\n" not in message
