"""GET /metrics."""

import pytest

from antiphon.messages.control import AdmissionNews, Counter
from tests.unit.server.conftest import audio, end, text

pytestmark = pytest.mark.anyio


async def page(http) -> list[str]:
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return answer.text.splitlines()


async def test_requests_are_counted_by_route_method_and_status(http):
    await http.get("/health")
    await http.get("/health")
    await http.get("/v1/models/nothing")
    await http.get("/a/b/c")
    lines = await page(http)
    assert 'antiphon_http_requests_total{method="GET",process="api-server/0",route="/health",status="200"} 2.0' in lines
    assert (
        'antiphon_http_requests_total{method="GET",process="api-server/0",route="/v1/models/{model}",status="404"} 1.0'
        in lines
    )
    assert (
        'antiphon_http_requests_total{method="GET",process="api-server/0",route="unmatched",status="404"} 1.0' in lines
    )
    assert 'antiphon_http_request_seconds_count{process="api-server/0",route="/health"} 2.0' in lines


async def test_first_audio_and_first_text_are_timed_once_per_request(http, client):
    client.script = [audio(100), audio(100), end("code2wav")]
    await http.post("/v1/audio/speech", json={"model": "voice", "input": "Hi.", "response_format": "pcm"})
    client.script = [text("a"), text("b"), end("thinker")]
    chat = {"model": "voice", "messages": [{"role": "user", "content": "Hi."}]}
    for stream in (True, False):  # a whole answer has no first text: it is all there at once
        await http.post("/v1/chat/completions", json={**chat, "stream": stream})
    lines = await page(http)
    assert 'antiphon_ttfa_seconds_count{process="api-server/0",task="speech"} 1.0' in lines
    assert 'antiphon_ttft_seconds_count{process="api-server/0",task="chat"} 1.0' in lines
    assert not [
        line for line in lines if line.startswith('antiphon_ttfa_seconds_count{process="api-server/0",task="chat"')
    ]


async def test_the_runtimes_counters_are_on_the_page(http, client):
    client.reported = [
        Counter("requests_running", (("replica", "talker/0"),), 3),
        Counter("requests_running", (("replica", "talker/1"),), 4),
        Counter("lane_messages_total", (("lane", "control"), ("process", "talker/0")), 12),
        Counter("client_oldest_output_s", (("replica", "talker/0"), ("process", "api-server/0")), 0.5),
    ]
    lines = await page(http)
    assert "# TYPE antiphon_requests_running gauge" in lines
    assert 'antiphon_requests_running{replica="talker/0",stage="talker"} 3.0' in lines
    assert 'antiphon_requests_running{replica="talker/1",stage="talker"} 4.0' in lines
    assert "# TYPE antiphon_lane_messages_total counter" in lines
    assert 'antiphon_lane_messages_total{lane="control",process="talker/0"} 12.0' in lines
    labels = '{process="api-server/0",replica="talker/0",stage="talker"}'
    assert f"antiphon_client_oldest_output_seconds{labels} 0.5" in lines


async def test_no_request_id_is_a_label(http, client):
    client.script = [audio(100), end("code2wav")]
    await http.post("/v1/audio/speech", json={"model": "voice", "input": "Hi.", "response_format": "pcm"})
    assert client.request_ids[0] not in "\n".join(await page(http))


async def test_what_is_refused_unread_counts_under_its_route(http, client):
    client.admission.hear(AdmissionNews(num_inflight=1, num_queued=0, max_waiting=0, retry_after_s=1.0))
    await http.post("/v1/audio/speech", json={})
    await http.post("/v1/something", json={})
    page = (await http.get("/metrics")).text
    for route in ("/v1/audio/speech", "unmatched"):
        assert f'method="POST",process="api-server/0",route="{route}",status="503"}} 1.0' in page
