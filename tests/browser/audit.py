"""What axe and the layout say against the page as it stands."""

from __future__ import annotations

from tests.conftest import ROOT

AXE = ROOT / "node_modules/axe-core/axe.min.js"
# Of what has been shown: what is marked by its size (scrolling.mjs) is so from the next frame on.
RUN_AXE = """async (rules) => {
  for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
  const {passes, violations} = await axe.run(document, rules.length ? {runOnly: rules} : {});
  return {
    passed: passes.length,
    found: violations.flatMap(({id, impact, nodes}) =>
      nodes.map(({html}) => `${id} (${impact}): ${html.slice(0, 200)}`)),
  };
}"""
# What must be scrolled to sideways, controls that lie outside, and a prompt that is not in sight.
OUTSIDE = """() => {
  const say = (e) => e.outerHTML.slice(0, 120);
  const seen = (e) => e.checkVisibility({visibilityProperty: true}) && !e.matches('.skip');
  const areas = document.querySelectorAll('html, body, main, .bar, .dock, dialog[open], .side');
  const isWide = (e) => e.scrollWidth > Math.min(e.clientWidth + 1, innerWidth);
  const wide = [...areas].filter((e) => seen(e) && isWide(e));
  const controls = [...document.querySelectorAll('button, input, select, textarea, summary')];
  const outside = controls.filter(seen).filter((e) => {
    const {left, right} = e.getBoundingClientRect();
    return left < -1 || right > innerWidth + 1;
  });
  const prompt = document.querySelector('#composer').getBoundingClientRect();
  const hidden = prompt.top < 0 || prompt.bottom > innerHeight ? ['the prompt is hidden'] : [];
  return [...wide.map(say), ...outside.map(say), ...hidden];
}"""
