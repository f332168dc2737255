"""The routes: an ASGI application over some `ServedModel`s."""

import contextlib
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ... import __version__
from . import absent, chat, choices, completions, llamacpp, responses
from . import protocol as p
from .errors import APIError, EngineError
from .guard import Guard
from .http import GoneAway, body, error_response, json_response
from .metrics import Metrics

_PAGE = Path(__file__).with_name("page.html")
_PAGE_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


def create_app(
    models, *, adapters=(), api_keys=(), allowed_origins=(), max_body=16 << 20, body_seconds=60.0, on_start=None
):
    """The FastAPI application. `models` are `ServedModel`s, of which the first answers where a request names none, and
    `adapters` those of them with an adapter.

    Their engines begin to load when the application starts, and end with it. `allowed_origins` are those whose pages
    may call it from a browser (none: no CORS headers). `on_start(task)` is given a coroutine that waits for the models.
    """
    by_name = {model.name: model for model in (*models, *adapters)}
    metrics, created = Metrics(models), choices.now()

    @contextlib.asynccontextmanager
    async def lifespan(app):
        for model in models:
            model.engine.launch()
        if on_start is not None:
            on_start(models)
        yield
        for model in models:
            await model.engine.close()

    app = FastAPI(title="infinicore", version=__version__, lifespan=lifespan, openapi_url=None)
    if allowed_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(allowed_origins), allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(Guard, api_keys=api_keys, max_body=max_body, body_seconds=body_seconds)
    _handle_errors(app)

    def named(name):
        if name is None:
            return models[0]
        if name not in by_name:
            known = ", ".join(map(repr, by_name))
            message = f"`model` {name!r} is not served here; there is {known}"
            raise APIError(404, message, param="model", code="model_not_found")
        return by_name[name]

    def generation(kind, respond, *paths):
        """A route that hands a body of `kind` to `respond`."""

        async def route(http: Request, request: Annotated[Any, Depends(body(kind))]):
            return await respond(http, named(getattr(request, "model", None)), request)

        for path in paths:
            app.post(path)(route)

    generation(p.ChatCompletionRequest, chat.respond, "/v1/chat/completions", "/chat/completions")
    generation(p.CompletionRequest, completions.respond, "/v1/completions", "/completions")
    generation(p.ResponseRequest, responses.respond, "/v1/responses")
    generation(p.EmbeddingRequest, completions.embed, "/v1/embeddings", "/embeddings")
    generation(p.LlamaCompletionRequest, llamacpp.respond, "/completion")
    generation(p.InfillRequest, llamacpp.respond, "/infill")
    generation(p.TokenizeRequest, _tokenize, "/tokenize")
    generation(p.DetokenizeRequest, _detokenize, "/detokenize")
    generation(p.ApplyTemplateRequest, _apply_template, "/apply-template")

    def row(model):
        row = {"id": model.name, "object": "model", "created": created, "owned_by": "infinicore"}
        return row | {"root": str(model.path), "parent": model.parent, "max_model_len": model.context}

    @app.get("/v1/models")
    @app.get("/models")
    async def list_models():
        return json_response({"object": "list", "data": [row(model) for model in by_name.values()]})

    @app.get("/v1/models/{name:path}")
    async def show_model(name: str):
        return json_response(row(named(name)))

    @app.api_route("/health", methods=["GET", "HEAD"])
    @app.api_route("/v1/health", methods=["GET", "HEAD"])
    @app.api_route("/ping", methods=["GET", "HEAD"])
    async def health():
        rows = {m.name: {"state": m.engine.state, "restarts": m.engine.restarts} for m in models}
        wrong = next((m.engine for m in models if m.engine.state != "ready"), None)
        if wrong is None:
            return json_response({"status": "ok", "models": rows})
        told = APIError(503, wrong.reason, code="engine_unavailable", retry_after=2)
        return json_response({"status": wrong.state, "models": rows} | told.body(), 503, told.headers)

    @app.get("/metrics")
    async def show_metrics():
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/version")
    async def version():
        return json_response({"version": __version__})

    @app.get("/load")
    async def load():
        return json_response({"server_load": sum(model.engine.open_answers for model in models)})

    @app.get("/tokenizer_info")
    async def tokenizer_info(model: str | None = None):
        return json_response(named(model).tokenizer.config)

    @app.get("/props")
    async def props(model: str | None = None):
        served = named(model)
        served.engine.check_ready()
        return json_response(llamacpp.props(served, __version__))

    @app.get("/slots")
    async def slots(model: str | None = None, fail_on_no_slot: bool = False):
        served = named(model)
        served.engine.check_ready()
        rows = llamacpp.slots(served)
        if fail_on_no_slot and all(row["is_processing"] for row in rows):
            raise APIError(503, f"all {len(rows)} slots are busy", code="no_slot", retry_after=1)
        return json_response(rows)

    @app.get("/")
    async def page():
        return HTMLResponse(_PAGE.read_text("utf-8"), headers={"Content-Security-Policy": _PAGE_POLICY})

    return app


def _handle_errors(app):
    async def answer(request, error):
        return error_response(error)

    for kind in (APIError, EngineError, ValueError, TypeError, NotImplementedError, Exception):
        app.add_exception_handler(kind, answer)

    @app.exception_handler(HTTPException)
    async def no_route(request, error):
        path, status = request.url.path, error.status_code
        texts = {404: f"there is no route {path}", 405: f"{path} does not know {request.method}"}
        text, why = texts.get(status, str(error.detail)), absent.reason(path)
        # 404 and not 501: official clients send again what ended with 500 or more.
        response = error_response(APIError(status, f"{text}: {why}" if status == 404 and why else text))
        response.headers.update(error.headers or {})  # of a 405: which methods there are
        return response

    @app.exception_handler(ClientDisconnect)
    @app.exception_handler(GoneAway)
    async def gone(request, error):
        return Response(status_code=499)  # nobody reads it


# ---- texts and token ids -------------------------------------------------------------------------


async def _tokenize(http, model, request):
    given = [name for name in ("prompt", "content", "messages") if getattr(request, name) is not None]
    if len(given) != 1:
        raise APIError(
            400, "`prompt` (or `content`, or `messages`) is what to tokenize: give one of them", param="prompt"
        )
    llama = given == ["content"]
    special = request.add_special if llama else request.add_special_tokens
    if request.messages is not None:
        tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()] or None
        options = dict(variables=request.chat_template_kwargs, **chat.ending(request))
        _, ids = await model.encode_chat(chat.messages_of(request), tools=tools, **options)
    else:
        text = request.content if llama else request.prompt
        ids = await model.encode(text, given[0], not llama if special is None else special) if text else []
    if llama and request.with_pieces:
        return json_response({"tokens": [{"id": i, "piece": model.token_text(i)} for i in ids]})
    if llama:
        return json_response({"tokens": ids})
    strings = [model.token_text(i) for i in ids] if request.return_token_strs else None
    return json_response({"count": len(ids), "max_model_len": model.context, "tokens": ids, "token_strs": strings})


async def _detokenize(http, model, request):
    size = len(model.tokenizer)
    for token in request.tokens:
        if token >= size:
            raise APIError(400, f"`tokens` has {token}, and the vocabulary ends at {size - 1}", param="tokens")
    text = model.tokenizer.decode(request.tokens, skip_special_tokens=False)
    return json_response({"prompt": text, "content": text})


async def _apply_template(http, model, request):
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()] or None
    text, _ = await chat.template(model, request, tools=tools)
    return json_response({"prompt": text})
