"""genai-bench and guidellm: a short run of each finishes without a failure, and its figures make sense."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.clients.environments import program, run
from tests.process.conftest import Server
from tests.process.metrics_page import metric

NUM_REQUESTS, NUM_AT_ONCE, NUM_TOKENS, NUM_CHARS = 6, 2, 8, 60
LEAST_BYTES, MOST_BYTES = 2 * 24_000, 10 * 2 * 24_000
"""1 to 10 s of audio: what 60 characters can take to say."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose tokens are bytes: both programs want one in a folder, and none may be fetched."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    of_bytes = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    of_bytes.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=of_bytes).save_pretrained(folder)
    return folder


def answered(server: Server, route: str) -> int:
    """How many requests to `route` the server has answered with 200."""
    counts = metric(server, "http_requests_total")
    return int(
        sum(count for labels, count in counts.items() if f'route="{route}"' in labels and 'status="200"' in labels)
    )


def test_genai_bench_measures_speech(server, tokenizer, tmp_path):
    before = answered(server, "/v1/audio/speech")
    options = {
        "--api-backend": "openai",
        "--api-base": server.url,
        "--api-key": "none",
        "--task": "text-to-speech",
        "--api-model-name": "voice",
        "--model": "voice",
        "--model-tokenizer": str(tokenizer),
        "--traffic-scenario": f"A({NUM_CHARS})",
        "--additional-request-params": '{"response_format": "pcm"}',
        "--num-concurrency": str(NUM_AT_ONCE),
        "--max-time-per-run": "2",
        "--max-requests-per-run": str(NUM_REQUESTS),
        "--experiment-base-dir": str(tmp_path),
        "--experiment-folder-name": "run",
        "--log-dir": str(tmp_path),
    }
    run(program("load", "genai-bench"), "benchmark", *(word for option in options.items() for word in option))
    (results,) = (tmp_path / "run").glob("A60_*.json")
    told = json.loads(results.read_text())
    totals, stats = told["aggregated_metrics"], told["aggregated_metrics"]["stats"]
    assert totals["num_completed_requests"] >= NUM_REQUESTS
    assert (totals["num_error_requests"], totals["error_codes_frequency"]) == (0, {})
    assert answered(server, "/v1/audio/speech") - before >= totals["num_completed_requests"]
    assert 0 < stats["ttft"]["mean"] <= stats["e2e_latency"]["mean"]
    for each in told["individual_request_metrics"]:
        num_bytes = each["audio_throughput"] * (each["e2e_latency"] - each["ttft"])
        assert LEAST_BYTES < num_bytes < MOST_BYTES, each


def test_guidellm_measures_chat(server, tokenizer, tmp_path):
    before, results = answered(server, "/v1/chat/completions"), tmp_path / "results.json"
    options = {
        "--backend": f"kind=openai_http,target={server.url}",
        "--profile": f"kind=concurrent,streams={NUM_AT_ONCE}",
        "--constraint": f"kind=max_requests,count={NUM_REQUESTS}",
        "--data": f"kind=synthetic_text,prompt_tokens=40,output_tokens={NUM_TOKENS}",
        "--tokenizer": f"kind=hf_auto,model={tokenizer}",
        "--output": f"kind=json,path={results}",
    }
    words = (word for option in options.items() for word in option)
    run(program("load", "guidellm"), "run", "--disable-console", *words, GUIDELLM__MAX_WORKER_PROCESSES="1")
    (benchmark,) = json.loads(results.read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (NUM_REQUESTS, 0, 0)
    assert answered(server, "/v1/chat/completions") - before >= NUM_REQUESTS
    assert metrics["output_token_count"]["successful"]["mean"] == NUM_TOKENS, (
        "the usage or `ignore_eos` is not honoured"
    )
    first_s = metrics["time_to_first_token_ms"]["successful"]["mean"] / 1000
    assert 0 < first_s < metrics["request_latency"]["successful"]["mean"]
