"""What stands near a finding: hints, each a sentence for the person who has to look.

A hint is no part of the verdict. Speculative decoders break at edges: inside a step, at a cache block,
at a prefill chunk, near the end of the context, on a warm prefix cache, under sampling fields that only some tokens
see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_specdec.engines.engine import Description
from pytest_specdec.generation import Generation
from pytest_specdec.verdict.equivalence import THIS_ENGINE, Finding, Verdict, agreement
from pytest_specdec.verdict.limits import Facts, reshaping_fields
from pytest_specdec.workloads.workload import Request, Workload

MAX_FINDINGS = 3


def add_hints(
    verdict: Verdict,
    workload: Workload,
    gamma: int | None,
    description: Description,
    alone: Callable[[int], Generation],
) -> Verdict:
    """A verdict that fails, with hints at its first findings; `alone` decodes one request by itself at batch 1."""
    if verdict.passes or not verdict.findings:
        return verdict
    told = [
        replace(finding, hints=find_hints(finding, workload.requests[finding.request], gamma, description))
        for finding in verdict.findings[:MAX_FINDINGS]
    ]
    if workload.concurrency > 1 and told[0].sides[1] == THIS_ENGINE:
        told[0] = replace(told[0], hints=(*told[0].hints, occurs_alone(told[0], alone(told[0].request))))
    return replace(verdict, findings=(*told, *verdict.findings[MAX_FINDINGS:]))


def find_hints(finding: Finding, request: Request, gamma: int | None, description: Description) -> tuple[str, ...]:
    """The hints of one finding, in no order of likelihood."""
    at = finding.worst if finding.worst is not None else finding.position
    found = _sampling(request)
    if at is not None:
        found += _step(finding, at)
        found += _stop_inside_step(finding, Facts.of(description).stop_tokens(request))
        found += _boundaries(len(request.prompt_ids), at, gamma or 0, description)
        found += _warm_cache(finding.round, description)
    return tuple(found)


def _sampling(request: Request) -> list[str]:
    fields = reshaping_fields(request)
    return [f"sampling fields that every token must see: {', '.join(fields)}"] if fields else []


def _step(finding: Finding, at: int) -> list[str]:
    """Where in its step the token stands, by the chunks in which tokens arrived."""
    before = 0
    for number, chunk in enumerate(finding.chunks):
        if at < before + chunk.tokens and chunk.tokens > 1:
            place = at - before + 1
            role = "the target's own token after the accepted drafts" if place == chunk.tokens else "an accepted draft"
            return [f"token {at} is number {place} of {chunk.tokens} in step {number}: {role}"]
        before += chunk.tokens
    return []


def _stop_inside_step(finding: Finding, stop_tokens: frozenset[int]) -> list[str]:
    start = 0
    for chunk in finding.chunks:
        inner = finding.seen[start : start + chunk.tokens - 1]
        passed = [start + offset for offset, token in enumerate(inner) if token in stop_tokens]
        if passed:
            return [f"EOS or a stop token at {passed[0]} stands inside a step, not at its end"]
        start += chunk.tokens
    return []


def _boundaries(prompt: int, at: int, gamma: int, description: Description) -> list[str]:
    details, place = description.details, prompt + at
    found = []
    block, chunk = details.get("block_size"), details.get("prefill_chunk")
    if block and place % block in (0, block - 1):
        found.append(f"position {place} is at the edge of a cache block of {block}")
    if chunk and prompt > chunk:
        found.append(f"the prompt of {prompt} tokens is longer than a prefill chunk of {chunk}")
    near = 1 + gamma
    for name, context in (("context", description.context), ("draft's context", details.get("draft_context"))):
        if context and place + near >= context:
            found.append(f"position {place} is within a step of the end of the {name} of {context}")
    return found


def _warm_cache(round_: int, description: Description) -> list[str]:
    warm = description.details.get("prefix_caching") and round_ > 0
    return [f"the prefix cache is on and warm in round {round_}"] if warm else []


def occurs_alone(finding: Finding, again: Generation) -> str:
    """Whether the request gives the same wrong tokens by itself at batch 1."""
    if again.token_ids == finding.seen:
        return "it occurs in the same way with this request alone at batch 1"
    if again.token_ids == finding.expected:
        return "it depends on the batch: alone at batch 1 the request is right"
    return f"alone at batch 1 it is wrong in another way, from token {agreement(again.token_ids, finding.seen)} on"
