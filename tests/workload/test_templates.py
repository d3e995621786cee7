"""Templates have what chat templates of models use, and nothing that reaches out of the sandbox."""

from datetime import datetime

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from loadgen.workload.prompt import compile_template


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for n in [1, 2, 3] %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}", "1"),
        ("{{ {'a': '<é & more>'} | tojson }}", '{"a": "<é & more>"}'),  # nothing escaped for HTML
        ("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{% if true %}\n  {% if true %}\nx\n  {% endif %}\n{% endif %}\n", "x\n"),  # blocks leave no space behind
        ("{{ strftime_now('%Y') in years }}", "True"),
    ],
)
def test_a_template_may_use_what_chat_templates_use(source, text):
    now = datetime.now().year
    years = [str(now), str(now + 1)]  # the second where the year ends in between
    assert compile_template(source).render(years=years) == text


def test_a_template_can_refuse():
    with pytest.raises(TemplateError, match="roles must alternate"):
        compile_template("{{ raise_exception('roles must alternate') }}").render()


def test_a_template_reaches_no_internals():
    with pytest.raises(SecurityError):
        compile_template("{{ ().__class__.__base__.__subclasses__() }}").render()
