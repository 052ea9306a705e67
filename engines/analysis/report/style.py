"""How every page looks: in light and in dark, on a phone, a screen and on paper.

The colours of lines (Okabe and Ito's, and two of Tol's) are told apart by readers who see fewer colours; lines differ
in dashes as well.
"""

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1f24; --soft: #57606a; --rule: #d8dde3; --band: #f4f6f8;
  --link: #0a5c9e; --good: #00694c; --bad: #b03a00; --grey: #8a929c;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #c2609b; --c4: #e69f00; --c5: #56b4e9;
  --c6: #332288; --c7: #999933; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #14171a; --ink: #e6e9ec; --soft: #a2abb5; --rule: #343a41; --band: #1d2125;
    --link: #7cc0f5; --good: #4fd1a5; --bad: #ff9a62; --grey: #818a94;
    --c0: #4fa8e0; --c1: #f0824a; --c2: #34c79d; --c3: #dd8fbd; --c4: #efb73e; --c5: #9bd5f5;
    --c6: #a394f0; --c7: #bdbd5c; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 72rem; padding: 1.25rem 1rem 4rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; line-height: 1.3; }
p, li { max-width: 50rem; }
ul { padding-left: 1.2rem; } li { margin: .2rem 0; }
a { color: var(--link); }
.soft, figcaption, dt { color: var(--soft); }
.soft { font-size: .92rem; }
p.verdict { font-size: 1.3rem; line-height: 1.4; margin: 1rem 0 .5rem; padding: .1rem 0 .1rem .9rem;
  border-left: .3rem solid var(--rule); }
p.verdict.good { border-color: var(--good); } p.verdict.bad { border-color: var(--bad); }
nav { font-size: .92rem; } nav ul { columns: 16rem; margin: .3rem 0; } nav li { break-inside: avoid; }
pre { overflow-x: auto; overflow-wrap: normal; background: var(--band); padding: .6rem .8rem; border-radius: .4rem;
  font-size: .85rem; }
dl { display: grid; grid-template-columns: fit-content(14rem) minmax(0, 1fr); gap: .15rem 1rem; margin: .75rem 0; }
dd { margin: 0; }
.scroll { overflow-x: auto; max-width: 100%;
  background: linear-gradient(to right, var(--page) 40%, transparent) 0 0 / 2.5rem 100%,
  linear-gradient(to left, var(--page) 40%, transparent) 100% 0 / 2.5rem 100%,
  linear-gradient(to right, var(--rule), transparent) 0 0 / .8rem 100%,
  linear-gradient(to left, var(--rule), transparent) 100% 0 / .8rem 100%;
  background-repeat: no-repeat; background-attachment: local, local, scroll, scroll; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .3rem .5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th { font-weight: 600; vertical-align: bottom; }
th small, td small { display: block; font-weight: 400; color: var(--soft); }
th.text, td.text { text-align: left; }
td.text { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; max-width: 24rem; unicode-bidi: isolate; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--page); }
td:first-child { max-width: 18rem; }
tbody tr:hover td { background: var(--band); }
:target { background: var(--band); scroll-margin-top: 1rem; }
.good { color: var(--good); } .bad { color: var(--bad); } td.bad { font-weight: 600; }
p.verdict { color: var(--ink); }
figure { margin: 1rem 0 2rem; } figcaption { max-width: 50rem; margin-top: .4rem; font-size: .92rem; }
figure > svg { width: 100%; max-width: 32rem; height: auto; display: block; }
.keys { list-style: none; padding: 0; margin: .5rem 0; display: flex; flex-wrap: wrap; gap: .1rem 1.1rem;
  font-size: .88rem; }
.keys li { display: flex; align-items: center; gap: .4rem; max-width: 100%; margin: 0; }
.keys span { unicode-bidi: isolate; max-width: 24rem; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.keys svg { width: 1.75rem; height: .6rem; flex: none; }
details { margin: .4rem 0; } summary { cursor: pointer; }
@media (max-width: 40em) { dl { grid-template-columns: minmax(0, 1fr); } dd { margin-bottom: .4rem; }
  td.text { min-width: 7rem; } td:first-child { max-width: 9rem; } th, td { padding: .3rem .45rem; } }
@media (min-width: 52em) { figure > svg { max-width: 46rem; } figure > svg text { font-size: 7.5px !important; }
  body { padding-left: 1.25rem; padding-right: 1.25rem; } h1 { font-size: 1.5rem; } p.verdict { font-size: 1.45rem; } }
@media print { body { max-width: none; padding: 0; font-size: 11pt; }
  nav { display: none; } figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; } .scroll, pre { overflow: visible; } pre { white-space: pre-wrap; }
  table { font-size: .7rem; } th, td { padding: .2rem .3rem; white-space: normal; } }
"""
