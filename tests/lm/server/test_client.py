"""`EngineClient` and `AsyncEngine` without HTTP."""

import asyncio
import os

import fake_engine
import pytest

from infinicore.lm import AsyncEngine, SamplingParams
from infinicore.lm.server.client import EngineClient
from infinicore.lm.server.errors import EngineError
from infinicore.lm.tokenizer import tokenizer_at

TEXT = " ".join(["one two three"] * 20)


def running(stories, test, **options):
    """Runs the coroutine function `test(engine, ids)` with an engine; `ids` makes prompts."""
    tokenizer = tokenizer_at(stories)

    async def run():
        engine = EngineClient(fake_engine.make, {"path": str(stories)} | options)
        await engine.start()
        try:
            await asyncio.wait_for(test(engine, tokenizer.encode), 30)
        finally:
            await engine.close()
        assert engine.pid is None and engine.state == "closed"

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["delta", "cumulative", "final_only"])
def test_outputs_add_up_also_for_slow_readers(stories, kind):
    async def test(engine, ids):
        params = SamplingParams(output_kind=kind, max_tokens=500, n=2, temperature=1.0, logprobs=1)
        texts, counts, rows, last = ["", ""], [0, 0], [0, 0], None
        async for output in engine.generate(ids("say " + TEXT), params):
            await asyncio.sleep(0.01)  # the engine is faster
            last = output
            for answer in output.outputs:
                keep = kind == "delta"
                texts[answer.index] = texts[answer.index] * keep + answer.text
                counts[answer.index] = counts[answer.index] * keep + len(answer.token_ids)
                rows[answer.index] = rows[answer.index] * keep + len(answer.logprobs)
        assert last.finished and texts[0].split() == TEXT.split() and texts[1] == texts[0]
        assert counts == rows == [len(ids(TEXT, False))] * 2

    running(stories, test)


def test_leaving_a_loop_ends_the_request(stories):
    async def test(engine, ids):
        params = SamplingParams(output_kind="delta", max_tokens=900)
        stream = engine.generate(ids("slow 20 " + "x " * 800), params)
        async for _ in stream:
            break
        await stream.aclose()

        async def read():
            async for _ in engine.generate(ids("slow 20 " + "x " * 800), params):
                pass

        task = asyncio.ensure_future(read())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert engine.open_answers == 0
        async for output in engine.generate(ids("say fine"), SamplingParams(output_kind="final_only")):
            assert output.outputs[0].text.strip() == "fine"
        while engine.stats.num_requests_running:
            await asyncio.sleep(0.01)
        assert engine.stats.requests_finished["abort"] == 2

    running(stories, test)


def test_a_dead_engine_is_told_and_replaced(stories):
    async def test(engine, ids):
        for died in (1, 2):
            with pytest.raises(EngineError, match="signal 9"):
                await anext(engine.generate(ids("die")))
            assert engine.restarts == died
            with pytest.raises(EngineError):
                engine.check_ready()
            while engine.state != "ready":
                await asyncio.sleep(0.01)
        assert (await engine.embed([[1, 2]]))[0][0] == 2

    running(stories, test)


def test_closing_ends_requests(stories):
    async def test(engine, ids):
        pid = engine.pid
        waiting = asyncio.ensure_future(anext(engine.generate(ids("step 5000"))))
        await asyncio.sleep(0.1)
        await engine.close()
        with pytest.raises(EngineError, match="shutting down"):
            await waiting
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    running(stories, test)


def test_what_cannot_be_loaded(stories, tmp_path):
    async def start(engine):
        with pytest.raises(Exception) as caught:
            await asyncio.wait_for(engine.start(), 20)
        await engine.close()
        return caught.value

    broken = EngineClient(fake_engine.make, {"path": str(stories), "marker": str(tmp_path / "none")})
    error = asyncio.run(start(broken))
    assert isinstance(error, ValueError) and str(error) == "the weights are broken"
    error = asyncio.run(start(EngineClient(lambda: None)))
    assert "pickle" in str(error).lower()
    error = asyncio.run(start(EngineClient(os._exit, {"status": 7})))
    assert "status 7" in str(error)
    error = asyncio.run(start(AsyncEngine(tmp_path / "nothing")))
    assert "nothing" in str(error)


def test_the_real_one(stories):
    async def run():
        engine = AsyncEngine(stories, max_num_seqs=4, kv_cache_memory=4 << 20)
        await engine.start()
        assert engine.info == {
            "max_model_len": 512, "max_num_seqs": 4, "speculative": False, "eos_token_ids": (2,), "vocab_size": 512,
        }  # fmt: skip

        async def one(i):
            params = SamplingParams(temperature=1.0, seed=i % 3, max_tokens=20, output_kind="final_only")
            async for output in engine.generate("Once upon a time", params, priority=-i):
                return output.outputs[0].text

        texts = await asyncio.gather(*map(one, range(12)))
        await engine.close()
        assert len(set(texts)) == 3 and texts[:3] * 4 == texts

    asyncio.run(run())
