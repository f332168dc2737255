"""InfiniLM's asynchronous engine: its names, token by token."""

import asyncio
import os
import signal

import pytest

pytest.importorskip("tokenizers")

from infinicore.lm import LLM, AsyncLLMEngine, SamplingParams
from infinicore.lm.infinilm import FinishReason


def test_a_program_that_was_written_for_it(stories):
    greedy = SamplingParams(temperature=0, max_tokens=12)
    wanted = LLM(stories).generate("Once upon a time", greedy)[0].outputs[0]

    async def work():
        engine = AsyncLLMEngine(
            model_path=str(stories), device="cpu", tensor_parallel_size=1, cache_type="paged", max_batch_size=4,
            num_blocks=32, block_size=16, max_cache_len=256, temperature=1.0, top_k=1, top_p=0.8, max_tokens=5,
            attn_backend="paged-attn", kv_transfer_config=None,
        )  # fmt: skip
        engine.start()
        assert not engine.is_healthy()
        await engine.ready()
        assert engine.is_healthy()

        async def read(request, **options):
            return [output async for output in engine.stream_request(request, **options)]

        request = engine.add_request(prompt="Once upon a time", sampling_params=greedy, request_id="mine")
        outputs = await read(request)
        assert [output.token_id for output in outputs] == wanted.token_ids
        assert "".join(output.token_text for output in outputs) == wanted.text == outputs[-1].generated_text
        assert outputs[-1].finish_reason is FinishReason.LENGTH and outputs[-1].request_id == "mine"
        assert [output.finished for output in outputs] == [False] * 11 + [True]
        stopped = SamplingParams(temperature=0, max_tokens=12, stop=",")
        outputs = await read(engine.add_request(prompt="Once upon a time", sampling_params=stopped))
        assert outputs[-1].finish_reason is FinishReason.STOP_STRING
        chat = await read(engine.add_chat_request([{"role": "user", "content": "Hi"}], request_data={"x": 1}))
        assert sum(output.token_id is not None for output in chat) == 5  # the engine's own max_tokens

        long = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        request = engine.add_request(prompt_token_ids=[1, 403], sampling_params=long)
        asyncio.get_running_loop().call_later(0.01, engine.add_aborted_req, request)
        assert (await read(request))[-1].finish_reason is FinishReason.CANCELED
        late = await read(engine.add_request(prompt="a", sampling_params=long), request_timeout=0.0)
        assert late[-1].finish_reason is FinishReason.TIMEOUT and late[-1].finished
        with pytest.raises(ValueError, match="give one of them"):
            engine.add_request(prompt="a", messages=[])
        request = engine.add_request(prompt="a", sampling_params=long)
        os.kill(engine._engine.pid, signal.SIGKILL)
        assert (await read(request))[-1].finish_reason is FinishReason.ERROR
        await engine.stop()
        assert not engine.is_healthy()

    asyncio.run(work())
    with pytest.raises(NotImplementedError, match="`kv_transfer_config` must be None"):
        AsyncLLMEngine(stories, kv_transfer_config={})
