"""The page's own routes: its files, and the overview that it is laid out by."""

import pytest

from antiphon.config.pipeline import EngineKind, Modality, PipelineSpec, StageSpec, TaskSpec
from antiphon.messages.control import Counter
from antiphon.server.page.overview import load_entry, pipeline_entry
from antiphon.server.page.routes import static_files

pytestmark = pytest.mark.anyio


async def test_the_page_and_every_file_it_names_are_served(http):
    page = await http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name in static_files():
        answer = await http.get(f"/page/{name}")
        assert (answer.status_code, answer.content) == (200, static_files()[name])
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_names_no_other_host():
    namespace = b"http://www.w3.org/2000/svg"
    here = b"http://127.0.0.1"  # in a sentence for people
    for name, content in static_files().items():
        rest = content.replace(namespace, b"").replace(here, b"")
        assert b"http://" not in rest and b"https://" not in rest and b"//cdn" not in rest, name


@pytest.mark.parametrize("name", ["nothing.js", "..%2Froutes.py", "routes.py", "__init__.py"])
async def test_no_other_file_is_served(http, name):
    answer = await http.get(f"/page/{name}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_the_overview_tells_tasks_voices_and_stages(http, client):
    client.live = {"listener": 1, "thinker": 2, "code2wav": 0}
    client.reported = [
        Counter("requests_running", (("replica", "thinker/0"),), 3.0),
        Counter("requests_running", (("replica", "thinker/1"),), 1.0),
        Counter("requests_waiting", (("replica", "thinker/1"),), 2.0),
        Counter("requests_max", (("replica", "thinker/0"),), 8.0),
        Counter("requests_inflight", (), 5.0),
        Counter("requests_queued", (), 1.0),
    ]
    told = (await http.get("/page/overview.json")).json()
    assert told["tasks"]["chat"] == {"inputs": ["text", "audio"], "outputs": ["text", "audio"]}
    assert told["voices"] == [{"name": "anna", "language": "en"}, {"name": "ben", "language": "de"}]
    assert (told["model"], told["sample_rate"]) == ("voice", 24_000)
    assert told["requests"] == {"inflight": 5, "queued": 1}
    assert told["stages"] == [
        {"name": "listener", "replicas": 1, "running": 0, "waiting": 0, "places": 0},
        {"name": "thinker", "replicas": 2, "running": 4, "waiting": 2, "places": 8},
        {"name": "code2wav", "replicas": 0, "running": 0, "waiting": 0, "places": 0},
    ]


def test_a_pipeline_without_audio_has_no_voices_and_only_its_task():
    pipeline = PipelineSpec(
        name="text",
        stages=(StageSpec("thinker", EngineKind.AUTOREGRESSIVE, "nowhere:Model"),),
        edges=(),
        tasks=(TaskSpec("chat", {Modality.TEXT: "thinker"}, {Modality.TEXT: "thinker"}),),
        frontend="nowhere:Frontend",
    )
    told = pipeline_entry(pipeline)
    assert (told["tasks"], told["voices"]) == ({"chat": {"inputs": ["text"], "outputs": ["text"]}}, [])


def test_before_the_first_report_nothing_runs():
    assert load_entry({"thinker": 0}, ())["requests"] == {"inflight": 0, "queued": 0}


async def test_what_open_pages_poll_leaves_no_line_in_the_log(http, caplog):
    caplog.set_level("INFO", "antiphon.server.edge")
    await http.get("/page/overview.json")
    assert caplog.messages == []
    await http.get("/")
    assert len(caplog.messages) == 1
