"""Faults among requests: an answer goes to another, a prompt is changed, or company corrupts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_specdec.engines.fake import Decoder, Progress, fault
from pytest_specdec.engines.fake.decoding import Answer
from pytest_specdec.engines.fake.models import FIRST_PLAIN_ID
from pytest_specdec.workloads.workload import Request, Workload

BOS = 1


@fault("answers swapped")
class AnswersSwapped(Decoder):
    """The first two requests get each other's tokens."""

    def in_order(self, answers: list[Answer]) -> list[Answer]:
        """Prompts stay where they were; an answer that is alone stays where it is."""
        if len(answers) == 1:
            return answers
        (one, its), (other, others) = answers[:2]
        swapped = replace(other, prompt_ids=one.prompt_ids), replace(one, prompt_ids=other.prompt_ids)
        return [(swapped[0], others), (swapped[1], its), *answers[2:]]


@fault("wrong in company")
class WrongInCompany(Decoder):
    """At a concurrency above 1, the tenth token of every request but the first is another."""

    def emit(self, progress: Progress, burst: Sequence[int], token: int) -> int:
        """The next id, round and round."""
        if progress.concurrency == 1 or progress.index == 0 or progress.position(burst) != 9:
            return token
        return max(FIRST_PLAIN_ID, (token + 1) % self.model.vocabulary)


@fault("wrong on a new prompt")
class WrongOnANewPrompt(Decoder):
    """The first token after a prompt that was never decoded before is another."""

    def emit(self, progress: Progress, burst: Sequence[int], token: int) -> int:
        """The next id, round and round."""
        if progress.warm or progress.position(burst) > 0:
            return token
        return max(FIRST_PLAIN_ID, (token + 1) % self.model.vocabulary)


@fault("fields of a neighbour")
class FieldsOfANeighbour(Decoder):
    """Every request is decoded under the sampling fields of the one before it, too."""

    def decode(self, workload: Workload, index: int, start: float) -> Answer:
        """Of the first that of the last."""
        one, own = workload.requests[index - 1], workload.requests[index]
        both = replace(own, sampling={**one.sampling, **own.sampling})
        requests = (*workload.requests[:index], both, *workload.requests[index + 1 :])
        return super().decode(replace(workload, requests=requests), index, start)


@fault("max_tokens of a neighbour")
class LengthOfANeighbour(Decoder):
    """Every answer gets the length that the request before it asks for."""

    def decode(self, workload: Workload, index: int, start: float) -> Answer:
        """Of the first that of the last."""
        other = replace(workload.requests[index], max_tokens=workload.requests[index - 1].max_tokens)
        requests = (*workload.requests[:index], other, *workload.requests[index + 1 :])
        return super().decode(replace(workload, requests=requests), index, start)


@fault("BOS doubled")
class BosDoubled(Decoder):
    """A second BOS is put before the prompt, and reported."""

    def prompt(self, request: Request) -> tuple[Sequence[int], Sequence[int]]:
        """The same for both."""
        longer = (BOS, *request.prompt_ids)
        return longer, longer


@fault("BOS doubled unseen")
class BosDoubledUnseen(Decoder):
    """A second BOS is put before the prompt that the model reads; the prompt that was sent is reported."""

    def prompt(self, request: Request) -> tuple[Sequence[int], Sequence[int]]:
        """The model alone reads it."""
        return request.prompt_ids, (BOS, *request.prompt_ids)
