"""What all routes share: the engine once it is there, who is asking, what became of requests. One per process."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from kvtrace.tracer.receive import Receiver

from ..config import EngineConfig
from .detokenize import decoder
from .errors import ApiError
from .identity import Identities
from .parameters import Defaults, Room
from .records import RequestRecord
from .schemas import MOST_PROMPTS
from .settings import MOST_BODY_BYTES, ServerSettings
from .waking import Waker

if TYPE_CHECKING:
    from ..api import Engine
    from ..model import LoadedModel

T = TypeVar("T")

_LOADING_RETRY_S: Final = 5
_MOST_RETRY_S: Final = 60
_RECENT: Final = 64
_WORDS: Final = 65536
_log = logging.getLogger(__name__)

RequestListener = Callable[[RequestRecord], None]
ReadyListener = Callable[["Service"], None]


class Service:
    """The server's state. Loading tells it phases and the engine from its thread; all else is the event loop's.

    ``room``, ``defaults`` and ``token_text`` (a token's text, special or not) are set when the model is there.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.identities = Identities()
        self.receiver = Receiver()
        self.started_monotonic = time.monotonic()
        self.created_unix = int(time.time())
        self.phase = "starting"
        self.stopping = asyncio.Event()
        self.open: set[str] = set()  # response ids of requests in progress
        self.room = Room(0, 0)
        self.defaults = Defaults()
        self.token_text: Callable[[int], str] = str
        self._running: tuple[Engine, LoadedModel] | None = None
        self._failure: str | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._on_ready: list[ReadyListener] = []
        self._on_request: list[RequestListener] = []
        self._on_close: list[Callable[[], None]] = []
        self._workers = ThreadPoolExecutor(2, "kvtrace-prompt")
        self._durations: deque[float] = deque(maxlen=_RECENT)
        self._waker: Waker | None = None

    # Coming up

    def entered(self, phase: str) -> None:
        """Say what is being done now; from any thread."""
        self.phase = phase

    def opened(self, engine: Engine, model: LoadedModel, config: EngineConfig) -> None:
        """The engine runs: answer requests from now on; from any thread."""
        longest = max(map(len, model.tokenizer.get_vocab()))
        self.room = Room(config.context_tokens, config.device_blocks * model.geometry.block_tokens, longest)
        self.defaults = Defaults.of(model.model.generation_config)
        decode = decoder(model.tokenizer, keep_special=True)
        self.token_text = lru_cache(_WORDS)(lambda token: decode([token]))
        with self._lock:
            closed = self._closed
            if not closed:
                self._running, self.phase = (engine, model), "ready"
            listeners, self._on_ready = self._on_ready, []
        if closed:
            engine.close()
            return
        for listener in listeners:
            listener(self)

    def failed(self, message: str) -> None:
        """There will be no engine."""
        self._failure, self.phase = message, "failed"

    def stop(self) -> None:
        """Take no new work; streams without an end of their own end now. In the event loop's thread, or a signal's."""
        self.stopping.set()

    def on_ready(self, listener: ReadyListener) -> None:
        """Have ``listener`` called when the engine runs, or now if it does."""
        with self._lock:
            if self._running is None:
                self._on_ready.append(listener)
                return
        listener(self)

    # For routes

    @property
    def ready(self) -> bool:
        """Whether there is an engine."""
        return self._running is not None

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            ApiError: 503 while it is not there.
        """
        return self._pair()[0]

    @property
    def model(self) -> LoadedModel:
        """The model.

        Raises:
            ApiError: 503 while it is not there.
        """
        return self._pair()[1]

    @property
    def waker(self) -> Waker:
        """Wakes this event loop."""
        if self._waker is None:
            self._waker = Waker(asyncio.get_running_loop())
        return self._waker

    def check_model(self, name: str) -> None:
        """Refuse a request for another model with a 404."""
        known = (self.model.model_id, self.settings.source, *self.settings.aliases)
        if name not in known and "*" not in known:
            raise ApiError(
                404,
                f"the model {name!r} is not served here: ask for {self.model.model_id!r}, or start kvtrace serve with "
                f"--alias {name!r}",
                param="model",
                code="model_not_found",
            )

    def most_body_bytes(self, path: str) -> int:
        """How large a body of a request to ``path`` may be.

        Parsing stops everything for as long as it takes, since it never lets go of Python's lock: half a second for the
        largest body, in whichever thread. So what cannot be a request that fits is not parsed at all.
        """
        prompts = {"/v1/chat/completions": 1, "/v1/responses": 1, "/v1/completions": MOST_PROMPTS}.get(path)
        if prompts is None or not self.ready:
            return MOST_BODY_BYTES
        return min(MOST_BODY_BYTES, self.room.body_bytes(prompts))

    def check_open(self) -> None:
        """Refuse new work while the server stops."""
        if self.stopping.is_set():
            raise ApiError(503, "the server is shutting down", code="shutting_down", retry_after_s=_LOADING_RETRY_S)

    @property
    def crowded(self) -> bool:
        """Whether more requests are open than slots and queue can take."""
        return len(self.open) > self.settings.slots + self.settings.queue_requests

    def retry_after_s(self) -> int:
        """Seconds until a slot is likely to be free: a request's usual time over the slots, by how many are open."""
        usual = sum(self._durations) / len(self._durations) if self._durations else 1.0
        return min(max(math.ceil(usual * len(self.open) / self.settings.slots), 1), _MOST_RETRY_S)

    async def in_worker(self, work: Callable[[], T]) -> T:
        """Do CPU work of some milliseconds off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    # For metrics and spans

    def on_request(self, listener: RequestListener) -> None:
        """Have ``listener`` called with the record of each request when it is over; it must be quick."""
        self._on_request.append(listener)

    def ended(self, record: RequestRecord) -> None:
        """A request is over."""
        record.ended_unix_ns = time.time_ns()
        self.open.discard(record.response_id)
        if record.usage.output_tokens:
            self._durations.append((record.ended_unix_ns - record.arrived_unix_ns) / 1e9)
        for listener in self._on_request:
            try:
                listener(record)
            except Exception:
                _log.exception("a request listener failed")

    def on_close(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called when everything else has ended."""
        self._on_close.append(listener)

    def close(self) -> None:
        """End the engine and the workers; closing again does nothing."""
        with self._lock:
            self._closed = True
        self._workers.shutdown(wait=False, cancel_futures=True)
        if self._running is not None:
            self._running[0].close()
        while self._on_close:
            self._on_close.pop()()

    def _pair(self) -> tuple[Engine, LoadedModel]:
        if self._running is None:
            if self._failure is not None:
                raise ApiError(500, self._failure, code="start_failed")
            message = f"the model is not ready yet: {self.phase}"
            raise ApiError(503, message, code="loading", retry_after_s=_LOADING_RETRY_S)
        return self._running
