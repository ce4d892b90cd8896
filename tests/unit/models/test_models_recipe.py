"""A recipe's digest is its content: the same everywhere, another for every parameter."""

from math import prod

import pytest

from pytest_specdec.models import parse
from pytest_specdec.models.recipe import contents, digest, folder_name, shards, weights

TINY = "constructed:tiny"
PRESET_PARAMETERS = {  # in billions: the shapes that the presets are named after
    "constructed:qwen3-8b": 8.19,
    "constructed:qwen3-8b:draft": 0.75,
    "constructed:llama-8b": 8.03,
    "constructed:llama-8b:draft": 1.50,
}


def test_the_digest_of_the_tiny_target_never_changes_unnoticed():
    assert folder_name(parse(TINY)) == "tiny-target-4a528b56b7e07412"


def test_every_parameter_changes_the_digest():
    queries = ["", "?seed=1", "?map_seed=1", "?margin=0.01", "?dtype=float32", "?vocab=2048", "?padded_vocab=1088"]
    queries += [
        "?max_position_embeddings=512",
        "?layers=3",
        "?ends=24",
        ":draft",
        ":draft?alpha=0.7",
        ":eagle",
        ":eagle?target_seed=1",
    ]
    digests = [digest(parse(TINY + query)) for query in queries]
    assert len(set(digests)) == len(queries)


def test_a_default_that_is_said_aloud_is_the_same_model():
    assert digest(parse(TINY)) == digest(parse(TINY + "?seed=0&dtype=bfloat16"))


def test_the_contents_name_kind_and_format():
    assert contents(parse("smollm2?layers=4")) == {
        "format": 1,
        "kind": "smollm2",
        "name": "smollm2",
        "layers": 4,
        "dtype": "bfloat16",
    }


@pytest.mark.parametrize(("reference", "billions"), PRESET_PARAMETERS.items(), ids=PRESET_PARAMETERS)
def test_big_presets_have_the_size_of_the_models_they_are_named_after(reference, billions):
    assert sum(prod(weight.shape) for weight in weights(parse(reference))) / 1e9 == pytest.approx(billions, abs=0.01)


def test_shards_keep_the_order_and_the_limit():
    listed = weights(parse("constructed:qwen3-8b"))
    files = shards(listed, element_bytes=2)
    assert [weight for file in files for weight in file] == listed
    assert len(files) == 5
    assert max(2 * sum(prod(weight.shape) for weight in file) for file in files) <= 4 * 10**9


def test_a_tensor_larger_than_the_limit_has_a_file_of_its_own():
    listed = weights(parse(TINY))
    assert [len(file) for file in shards(listed, element_bytes=2, limit=1)] == [1] * len(listed)
