"""Every span attribute, resource attribute and environment variable that kvtrace writes or reads.

The GenAI names follow semantic-conventions-genai v0.1.0. They are owned here, not imported from the
OpenTelemetry packages, because the upstream constants moved once already. Units are part of each line.
"""

from __future__ import annotations

from typing import Final

# --- GenAI semantic conventions -------------------------------------------------------------------
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"  # one of the OPERATION_* values below
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"  # "openai", "kvtrace", ...
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"  # model the caller asked for
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"  # model that answered
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"  # tokens
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"  # double
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"  # double
GEN_AI_REQUEST_STREAM: Final = "gen_ai.request.stream"  # true where the answer came piece by piece
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"  # the id of the answer, as its JSON has it
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"  # list of strings
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"  # tokens
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"  # tokens
GEN_AI_USAGE_CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"  # tokens
GEN_AI_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"  # seconds, double
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"  # the conversation, where known
GEN_AI_AGENT_ID: Final = "gen_ai.agent.id"  # read from others' spans
GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"  # human-readable agent name
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"  # tool name
GEN_AI_TOOL_TYPE: Final = "gen_ai.tool.type"  # "function", "extension" or "datastore"
GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"  # id the model gave the call
GEN_AI_TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"  # content, opt-in, JSON
GEN_AI_TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"  # content, opt-in, JSON
ERROR_TYPE: Final = "error.type"  # class name of what was raised

OPERATION_CHAT: Final = "chat"
OPERATION_EXECUTE_TOOL: Final = "execute_tool"
OPERATION_INVOKE_AGENT: Final = "invoke_agent"
OPERATION_HUMAN_WAIT: Final = "kvtrace.human_wait"  # ours: the conventions model no wait for a person

TOOL_TYPE_FUNCTION: Final = "function"  # the default of gen_ai.tool.type

# --- kvtrace's own: on every span, at start -------------------------------------------------------
AGENT_ID: Final = "kvtrace.agent.id"  # owner of one growing context = one KV sequence
PARENT_AGENT_ID: Final = "kvtrace.agent.parent.id"  # agent that started this one, on invoke_agent spans
UNKNOWN_AGENT: Final = "unknown"  # value of kvtrace.agent.id where nobody could be named
# --- kvtrace's own: at the end --------------------------------------------------------------------
OUTCOME: Final = "kvtrace.outcome"  # one of the OUTCOME_* values, absent after an ordinary end or an error
OUTCOME_CANCELLED: Final = "cancelled"  # the task was cancelled: no failure
OUTCOME_CLOSED: Final = "closed"  # a generator or coroutine was closed or dropped before its own end
QUEUED_INTERVALS: Final = "kvtrace.queued.unix_ns"  # int array: start, end, start, end, ... of queue or restore waits
PREFILLED_TOKENS: Final = "kvtrace.prefilled_tokens"  # tokens computed for the prompt
REPREFILLED_TOKENS: Final = "kvtrace.reprefilled_tokens"  # positions prefilled though their KV once existed
CACHED_DEVICE_TOKENS: Final = "kvtrace.cached_device_tokens"  # prompt tokens whose KV was in device memory
CACHED_HOST_TOKENS: Final = "kvtrace.cached_host_tokens"  # prompt tokens whose KV came back from host memory
QUEUED_SECONDS: Final = "kvtrace.queued.seconds"  # double; of the intervals of kvtrace.queued.unix_ns, without a slot
RESTORING_SECONDS: Final = "kvtrace.restoring.seconds"  # double; of the same intervals, waiting for its KV
KV_BYTES: Final = "kvtrace.kv.bytes"  # KV that a kv.park or kv.restore span was about, bytes
KV_WHY: Final = "kvtrace.kv.why"  # why the policy did it, in words
YIELDED: Final = "kvtrace.yielded"  # items that a traced generator handed out
SUSPENDED_INTERVALS: Final = "kvtrace.suspended.unix_ns"  # int array: start, end, ... while a generator's consumer ran
RESPONSE_TOOL_CALL_IDS: Final = "kvtrace.response.tool_call_ids"  # string array: the calls a model response asks for
INFERRED: Final = "kvtrace.inferred"  # true: no library traced this tool; it is the time between two model calls
HUMAN_WAIT_REASON: Final = "kvtrace.human_wait.reason"  # why a person is waited for, in the caller's words
CONTENT_BYTES_SUFFIX: Final = ".bytes"  # size of captured content before it was cut, bytes
CONTENT_SHA256_SUFFIX: Final = ".sha256"  # hex digest of captured content before it was cut

# --- Resource attributes of a span file -----------------------------------------------------------
SERVICE_NAME: Final = "service.name"
PROCESS_PID: Final = "process.pid"  # writer's process id
HOST_NAME: Final = "host.name"  # writer's host, so that a pid is only checked where it means something
RUN_ID: Final = "kvtrace.run.id"  # one program run, shared by its child processes
PROCESS_START: Final = "kvtrace.process.start_unix_ns"  # to 10 ms; tells a live pid from a re-used one
TELEMETRY_SDK_NAME: Final = "telemetry.sdk.name"  # "kvtrace"
TELEMETRY_SDK_LANGUAGE: Final = "telemetry.sdk.language"  # "python"
TELEMETRY_SDK_VERSION: Final = "telemetry.sdk.version"  # version of the kvtrace that wrote

# --- Names of OTLP log events about a span, whose ids they bear -------------------------------------
EVENT_SPAN_STARTED: Final = "kvtrace.span.started"  # with the attributes that the span has at its start
EVENT_SPAN_HEARTBEAT: Final = "kvtrace.span.heartbeat"  # still open; stands for a start that was not seen
EVENT_SPAN_ENDED: Final = "kvtrace.span.ended"  # needs no attributes where the start was seen
EVENT_SPAN_NAME: Final = "kvtrace.span.name"  # attribute of such an event: the span's name
EVENT_SPAN_PARENT: Final = "kvtrace.span.parent_id"  # attribute of such an event: the parent's span id, hex

# --- Environment variables ------------------------------------------------------------------------
ENV_CACHE: Final = "KVTRACE_CACHE"  # root of what can be made again; default: the platform's user cache folder
ENV_DIR: Final = "KVTRACE_DIR"  # root of span files; default: the platform's user data folder
ENV_RUN: Final = "KVTRACE_RUN"  # run id a child process joins
ENV_AGENT: Final = "KVTRACE_AGENT"  # name of the agent that a zero-code process is
ENV_AGENT_ID: Final = "KVTRACE_AGENT_ID"  # its id; without it, each process has one of its own
ENV_AUTO: Final = "KVTRACE_AUTO"  # "1": set by kvtrace run, set up in every Python process below it
ENV_MAX_BYTES: Final = "KVTRACE_MAX_BYTES"  # bytes that all recorded runs may take; "0": no limit
ENV_MAX_DAYS: Final = "KVTRACE_MAX_DAYS"  # days after which a run is removed; "0": never
ENV_ENGINE: Final = "KVTRACE_ENGINE"  # base URL of the engine that tool calls are signalled to
ENV_ENGINE_KEY: Final = "KVTRACE_ENGINE_KEY"  # bearer key for it
ENV_ENGINE_KEY_FILE: Final = "KVTRACE_ENGINE_KEY_FILE"  # file that holds the key
ENV_DISABLED: Final = "KVTRACE_DISABLED"  # "1" or "true": record and signal nothing
ENV_CAPTURE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ENV_OTLP_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
ENV_OTLP_TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
ENV_OTLP_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"  # "grpc" chooses gRPC, all else HTTP
ENV_OTLP_TRACES_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
ENV_OTLP_TIMEOUT: Final = "OTEL_EXPORTER_OTLP_TIMEOUT"
ENV_OTLP_TRACES_TIMEOUT: Final = "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"
ENV_TRACES_EXPORTER: Final = "OTEL_TRACES_EXPORTER"  # "none": export nothing
ENV_SDK_DISABLED: Final = "OTEL_SDK_DISABLED"  # "true": export nothing; records and signals stay
ENV_SERVICE_NAME: Final = "OTEL_SERVICE_NAME"
ENV_RESOURCE_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"  # key=value,key=value

# --- Metrics ----------------------------------------------------------------------------------------
METRIC_INFERENCE_DURATION: Final = "gen_ai.client.inference.duration"  # histogram, seconds
METRIC_TOOL_DURATION: Final = "gen_ai.execute_tool.duration"  # histogram, seconds

# --- Headers of a model request -------------------------------------------------------------------
HEADER_AGENT: Final = "X-Kvtrace-Agent"  # the agent a request belongs to
