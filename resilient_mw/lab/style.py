"""The style sheet of the report: one light and one dark scheme, no font or picture from elsewhere.

Colours are chosen to be told apart with the common kinds of colour blindness; shapes and words say the same
again.
"""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --text: #1d1f23; --soft: #5c626b; --line: #e2e4e8;
  --served: #0067a8; --refused: #d99a00; --failed: #8b4a9c; --gave_up: #c8480c; --health: #00805f;
  --calls: #667085; --line-0: #3f46a8; --line-1: #b0570b; --line-2: #4a5260;
  --in-refused: #241a00; --ok: #00704f; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15171a; --card: #1d2024; --text: #e6e8eb; --soft: #a2a9b3; --line: #343940;
    --served: #5aaee6; --refused: #f0bf4c; --failed: #c99ad8; --gave_up: #ff8f5e; --health: #3ecf9f;
    --calls: #98a2b3; --line-0: #9aa3ff; --line-1: #f2a35e; --line-2: #c3cad4;
    --in-refused: #241a00; --ok: #4fd1a1; --bad: #ff8a80;
  }
  text.in { fill: #10130f !important; }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 12px; max-width: 34em; text-wrap: balance; }
h2.next { margin-top: 28px; }
h2 { font-size: 1.2rem; line-height: 1.35; margin: 2px 0 8px; max-width: 46em; }
p { margin: 0 0 12px; max-width: 46em; }
.meta, .story { color: var(--soft); }
.meta { font-size: 0.9rem; max-width: none; }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 22px 26px;
  margin-top: 24px;
}
.eyebrow { font-size: 0.85rem; color: var(--soft); margin: 0; }
.verdict { font-weight: 600; }
.ok { color: var(--ok); }
.missed { color: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
th, td {
  text-align: left; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top;
}
th { color: var(--soft); font-weight: 600; }
th.n, td.n { text-align: right; white-space: nowrap; }
tbody tr:last-child td { border-bottom: 0; }
.charts { display: grid; grid-template-columns: 1fr 1fr; gap: 22px 20px; margin-top: 18px; }
figure { margin: 0; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
figcaption { font-size: 0.92rem; margin-bottom: 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 2px; padding: 0; list-style: none;
  font-size: 0.85rem; color: var(--soft); }
.legend svg { width: 14px; height: 14px; vertical-align: -2px; margin-right: 5px; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.legend svg { display: inline-block; }
.legend svg.wide-sign { width: 34px; }
text { font-size: 12.5px; fill: var(--soft); }
text.name { fill: var(--text); font-weight: 600; }
text.note { fill: var(--text); }
text.in { fill: #ffffff; font-size: 12px; }
text.in.refused, text.in.half-open { fill: var(--in-refused); }
.grid { stroke: var(--line); stroke-width: 1; fill: none; }
.moment { stroke: var(--text); stroke-width: 1.2; stroke-dasharray: 4 4; fill: none; }
.line { fill: none; stroke-width: 2.4; }
.line-0 { stroke: var(--line-0); }
.line-1 { stroke: var(--line-1); stroke-dasharray: 9 4; }
.line-2 { stroke: var(--line-2); stroke-dasharray: 2 3; }
.mark { fill: none; stroke-width: 1.6; }
.mark.served { stroke: var(--served); stroke-width: 4.6; stroke-linecap: round; }
.mark.refused { stroke: var(--refused); stroke-width: 4.6; stroke-linecap: square; }
.mark.failed { stroke: var(--failed); }
.mark.gave_up { stroke: var(--gave_up); }
.mark.health { stroke: var(--card); stroke-width: 1; fill: var(--health); }
.mark.health-lost { stroke: var(--health); fill: var(--card); }
rect.served { fill: var(--served); }
rect.refused { fill: var(--refused); }
rect.failed { fill: var(--failed); }
rect.gave_up { fill: var(--gave_up); }
rect.calls { fill: var(--calls); }
rect.closed { fill: var(--served); }
rect.open { fill: var(--gave_up); }
rect.half-open { fill: var(--refused); }
@media (max-width: 760px) {
  .charts { grid-template-columns: 1fr; }
  section { padding: 16px; }
  th, td { padding-right: 10px; }
  .scroll, figure { overflow-x: auto; }
  .scroll > svg, figure.wide > svg { min-width: 640px; }
}
"""
