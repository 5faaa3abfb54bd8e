"""How a page looks: by day, by night, on a narrow screen and on paper."""

from __future__ import annotations

from fedkeel import theme

_BASE = """
:root { color-scheme: light dark; --paper: %(paper)s; --ink: %(ink)s; --faint: #5b6672; --line: #d5dbe1;
  --soft: #f4f6f8; --mark: #8a4b00; --link: #00588a; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.3rem; margin: 2.75rem 0 0.5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 2rem 0 0.5rem; }
p { margin: 0.5rem 0; max-width: 46rem; }
a { color: var(--link); }
.faint { color: var(--faint); }
.answer { font-size: 1.1rem; }
.warn { border-left: 4px solid var(--mark); background: var(--soft); padding: 0.5rem 1rem; margin: 1rem 0; }
.warn ul, nav ul { margin: 0.25rem 0; padding-left: 1.1rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
caption { text-align: left; color: var(--faint); padding-bottom: 0.4rem; }
caption span { display: block; position: sticky; left: 0; max-width: min(46rem, calc(100vw - 2.5rem)); }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 1.1rem 0.3rem 0; border-bottom: 1px solid var(--line); }
thead th { font-weight: 600; vertical-align: bottom; border-bottom: 2px solid var(--line); }
tbody th { font-weight: 500; }
.number { text-align: right; white-space: nowrap; }
figure { margin: 1.25rem 0 2rem; }
figcaption strong { display: block; }
figcaption { color: var(--faint); font-size: 0.9rem; margin-bottom: 0.5rem; }
figcaption strong { color: var(--ink); font-size: 1rem; }
.picture { overflow-x: auto; }
.picture svg { max-width: 100%%; height: auto; display: block; }
.on-narrow { display: none; }
details { margin: 0.75rem 0; }
summary { cursor: pointer; color: var(--link); }
pre, code { font: 0.86rem/1.45 ui-monospace, monospace; }
pre { background: var(--soft); padding: 0.75rem 1rem; overflow-x: auto; }
footer { margin-top: 3rem; color: var(--faint); font-size: 0.85rem; }
@media (max-width: 640px) {
  main { padding: 1rem 0.9rem 3rem; }
  .on-wide { display: none; }
  .on-narrow { display: block; }
  th, td { padding-right: 0.8rem; }
}
@media print {
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  h2 { break-after: avoid; } h3 { break-after: avoid; }
  figure, tr, .warn { break-inside: avoid; }
  .wide, .picture, pre { overflow: visible; }
  pre { white-space: pre-wrap; }
  .on-wide { display: block; }
  .on-narrow { display: none; }
  summary { list-style: none; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
}
"""


def style() -> str:
    """The style sheet; pictures change their colours by night with everything else."""
    return _BASE % {"paper": theme.PAPER, "ink": theme.INK} + _night()


def _night() -> str:
    inks = [theme.INK, theme.FAINT, *theme.COLOURS, *(theme.legible(one) for one in theme.COLOURS)]
    changed = {one: theme.legible(one, theme.NIGHT) for one in dict.fromkeys(inks)}
    changed |= {theme.INK: "#e7ebef", theme.FAINT: "#a3adb8", theme.GRID: "#2b333c"}
    rules = "".join(
        f'  .picture [{what}="{day}"] {{ {what}: {night}; }}\n'
        for day, night in changed.items()
        for what in ("fill", "stroke")
    )
    return (
        "@media screen and (prefers-color-scheme: dark) {\n"
        f"  :root {{ --paper: {theme.NIGHT}; --ink: #e7ebef; --faint: #a3adb8; --line: #36404a; --soft: #1d232a;\n"
        "    --mark: #e6a23c; --link: #7cc4f0; }\n"
        f"{rules}}}\n"
    )
