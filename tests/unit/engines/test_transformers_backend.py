"""The Transformers backend on tiny Llamas: random ones, and followers, whose greedy output is known before they run.

A follower prefers, after each token, that token's successor by a fixed table. So what it says, what its drafter gets
accepted and where it meets an EOS token are facts of the table, and expected values are written down instead of
computed by what is tested.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

from pytest_specdec.engines import transformers as backend  # noqa: E402 - only where the engine is installed
from pytest_specdec.engines import worker  # noqa: E402
from pytest_specdec.generation import rankings_from_wire  # noqa: E402

VOCABULARY = 64
EOS = 2
FIRST_WORD = 3
WORDS = VOCABULARY - FIRST_WORD
CONTEXT = 128
PROMPT = [5, 40, 17, 23]
FREE: tuple[int, list[int]] = (0, [])  # no end is withheld

Table = Callable[[int], int]


def next_word(token: int) -> int:
    """The table of the target: round and round through all words, in order."""
    return FIRST_WORD + (token - FIRST_WORD + 1) % WORDS


def ends_after_20(token: int) -> int:
    """The same, but the word 20 is followed by EOS."""
    return EOS if token == 20 else next_word(token)


def half_right(token: int) -> int:
    """A drafter's table: right after every even token, and never after an odd one."""
    return next_word(token) if token % 2 == 0 else next_word(next_word(token))


def words_after(token: int, count: int) -> list[int]:
    """The next `count` words by the target's table."""
    words = [token]
    for _ in range(count):
        words.append(next_word(words[-1]))
    return words[1:]


def tiny_llama(seed: int, vocabulary: int = VOCABULARY) -> Any:
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": vocabulary}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT}
    ids = {"bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": 0, "tie_word_embeddings": False}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**shape, **heads, **ids, initializer_range=0.3))


def follower(table: Table) -> Any:
    """A Llama that does all the arithmetic of its layers, and whose argmax is the table's word all the same."""
    model = tiny_llama(seed=0)
    embedding = torch.nn.functional.normalize(torch.randn(VOCABULARY, 64), dim=1)
    head = torch.zeros_like(embedding)
    for token in range(VOCABULARY):
        head[table(token)] += embedding[token]
    model.model.embed_tokens.weight.data.copy_(embedding)
    model.lm_head.weight.data.copy_(head)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.mul_(1e-3)
        layer.mlp.down_proj.weight.data.mul_(1e-3)
    return model


def write_tokenizer(folder: Path, names: Mapping[int, str]) -> None:
    """A tokenizer of words w3, w4, …, with other names for the ids in `names`.

    The word "abcdef" is there because Transformers spells it to learn how a tokenizer joins words; `names` may lack it.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {{1: "abcdef", **names}.get(index, f"w{index}"): index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", eos_token=f"w{EOS}").save_pretrained(folder)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small lose more by sharing the work than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all models of this file, by name."""
    folder = tmp_path_factory.mktemp("models")
    tables = {"counts": next_word, "ends": ends_after_20, "half": half_right}
    tables |= dict.fromkeys(("worded", "renamed", "unspelled"), next_word)
    for name, table in tables.items():
        follower(table).save_pretrained(folder / name)
    tiny_llama(seed=1).save_pretrained(folder / "random")
    tiny_llama(seed=2).save_pretrained(folder / "other_random")
    tiny_llama(seed=3, vocabulary=VOCABULARY + 8).save_pretrained(folder / "padded")
    write_tokenizer(folder / "worded", {})
    write_tokenizer(folder / "unspelled", {1: "w1"})
    write_tokenizer(folder / "renamed", {30: "thirty", 50: "fifty"})
    return folder


@pytest.fixture
def load(models: Path) -> Callable[..., backend.TransformersBackend]:
    """Load a backend in fp32 on the CPU by the names of its models."""

    def load(target: str, draft: str | None = None, **fields: Any) -> backend.TransformersBackend:
        method = {"method": "draft_model" if draft else "none", "gamma": 3 if draft else None}
        paths = {"target": str(models / target), "draft": str(models / draft) if draft else None}
        fixed = {"dtype": "float32", "max_model_len": None, "options": {"device": "cpu"}, "speculative_options": {}}
        return backend.load({**fixed, **method, **paths, **fields})

    return load


def request(prompt: Sequence[int] = PROMPT, max_tokens: int = 24, **fields: Any) -> dict[str, Any]:
    defaults = {"min_tokens": 0, "ignore_eos": True, "stop_token_ids": [], "stop": [], "sampling": {}}
    return {"prompt_ids": list(prompt), "max_tokens": max_tokens, **defaults, **fields}


def decode(engine: backend.TransformersBackend, *requests: dict[str, Any]) -> dict[str, Any]:
    engine.prepare(list(requests), concurrency=1)
    engine.run()
    return engine.collect()


def tokens(engine: backend.TransformersBackend, **fields: Any) -> list[int]:
    """The token ids of one request's answer."""
    ids: list[int] = decode(engine, request(**fields))["generations"][0]["token_ids"]
    return ids


def argmax_loop(folder: Path, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy decoding by hand, without a cache and without `generate`."""
    model = hf.AutoModelForCausalLM.from_pretrained(folder)
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


class TestText:
    def test_needs_nothing_but_the_engine(self) -> None:
        """It is sent as text: every import is the standard library's, torch's or Transformers', or needed by it."""
        nodes = list(ast.walk(ast.parse(inspect.getsource(backend))))
        plain = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
        parts = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        calls = [
            node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module"
        ]
        named = [ast.literal_eval(call.args[0]) for call in calls]
        foreign = {name.split(".")[0] for name in plain + parts + named} - set(sys.stdlib_module_names)
        assert foreign == {"torch", "transformers", "safetensors"}

    def test_reads_as_python_3_9(self) -> None:
        ast.parse(inspect.getsource(backend), feature_version=(3, 9))


class TestGreedy:
    def test_is_the_argmax(self, load: Any, models: Path) -> None:
        assert tokens(load("random")) == argmax_loop(models / "random", PROMPT, 24)

    def test_answers_keep_the_order_of_the_requests(self, load: Any) -> None:
        run = decode(load("counts"), request([5]), request([40, 30], max_tokens=3))
        assert [each["token_ids"] for each in run["generations"]] == [words_after(5, 24), words_after(30, 3)]
        assert [each["prompt_ids"] for each in run["generations"]] == [[5], [40, 30]]
        assert run["speculation"]["draft_tokens"] == 0

    def test_holds_against_the_models_own_settings(self, load: Any, models: Path) -> None:
        settings = {"do_sample": True, "temperature": 5.0, "repetition_penalty": 9.0, "eos_token_id": EOS}
        file = models / "random" / "generation_config.json"
        before = file.read_text()
        file.write_text(json.dumps(settings))
        try:
            assert tokens(load("random")) == argmax_loop(models / "random", PROMPT, 24)
        finally:
            file.write_text(before)

    def test_is_left_only_where_a_request_says_so(self, load: Any) -> None:
        engine, again = load("counts"), [5, 6, 7, 5, 6]
        assert tokens(engine, prompt=again, max_tokens=1) == [7]
        assert tokens(engine, prompt=again, max_tokens=1, sampling={"temperature": 0}) == [7]
        assert tokens(engine, prompt=again, max_tokens=1, sampling={"no_repeat_ngram_size": 3}) != [7]
        assert tokens(engine, sampling={"temperature": 1000.0}) != words_after(23, 24)

    def test_prints_nothing(self, load: Any, capfd: pytest.CaptureFixture[str]) -> None:
        """Neither loading nor decoding: no progress bar, no warning about settings that were meant."""
        capfd.readouterr()
        decode(load("random", "other_random"), request(), request(ignore_eos=False))
        assert capfd.readouterr() == ("", "")


class TestArrivals:
    def test_one_token_at_a_time_without_a_draft(self, load: Any) -> None:
        chunks = decode(load("counts"), request(max_tokens=5))["generations"][0]["chunks"]
        assert [count for _, count in chunks] == [1] * 5

    def test_come_in_blocks_with_a_draft_and_in_order(self, load: Any) -> None:
        run = decode(load("counts", "counts"), request(max_tokens=12), request(max_tokens=12))
        chunks = [chunk for each in run["generations"] for chunk in each["chunks"]]
        assert [count for _, count in chunks] == [4] * 6
        times = [at for at, _ in chunks]
        assert times == sorted(times)
        assert 0 < times[0] < times[-1] <= run["seconds"]

    def test_that_do_not_add_up_are_refused(self, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = load("counts")
        monkeypatch.setattr(backend.Answer, "put", lambda answer, value: None)
        with pytest.raises(RuntimeError, match="0 tokens arrived, but 24 were returned"):
            decode(engine, request())


BY_POSITION = ("accepted_per_position", "drafted_per_position", "tried_per_position")


class TestDraftModel:
    @pytest.mark.parametrize("draft", ["random", "other_random"])
    def test_says_what_the_target_says(self, load: Any, models: Path, draft: str) -> None:
        assert tokens(load("random", draft)) == argmax_loop(models / "random", PROMPT, 24)

    def test_of_the_same_model_has_everything_accepted(self, load: Any) -> None:
        speculation = decode(load("counts", "counts"), request(max_tokens=24))["speculation"]
        positions = {name: [6, 6, 6] for name in BY_POSITION}
        assert speculation == {"drafts": 6, "draft_tokens": 18, "accepted_tokens": 18, **positions}

    def test_is_accepted_up_to_its_first_fault(self, load: Any) -> None:
        """Drafting starts after the odd word 23 and is wrong there; then after 24, right once, and wrong after 25."""
        run = decode(load("counts", "half"), request(max_tokens=20))
        assert run["generations"][0]["token_ids"] == words_after(23, 20)
        assert [count for _, count in run["generations"][0]["chunks"]][:3] == [1, 2, 2]
        speculation = run["speculation"]
        assert speculation["accepted_per_position"] == [speculation["accepted_tokens"], 0, 0]

    def test_every_delivered_token_is_accepted_or_the_targets_own(self, load: Any) -> None:
        run = decode(load("counts", "half"), request(max_tokens=40), request([9], max_tokens=31))
        steps = sum(len(each["chunks"]) for each in run["generations"])
        assert run["speculation"]["accepted_tokens"] + steps == 40 + 31

    @pytest.mark.parametrize("gamma", [1, 2, 5])
    def test_drafts_gamma_tokens_until_the_end_is_near(self, load: Any, gamma: int) -> None:
        speculation = decode(load("random", "half", gamma=gamma), request(max_tokens=24))["speculation"]
        short = sum(range(1, gamma))
        assert speculation["draft_tokens"] >= gamma * speculation["drafts"] - short
        assert len(speculation["accepted_per_position"]) == gamma

    def test_counts_start_anew_with_each_run(self, load: Any) -> None:
        engine = load("counts", "half")
        assert decode(engine, request())["speculation"] == decode(engine, request())["speculation"]

    def test_a_drafted_eos_is_delivered_but_not_counted_as_accepted(self, load: Any) -> None:
        """Drafted: 16 17 18, then 20 EOS. The last token of a block is always the target's own."""
        run = decode(load("ends", "ends"), request([15], ignore_eos=False))
        assert [count for _, count in run["generations"][0]["chunks"]] == [4, 2]
        assert run["speculation"] == {
            "drafts": 2,
            "draft_tokens": 5,
            "accepted_tokens": 4,
            "accepted_per_position": [2, 1, 1],
            "drafted_per_position": [2, 2, 1],
            "tried_per_position": [2, 2, 1],
        }

    def test_a_step_without_a_proposal_is_no_draft(self, load: Any) -> None:
        assert decode(load("counts", "counts"), request(max_tokens=1))["speculation"]["drafts"] == 0


class TestPromptLookup:
    def test_continues_a_repetition(self, load: Any) -> None:
        engine = load("counts", method="prompt_lookup", gamma=3)
        run = decode(engine, request(list(range(10, 40)) + list(range(10, 20)), max_tokens=16))
        assert run["generations"][0]["token_ids"] == words_after(19, 16)
        positions = {name: [4, 4, 4] for name in BY_POSITION}
        assert run["speculation"] == {"drafts": 4, "draft_tokens": 12, "accepted_tokens": 12, **positions}

    def test_without_a_repetition_drafts_nothing(self, load: Any) -> None:
        run = decode(load("counts", method="prompt_lookup", gamma=3), request([10, 20], max_tokens=6))
        assert run["generations"][0]["token_ids"] == words_after(20, 6)
        assert run["speculation"]["drafts"] == 0

    def test_takes_its_own_options(self, load: Any) -> None:
        """The pair (11, 12) was never followed by anything; the single 12 was, so only its size of match tells."""
        prompt = [12, 13, 14, 15, 50, 11, 12]
        short = load("counts", method="prompt_lookup", gamma=2, speculative_options={"max_matching_ngram_size": 1})
        assert decode(short, request(prompt, max_tokens=3))["speculation"]["accepted_tokens"] == 2


@pytest.mark.parametrize("draft", [None, "ends", "half"])
class TestEnds:
    """Alone and with a drafter, an answer ends at the same token. After the word 20 comes EOS, then the word 3."""

    def test_at_eos(self, load: Any, draft: str | None) -> None:
        run = decode(load("ends", draft), request([15], ignore_eos=False))
        assert run["generations"][0]["token_ids"] == [16, 17, 18, 19, 20, EOS]
        assert run["generations"][0]["finish_reason"] == "stop"

    def test_not_at_an_ignored_eos(self, load: Any, draft: str | None) -> None:
        generation = decode(load("ends", draft), request([15], max_tokens=9))["generations"][0]
        assert generation["token_ids"] == [16, 17, 18, 19, 20, EOS, *words_after(EOS, 3)]
        assert generation["finish_reason"] == "length"

    @pytest.mark.parametrize("ignore_eos", [True, False])
    def test_at_a_stop_token(self, load: Any, draft: str | None, ignore_eos: bool) -> None:
        generation = decode(load("ends", draft), request([15], ignore_eos=ignore_eos, stop_token_ids=[18]))
        assert generation["generations"][0]["token_ids"] == [16, 17, 18]

    def test_not_before_min_tokens(self, load: Any, draft: str | None) -> None:
        ids = tokens(load("ends", draft), prompt=[15], ignore_eos=False, min_tokens=8, max_tokens=20)
        assert len(ids) >= 8
        assert EOS not in ids[:7]
        assert ids == tokens(load("ends"), prompt=[15], ignore_eos=False, min_tokens=8, max_tokens=20)

    @pytest.mark.parametrize("max_tokens", [1, 2, 4, 7])
    def test_at_max_tokens(self, load: Any, draft: str | None, max_tokens: int) -> None:
        assert tokens(load("ends", draft), prompt=[30], max_tokens=max_tokens) == words_after(30, max_tokens)


class TestTokenizer:
    def test_encodes(self, load: Any) -> None:
        assert load("worded").encode(["w5 w9", "w12"]) == [[5, 9], [12]]

    def test_stop_text_ends_the_ids_and_the_text_ends_before_it(self, load: Any) -> None:
        generation = decode(load("worded"), request([15], stop=["w18"]))["generations"][0]
        assert (generation["token_ids"], generation["finish_reason"]) == ([16, 17, 18], "stop")
        assert generation["text"] == " w16 w17 "

    @pytest.mark.parametrize(
        ("ids", "text", "reason"),
        [
            ([16, 17, 18], " w16 w17 w18", "stop"),
            ([16, EOS], " w16", "stop"),
            ([16, 17, 19, 20], " w16 w17 w19 w20", "length"),
            ([16, 17], " w16 w17", None),
        ],
    )
    def test_an_answer_that_was_cut_off_has_no_finish_reason(
        self, ids: list[int], text: str, reason: str | None
    ) -> None:
        """That a stop text was asked for is no sign that it came."""
        answer = backend.Answer(request([15], max_tokens=4, stop=["w18"]), [EOS], {})
        answer.token_ids = ids
        assert answer.finish_reason(text) == reason

    def test_reads_an_output_as_it_follows_its_prompt(self, load: Any) -> None:
        """With the space between them; special tokens are left out unless they are asked for."""
        outputs = [([5], [9, 12], True), ([5], [9, EOS], True), ([5], [9, EOS], False), ([5], [], True)]
        assert load("worded").decode(outputs) == [" w9 w12", " w9", f" w9 w{EOS}", ""]

    def test_reads_nothing_without_one(self, load: Any) -> None:
        assert load("counts").decode([([5], [9], True)]) == [None]

    def test_no_text_where_none_was_asked_for(self, load: Any) -> None:
        assert decode(load("worded"), request())["generations"][0]["text"] is None

    def test_a_revision_is_the_target_s_alone(self, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """The draft is another repository, and has no such revision."""
        asked: list[object] = []
        find = hf.AutoTokenizer.from_pretrained

        def noted(path: str, **options: Any) -> Any:
            asked.append(options.get("revision"))
            return find(path, **options)

        monkeypatch.setattr(hf.AutoTokenizer, "from_pretrained", noted)
        load("worded", "worded", options={"device": "cpu", "revision": "v2"})
        assert asked == ["v2", None]

    def test_same_tokens_go_together(self, load: Any) -> None:
        assert tokens(load("worded", "worded")) == words_after(23, 24)

    def test_different_tokens_do_not(self, load: Any) -> None:
        with pytest.raises(ValueError, match=r"worded'.*renamed' have different tokenizers: id 30 is 'w30'.*'thirty'"):
            load("worded", "renamed")


class TestScore:
    def test_of_own_output_is_zero(self, load: Any) -> None:
        engine = load("random")
        ids = tokens(engine)
        rows = engine.score([(PROMPT, ids, FREE), (PROMPT, [], FREE)])
        assert [(gap, token) for gap, _, token, _ in rows[0]] == [(0.0, token) for token in ids]
        assert rows[1] == []

    def test_of_a_replaced_token_is_its_distance_from_the_argmax(self, load: Any) -> None:
        engine = load("random")
        ids = tokens(engine)
        replaced = [*ids[:4], (ids[4] + 1) % VOCABULARY, *ids[5:]]
        gap, top, argmax, runner_up = engine.score([(PROMPT, replaced, FREE)])[0][4]
        logits = engine._target(torch.tensor([PROMPT + ids[:4]])).logits[0, -1].detach()
        assert (argmax, top) == (ids[4], pytest.approx(float(logits.max()), abs=1e-4))
        assert gap == pytest.approx(float(logits.max() - logits[replaced[4]]), abs=1e-4)
        assert gap > 0.01
        assert runner_up == pytest.approx(float(logits.max() - logits.topk(2).values[1]), abs=1e-4)

    @pytest.mark.parametrize("step", [1, 3, 5])
    def test_in_steps_is_that_of_one_pass(self, load: Any, step: int) -> None:
        """In float32 the cached prefix gives the same to four digits, however many tokens a step has."""
        engine = load("random")
        ids = [*tokens(engine)[:4], 7, 9, 11]
        (whole,), (steps,) = engine.score([(PROMPT, ids, FREE)]), engine.score([(PROMPT, ids, FREE)], step)
        assert [row[2] for row in steps] == [row[2] for row in whole]
        for one, other in zip(whole, steps, strict=True):
            assert other == pytest.approx(one, abs=1e-4)

    def test_is_among_permitted_tokens_where_an_end_is_withheld(self, load: Any) -> None:
        engine = load("random")
        ids = tokens(engine)
        first, second = engine.score([(PROMPT, ids, (1, [ids[0], ids[1]]))])[0][:2]
        assert first[2] != ids[0]
        assert (second[0], second[2]) == (0.0, ids[1])

    def test_is_the_targets_with_a_drafter_too(self, load: Any) -> None:
        ids = words_after(23, 5)
        assert [row[0] for row in load("counts", "half").score([(PROMPT, ids, FREE)])[0]] == [0.0] * 5


class TestRank:
    def test_has_the_highest_logits_and_the_place_of_each_token(self, load: Any) -> None:
        engine = load("random")
        ids = tokens(engine)
        replaced = [*ids[:4], (ids[4] + 1) % VOCABULARY]
        logits = engine._target(torch.tensor([PROMPT + ids[:4]])).logits[0, -1].detach()
        told = rankings_from_wire(worker.plain(engine.rank([(PROMPT, replaced), (PROMPT, [])], VOCABULARY)))
        assert [each.place for each in told[0][:4]] == [0] * 4
        assert list(told[0][4].ids) == logits.argsort(descending=True).tolist()
        assert list(told[0][4].logits) == pytest.approx(logits.sort(descending=True).values.tolist(), abs=1e-4)
        assert (told[0][4].ids[told[0][4].place], told[0][4].whole, told[1]) == (replaced[4], True, ())

    def test_has_no_place_for_a_token_that_is_not_among_them(self, load: Any) -> None:
        engine = load("random")
        ids = tokens(engine)
        (told,) = rankings_from_wire(worker.plain(engine.rank([(PROMPT, [(ids[0] + 1) % VOCABULARY])], 1)))
        assert (list(told[0].ids), told[0].place, told[0].whole) == ([ids[0]], None, False)


def test_samples_come_from_all_tokens_unless_a_filter_is_asked_for() -> None:
    """Transformers' own default is the 50 likeliest."""
    assert backend.sampling_fields({"temperature": 1.5}) == {"do_sample": True, "top_k": 0, "temperature": 1.5}
    assert backend.sampling_fields({"temperature": 1.5, "top_k": 7})["top_k"] == 7
    assert backend.sampling_fields({"temperature": 0}) == {"do_sample": False}


class TestDescription:
    def test_of_a_model_without_a_tokenizer(self, load: Any) -> None:
        description = load("counts").describe()
        assert (description["vocabulary"], description["context"]) == (VOCABULARY, CONTEXT)
        assert description["device"] == "cpu"
        assert description["versions"] == {"transformers": hf.__version__, "torch": torch.__version__}
        details = description["details"]
        assert (details["concurrency"], details["prefix_caching"], details["draft_context"]) == (1, False, None)

    def test_of_a_shorter_context(self, load: Any) -> None:
        assert load("counts", "half", max_model_len=40).describe()["context"] == 40

    def test_is_plain_data(self, load: Any) -> None:
        description = worker.describe(load("worded", "worded"))
        assert description["details"]["architecture"]["num_hidden_layers"] == 2
        assert json.loads(json.dumps(description)) == description


class TestRefusal:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"method": "early_exit", "gamma": 3}, "needs the number of layers"),
            (
                {"method": "prompt_lookup", "gamma": 3, "speculative_options": {"assistant_early_exit": 2}},
                "and no other",
            ),
            ({"max_model_len": CONTEXT + 1}, "max_model_len is 129, but the models allow 128"),
            (
                {"method": "prompt_lookup", "gamma": 3, "speculative_options": {"ngram": 2}},
                "speculative_options: 'ngram'",
            ),
            (
                {"method": "prompt_lookup", "gamma": 3, "speculative_options": {"prompt_lookup_num_tokens": 2}},
                "follows from gamma",
            ),
            (
                {"method": "prompt_lookup", "gamma": 3, "speculative_options": {"use_heterogeneous_vocab": True}},
                "use_heterogeneous_vocab wants a draft model, and the method 'prompt_lookup' takes none",
            ),
        ],
    )
    def test_of_a_configuration(self, load: Any, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            load("counts", **fields)

    def test_of_a_model_that_is_not_there(self, load: Any, models: Path) -> None:
        with pytest.raises(ValueError, match=f"cannot load the target from '{models / 'absent'}'"):
            load("absent")

    def test_of_a_drafter_with_another_vocabulary(self, load: Any) -> None:
        with pytest.raises(ValueError, match="vocabularies of 64 and 72 ids"):
            load("counts", "padded")

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"max_tokens": CONTEXT}, r"request 1: 4 prompt \+ 128 output tokens exceed the context of 128"),
            ({"sampling": {"frequency_penalty": 1.0}}, "request 1, sampling: Transformers has no 'frequency_penalty'"),
            ({"sampling": {"max_new_tokens": 4}}, "request 1, sampling: 'max_new_tokens' follows from max_tokens"),
            ({"stop": ["end"]}, "request 1: stop text needs a tokenizer"),
        ],
    )
    def test_of_a_request(self, load: Any, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            load("counts").prepare([request(), request(**fields)], concurrency=1)

    def test_of_stop_text_beside_a_draft(self, load: Any) -> None:
        with pytest.raises(ValueError, match="no stop text here, beside a draft; use stop_token_ids"):
            load("worded", "worded").prepare([request(stop=["w18"])], concurrency=1)

    def test_of_stop_text_where_transformers_cannot_read_the_tokenizer(self, load: Any) -> None:
        with pytest.raises(ValueError, match="here, with a tokenizer that cannot spell 'abcdef'; use"):
            load("unspelled").prepare([request(stop=["w18"])], concurrency=1)

    def test_of_stop_text_where_the_release_has_none(self, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = load("unspelled")
        monkeypatch.setattr("transformers.GenerationConfig", SimpleNamespace)
        with pytest.raises(ValueError, match="no stop text here, in this release; use stop_token_ids"):
            engine.prepare([request(stop=["w18"])], concurrency=1)

    def test_of_text_without_a_tokenizer(self, load: Any) -> None:
        with pytest.raises(ValueError, match="text needs a tokenizer"):
            load("counts").encode(["w5"])

    def test_of_a_collect_before_a_run(self, load: Any) -> None:
        engine = load("counts")
        engine.prepare([request()], concurrency=1)
        with pytest.raises(RuntimeError, match="call run first"):
            engine.collect()


class TestLife:
    @pytest.mark.parametrize(
        ("devices", "placement"),
        [((0, 1), "cuda:0, cuda:1"), ((0, "cpu"), "cpu, cuda:0"), ((0, 0), "cuda"), (("cuda:0", 0), "cuda")],
    )
    def test_weights_on_several_gpus_stay_there(
        self, load: Any, monkeypatch: pytest.MonkeyPatch, devices: tuple[int | str, int | str], placement: str
    ) -> None:
        """All would come back to one GPU, and the layers' inputs to several. Where they are is told."""
        moved: list[str] = []
        monkeypatch.setattr(torch.cuda, "get_device_name", str)
        engine = load("counts")
        engine._device, engine._target.hf_device_map = "cuda", dict(enumerate(devices))
        monkeypatch.setattr(engine._target, "to", moved.append)
        engine.park()
        engine.wake()
        parks, told = placement == "cuda", engine.describe()
        assert (told["parks"], moved) == (parks, ["cpu", "cuda"] if parks else [])
        assert told["configuration"]["placement"] == placement

    def test_parking_on_the_cpu_changes_nothing(self, load: Any) -> None:
        engine = load("counts")
        engine.park()
        engine.wake()
        assert tokens(engine) == words_after(23, 24)
