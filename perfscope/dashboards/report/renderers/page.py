"""The frame of every one-file page: content policy that forbids any request, style sheet, script and data."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape

# Style and script of the HTML report. Inline, because the report is one file that opens offline.


LIGHT = """
--ground:#f6f7f9;--card:#fff;--ink:#17202b;--soft:#5c6775;--line:#dfe3e8;--link:#2a62b8;
--code:#f0f2f5;--high:#b42318;--high-ground:#fdeceb;--medium:#8a5300;--medium-ground:#fdf1dc;--low:#4a5563;
--low-ground:#eceff3;--clean:#1b7340;--gain:#0f5132"""
"""Colours as CSS variables, for light pages; `DARK` has the same names."""

DARK = """
--ground:#12161c;--card:#1a2029;--ink:#e5e9ef;--soft:#9aa5b3;--line:#2c3440;
--link:#86b4f5;--code:#232b36;--high:#ff9c92;--high-ground:#46201d;--medium:#f2c46e;--medium-ground:#42320f;
--low:#b4bfcc;--low-ground:#2a323d;--clean:#7bd49c;--gain:#9fe0b8"""


NOTEBOOK = """
--ground:transparent;--card:transparent;--ink:inherit;--soft:#808a97;--line:#8a94a355;--link:#4f86d6;--code:#8a94a322;
--high:#d0453a;--high-ground:#d0453a22;--medium:#b7791f;--medium-ground:#b7791f22;--low:#808a97;--low-ground:#8a94a322;
--clean:#2f9e5f;--gain:#2f9e5f"""
"""Colours that are readable on both light and dark pages."""


def _stacked(kind: str) -> str:
    """Style of tables that are shown row by row, each cell with the name of its column."""
    return f"""
.{kind} thead{{display:none}}.{kind} tr{{display:block;border-bottom:1px solid var(--line);padding:6px 0}}
.{kind} tr:last-child{{border-bottom:0}}
.{kind} td,.{kind} td.t,.{kind} td.l,.{kind} td.at{{display:flow-root;
border:0;padding:1px 0;min-width:0;white-space:normal;text-align:right}}
.{kind} td::before{{content:attr(data-name);color:var(--soft);float:left;margin-right:16px}}
.{kind} td:empty{{display:none}}
"""


RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;overflow-wrap:anywhere;-webkit-text-size-adjust:100%}
main{max-width:1080px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:22px;line-height:1.25;margin:0;letter-spacing:-.01em}
h1 b{font-weight:700}h1 span{color:var(--soft);font-weight:400}
h2{font-size:16px;margin:0 0 12px}
p{margin:0 0 8px}
.sub{color:var(--soft);margin:4px 0 18px;overflow-wrap:anywhere}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:0 0 14px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:14px;margin:0 0 14px}
.tiles .card{margin:0}
.tile{font-size:12px;color:var(--soft);text-transform:uppercase;letter-spacing:.04em}
.big{font-size:26px;line-height:1.3;font-weight:650;font-variant-numeric:tabular-nums}
.note{font-size:13px;color:var(--soft)}
.finding{border-left:4px solid var(--line)}
.finding.high{border-left-color:var(--high)}.finding.medium{border-left-color:#c98714}
.row{display:grid;grid-template-columns:128px minmax(0,1fr) auto;gap:4px 18px;align-items:start}
.saves{font-variant-numeric:tabular-nums}
.saves b{display:block;font-size:20px;line-height:1.25;font-weight:650}
.saves span{font-size:13px;color:var(--soft)}
.what{overflow-wrap:anywhere}
.what .title{font-weight:550}
.where,.detail{font-size:13px;color:var(--soft);margin-top:3px}
.finding .fix{margin:10px 0 0}.fix .lead{float:left;margin-right:6px}.fix p:last-child{margin:0}
.chips{display:flex;gap:6px;flex-wrap:wrap}
.chip{display:inline-block;font-size:12px;line-height:1.3;padding:3px 9px;border-radius:99px;white-space:nowrap;
background:var(--low-ground);color:var(--low)}
.chip.high{background:var(--high-ground);color:var(--high)}.chip.medium{background:var(--medium-ground);color:var(--medium)}
.verdict{border-left:6px solid var(--line)}.verdict h2{font-size:26px;line-height:1.3;margin:0 0 4px}
.verdict.worse{border-left-color:var(--high)}.verdict.better{border-left-color:var(--clean)}
.verdict.open{border-left-color:#c98714}
.chip.worse{background:var(--high-ground);color:var(--high)}.chip.better{color:var(--clean)}
.chip.open{background:var(--medium-ground);color:var(--medium)}td .chip{white-space:normal;overflow-wrap:normal}
.ps-interval{display:block;width:220px;max-width:100%;height:22px;color:var(--ink)}
code,pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
code{background:var(--code);border-radius:4px;padding:1px 4px;overflow-wrap:anywhere}
.code{position:relative;margin:8px 0}
pre{background:var(--code);border-radius:8px;padding:12px 14px;margin:0;overflow-x:auto}
.copy{position:absolute;top:6px;right:6px;font:12px system-ui,sans-serif;color:var(--soft);background:var(--card);
border:1px solid var(--line);border-radius:6px;padding:3px 9px;cursor:pointer}
.copy:hover{color:var(--ink)}
details{margin-top:12px;border-top:1px solid var(--line);padding-top:10px}
summary{cursor:pointer;color:var(--link);font-size:14px}
details[open] summary{margin-bottom:8px}
details h3{font-size:13px;margin:14px 0 6px;color:var(--soft);font-weight:600}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:600;text-align:left;white-space:nowrap}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
tr:last-child td,tr:last-child th[scope=row]{border-bottom:0}
.facts th{width:9em;vertical-align:top;font-weight:400}
details details{border:0;margin-top:4px;padding-top:0}
.n{text-align:right;white-space:nowrap}
td.t{overflow-wrap:anywhere;min-width:9em}
td.s{white-space:nowrap}td.l{overflow-wrap:anywhere;min-width:18em}
td.at{min-width:17em}
.wide th,.wide td{padding-right:10px}.wide td.t{min-width:6.5em}.wide td.l{min-width:14em}.wide td.at{min-width:9em}
.legend.below{margin:8px 0 12px}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;color:var(--soft);margin-bottom:12px}
.lane{display:grid;grid-template-columns:minmax(0,15em) minmax(0,1fr);gap:2px 14px;align-items:center;padding:3px 0;
font-size:13px}
.lane.bare{grid-template-columns:minmax(0,1fr)}
.lane.fall{grid-template-columns:minmax(0,15em) minmax(0,1fr) 6.5em}
.lane .n{font-variant-numeric:tabular-nums}
.lane>div:first-child{overflow-wrap:anywhere}
.ps-lane{display:block;width:100%;height:20px;border-radius:4px;background:var(--code);color:var(--ink)}
.ps-plot{display:block;overflow:visible;width:100%;margin:4px 0 8px;color:var(--ink)}
.ps-plot text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--soft);
paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}
.ps-plot .ps-said{fill:var(--ink);font-weight:600}
.ps-plot .ps-grid{stroke:var(--line)}
.ps-plot .ps-limit,.ps-plot .dashed{stroke:var(--high);stroke-dasharray:6 4}
.ps-plot .ps-reach{stroke-width:2px;stroke-opacity:.4}
.ps-plot .ps-ring{fill:none;stroke:var(--ink);stroke-width:2px}
.ps-plot polyline{fill:none;vector-effect:non-scaling-stroke;stroke-width:1.5px}
.ps-plot .faint{stroke-width:1px;stroke-opacity:.5;stroke-dasharray:2 3}
.ps-share{display:block;width:110px;height:12px;margin-top:4px;border-radius:3px;background:var(--code)}
.ps-memory{display:block;overflow:visible;width:calc(100% - 66px);margin:4px 0 10px 66px}
.ps-memory text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--soft);
paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}
.ps-memory .ps-said{fill:var(--ink);font-weight:600}
.ps-grid{stroke:var(--ink);stroke-opacity:.18}.ps-full{stroke:var(--high);stroke-dasharray:6 4}
.ps-line{stroke-width:1.5px;vector-effect:non-scaling-stroke;stroke:var(--ink);stroke-opacity:.75}
line.ps-peak{stroke:var(--ink);stroke-dasharray:3 3}circle.ps-peak{fill:var(--ink);stroke:var(--card);stroke-width:2px}
td.share{width:120px}
.scroll+.note{margin-top:10px}.scroll+.scroll{margin-top:16px}
.ends{display:flex;justify-content:space-between;font-size:13px;color:var(--soft);margin-top:4px}
.unseen{border-left:4px solid #c98714}
ul{margin:0;padding-left:18px}li{margin:4px 0;overflow-wrap:anywhere}
.rules{display:flex;flex-wrap:wrap;gap:6px}
.chip.ok{color:var(--clean)}
footer{color:var(--soft);font-size:13px;overflow-wrap:anywhere}
a:focus-visible,summary:focus-visible,button:focus-visible{outline:2px solid var(--link);outline-offset:2px}
@media (max-width:900px){th,td{padding-right:10px}td.t{min-width:7em}.ps-share{width:60px}}
@media (max-width:640px){
main{padding:16px 12px 32px}.card{padding:14px}
.tiles{grid-template-columns:1fr 1fr;gap:10px}.big{font-size:20px}
.row{grid-template-columns:minmax(0,1fr)}
.saves b{display:inline;margin-right:8px}
th,td{padding-right:10px}td.t,td.l{min-width:7em}
STACKS
.stacks td.interval{display:block}.stacks td.interval::before{content:none}.stacks td.interval svg{width:100%}
.lane,.lane.fall{grid-template-columns:minmax(0,1fr) auto}.lane svg{grid-column:1/-1;grid-row:2}
.lane.bare svg{grid-row:1}
.stacks td.share{width:auto}.stacks td.share::before{content:none}.ps-share{width:100%}
}
@media (max-width:900px){WIDE}
@media print{body{background:#fff}.card{break-inside:avoid}.copy{display:none}}
""".replace("STACKS", _stacked("stacks")).replace("WIDE", _stacked("wide"))

STYLE = f":root{{color-scheme:light dark;{LIGHT}}}\n@media (prefers-color-scheme:dark){{:root{{{DARK}}}}}{RULES}"

SCRIPT = """
document.addEventListener("click",function(event){
  var button=event.target.closest("button.copy");
  if(!button){return}
  var code=button.parentElement.querySelector("pre");
  var range=document.createRange();range.selectNodeContents(code);
  var selection=getSelection();selection.removeAllRanges();selection.addRange(range);
  function say(word){button.textContent=word;setTimeout(function(){button.textContent="copy"},1500)}
  if(navigator.clipboard){
    navigator.clipboard.writeText(code.textContent).then(function(){say("copied")},function(){say("selected")});
  }else{say("selected")}
});
"""


def page(body: Iterable[str], *, title: str, data_id: str, data: str, style: str = "") -> str:
    """The whole page. ``body``: HTML with escaped texts; ``title``: text; ``style`` follows our own style sheet.

    ``data``: JSON for a ``<script>`` block with id ``data_id``; it must not contain ``<``.
    """
    style = STYLE + style
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(SCRIPT)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            '<link rel="icon" href="data:,">',
            f"<title>perfscope: {escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            *body,
            "</main>",
            f'<script type="application/json" id="{data_id}">{data}</script>',
            f"<script>{SCRIPT}</script>",
            "</body>",
            "</html>",
            "",
        )
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
