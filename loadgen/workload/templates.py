"""Jinja2 templates of the kind that Hugging Face models carry as their chat template."""

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


def compile_template(source: str) -> "Template":
    """Compile a template in Jinja2's sandbox, with the settings, filters and functions that chat templates expect.

    Raises:
        jinja2.TemplateSyntaxError: it does not parse.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    return environment.from_string(source)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # the local date, as the templates' authors mean it


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    # Jinja2's own filter escapes for HTML, which no model has learnt to read.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
