"""Whatever the served OpenAPI document allows is answered as the document says.

Runs where schemathesis is installed (``pip install 'kvtrace[clients]'``); it is too much for every run of the tests.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ..support import Running

schemathesis = pytest.importorskip("schemathesis")
conformance = pytest.importorskip("schemathesis.specs.openapi.checks")
general = pytest.importorskip("schemathesis.checks")

# Left out is the check that refuses a refusal: messages and tools are only sketched in the document.
CHECKS = [
    general.not_a_server_error,
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_headers_conformance,
    conformance.response_schema_conformance,
]
EXAMPLES = 16  # for each operation


def bounded(case: Any, model: str) -> Any:
    """The same request, for the model that is there, with messages that say something, and such that it ends."""
    if isinstance(case.query, dict):
        case.query.pop("watch", None)
    if isinstance(case.path_parameters, dict) and "name" in case.path_parameters:
        case.path_parameters["name"] = model
    if isinstance(case.body, dict):
        case.body = case.body | {"model": model, "max_tokens": 2, "max_output_tokens": 2}
        if case.body.get("messages"):
            case.body["messages"] = [{"role": "user", "content": "-"}]
        if "prompt" in case.body:
            case.body["prompt"] = "hello"
    return case


def statuses(operation: Any, model: str) -> set[int]:
    """How the operation answers what is generated for it; each answer is checked."""
    seen: set[int] = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        case = bounded(case, model)
        response = case.call(timeout=30)
        seen.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    check()
    return seen


def test_every_operation_answers_as_documented(tiny_server: Running) -> None:
    schema = schemathesis.openapi.from_url(f"{tiny_server.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 6
    for operation in operations:
        seen = statuses(operation, tiny_server.model)
        assert 200 in seen or operation.path == "/v1/embeddings", f"{operation.label}: {seen}"
    assert tiny_server.http.get("/health").json()["status"] == "ok"
