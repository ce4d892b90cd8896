"""Text is held against ids: it is what the tokenizer makes of them, up to the first stop text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_specdec.generation import Generation
from pytest_specdec.verdict.limits import Decoded, Facts, broken_stop, broken_structure, decode_answers, wrong_text
from pytest_specdec.workloads.workload import Request

PROMPT, EOS = (5, 6), 99
FACTS = Facts(vocabulary=100, eos_token_ids=frozenset({EOS}))
LEAVES_OUT = Facts(vocabulary=100, eos_token_ids=frozenset({EOS}), keeps_ends=False)
WITH_STOP = {"include_stop_str_in_output": True}
IDS = (1, 2, 3)


def asked(*stop: str, **fields: Any) -> Request:
    return Request(PROMPT, 9, ignore_eos=False, stop=stop, **fields)


def answer(text: str | None, ids: tuple[int, ...] = IDS, reason: str = "stop") -> Generation:
    return Generation(PROMPT, ids, reason, text=text)


@pytest.mark.parametrize(
    ("request_", "generation", "decoded", "wrong"),
    [
        (asked(), answer("one two", reason="length"), Decoded("one two", "one"), None),
        (asked(), answer(None, reason="length"), Decoded("one two", "one"), None),
        (asked("two"), answer("one "), Decoded("one two", "one"), None),
        (asked("two"), answer("one two"), Decoded("one two", "one"), "at character 4: 'two', not its end"),
        (asked("two"), answer("one"), Decoded("one two", "one"), "at character 3: its end, not ' '"),
        (asked("two"), answer("on? "), Decoded("one two", "one"), "at character 2: '? ', not 'e '"),
        (asked("two", sampling=WITH_STOP), answer("one two"), Decoded("one two.", "one"), None),
        (asked("two", sampling=WITH_STOP), answer("one "), Decoded("one two.", "one"), "at character 4: its end, "),
        (asked("b", "abc"), answer(""), Decoded("abc", ""), None),
        (asked("b", "abc"), answer("a"), Decoded("abc", ""), None),
        (asked("b", "abc"), answer("abc"), Decoded("abc", ""), "at character 0"),
        (asked("x", "y"), answer("1x2"), Decoded("1x2y", "1x2"), "at character 1: 'x2', not its end"),
        (asked(), answer("one", ids=(1, EOS)), Decoded("one</s>", "one"), None),
        (asked(), answer("one</s>", ids=(1, EOS)), Decoded("one</s>", "one"), "at character 3: '</s>', not its end"),
        (asked(sampling=WITH_STOP), answer("one</s>", ids=(1, EOS)), Decoded("one</s>", "one"), None),
        (asked(), answer("ca", reason="length"), Decoded("ca\ufffd\ufffd", "ca\ufffd"), None),
        (asked(), answer("ca\ufffd", reason="length"), Decoded("ca\ufffd", "ca"), None),
        (asked(), answer("c", reason="length"), Decoded("ca\ufffd", "ca"), "at character 1: its end, not 'a"),
    ],
)
def test_the_text_of_the_ids(request_: Request, generation: Generation, decoded: Decoded, wrong: str | None) -> None:
    """No more, no less, and no other; a character whose bytes have not all come may be missing."""
    told = wrong_text(request_, generation, decoded, FACTS)
    assert (told is None, (wrong or "") in (told or "")) == (wrong is None, True), told


@pytest.mark.parametrize(
    ("request_", "generation", "decoded", "facts", "broken"),
    [
        (asked("two"), answer(None), Decoded("one two", "one"), FACTS, None),
        (asked("two"), answer(None, ids=(1, EOS)), Decoded("one", "one"), FACTS, None),
        (asked("two"), answer(None, reason="length"), Decoded("one", ""), FACTS, None),
        (
            asked("two"),
            answer(None),
            Decoded("one", ""),
            FACTS,
            "finished by 'stop' after 3 tokens, on no stop token and no stop text",
        ),
        (asked("two"), answer(None), Decoded("one", ""), LEAVES_OUT, None),
        (
            asked("two"),
            answer(None, reason="length"),
            Decoded("two three", "two"),
            FACTS,
            "continued past the stop text 'two'",
        ),
        (asked("two"), answer(None), Decoded("two\u00e9", "two\ufffd"), FACTS, None),
    ],
)
def test_a_stop_text_ends_the_answer_where_it_is(
    request_: Request, generation: Generation, decoded: Decoded, facts: Facts, broken: str | None
) -> None:
    """Neither passed over nor claimed; with a character that is not whole yet, the stop text is seen late."""
    assert broken_stop(request_, generation, decoded, facts) == broken


def test_each_answer_is_decoded_once_and_only_where_text_says_something() -> None:
    """A repeated one is not asked for again, one without text not at all, nor one whose stop text is withheld."""
    calls: list[Sequence[Sequence[int]]] = []

    def decode(_: Sequence[Request], outputs: Sequence[Sequence[int]]) -> list[str | None]:
        calls.append(list(outputs))
        return [None if 7 in output else str(list(output)) for output in outputs]

    pairs = [
        (asked(), answer("a")),
        (asked(), answer("a")),
        (asked(), answer(None, ids=(4,))),
        (asked("x", min_tokens=2), answer("a", ids=(5,))),
        (asked("x"), answer(None, ids=(6, 8))),
        (asked("x"), answer("a", ids=(7, 8))),
    ]
    decoded = decode_answers(pairs, decode)
    assert calls == [[(1, 2, 3), (6, 8), (7, 8)], [(1, 2), (6,), (7,)]]
    assert decoded == {
        (asked(), IDS): Decoded("[1, 2, 3]", "[1, 2]"),
        (asked("x"), (6, 8)): Decoded("[6, 8]", "[6]"),
    }


def test_nothing_is_asked_where_no_text_says_anything() -> None:
    assert decode_answers([(asked(), answer(None))], lambda *_: pytest.fail("nothing had to be decoded")) == {}


STRUCTURES = {
    "a choice": ({"choice": ["yes", "no"]}, " yes", None),
    "no choice": ({"choice": ["yes", "no"]}, "yess", "'yess' is none of the choices"),
    "a match": ({"regex": "a+b"}, "aab", None),
    "more than a match": ({"regex": "a+b"}, "aabb", "'aabb' does not match 'a+b'"),
    "a choice with a space": ({"choice": [" yes", " no"]}, " yes", None),
    "no choice with a space": ({"choice": [" yes", " no"]}, " yess", "' yess' is none of the choices"),
    "a match with a space": ({"regex": " (yes|no)"}, " yes", None),
    "a match within spaces": ({"regex": "yes|no"}, " yes\n", None),
    "no match with a space": ({"regex": " (yes|no)"}, " yess", "' yess' does not match ' (yes|no)'"),
    "a match over two lines": ({"regex": "a.*b"}, "a\nb", None),
    "a pattern that Python cannot read": ({"regex": r"\p{L}+"}, "yes", None),
    "JSON": ({"json": {"type": "object"}}, '{"a": 1}', None),
    "JSON cut off": ({"json": {"type": "array"}}, "[1", "'[1' is no JSON"),
}


@pytest.mark.parametrize(("structure", "text", "broken"), STRUCTURES.values(), ids=STRUCTURES)
def test_a_whole_answer_has_the_structure_that_was_asked_for(
    structure: dict[str, Any], text: str, broken: str | None
) -> None:
    """Whatever both arms agree on; what max_tokens cut off need not."""
    request, whole = asked(sampling={"structured_outputs": structure}), Decoded(f"{text}</s>", text)
    ended, cut_off = answer(None, ids=(1, EOS)), answer(None, ids=(1, 2), reason="length")
    assert broken_structure(request, ended, whole, FACTS) == broken
    assert broken_structure(request, cut_off, whole, FACTS) is None


def test_a_structure_that_a_stop_cuts_off_need_not_be_whole() -> None:
    """By a text or by a token; EOS alone says that the grammar was done."""
    json = {"structured_outputs": {"json": {}}}
    cut = Decoded('{"a": 1}', '{"a": 1')
    by_text, by_token = asked("}", sampling=json), asked(sampling=json, stop_token_ids=(2,))
    assert broken_structure(by_text, answer(None, ids=(1, EOS)), cut, FACTS) is None
    assert broken_structure(by_token, answer(None, ids=(1, 2)), cut, FACTS) is None
    assert broken_structure(asked(sampling=json), answer(None, ids=(1, EOS)), cut, FACTS) is not None


def test_structured_answers_are_decoded() -> None:
    """Though the engine gives no text of them."""
    request = asked(sampling={"structured_outputs": {"choice": ["a"]}})
    told = decode_answers([(request, answer(None))], lambda _, outputs: ["".join(map(str, each)) for each in outputs])
    assert told == {(request, IDS): Decoded("123", "12")}
