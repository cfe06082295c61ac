"""Templates from hostile files: whatever they do, it ends soon and in little memory."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat import ChatTemplate
from tests.unit.hostile import refusal

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<b>é</b> 😀"}]
BIG = "{% set n.x = 'ab' %}{% for i in range(18) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
BIGGER = BIG + "{% set n.x = n.x ~ n.x %}" * 2


def render(body: str) -> str:
    """``body`` has the variables n.x, n.l and n.d to work on."""
    start = "{% set n = namespace(x='ab<\"', l=[1, 'a'], d={'a': 'b'}, i=9) %}"
    return ChatTemplate(start + body, "<s>", "</s>").render(MESSAGES)


def again(body: str) -> str:
    return "{% for i in range(90000) %}" + body + "{% endfor %}"


# Each makes something longer of what it made before.
GROWING = [
    "n.x ~ n.x",
    "n.x + n.x",
    "n.x * 2",
    "[n.x, n.x]",
    "(n.x, n.x)",
    "{'a': n.x, 'b': n.x}",
    "dict(a=n.x, b=n.x)",
    "[n.x] + [n.x]",
    "[n.x] * 2",
    "[[n.x, n.x]]|sum(start=[])",
    "'%s%s' % (n.x, n.x)",
    "'%(a)s%(a)s' % {'a': n.x}",
    "'{0}{0}'.format(n.x)",
    "'{a}{a}'.format(a=n.x)",
    "[n.x, n.x]|join",
    "[n.x, n.x]|join('-')",
    "''.join([n.x, n.x])",
    "n.x.join(['a', 'b', 'c'])",
    "n.x.replace('', n.x)",
    "n.x|replace('', n.x)",
    "n.x|replace('a', 'aa')",
    "n.x|e|e",
    "n.x|tojson|tojson",
    "[n.x, n.x]|string",
    "twice(n.x)",
    "namespace(a=n.x, b=n.x)",
    "raise_exception([n.x, n.x]) if i > 40 else [n.x, n.x]",
]


@pytest.mark.parametrize("expression", GROWING)
def test_nothing_can_be_doubled_for_long(expression: str) -> None:
    macro = "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}"
    body = macro + again("{% set n.x = " + expression + " %}") + "{{ n.x }}"
    error = refusal(lambda: render(body))
    assert error and error.code == "template.invalid"


@pytest.mark.parametrize("start", ["9", "2.5"])
@pytest.mark.parametrize("operator", ["*", "+"])
def test_numbers_do_not_grow_for_long_either(start: str, operator: str) -> None:
    body = "{% set n.x = " + start + " %}" + again("{% set n.x = n.x " + operator + " n.x %}")
    refusal(lambda: render(body))


@pytest.mark.parametrize(
    "body",
    [
        # one expression that would make a huge value
        "{{ 'x' * 10**9 }}",
        "{{ 'x' * 1000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'a'|center(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ 'a'.expandtabs(1000000000) }}",
        "{{ 'a'.translate({97: 'x' * 60000}) }}",
        "{{ (1).to_bytes(1000000000) }}",
        "{{ dict.fromkeys(range(99999)) }}",
        "{{ strftime_now('%1000000000Y') }}",
        "{{ strftime_now('%_1000000000Y') }}",
        "{{ 1.5|round(1000000000, 'ceil') }}",
        "{{ [1]|batch(1000000000, 1)|list }}",
        "{{ [1]|slice(1000000000)|list }}",
        "{{ raise_exception([messages] * 99999)|string }}",
        "{{ ('<' * 99999999)|e }}",
        "{{ range(99999)|map('tojson')|join('x' * 60000) }}",
        BIGGER + "{{ n.x|list|length }}{{ n.x|list|length }}",
        BIGGER + "{{ n.x.split('a')|length }}",
        BIGGER + "{{ n.x|wordcount }}{{ n.x.split() }}{{ n.x.splitlines() }}{{ n.x|sort }}",
        BIGGER + "{{ n.x|join('abcdefghijklmnop')|length }}",
        BIGGER + "{{ ([n.x] * 500)|string|length }}",
        BIGGER + "{{ ([n.x] * 500)|tojson|length }}",
        BIGGER + "{{ ('%s' * 500) % ((n.x,) * 500) }}",
        BIGGER + "{{ ('{0}' * 500).format(n.x) }}",
        # small work, but again and again
        again("{{ range(99999)|list|length }}"),
        again("{{ range(99999)|sum }}{{ range(99999)|max }}"),
        again("{{ 'a' in range(99999)|map('string')|map('upper') }}"),
        again("{{ range(99999)|select('gt', 99999)|first }}"),
        again("{% set x = ([0] * 9999) == ([0] * 9999) %}"),
        again("{{ loop.cycle(*range(99999)) }}"),
        again("{% set x = '%s' % ('x' * 60000) %}"),
        again("{% set x = 1 %}" * 9000),
        again("{{ 1 }}" * 9000),
        again("x" * 200_000),
        "{% set y = [0] * 99999 %}" + again("{% set x = 5 in y %}{% set x = y.count(5) %}"),
        "{% for i in range(99999) if " + "i == -1 or " * 9000 + "false %}{% endfor %}",
        BIG + again("{% set y = n.x[1:] %}"),
        BIG + again("{% set y = n.x == n.x[:] %}"),
        BIG + again("{% set y = 'abb' in n.x %}"),
        BIG + again("{% set y = n.x.find('abb') %}"),
        BIG + again("{% set y = n.x.split('b') %}"),
        BIG + again("{% set y = n.x|trim|length %}"),
        BIG + again("{{ n.x }}"),
        BIG + "{% macro f() %}" + again("{{ n.x }}") + "{% endmacro %}{% set y = f() %}",
        BIG + "{% set y %}" + again("{{ n.x }}") + "{% endset %}",
        BIG + "{% filter upper %}" + again("{{ n.x }}") + "{% endfilter %}",
        again(again("")),
        # recursion
        "{% for x in [1] recursive %}{{ loop([1]) }}{{ loop([1]) }}{% endfor %}",
        "{% for x in [1] recursive %}{% if x == 1 %}{{ loop(range(2, 99999)) }}{% endif %}"
        + "{% set a = 1 %}" * 9000
        + "{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(99) }}",
        "{% macro f(n) %}" + "{% set a = 1 %}" * 9000 + "{% endmacro %}" + again("{{ f(1) }}"),
        "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
        again("{% set n.l = [n.l] %}") + "{{ n.l }}",
        again("{% set n.l = (n.l, n.l) %}{% if i == 40 %}{% set y = {n.l: 1} %}{% endif %}"),
        # what the parser and the compiler get
        "{{ 1" + " + 1" * 60_000 + " }}",
        "{{ 1" + "|abs" * 60_000 + " }}",
        "{{ x" + ".a" * 60_000 + " }}",
        "{{ " + "[" * 3000 + "]" * 3000 + " }}",
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{{ 1" + "0" * 200_000 + " }}",
        "{#" * 99_999,
        "{%- " * 60_000,
        # what is none of a template's business
        "{{ ''.__class__.__mro__ }}",
        "{{ (''|attr('__class__')).x.y }}",
        "{{ ''['__class__'].x }}",
        "{{ [messages]|map(attribute='__class__')|map(attribute='x')|list|tojson }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format_map({'0': 1}) }}",
        "{{ self._TemplateReference__context.x }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ n.l.append(1) }}",
        "{% set n.l.x = 1 %}",
        "{% import 'os' as os %}",
        "{% extends messages %}",
        "{% autoescape true %}{{ '<' }}{% endautoescape %}",
    ],
)
def test_hostile_templates_are_refused_at_little_cost(body: str) -> None:
    error = refusal(lambda: render(body))
    assert error and error.code == "template.invalid"


@pytest.mark.parametrize("source", [7, 1.5, True, ["{{ 1 }}"], [1, 2]])
def test_a_template_that_is_no_text_is_refused(source: object) -> None:
    error = refusal(lambda: ChatTemplate(source, "", ""))  # type: ignore[arg-type]
    assert error and error.code == "template.invalid"


def test_a_long_conversation_is_no_hostile_one() -> None:
    """As long as the largest context, under a template that looks at everything several times."""
    body = (
        "{% for m in messages %}{% set text = m.content | trim %}"
        "{% if '</think>' in text %}{% set text = text.split('</think>')[-1].lstrip('\\n') %}"
        "{% endif %}{% if m.role in ['user', 'assistant'] and loop.index0 < messages|length %}"
        "{{ '<|' + m.role + '|>\\n' + text + '<|end|>' }}{% endif %}"
        "{% set rest = messages[loop.index0:] %}{% endfor %}"
    )
    content = ("Words of a long talk, " * 23)[:500]
    for count in (1, 1000):
        messages = [{"role": "user", "content": content * (1000 // count)}] * count
        rendered = ChatTemplate(body, "", "").render(messages)
        assert rendered.count("<|end|>") == count and len(rendered) > 490_000


def test_json_is_as_before() -> None:
    value = {"b": [1, 2.5, None, {"é": "\u2028"}], "a": True, "c": [], "d": {}}
    for arguments in ("", "indent=2", "ensure_ascii=true", "sort_keys=true, indent=4"):
        given = eval(f"dict({arguments})", {"true": True, "dict": dict})
        text = ChatTemplate("{{ messages[0]|tojson(" + arguments + ") }}", "", "").render([value])
        assert text == json.dumps(value, **{"ensure_ascii": False, **given})


NAMES = st.sampled_from(["n.x", "n.l", "n.d", "n.i", "messages", "loop", "m", "i", "none", "x"])
CONSTANTS = st.sampled_from(
    [
        "'a'",
        "''",
        "'%s%999d'",
        "'{0}{0!r}{a}'",
        "0",
        "-1",
        "3",
        "99999",
        "1000000000",
        "1e300",
        "true",
    ]
)
FILTERS = (
    "abs attr('x') capitalize count default('a') dictsort e first float groupby('role') int "
    "items join join(n.x) last length list lower map('upper') map(attribute='role') max min "
    "replace('a',n.x) replace('',n.x) reverse round select selectattr('role') sort string "
    "sum title tojson tojson(indent=9) trim truncate(9) unique upper wordcount"
)
METHODS = (
    ".upper() .split() .split('a') .strip() .items() .keys() .get('a') .replace('a',n.x) "
    ".join(n.l) .format(n.x,a=n.l) .title() .splitlines() .count('a') .index('a') .copy() "
    "['a'] [0] [1:] [::-1] .role .content .x"
)
OPERATORS = st.sampled_from(["+", "-", "*", "/", "//", "%", "~", "==", "<", "in", "and", "or"])
EXPRESSIONS = st.recursive(
    NAMES | CONSTANTS,
    lambda inner: (
        st.tuples(inner, OPERATORS, inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})")
        | st.tuples(inner, st.sampled_from(FILTERS.split())).map(lambda p: f"({p[0]}|{p[1]})")
        | st.tuples(inner, st.sampled_from(METHODS.split())).map(lambda p: f"({p[0]}){p[1]}")
        | st.tuples(inner, inner).map(lambda p: f"[{p[0]}, {p[1]}]")
        | st.tuples(inner, inner).map(lambda p: f"{{{p[0]}: {p[1]}}}")
        | inner.map(lambda e: f"range({e})")
        | inner.map(lambda e: f"f({e})")
    ),
    max_leaves=6,
)
STATEMENTS = st.recursive(
    EXPRESSIONS.map(lambda e: f"{{{{ {e} }}}}")
    | st.tuples(st.sampled_from(["n.x", "n.l", "n.d", "n.i", "x"]), EXPRESSIONS).map(
        lambda p: f"{{% set {p[0]} = {p[1]} %}}"
    ),
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(EXPRESSIONS, inner).map(
            lambda p: f"{{% for m in {p[0]} %}}{p[1]}{{% endfor %}}"
        )
        | inner.map(again)
        | inner.map(lambda s: f"{{% macro f(x) %}}{s}{{% endmacro %}}")
        | st.tuples(EXPRESSIONS, inner).map(lambda p: f"{{% if {p[0]} %}}{p[1]}{{% endif %}}")
        | inner.map(lambda s: f"{{% set x %}}{s}{{% endset %}}")
    ),
    max_leaves=5,
)


@settings(max_examples=40, deadline=None)
@given(STATEMENTS)
def test_no_template_costs_much(body: str) -> None:
    refusal(lambda: render(body))
