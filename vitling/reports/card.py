"""A card: what a notebook shows of a run, a study or an evaluation. One piece of HTML with a picture, no script, no request."""

from collections.abc import Mapping, Sequence

from jinja2 import Environment, StrictUndefined

TEMPLATE = """<div style="max-width: 40em; font-family: sans-serif">
<p style="margin: 0.3em 0"><strong>{{ title }}</strong></p>
{% if facts %}
<table style="margin: 0.3em 0">{% for name, value in facts.items() %}
<tr><td style="text-align: left; opacity: 0.7">{{ name }}</td><td style="text-align: left">{{ value }}</td></tr>{% endfor %}
</table>
{% endif %}
{% if rows %}
<table style="margin: 0.3em 0">
<tr>{% for name in head %}<th style="text-align: left">{{ name }}</th>{% endfor %}</tr>{% for row in rows %}
<tr>{% for value in row %}<td style="text-align: left">{{ value }}</td>{% endfor %}</tr>{% endfor %}
</table>
{% endif %}
{% if svg %}
<div role="img" aria-label="{{ caption }}" style="max-width: 32em">{{ svg | safe }}</div>
<p style="margin: 0.3em 0; opacity: 0.7">{{ caption }}</p>
{% endif %}
{% for note in notes %}
<p style="margin: 0.3em 0; opacity: 0.7">{{ note }}</p>
{% endfor %}
</div>"""


def render_card(
    title: str,
    facts: Mapping[str, object] | None = None,
    *,
    table: tuple[Sequence[str], Sequence[Sequence[object]]] | None = None,
    svg: str = "",
    caption: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Facts or a table, and a chart of `vitling.reports.plots` with what to see in it. All text is escaped."""
    head, rows = table or ((), ())
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE)
    return template.render(title=title, facts=facts, head=head, rows=rows, svg=svg, caption=caption, notes=notes)
