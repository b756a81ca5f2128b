"""How ClickHouse is asked to answer."""

from __future__ import annotations

from typing import Final

SETTINGS: Final = {
    "join_use_nulls": "1",
    "aggregate_functions_null_for_empty": "1",
    "prefer_column_name_to_alias": "1",
    "least_greatest_legacy_null_behavior": "0",
    "max_recursive_cte_evaluation_depth": "1000000",
}
"""Under these ClickHouse answers where a row has no partner, or an aggregate no rows, as DuckDB does."""
