// Players: what clients had at each moment, drawn as steps, with the values at the moment that was chosen written out.
// Names and colours are those of the list of keys; samples are differences, so that the page stays small.
for (const figure of document.querySelectorAll("figure.player")) setUp(figure);

function setUp(figure) {
  const { unit, shown, runs } = JSON.parse(figure.querySelector("script").textContent);
  const keys = [...figure.querySelectorAll(".keys li")].map((item) => ({
    name: item.textContent.trim(),
    stroke: item.querySelector("path").getAttribute("stroke"),
    dashes: item.querySelector("path").getAttribute("stroke-dasharray") ?? "none",
  }));
  const whole = { name: "gap", stroke: "currentColor", dashes: "none" };
  for (const run of runs) for (const panel of run.panels) panel.lines = panel.lines.map(summed);
  const sides = [...shown];
  const [HIGH, WIDE] = [100, 1000];
  let end, clock, cursors, timer = 0;

  const button = make("button", { type: "button" });
  const slider = make("input", { type: "range", min: 0, ariaLabel: "moment" });
  const grid = make("div", { className: "sides" });
  grid.style.setProperty("--sides", sides.length);
  figure.querySelector(".keys").after(make("div", { className: "controls" }, button, slider), grid);
  button.addEventListener("click", () => (timer ? stop() : start()));
  slider.addEventListener("input", () => { stop(); show(); });
  stop();
  draw();

  function stop() {
    clearInterval(timer);
    timer = 0;
    button.textContent = "Play";
  }

  function start() {
    if (slider.value === slider.max) slider.value = 0;
    const pause = Math.min(700, Math.max(50, 12000 / clock.length));
    timer = setInterval(() => {
      slider.value = +slider.value + 1;
      show();
      if (slider.value === slider.max) stop();
    }, pause);
    button.textContent = "Stop";
  }

  // Draws the runs that are chosen, to one scale, and keeps the moment.
  function draw() {
    const moment = clock?.[slider.value];
    const chosen = sides.map((place) => runs[place]);
    clock = chosen.map((run) => run.at).reduce((one, other) => (one.at(-1) >= other.at(-1) ? one : other));
    end = clock.at(-1) || 1;
    slider.max = clock.length - 1;
    slider.value = last(clock, moment ?? end / 2);
    cursors = [];
    grid.replaceChildren(...chosen.map(head));
    chosen[0].panels.forEach(({ name }, row) => {
      const panels = chosen.map((run) => run.panels[row]);
      const values = panels.flatMap((panel) => [panel.bound ?? 0, ...panel.lines.flat()]);
      const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [0, 0]);
      const range = `${low.toLocaleString("en")} to ${high.toLocaleString("en")}`;
      grid.append(make("p", { className: "measure" }, name, make("small", {}, ` ${range}`)));
      const y = (value) => HIGH - ((value - low) / (high - low || 1)) * HIGH;
      chosen.forEach((run, side) => grid.append(cell(run, panels[side], y)));
    });
    show();
  }

  // Writes the name of a run, or the choice of it, and what happened at the moment.
  function head(run, side) {
    const time = make("output", {});
    cursors.push((at) => {
      const k = last(run.at, at);
      const said = `${run.at[k].toLocaleString("en", { maximumFractionDigits: 1 })} ${unit}`;
      time.textContent = run.said[k] ? `${said}: ${run.said[k]}` : said;
    });
    if (runs.length === 1) return make("div", {}, make("b", {}, run.label), time);
    const select = make("select", { ariaLabel: "run" }, ...runs.map((each, i) => new Option(each.label, i)));
    select.value = sides[side];
    select.addEventListener("change", () => {
      sides[side] = +select.value;
      draw();
      grid.querySelectorAll("select")[side].focus();
    });
    return make("div", {}, select, time);
  }

  function cell(run, panel, y) {
    const x = (at) => (at / end) * WIDE;
    const svg = shape("svg", { viewBox: `0 -2 ${WIDE} ${HIGH + 4}`, preserveAspectRatio: "none", "aria-hidden": true });
    const looks = panel.whole ? [whole] : keys;
    if (panel.bound != null)
      svg.append(shape("path", { d: `M0 ${y(panel.bound)}H${WIDE}`, stroke: "var(--bad)", "stroke-dasharray": "2 3" }));
    const rows = panel.lines.map((line, i) => {
      const steps = line.map((value, k) => `${k ? "H" : "M"}${x(run.at[k])}${k ? "V" : " "}${y(value)}`).join("");
      svg.append(shape("path", { d: steps, stroke: looks[i].stroke, "stroke-dasharray": looks[i].dashes }));
      const value = make("b", {});
      const row = make("li", {}, make("span", {}, looks[i].name), value);
      row.style.borderColor = looks[i].stroke;
      cursors.push((at) => (value.textContent = line[last(run.at, at)].toLocaleString("en")));
      return row;
    });
    if (panel.whole) {
      const bound = panel.bound == null ? "no bound" : `bound ${panel.bound.toLocaleString("en")}`;
      rows.push(make("li", {}, make("span", {}, bound)));
    }
    const cursor = svg.appendChild(shape("path", { stroke: "var(--soft)" }));
    cursors.push((at) => cursor.setAttribute("d", `M${x(at)} -2V${HIGH + 2}`));
    svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture(event.pointerId); seek(event); });
    svg.addEventListener("pointermove", (event) => { if (svg.hasPointerCapture(event.pointerId)) seek(event); });
    return make("div", {}, svg, make("ul", {}, ...rows));

    function seek(event) {
      const box = svg.getBoundingClientRect();
      stop();
      slider.value = last(clock, ((event.clientX - box.left) / box.width) * end);
      show();
    }
  }

  function show() {
    const at = clock[slider.value];
    slider.setAttribute("aria-valuetext", `${at} ${unit}`);
    for (const cursor of cursors) cursor(at);
  }
}

function summed(differences) {
  let sum = 0;
  return differences.map((each) => (sum += each));
}

// Returns where the last sample at or before a moment is.
function last(times, at) {
  let k = 0;
  while (k + 1 < times.length && times[k + 1] <= at) k += 1;
  return k;
}

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function shape(tag, attributes) {
  const element = document.createElementNS(document.querySelector(".keys svg").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
