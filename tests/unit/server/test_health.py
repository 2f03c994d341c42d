"""GET /health and /ready."""

import pytest

pytestmark = pytest.mark.anyio


async def test_health_is_200_whatever_the_stages_do(http, client):
    client.live = {"listener": 0}
    assert (await http.get("/health")).status_code == 200


async def test_ready_is_200_when_every_stage_has_a_replica(http, client):
    client.live = {"listener": 1, "thinker": 2}
    answer = await http.get("/ready")
    assert (answer.status_code, answer.json()["stages"]) == (200, {"listener": 1, "thinker": 2})


async def test_ready_is_503_and_names_the_stages_without_a_replica(http, client):
    client.live = {"listener": 0, "thinker": 2, "talker": 0}
    answer = await http.get("/ready")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert "listener, talker" in answer.json()["error"]["message"]
    assert "thinker" not in answer.json()["error"]["message"]
