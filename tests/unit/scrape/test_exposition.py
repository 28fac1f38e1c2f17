from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode.acceptance import Sample
from specdecode.acceptance.arm import ArmWindow
from specdecode.acceptance.counters import Counters, Increment
from specdecode.acceptance.types import Source
from specdecode.scrape import BadPageError, EnginePage, engine_page, proxy_page
from tests.unit.scrape import pages


def parse(page: str, *, prefill_apart: bool = False) -> EnginePage:
    return engine_page(page, t=5.0, arm="canary", pod="uid", prefill_apart=prefill_apart)


def test_an_engine_s_page_becomes_a_sample() -> None:
    assert parse(pages.page()).samples == (
        Sample(
            t=5.0,
            arm="canary",
            pod="uid",
            engine="0",
            depth=3,
            drafts=100.0,
            draft_tokens=300.0,
            accepted=180.0,
            accepted_per_pos=(90.0, 60.0, 30.0),
            generation_tokens=280.0,
            tpot_sum=12.5,
            tpot_count=20.0,
            requests_running=3.0,
            requests_finished=20.0,
            requests_failed=4.0,
            transfers_failed=5.0,
            created=1.7e9,
        ),
    )


def test_each_engine_of_a_pod_is_a_sample() -> None:
    found = parse(pages.page(pages.engine("1", drafts=7.0), pages.engine("0", drafts=5.0)))
    assert [(s.engine, s.drafts) for s in found.samples] == [("0", 5.0), ("1", 7.0)]


def test_the_start_of_the_process_stands_in_for_the_counter_s() -> None:
    page = "\n".join(line for line in pages.page().split("\n") if "_created" not in line)
    assert parse(page).samples[0].created == 1.6e9


@pytest.mark.parametrize(
    ("prefill_apart", "drafted", "corrected"),
    [
        (True, None, True),
        (True, (100.0, 100.0, 100.0), False),
        (False, None, False),
    ],
)
def test_an_unpatched_engine_under_pd_counts_empty_first_drafts(
    prefill_apart: bool, drafted: tuple[float, ...] | None, corrected: bool
) -> None:
    sample = parse(pages.page(pages.engine(drafted=drafted)), prefill_apart=prefill_apart).samples[0]
    assert sample.empty_first_draft is corrected
    assert sample.drafted_per_pos == drafted


def test_the_info_metric_s_labels_are_kept_by_engine() -> None:
    info = r'depth="3",host_copy_reason="says \"no\",\\ {really}\n",top_k_sharing="enabled"'
    found = parse(pages.page(pages.engine(info=info)))
    assert found.info == {
        "0": {
            "engine": "0",
            "model_name": "org/some-model",
            "depth": "3",
            "host_copy_reason": 'says "no",\\ {really}\n',
            "top_k_sharing": "enabled",
        }
    }


def test_a_page_without_the_info_metric_has_none() -> None:
    assert parse(pages.page()).info == {}


DRAFTS = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="org/some-model"} 100.0'


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("", "empty"),
        (pages.page()[:-1], "cut"),
        (pages.page()[: len(pages.page()) // 2], "cut"),
        ("<html>404</html>\n", "no series of vLLM"),
        (pages.PROXY, "no series of vLLM"),
        ("vllm:num_requests_running 1\n", "speculation is off"),
        (pages.page().replace(DRAFTS, DRAFTS[:-5] + "NaN"), "nan"),
        (pages.page().replace(DRAFTS, DRAFTS[:-5] + "-1"), "-1"),
        (pages.page().replace(DRAFTS, DRAFTS[:-5] + "+Inf"), "inf"),
        (pages.page().replace(DRAFTS, DRAFTS[:-5] + "many"), "'many'"),
        (pages.page().replace(DRAFTS, DRAFTS[:-6]), "malformed"),
        (pages.page().replace(DRAFTS, DRAFTS.replace('"0"', '"0')), "malformed"),
        (pages.page() + DRAFTS + "\n", "two series"),
        (pages.page().replace('position="1"', 'position="7"'), "positions"),
        (pages.page().replace('position="1"', 'position="one"'), "position 'one'"),
        (pages.page().replace("num_accepted_tokens_total", "other_total"), "no vllm:spec_decode_num_accepted_tokens"),
    ],
)
def test_what_can_t_be_used_is_refused_whole_with_its_reason(page: str, why: str) -> None:
    with pytest.raises(BadPageError, match=why):
        parse(page)


@given(st.text(alphabet='vlm:spec_docn{}"=,\\ \n0189.NaeE+-', max_size=300), st.integers(0, 4000))
def test_nothing_but_bad_page_errors_comes_of_garbage(garbage: str, where: int) -> None:
    whole = pages.page()
    page = whole[: where % len(whole)] + garbage + whole[where % len(whole) :]
    try:
        found = parse(page)
    except BadPageError:
        return
    for sample in found.samples:
        assert all(math.isfinite(v) and v >= 0.0 for v in (sample.drafts, sample.accepted, *sample.accepted_per_pos))


def test_a_large_page_takes_two_milliseconds_at_most() -> None:
    page = pages.large()
    assert len(page) > 90_000

    def once() -> float:
        began = time.thread_time()
        parse(page)
        return time.thread_time() - began

    assert min(once() for _ in range(20)) < 0.002


def test_the_proxy_s_answers_by_class() -> None:
    sample = proxy_page(pages.PROXY, t=5.0, arm="stable", pod="uid")
    assert (sample.source, sample.requests_finished, sample.requests_failed) == ("router", 50.0, 7.0)
    # Together they are all that was answered: a request that failed is not counted twice.
    assert (sample.requests_finished or 0.0) + (sample.requests_failed or 0.0) == 57.0
    assert (sample.drafts, sample.accepted_per_pos) == (0.0, ())


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (pages.page(), "no series of Envoy"),
        (pages.PROXY.replace('"entry"', '"other"'), "listener 'entry'"),
        (pages.PROXY.replace(" 40\n", " NaN\n"), "nan"),
    ],
)
def test_a_proxy_s_page_that_can_t_be_used_is_refused(page: str, why: str) -> None:
    with pytest.raises(BadPageError, match=why):
        proxy_page(page, t=5.0, arm="stable", pod="uid")


@pytest.mark.parametrize(("failed", "answered"), [(20, 0), (10, 30)])
def test_the_failing_share_is_that_of_all_answers(failed: int, answered: int) -> None:
    """From the proxies' pages to what the analysis judges by: a failed request isn't one that ended beside it."""

    def increment(counters: Counters) -> Increment:
        found = None
        for t, counts in ((0.0, {}), (5.0, {"2": answered, "5": failed})):
            lines = [
                "# TYPE envoy_http_downstream_rq_xx counter",
                *(
                    f'envoy_http_downstream_rq_xx{{envoy_response_code_class="{digit}",'
                    f'envoy_http_conn_manager_prefix="entry"}} {counts.get(digit, 0)}'
                    for digit in "12345"
                ),
            ]
            found = counters.advance(proxy_page("\n".join(lines) + "\n", t=t, arm="canary", pod="uid"))
        assert isinstance(found, Increment)
        return found

    arm = ArmWindow("canary")
    arm.has_router = True
    arm.routed.append(increment(Counters()))
    assert arm.failures() == (failed + answered, failed)


@pytest.mark.parametrize(
    ("routed", "engine", "transfers", "judged"),
    [
        ((0, 4), (0, 4), 20, (4, 4)),  # four requests, each tried five times
        ((16, 4), (16, 0), 23, (20, 7)),  # and three were healed on their way
        ((10, 0), (10, 0), 3, (10, 3)),
        ((10, 0), (10, 0), 30, (10, 10)),
        (None, (0, 0), 20, (20, 20)),  # no proxy, and engines that don't count what was refused
        (None, (30, 0), 20, (30, 20)),
    ],
)
def test_tries_of_one_request_are_one_failed_request(
    routed: tuple[int, int] | None, engine: tuple[int, int], transfers: int, judged: tuple[int, int]
) -> None:
    def increment(source: Source, finished: int, failed: int, transfers: int) -> Increment:
        return Increment(
            5.0, 5.0, "canary", "uid", "0", source, 0.0, (), (), finished, failed, 0.0, None, None, float(transfers)
        )

    arm = ArmWindow("canary")
    if routed is not None:
        arm.has_router = True
        arm.routed.append(increment("router", *routed, 0))
    arm.take(increment("engine", *engine, transfers))
    assert arm.failures() == judged
