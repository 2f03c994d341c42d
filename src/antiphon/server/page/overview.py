"""What the web page must know of the server: what it can do, and what its stages are doing.

In: a pipeline's declaration and the counters of every process. Out: one JSON value, at most about a second old.
Does not know: the page, or how a stage works.
"""

from collections import defaultdict
from collections.abc import Iterable

from antiphon.client.engine_client import EngineClient
from antiphon.config.pipeline import PipelineSpec
from antiphon.ids import stage_of
from antiphon.messages.control import Counter
from antiphon.server.audio_encode import AudioFormat
from antiphon.server.json_object import Json

_OF_STAGES = {"requests_running": "running", "requests_waiting": "waiting", "requests_max": "places"}
_OF_ALL = {"requests_inflight": "inflight", "requests_queued": "queued"}


def overview(client: EngineClient) -> Json:
    """What `pipeline_entry` says, and under `requests` and `stages` what runs and waits now."""
    return {**pipeline_entry(client.pipeline), **load_entry(client.live_replicas(), client.counters())}


def pipeline_entry(pipeline: PipelineSpec) -> Json:
    """The part that never changes: tasks with what they take and give, voices, formats."""
    return {
        "model": pipeline.name,
        "tasks": {task.name: {"inputs": list(task.entries), "outputs": list(task.finals)} for task in pipeline.tasks},
        "voices": [{"name": voice.name, "language": voice.language} for voice in pipeline.voices],
        "formats": list(AudioFormat),
        "sample_rate": pipeline.sample_rate,
    }


def load_entry(live_replicas: dict[str, int], counters: Iterable[Counter]) -> Json:
    """Requests of the whole server, and per stage: live replicas, requests that run and wait there, places."""
    totals: defaultdict[str, int] = defaultdict(int)
    of_stages: defaultdict[tuple[str, str], int] = defaultdict(int)
    for counter in counters:
        if counter.name in _OF_STAGES:
            stage = stage_of(dict(counter.labels)["replica"])
            of_stages[stage, _OF_STAGES[counter.name]] += int(counter.value)
        elif counter.name in _OF_ALL:
            totals[_OF_ALL[counter.name]] += int(counter.value)
    stages = [
        {"name": stage, "replicas": num_live, **{key: of_stages[stage, key] for key in _OF_STAGES.values()}}
        for stage, num_live in live_replicas.items()
    ]
    return {"requests": {key: totals[key] for key in _OF_ALL.values()}, "stages": stages}
