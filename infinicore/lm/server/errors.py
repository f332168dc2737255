"""Errors as OpenAI's API writes them: a status, and an object that says what was wrong with which parameter."""

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class APIError(Exception):
    """What a client is told instead of an answer. `retry_after` is in seconds."""

    def __init__(self, status, message, *, param=None, code=None, retry_after=None):
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    @property
    def headers(self):
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def body(self):
        """The error object."""
        kind = "server_error" if self.status >= 500 else _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class EngineError(RuntimeError):
    """The engine could not do a request that was right: it died, is not ready, or the server is shutting down."""


class QueueFull(EngineError):
    """More requests than the engine takes at once and may keep waiting."""


def as_api_error(error):
    """The `APIError` for an exception of the engine, or of what prepares a request for it."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, QueueFull):
        return APIError(429, str(error), code="queue_full", retry_after=1)
    if isinstance(error, EngineError):
        return APIError(503, str(error), code="engine_unavailable", retry_after=2)
    if isinstance(error, (ValueError, TypeError, NotImplementedError)):
        text = str(error)
        name = (
            text[1:].split("`")[0] if text.startswith("`") else None
        )  # sentences begin with the argument they are about
        return APIError(400, text, param=name)
    if isinstance(error, ImportError):  # of a library that is not installed here
        return APIError(501, str(error))
    return APIError(500, f"the server failed: {type(error).__name__}", code="internal_error")
