"""The canary against a scripted server: each way in which a model may be unfit, by its finding."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.answers import DROP, ENGINE_DEAD, TOOLS_AS_TEXT, Answer, Call, Fault, Reaction, error_body
from fakes.upstream import Upstream
from gateways import KEY, Launch, sane, until
from rolloutgen.errors import Finding, Level
from rolloutgen.gateway.canary import Canary, ServerLostError

CANARY = Canary(
    base_url="",
    key=KEY,
    model_name="policy",
    timeout_sec=60,
    reads_thoughts=False,
    tools=False,
    parser="",
    tool_tokens=256,
    call_is_must=True,
)


async def sing(rule: Callable[[Call], Reaction], canary: Canary = CANARY) -> list[Finding]:
    async with Upstream(rule) as upstream:
        return await replace(canary, base_url=upstream.base_url).sing()


def levels(findings: Sequence[Finding]) -> dict[str, Level]:
    """Subject -> the worst that was said of it."""
    order = (Level.OK, Level.WARN, Level.FATAL)
    worst: dict[str, Level] = {}
    for finding in findings:
        worst[finding.subject] = max(worst.get(finding.subject, Level.OK), finding.level, key=order.index)
    return worst


def with_text(text: str) -> Callable[[Call], Reaction]:
    """A server that is sane but for what it says greedily."""
    return lambda call: text if call.body["temperature"] == 0 else sane(call)


async def test_a_model_in_good_health_passes() -> None:
    findings = await sing(sane, replace(CANARY, tools=True, parser="hermes"))
    assert set(levels(findings).values()) == {Level.OK}
    assert set(levels(findings)) == {"canary", "TEMPERATURE", "TOOL_CALL_PARSER"}


async def test_the_canary_is_not_pinned() -> None:
    """It asks at temperatures 0 and 1, whatever TEMPERATURE is."""
    async with Upstream(sane) as upstream:
        await replace(CANARY, base_url=upstream.base_url).sing()
        assert [call.body["temperature"] for call in upstream.calls] == [0, 0, 1, 1]


@pytest.mark.parametrize("text", ["!" * 64, "\ufffd" * 30, "a a a a a a a a a a a a", ""])
async def test_broken_weights_are_fatal(text: str) -> None:
    findings = await sing(with_text(text))
    assert levels(findings)["MODEL_PATH"] is Level.FATAL


async def test_one_odd_answer_is_no_broken_model() -> None:
    findings = await sing(lambda call: "!" * 40 if "France" in str(call.body) else sane(call))
    assert Level.FATAL not in levels(findings).values()


@pytest.mark.parametrize(("reads_thoughts", "level"), [(False, Level.FATAL), (True, Level.WARN)])
@pytest.mark.parametrize("text", ["<think>\nA capital. </think> Paris it is.", "A capital.\n</think>\n\nParis it is."])
async def test_thoughts_in_the_text_name_the_parser(text: str, reads_thoughts: bool, level: Level) -> None:
    findings = await sing(with_text(text), replace(CANARY, reads_thoughts=reads_thoughts))
    assert levels(findings)["VLLM_EXTRA_ARGS"] is level
    assert "--reasoning-parser" in str(findings)


async def test_thoughts_that_a_parser_took_out_are_fine() -> None:
    findings = await sing(lambda call: Answer("Paris.", reasoning="It is a capital.") if _greedy(call) else sane(call))
    assert set(levels(findings).values()) == {Level.OK}


async def test_a_temperature_that_does_not_act_is_fatal_after_four_pairs() -> None:
    """A13."""
    async with Upstream(lambda _: "Once upon a time there were three mice.") as upstream:
        findings = await replace(CANARY, base_url=upstream.base_url).sing()
        assert levels(findings)["TEMPERATURE"] is Level.FATAL
        assert sum(call.body["temperature"] == 1 for call in upstream.calls) == 8
        assert {call.body["max_tokens"] for call in upstream.calls if call.body["temperature"] == 1} == {32}


async def test_one_pair_that_differs_is_enough() -> None:
    """A sure model may say the same thing often."""
    async with Upstream(lambda call: f"There were {call.number // 7} mice in the old house.") as upstream:
        findings = await replace(CANARY, base_url=upstream.base_url).sing()
        assert levels(findings)["TEMPERATURE"] is Level.OK
        assert sum(call.body["temperature"] == 1 for call in upstream.calls) == 6


async def test_greedy_answers_that_differ_are_a_warning() -> None:
    findings = await sing(lambda call: f"The capital of France has {call.number} names.")
    assert levels(findings) == {"canary": Level.WARN, "TEMPERATURE": Level.OK}


async def test_a_call_left_in_the_text_is_fatal_and_names_the_parser() -> None:
    """C7."""
    canary = replace(CANARY, tools=True, parser="hermes", call_is_must=False)
    findings = await sing(lambda call: TOOLS_AS_TEXT if call.body.get("tools") else sane(call), canary)
    (finding,) = [one for one in findings if one.level is Level.FATAL]
    assert finding.subject == "TOOL_CALL_PARSER"
    assert "hermes" in finding.message
    assert "<tool_call>" in finding.message


@pytest.mark.parametrize(("must", "level"), [(True, Level.FATAL), (False, Level.WARN)])
async def test_a_model_that_calls_no_tool(must: bool, level: Level) -> None:
    """C7: unless TOOL_CANARY=warn."""
    canary = replace(CANARY, tools=True, parser="hermes", call_is_must=must)
    findings = await sing(lambda call: "I cannot do that." if call.body.get("tools") else sane(call), canary)
    assert levels(findings)["TOOL_CANARY"] is level


async def test_the_call_is_not_forced() -> None:
    """C7: a forced one proves nothing."""
    async with Upstream(sane) as upstream:
        await replace(CANARY, base_url=upstream.base_url, tools=True).sing()
        assert [call.body["tool_choice"] for call in upstream.calls if call.body.get("tools")] == ["auto"]


async def test_a_server_without_a_parser_refuses_the_tool() -> None:
    refusal = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    fault = Fault(status=400, body=error_body(refusal, 400))
    findings = await sing(lambda call: fault if call.body.get("tools") else sane(call), replace(CANARY, tools=True))
    assert levels(findings)["TOOL_CALL_PARSER"] is Level.FATAL
    assert "--tool-call-parser" in str(findings)


async def test_all_findings_come_at_once() -> None:
    canary = replace(CANARY, tools=True, parser="hermes")
    findings = await sing(lambda call: TOOLS_AS_TEXT if call.body.get("tools") else "<think> Hm. Paris, then.", canary)
    fatal = {one.subject for one in findings if one.level is Level.FATAL}
    assert fatal == {"VLLM_EXTRA_ARGS", "TEMPERATURE", "TOOL_CALL_PARSER"}


async def test_a_model_without_a_chat_template_is_refused_in_the_servers_words() -> None:
    fault = Fault(status=400, body=error_body("a chat template is missing", 400))
    findings = await sing(lambda _: fault)
    assert levels(findings) == {"canary": Level.FATAL}
    assert "a chat template is missing" in str(findings)


@pytest.mark.parametrize("fault", [ENGINE_DEAD, DROP])
async def test_a_server_that_is_lost_says_nothing_of_the_model(fault: Fault) -> None:
    with pytest.raises(ServerLostError):
        await sing(lambda _: fault)


async def test_a_fatal_finding_ends_the_gateway_before_it_is_ready(launch: Launch) -> None:
    async with Upstream(lambda call: TOOLS_AS_TEXT if call.body.get("tools") else sane(call)) as upstream:
        launch.server(upstream)
        record = await launch.start(TOOL_CALL_PARSER="hermes")
        assert await launch.ended() == 1
    assert record.state == "failed"
    assert "TOOL_CALL_PARSER" in record.message
    assert any(line.startswith("FATAL") for line in record.findings)
    assert any(line.startswith("ok") for line in record.findings)


async def test_a_scaffold_without_tools_and_parser_is_asked_for_no_call(launch: Launch) -> None:
    async with Upstream(lambda call: TOOLS_AS_TEXT if call.body.get("tools") else sane(call)) as upstream:
        launch.server(upstream)
        assert (await launch.start()).state == "ready"


async def test_a_server_that_dies_under_the_canary_is_asked_again(launch: Launch, tmp_path: Path) -> None:
    async with Upstream(lambda _: DROP) as upstream:
        launch.server(upstream)
        launch.spawn()
        await until(lambda: bool(upstream.calls), "the canary asks")
        launch.server(state="restarting", message="it died")
        await asyncio.sleep(0.5)
        upstream.rule = sane
        launch.server(upstream, restarts=1)
        await until(lambda: launch.record is not None and launch.record.state == "ready", "the gateway is ready")


def _greedy(call: Call) -> bool:
    return bool(call.body["temperature"] == 0)
