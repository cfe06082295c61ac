"""A template's syntax, changed so that what it does is paid for."""
# ruff: noqa: N802, N815 - jinja2 finds the visitors by these names

from __future__ import annotations

from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from engine.sandbox.budget import CHARACTER_BYTES

# Filters by which syntax pays; no template can spell them.
ROUND, ITEMS, TEXT, NEW, SLICE, COMPARE = (
    f"octavo {what}" for what in ("round", "items", "text", "new", "slice", "compare")
)


class Generation(Extension):
    """``{% generation %}``: a mark for training that changes nothing in the text; what is set
    within it stays within it."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class Priced(NodeTransformer):
    """Puts the filters that pay into a parsed template."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def _filter(self, value: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
        line = value.lineno
        return nodes.Filter(
            value, name, list(args), [], None, None, lineno=line, environment=self._environment
        )

    def _run(self, node: nodes.Node, *parts: nodes.Node) -> nodes.Filter:
        """Pays for a run through ``parts``."""
        steps = sum(1 for part in parts for _ in part.find_all(nodes.Node)) + 1
        data = sum(len(t.data) for part in parts for t in part.find_all(nodes.TemplateData))
        true = nodes.Const(True, lineno=node.lineno)
        return self._filter(true, ROUND, nodes.Const(steps), nodes.Const(CHARACTER_BYTES * data))

    def _paid(self, node: Any) -> Any:
        pay = nodes.ExprStmt(self._run(node, node)).set_lineno(node.lineno)
        self.generic_visit(node)
        node.body.insert(0, pay)
        return node

    visit_Macro = visit_CallBlock = visit_Block = _paid

    def visit_For(self, node: Any) -> Any:
        # The body of a recursive loop is entered from within it, past the items.
        test = self._run(node, node.test) if node.test else None
        self._paid(node)
        node.iter = self._filter(node.iter, ITEMS)
        if test and node.test:
            node.test = nodes.And(test, node.test, lineno=node.lineno)
        return node

    def visit_Output(self, node: Any) -> Any:
        self.generic_visit(node)
        node.nodes = [
            part if isinstance(part, nodes.TemplateData) else self._filter(part, TEXT)
            for part in node.nodes
        ]
        return node

    def visit_Concat(self, node: Any) -> Any:
        self.generic_visit(node)
        node.nodes = [self._filter(part, TEXT) for part in node.nodes]
        return node

    def visit_Compare(self, node: Any) -> Any:
        self.generic_visit(node)
        pairs = [(nodes.Const(operand.op), operand.expr) for operand in node.ops]
        return self._filter(node.expr, COMPARE, *(part for pair in pairs for part in pair))

    def visit_List(self, node: Any) -> Any:
        self.generic_visit(node)
        return self._filter(node, NEW)

    visit_Dict = visit_List

    def visit_Tuple(self, node: Any) -> Any:
        self.generic_visit(node)
        return self._filter(node, NEW) if node.ctx == "load" else node

    def visit_Getitem(self, node: Any) -> Any:
        self.generic_visit(node)
        return self._filter(node, SLICE) if isinstance(node.arg, nodes.Slice) else node

    def visit_ScopedEvalContextModifier(self, node: Any) -> Any:
        raise TemplateError("escaping for HTML is not allowed")
