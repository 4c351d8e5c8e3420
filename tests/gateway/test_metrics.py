"""What is read from vLLM's metrics, and the status that is made of it."""

import pytest

from rolloutgen.gateway.metrics import Counters, Meter, read
from rolloutgen.gateway.status import GatewayStatus

TEXT = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="policy"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="policy"} 0.75
vllm:prefix_cache_queries_total{engine="0",model_name="policy"} 400.0
vllm:prefix_cache_hits_total{engine="0",model_name="policy"} 300.0
vllm:prompt_tokens_total{engine="0",model_name="policy"} 1.2e+03
vllm:generation_tokens_total{engine="0",model_name="policy"} 10.0
vllm:generation_tokens_total{engine="1",model_name="policy"} 5.0
vllm:generation_tokens_created{engine="0",model_name="policy"} 1.79e+09
vllm:prompt_tokens_by_source_total{engine="0",source="local"} 77.0
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_engine_tells_of_itself_and_the_meter_of_all() -> None:
    engines = read(TEXT)
    assert engines["0"] == Counters(1200, 10, 400, 300, 0.25, 1)
    assert engines["1"] == Counters(generation_tokens=5, kv_used=0.75)
    meter = Meter()
    meter.take(engines)
    assert (meter.prefix_hit_share, meter.kv_used_share) == (0.75, 0.5)


@pytest.mark.parametrize("text", [b"", b"<html>", b"vllm:generation_tokens_total 1\n", b"\xff\xfe\n"])
def test_what_is_no_metric_is_nothing(text: bytes) -> None:
    meter = Meter()
    assert not meter.take(read(text))
    assert (meter.prefix_hit_share, meter.kv_used_share) == (None, None)


def test_what_is_no_number_is_none() -> None:
    assert read(b'vllm:generation_tokens_total{engine="0"} soon\n') == {"0": Counters()}


def _reading(tokens: float, kv_used: float = 0.0) -> dict[str, Counters]:
    return {"0": Counters(generation_tokens=tokens, kv_used=kv_used)}


def test_movement_is_any_change_but_not_the_first_reading() -> None:
    meter = Meter()
    moved = [meter.take(_reading(*values)) for values in ((5,), (5,), (6,), (6, 0.1), (6, 0.1))]
    assert moved == [False, False, True, True, False]


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    clock = Clock()
    meter = Meter(clock)
    assert meter.tokens_per_sec is None
    for second in range(60):
        clock.now = float(second)
        meter.take(_reading(0 if second < 45 else (second - 45) * 100))
    assert meter.tokens_per_sec == pytest.approx(100)


def test_another_server_counts_from_zero_and_its_rate_is_never_negative() -> None:
    clock = Clock()
    meter = Meter(clock)
    for tokens in (1000, 2000, 0, 10):
        clock.now += 1
        meter.take(_reading(tokens))
    assert meter.tokens_per_sec == pytest.approx(10)


def test_an_engine_stands_still_while_another_moves() -> None:
    """Only one that has something to do; and only as far as it was looked at."""
    clock = Clock()
    meter = Meter(clock)
    for second in range(11):
        assert meter.standing(10) == ""
        clock.now = float(second)
        moving, still, idle = Counters(generation_tokens=second, running=1), Counters(running=2), Counters()
        meter.take({"0": moving, "1": still, "2": idle})
    assert meter.standing(10) == "1"
    assert meter.standing(11) == ""
    clock.now = 100.0
    assert meter.standing(11) == ""
    meter.take({"0": moving, "1": Counters(running=2, kv_used=0.1), "2": idle})
    assert meter.standing(10) == "0"


def test_what_is_forgotten_stands_still_no_more() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.take({"0": Counters(running=1)})
    clock.now = 60.0
    meter.forget()
    meter.take({"0": Counters(running=1)})
    assert meter.standing(10) == ""
    assert meter.tokens_per_sec is None


def test_a_status_survives_its_journey_and_unknown_fields() -> None:
    status = GatewayStatus(attempts=3, at_server=2, queued=1, tokens_per_sec=12.5, server="ready", kv_used_share=0.5)
    assert GatewayStatus.from_json(status.to_json() | {"later": 1}) == status
    assert GatewayStatus.from_json({}) == GatewayStatus()


def test_the_line_leaves_out_what_is_not_known() -> None:
    assert GatewayStatus().line() == "server starting: calls: 0 at the server, 0 queued, 0 held; 0 attempts"
    full = GatewayStatus(
        attempts=80,
        at_server=64,
        queued=9,
        held=1,
        tokens_per_sec=1234.4,
        prefix_hit_share=0.871,
        kv_used_share=0.42,
        server="ready",
        restarts=1,
    )
    assert full.line() == (
        "server ready (1 restart): 1234 tokens/s, calls: 64 at the server, 9 queued, 1 held; 80 attempts, "
        "prefix-cache hits 87%, KV cache used 42%"
    )
