"""DuckDB's SQL in ClickHouse's words.

sqlglot translates the syntax. What it leaves is meaning that differs, most of it silently: windows that answer 0 past
their edge, lists that cannot be null, functions of other names, and recursion that may not forget duplicates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp, parse_one

# ClickHouse knows no null in place of a list; an empty one stands for it.
_LISTS: Final = frozenset({"around", "path", "queued_unix_ns", "suspended_unix_ns"})


@dataclass(frozen=True, slots=True)
class Fixpoint:
    """A table of all that follows from itself: made by ``create``, then ``extend`` until nothing is new in it."""

    table: str
    create: str
    extend: str


@dataclass(frozen=True, slots=True)
class Question:
    """Tables that have to be worked out first, and the query."""

    fixpoints: tuple[Fixpoint, ...]
    query: str


def translate(text: str, parameters: Mapping[str, int] | None = None) -> Question:
    """Say a question of ``sql/`` for ClickHouse, with its ``$parameters`` filled in."""
    tree = parse_one(text, read="duckdb")
    given = parameters or {}
    # From the inside out, since a rule may look at what is below its node.
    for node in reversed(list(tree.walk(bfs=True))):
        rule = _RULES.get(type(node))
        new = _given(node, given) if isinstance(node, exp.Parameter | exp.Placeholder) else rule and rule(node)
        if new is not None:
            tree = new if node is tree else tree
            node.replace(new)
    return Question(tuple(_fixpoints(tree)), _written(tree))


def _written(tree: exp.Expr) -> str:
    return tree.sql(dialect="clickhouse", comments=False)


def _given(node: exp.Expr, parameters: Mapping[str, int]) -> exp.Expr:
    return exp.Literal.number(parameters[node.name])


def _call(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])


def _is_list(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and node.name in _LISTS


def _past_the_edge(node: exp.Expr) -> exp.Expr | None:
    """``lead`` and ``lag`` past the last row are null only where the type allows it, and 0 otherwise."""
    if isinstance(node.this, exp.Anonymous):
        return None
    new = node.copy()
    new.set("this", _call("toNullable", node.this))
    return new


def _without(node: exp.Expr) -> exp.Expr | None:
    """``is null`` of a list."""
    is_null = isinstance(node.expression, exp.Null) and _is_list(node.this)
    return _call("empty", node.this) if is_null else None


def _counted(node: exp.Expr) -> exp.Expr | None:
    """``count`` of the lists that are there."""
    return exp.CountIf(this=_call("notEmpty", node.this)) if _is_list(node.this) else None


def _ordered(node: exp.Expr) -> exp.Expr | None:
    """A list to sort by, upwards: those that are not there come last."""
    if not _is_list(node.this) or node.args.get("desc"):
        return None
    return _call("tuple", _call("empty", node.this), node.this)


def _select(node: exp.Expr) -> exp.Expr:
    new = node.copy()
    _say_whose(new)
    _name_columns(new)
    return new


def _say_whose(select: exp.Expr) -> None:
    """A column that ``* replace`` gives a new value would be the new one in all of the query."""
    stars = [star for each in select.expressions if each.is_star for star in each.find_all(exp.Star)]
    replaced = {each.alias for star in stars for each in star.args.get("replace") or ()}
    for column in select.find_all(exp.Column) if replaced else ():
        if column.name in replaced and not column.table and column.find_ancestor(exp.Select) is select:
            column.set("table", exp.to_identifier(select.args["from_"].this.alias_or_name))


def _name_columns(select: exp.Expr) -> None:
    """Columns selected from a join are called ``table.column`` unless they are given a name."""
    taken = Counter(each.alias_or_name for each in select.expressions)
    for each in select.expressions:
        if _is_qualified(each) and taken[each.name] == 1:
            each.replace(exp.alias_(each.copy(), each.name))


def _is_qualified(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and bool(node.table) and not node.is_star


def _either(node: exp.Expr) -> exp.Expr | None:
    """``coalesce(list, [])``."""
    return node.this.copy() if _is_list(node.this) else None


def _case(node: exp.Expr) -> exp.Expr | None:
    """A ``case`` that answers with a list or not at all."""
    if node.args.get("default") or not all(_is_list(branch.args["true"]) for branch in node.args["ifs"]):
        return None
    new = node.copy()
    new.set("default", exp.Array(expressions=[]))
    return new


def _replaced(node: exp.Expr) -> exp.Expr | None:
    """``null as column`` in a replacement: a null of the column's own type."""
    if not (isinstance(node.this, exp.Null) and isinstance(node.parent, exp.Star)):
        return None
    column = exp.column(node.alias)
    return exp.alias_(_call("nullIf", column, column), node.alias)


def _range(node: exp.Expr) -> exp.Expr:
    return _call("range", *(node.args[key] for key in ("start", "end", "step") if node.args.get(key)))


def _quantiles(node: exp.Expr) -> exp.Expr:
    shares = node.expression
    return exp.ParameterizedAgg(
        this="quantilesExactInclusive", expressions=[share.copy() for share in shares.expressions], params=[node.this]
    )


def _median(node: exp.Expr) -> exp.Expr:
    share = exp.Literal.number(0.5)
    return exp.ParameterizedAgg(this="quantileExactInclusive", expressions=[share], params=[node.this.copy()])


_RULES: Final[dict[type[exp.Expr], Callable[[exp.Expr], exp.Expr | None]]] = {
    exp.Select: _select,
    exp.Lead: _past_the_edge,
    exp.Lag: _past_the_edge,
    exp.Is: _without,
    exp.Count: _counted,
    exp.Ordered: _ordered,
    exp.Coalesce: _either,
    exp.Case: _case,
    exp.Alias: _replaced,
    exp.Length: lambda node: exp.ArraySize(this=node.this.copy()),
    exp.ArrayAppend: lambda node: _call("arrayPushBack", node.this, node.expression),
    exp.GenerateSeries: _range,
    exp.IntDiv: lambda node: _call("intDiv", node.this, node.expression),
    exp.LogicalOr: lambda node: exp.Max(this=node.this.copy()),
    exp.PercentileCont: _quantiles,
    exp.Median: _median,
}


def _fixpoints(tree: exp.Expr) -> Iterator[Fixpoint]:
    """Take recursion that forgets duplicates out of a query: ClickHouse recurs with ``union all`` alone."""
    with_clause = tree.find(exp.With)
    if with_clause is None or not with_clause.args.get("recursive"):
        return
    before: list[exp.Expr] = []
    for each in with_clause.expressions:
        body = each.this
        if isinstance(body, exp.Union) and body.args.get("distinct") and _mentions(body.expression, each.alias):
            table = f"all_{each.alias}"
            extend = _with(_renamed(body.expression, each.alias, table), before)
            yield Fixpoint(
                table,
                create=_written(_with(body.this, before)),
                extend=f"select * from ({_written(extend)}) except distinct select * from {table}",  # noqa: S608 - ours
            )
            body.replace(exp.select("*").from_(table))
        before.append(each)


def _mentions(node: exp.Expr, table: str) -> bool:
    return any(each.name == table for each in node.find_all(exp.Table))


def _renamed(node: exp.Expr, table: str, name: str) -> exp.Expr:
    new = node.copy()
    for each in new.find_all(exp.Table):
        if each.name == table:
            each.set("this", exp.to_identifier(name))
    return new


def _with(query: exp.Expr, tables: list[exp.Expr]) -> exp.Expr:
    new = query.copy()
    for table in tables:
        assert isinstance(new, exp.Query)
        new = new.with_(table.alias, table.this.copy(), copy=False)
    return new
