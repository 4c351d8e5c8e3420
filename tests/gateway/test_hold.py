"""How long a call that fails again and again is held: an outage to its end, a poisonous request not."""

import pytest

from rolloutgen.gateway.failures import TryFailedError
from rolloutgen.gateway.hold import POISON_TRIES, GivenUpError, Hold
from rolloutgen.gateway.ledger import Ledger
from rolloutgen.gateway.pulse import Pulse
from rolloutgen.gateway.server import ServerState


async def hold_after(n_tries: int, *, others_live: bool, status: int | None = 500) -> Hold:
    """A call that failed ``n_tries`` times; the clock goes on by a second at every look at it."""
    seconds = iter(range(10_000))
    pulse = Pulse(lambda: float(next(seconds)))
    server = ServerState()
    await server.update("ready", base_url="http://127.0.0.1:1/v1", seed=1)
    call = Ledger(pulse, 2048).begin(side=False, tools=False)
    hold = Hold(server, call, 300.0, 0.01)
    for _ in range(n_tries):
        call.trying()
        hold.failed(TryFailedError("HTTP 500", status=status))
        if others_live:
            pulse.beat()
    return hold


async def test_a_request_that_fails_while_others_are_answered_is_given_up() -> None:
    await (await hold_after(POISON_TRIES, others_live=True)).until_ready()
    with pytest.raises(GivenUpError, match="answers others") as failure:
        await (await hold_after(POISON_TRIES + 1, others_live=True)).until_ready()
    assert not failure.value.down


async def test_a_server_that_gives_nobody_a_token_is_waited_for() -> None:
    await (await hold_after(10 * POISON_TRIES, others_live=False)).until_ready()


@pytest.mark.parametrize("status", [429, 503, None])
async def test_a_server_that_is_busy_or_away_is_waited_for(status: int | None) -> None:
    await (await hold_after(10 * POISON_TRIES, others_live=True, status=status)).until_ready()
