"""Chat templates: the ordinary ones render exactly, hostile ones end in template.invalid."""

from __future__ import annotations

import time

import pytest

from engine.chat import ChatTemplate
from engine.errors import OctavoError
from engine.templates import CHATML

USER = [{"role": "user", "content": "Hi there"}]
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye {{ 7 * 6 }}"},
]
SMOLLM2 = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""


def render(source: str, messages: list[dict[str, str]] = USER, prompt: bool = True) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages, add_generation_prompt=prompt)


def test_chatml() -> None:
    assert render(CHATML) == "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, prompt=False) == "<|im_start|>user\nHi there<|im_end|>\n"


def test_content_is_text_and_not_a_template() -> None:
    assert render(CHATML, TURNS, prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye {{ 7 * 6 }}<|im_end|>\n"
    )


def test_smollm2_puts_its_own_system_message_first() -> None:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert render(SMOLLM2) == f"<|im_start|>system\n{system}<|im_end|>\n" + render(CHATML)
    assert render(SMOLLM2, TURNS) == render(CHATML, TURNS)


def test_nothing_is_escaped_for_html() -> None:
    assert (
        render("{{ messages[0].content }}", [{"role": "user", "content": "<a&'\">"}]) == "<a&'\">"
    )
    assert render("{{ {'a': '<é>'}|tojson }}") == '{"a": "<é>"}'


def test_blocks_leave_no_blank_lines() -> None:
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}"
    )
    assert render(source) == "user\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{{ missing is defined }}{{ missing }}", "False"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in [1, 2] if i > 1 %}{{ loop.length }}{{ loop.last }}{% endfor %}", "1True"),
        ("{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a ~ 'x' * 2 }}", "2xx"),
        ("{{ '%02d' % 7 }} {{ '{}-{:>3}'.format(1, 2) }} {{ 7 % 4 }}", "07 1-  2 3"),
        ("{{ messages[0]['content'].strip()[-5:] | upper }}", "THERE"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) }}", "[1]"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ {'b': [1]} | tojson(indent=2) }}", '{\n  "b": [\n    1\n  ]\n}'),
    ],
)
def test_what_templates_use(source: str, text: str) -> None:
    assert render(source) == text


def test_a_template_can_be_rendered_again_and_again() -> None:
    template = ChatTemplate("{% for i in range(60000) %}{% endfor %}ok", "", "")
    assert [template.render(USER) for _ in range(8)] == ["ok"] * 8


def test_the_reason_of_a_template_is_in_the_message() -> None:
    with pytest.raises(OctavoError, match="Roles must alternate") as caught:
        render("{{ raise_exception('Roles must alternate') }}")
    assert caught.value.code == "template.invalid"


@pytest.mark.parametrize(
    "source",
    [
        "{% if",
        "{{ nothing.of.this }}",
        "{{ 1 / 0 }}",
        "{% include 'file' %}",
        "{{ messages[0].content + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ ('{0.__class__}').format(1).x.y }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:>1000000000}'.format('a') }}",
        "{{ '{:>{}}'.format('a', 1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ lipsum(n=100000) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{% set x = 'a' * 60000 %}{% for i in range(90000) %}{{ x }}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(60) %}"
        "{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(60) %}"
        "{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}"
        "{{ n.x }}",
        "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
        "x" * 1_000_000,
    ],
)
def test_hostile_templates_fail_soon_and_clearly(source: str) -> None:
    start = time.process_time()
    with pytest.raises(OctavoError) as caught:
        render(source)
    assert caught.value.code == "template.invalid"
    assert time.process_time() - start < 2
    assert len(caught.value.message) < 500


def test_messages_with_missing_fields_fail_clearly() -> None:
    with pytest.raises(OctavoError) as caught:
        render(SMOLLM2, [{"role": "user"}])
    assert caught.value.code == "template.invalid"
