"use strict";
// The page of runs. It shows what its source gives: the server (live), or the data inside the page (a report).
// Whatever comes from a run is set as text, never as HTML.
(() => {
  const $ = (id) => document.getElementById(id);
  const embedded = $("whorl-data");
  const report = embedded ? JSON.parse(embedded.textContent) : null;
  const token = document.querySelector("meta[name=whorl-token]")?.content || "";
  const POLL = 2000, DETAIL_POLL = 3000, ROWS = 500, FIRST_ROWS = 50, FIRST_RUNS = 20, FIRST_ENVS = 4;

  // Source

  async function call(path, body) {
    const options = body === undefined ? {} : {
      method: "POST", headers: { "content-type": "application/json", "x-whorl-token": token }, body: JSON.stringify(body),
    };
    let answer;
    try { answer = await fetch(path, options); } catch { throw new Error("whorl serve does not answer; it was stopped"); }
    const text = await answer.text();
    let found;
    try { found = JSON.parse(text); } catch { throw new Error(text.slice(0, 300) || `status ${answer.status}`); }
    if (!answer.ok) throw new Error(found.error || `status ${answer.status}`);
    return found;
  }
  const at = (path, values) => `${path}?${new URLSearchParams(values)}`;
  const live = {
    runs: (known) => call(at("api/runs", { server: known.server, since: known.version })),
    curves: (query) => call("api/curves", query),
    run: (name) => call(at("api/run", { name })),
    file: (run, path) => at("file", { run, path }),
    map: (run, name) => at("map", { run, name }),
    stop: (name) => call("api/stop", { name }),
    resume: (name, steps) => call("api/resume", { name, total_timesteps: steps }),
  };
  const still = report && {
    runs: async () => report.runs,
    curves: async (query) => report.curves[`${query.runs.length === 1 ? query.runs[0] : ""}|${query.x}|${query.metric}`]
      || report.curves[`|${query.x}|${query.metric}`] || { ...report.curves[report.first], panels: [] },
    run: async (name) => report.details[name],
    file: (run, path) => report.files[`${run}|${path}`] || "",
    map: (run, name) => report.files[`${run}|map|${name}`] || "",
  };
  const source = report ? still : live;
  document.body.classList.toggle("report", Boolean(report));
  if (location.search.includes("token=")) history.replaceState(null, "", location.pathname);

  // Words and numbers

  function make(tag, properties = {}, ...inner) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name in element && name !== "list") element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...inner.filter((part) => part !== null && part !== undefined));
    return element;
  }
  const digits = (value, count = 4) => Number(value.toPrecision(count)).toString();
  function compact(value) {
    if (value === null || value === undefined) return "";
    for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= size * 0.9995) return digits(value / size, 3) + unit;
    return digits(value, 3);
  }
  const number = (value) => value === null || value === undefined ? "" :
    Math.abs(value) >= 1e5 ? compact(value) : Math.abs(value) >= 100 ? value.toFixed(1) : digits(value, 4);
  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "";
    const s = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)} min`;
    if (s < 48 * 3600) return `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)} h`;
    return `${Math.floor(s / 86400)} days`;
  }
  function ago(time) {
    if (!time) return "";
    if (report) return new Date(time * 1000).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" });
    const seconds = Math.max(0, clock() - time);
    return seconds < 5 ? "now" : seconds < 60 ? `${Math.round(seconds)} s ago` : seconds < 3600 ?
      `${Math.round(seconds / 60)} min ago` : seconds < 48 * 3600 ? `${Math.round(seconds / 3600)} h ago` :
      `${Math.round(seconds / 86400)} days ago`;
  }
  const bytes = (value) => value >= 1e9 ? `${digits(value / 1e9, 3)} GB` : `${Math.round(value / 1e6)} MB`;
  const percent = (share) => `${Math.round(share * 100)}%`;
  let shift = 0;
  const clock = () => Date.now() / 1000 + shift;
  const later = (() => { // one call after many
    const waiting = new Map();
    return (name, act, delay) => { clearTimeout(waiting.get(name)); waiting.set(name, setTimeout(act, delay)); };
  })();

  // State

  const runs = new Map();
  const known = { server: "", version: -1 };
  const chosen = new Set();
  const have = new Map();
  const hiddenGroups = new Set();
  let colours = {}, sortBy = "written", down = true, wanted = "", limit = FIRST_ROWS, touched = false;
  let opened = "", tab = "Overview", panels = [];

  function complain(error) {
    $("notice").textContent = error ? error.message || String(error) : "";
    $("notice").hidden = !error;
  }

  // Table of runs

  const COLUMNS = [
    { key: "name", title: "Run" },
    { key: "algorithm", title: "Algorithm", kind: "wide" },
    { key: "env", title: "Environment", kind: "wide" },
    { key: "seed", title: "Seed", kind: "wide number" },
    { key: "state", title: "State" },
    { key: "steps", title: "Steps", kind: "wide number", down: true },
    { key: "return", title: "Return", kind: "number", down: true },
    { key: "left", title: "Time left", kind: "wide number" },
    { key: "written", title: "Written", kind: "wide number", down: true },
  ];

  function drawHead() {
    const cells = COLUMNS.map((column) => {
      const button = make("button", { type: "button", textContent: column.title, onclick: () => {
        down = sortBy === column.key ? !down : Boolean(column.down);
        sortBy = column.key;
        drawHead(); drawRows();
      } });
      const cell = make("th", { className: column.kind || "", scope: "col" }, button);
      if (sortBy === column.key) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      return cell;
    });
    const all = make("input", { type: "checkbox", ariaLabel: "Plot all runs shown", id: "all", onchange: (event) => {
      touched = true;
      for (const row of visible()) event.target.checked ? chosen.add(row.name) : chosen.delete(row.name);
      drawRows(); drawCurves();
    } });
    $("head").replaceChildren(make("th", { className: "pick live" }, make("label", {}, all)), ...cells);
  }

  function matches(row, words) {
    const text = [row.name, row.algorithm, row.env, row.tag, row.state, `seed ${row.seed}`].join(" ").toLowerCase();
    return words.every((word) => {
      const found = /^(\w+)(:|>=|<=|>|<|=)(.+)$/.exec(word);
      if (!found || !(found[1] in row)) return text.includes(word);
      const [, key, sign, value] = found, mine = row[key];
      if (sign === ":") return String(mine).toLowerCase().includes(value);
      if (sign === "=") return String(mine).toLowerCase() === value;
      if (mine === null || mine === undefined || Number.isNaN(Number(value))) return false;
      return { ">": mine > value, "<": mine < value, ">=": mine >= value, "<=": mine <= value }[sign];
    });
  }
  // Runs that are written to all the time count as equally new, or they would change places with every look.
  const sortKey = (row) => sortBy === "written" && row.state === "running" ? Infinity : row[sortBy];
  function compare(a, b) {
    const [x, y] = [sortKey(a), sortKey(b)];
    const none = (value) => value === null || value === undefined || value === "";
    if (none(x) || none(y)) return none(x) - none(y) || a.name.localeCompare(b.name, undefined, { numeric: true });
    const order = typeof x === "number" && typeof y === "number" ? (x < y ? -1 : x > y ? 1 : 0) :
      String(x).localeCompare(String(y), undefined, { numeric: true });
    return (down ? -order : order) || a.name.localeCompare(b.name, undefined, { numeric: true });
  }
  function visible() {
    const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    return [...runs.values()].filter((row) => (!wanted || row.state === wanted) && matches(row, words)).sort(compare);
  }

  const badge = (row) => {
    const word = row.error ? "failed" : row.state;
    return make("span", { className: `badge ${word}`, textContent: word });
  };
  function track(share) {
    const fill = make("span", { className: "fill" });
    fill.style.width = percent(share);
    return make("span", { className: "track", title: percent(share) }, fill);
  }
  const lines = new Map(); // name -> [what it shows, element]
  function line(row) {
    const shown = JSON.stringify([row, chosen.has(row.name), colours[row.name], row.name === opened, ago(row.written)]);
    const old = lines.get(row.name);
    if (old && old[0] === shown) return old[1];
    const box = make("input", { type: "checkbox", checked: chosen.has(row.name), ariaLabel: `Plot ${row.name}`,
      disabled: row.population, onchange: () => {
        touched = true;
        box.checked ? chosen.add(row.name) : chosen.delete(row.name);
        drawRows(); drawCurves();
      } });
    const dot = make("span", { className: "dot" });
    if (chosen.has(row.name) && colours[row.name]) dot.style.background = tint(colours[row.name]);
    const facts = [row.algorithm, row.env, row.seed === null ? "" : `seed ${row.seed}`, row.steps ? `${compact(row.steps)} steps` : "",
      row.left === null ? "" : `${duration(row.left)} left`].filter(Boolean).join(" · ");
    const pick = make("td", { className: "pick live", onclick: (event) => event.stopPropagation() }, make("label", {}, box, dot));
    const name = make("td", { className: "name" },
      make("button", { type: "button", textContent: row.population ? `${row.name} (population)` : row.name }),
      make("small", { textContent: facts }));
    const state = make("td", { className: "state" }, badge(row), row.share && row.share < 1 ? track(row.share) : null);
    const cell = (text, kind) => make("td", { className: kind, textContent: text });
    const element = make("tr", { className: row.name === opened ? "open" : "", onclick: () => open(row.name) },
      pick, name, cell(row.algorithm, "wide"), cell(row.env, "wide"), cell(row.seed ?? "", "wide number"), state,
      cell(compact(row.steps), "wide number"), cell(number(row.return), "number"), cell(duration(row.left), "wide number"),
      cell(ago(row.written), "wide number"));
    element.dataset.name = row.name;
    lines.set(row.name, [shown, element]);
    return element;
  }

  // Puts elements into another one and touches only what is new or elsewhere: a long table is slow to lay out.
  function arrange(parent, elements) {
    const kept = new Set(elements);
    for (const old of [...parent.children]) if (!kept.has(old)) old.remove();
    let next = parent.firstChild;
    for (const element of elements) {
      if (element === next) next = next.nextSibling;
      else parent.insertBefore(element, next);
    }
  }

  function drawRows() {
    const found = visible();
    const focus = document.activeElement?.closest?.("#rows tr")?.dataset.name;
    arrange($("rows"), found.slice(0, limit).map(line));
    if (focus && document.activeElement === document.body) lines.get(focus)?.[1].querySelector("button").focus();
    $("more").hidden = found.length <= limit;
    $("more").textContent = `Show ${found.length - limit} more`;
    $("found").textContent = found.length === runs.size ? `${runs.size} run${runs.size === 1 ? "" : "s"}` : `${found.length} of ${runs.size} runs`;
    $("all").checked = found.length > 0 && found.every((row) => chosen.has(row.name) || row.population);
    if (!runs.size) {
      const note = make("td", { className: "empty", colSpan: COLUMNS.length + 1 }, "There are no runs in this folder yet. ",
        "Start one: ", make("code", { textContent: "whorl train ppo CartPole-v1" }));
      $("rows").replaceChildren(make("tr", {}, note));
    }
    const counts = {};
    for (const row of runs.values()) counts[row.state] = (counts[row.state] || 0) + 1;
    $("counts").textContent = counts.running ? `${counts.running} running` : "";
    const words = ["", ...["running", "finished", "stopped"].filter((word) => counts[word] || word === wanted)];
    $("states").replaceChildren(...words.map((word) => make("button", {
      type: "button", textContent: word ? `${word} ${counts[word] || 0}` : "all", ariaPressed: String(wanted === word),
      onclick: () => { wanted = word; drawRows(); },
    })));
  }

  function chooseFirst() {
    const environments = new Set();
    const rows = visible().filter((row) => !row.population && row.steps !== null);
    const own = rows.filter((row) => !row.parent); // learners of a population are many, and curves of their own
    for (const row of own.length && !report ? own : rows) {
      if (!report && (chosen.size >= FIRST_RUNS || (environments.size >= FIRST_ENVS && !environments.has(row.env)))) continue;
      environments.add(row.env);
      chosen.add(row.name);
    }
  }

  // Curves

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const styles = new Map(); // computed styles are asked for once: each question would lay out the page
  function css(name) {
    if (!styles.has(name)) {
      const found = name === "font" ? getComputedStyle(document.body).fontFamily : getComputedStyle(document.documentElement).getPropertyValue(name);
      styles.set(name, found.trim());
    }
    return styles.get(name);
  }
  function tint(colour, alpha = 1) { // lighter on a dark ground
    const parts = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
    const [r, g, b] = dark.matches ? parts.map((part) => Math.round(part + (255 - part) * 0.28)) : parts;
    return `rgba(${r},${g},${b},${alpha})`;
  }
  // The plotting library takes longer to start than everything else, so the first curves are drawn without it.
  let library = null;
  function plotly() {
    library ??= window.Plotly ? Promise.resolve(window.Plotly) : new Promise((resolve, reject) => {
      const load = () => document.head.append(make("script", { src: "static/plotly.js", onload: () => resolve(window.Plotly),
        onerror: () => reject(new Error("the plotting library could not be loaded")) }));
      requestAnimationFrame(() => setTimeout(load)); // after what was drawn is on the screen
    });
    return library;
  }
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function unitOfTime(end) { return end < 180 ? ["s", 1] : end < 3 * 3600 ? ["min", 60] : ["h", 3600]; }

  function tracesOf(panel, scale) {
    const traces = [];
    for (const group of panel.groups) {
      if (hiddenGroups.has(group.label)) continue;
      const common = { legendgroup: group.label, showlegend: false, type: "scatter" };
      const colour = tint(group.colour), title = plain(group.label.length > 46 ? `${group.label.slice(0, 45)}…` : group.label);
      for (const one of group.lines) {
        const x = one.x.map((value) => value / scale);
        if (one.low) {
          const edge = { ...common, x, mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
          traces.push({ ...edge, y: one.low }, { ...edge, y: one.high, fill: "tonexty", fillcolor: tint(group.colour, 0.18) });
        }
        const about = one.low ? one.y.map((_, i) => ` [${number(one.low[i])}, ${number(one.high[i])}]`) : undefined;
        traces.push({ ...common, x, y: one.y, mode: "lines", name: title, customdata: about,
          line: one.raw ? { color: tint(group.colour, 0.28), width: 1 } :
            { color: colour, width: one.fewer ? 1.3 : 2, dash: one.fewer ? "dot" : group.dash },
          ...(one.raw ? { hoverinfo: "skip" } : { hovertemplate: `${title}: <b>%{y:.4~g}</b>${one.low ? "%{customdata}" : ""}<extra></extra>` }) });
      }
      if (group.points.x.length) traces.push({ ...common, x: group.points.x.map((value) => value / scale), y: group.points.y,
        mode: "markers", name: title, marker: { color: css("--paper"), size: 6, line: { color: colour, width: 1.4 } },
        hovertemplate: `${title}, evaluation: <b>%{y:.4~g}</b><extra></extra>` });
    }
    return traces;
  }

  function layoutOf(panel, x, unit, small) {
    const axis = { gridcolor: css("--grid"), zeroline: false, linecolor: css("--line"), tickfont: { color: css("--soft"), size: 11 },
      automargin: true, fixedrange: small };
    // Where nothing hovers, Plotly always shows its buttons: they stand above the curves, not on their ends.
    const bar = !small && matchMedia("(hover: none)").matches;
    const name = { steps: "environment steps", time: `training time (${unit})`, episodes: "episodes" }[x];
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 46, r: 12, t: bar ? 38 : 10, b: small ? 26 : 40 },
      font: { family: css("font"), size: 12, color: css("--soft") },
      hovermode: panel.groups.length > 8 ? "closest" : "x unified", showlegend: false, uirevision: `${panel.metric}|${x}`,
      hoverlabel: { bgcolor: css("--paper"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 }, align: "left" },
      modebar: { bgcolor: css("--paper"), color: css("--soft"), activecolor: css("--accent") },
      xaxis: { ...axis, spikecolor: css("--soft"), spikethickness: 1, spikedash: "solid", title: { text: small ? "" : name, standoff: 8, font: { size: 12 } }, tickformat: x === "time" ? "" : "~s",
        hoverformat: x === "time" ? ".3~f" : ",.0f" },
      yaxis: { ...axis, tickformat: "~s" }, dragmode: matchMedia("(pointer: coarse)").matches ? "pan" : "zoom",
    };
  }
  // sendChartToCloud would offer to upload the data of runs.
  const CONFIG = { displaylogo: false, responsive: true, displayModeBar: "hover",
    modeBarButtonsToRemove: ["sendChartToCloud", "sendDataToCloud", "select2d", "lasso2d", "autoScale2d", "toImage", "zoomIn2d", "zoomOut2d"] };

  async function drawPlot(element, panel, x, small = false) {
    const end = Math.max(1, ...panel.groups.flatMap((group) => group.lines.map((one) => one.x[one.x.length - 1] || 0)));
    const [unit, scale] = x === "time" ? unitOfTime(end) : ["", 1];
    element.panel = panel;
    if (!window.Plotly) {
      element.replaceChildren(sketch(element, tracesOf(panel, scale), layoutOf(panel, x, unit, small)));
      element.dataset.drawn = "sketch";
    }
    const Plotly = await plotly();
    if (!element.isConnected || element.panel !== panel) return; // it shows something newer by now
    if (element.dataset.drawn === "sketch") element.replaceChildren();
    await Plotly.react(element, tracesOf(panel, scale), layoutOf(panel, x, unit, small), { ...CONFIG, displayModeBar: small ? false : "hover" });
    element.dataset.drawn = "plotly";
  }

  // Round numbers between two values: steps of 1, 2 or 5 times a power of ten.
  function ticksOf(low, high, most) {
    const rough = (high - low) / most, unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((factor) => unit * factor >= rough * 0.999);
    const ticks = [];
    // Beyond 2 ** 53 adding 1 changes nothing, so the number of ticks is bounded, too.
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9 && ticks.length < 50; n++) ticks.push(n * step);
    return ticks;
  }
  const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
  function shape(tag, attributes, ...inner) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...inner);
    return element;
  }
  // Traces and a layout of the plotting library as a still picture, until the library is there.
  function sketch(element, traces, layout) {
    const width = element.clientWidth, height = element.clientHeight, { l, r, t, b } = layout.margin;
    const finite = (axis) => traces.flatMap((trace) => trace[axis].filter((value) => value !== null));
    const ends = (values, pad) => {
      let low = Infinity, high = -Infinity;
      for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
      if (low > high) return [0, 1];
      const extra = high > low ? (high - low) * pad : 1;
      return [low - extra, high + extra];
    };
    const dots = traces.some((trace) => trace.mode === "markers"); // the library leaves a margin around them
    const [x0, x1] = ends(finite("x"), dots ? 0.055 : 0), [y0, y1] = ends(finite("y"), 0.055);
    const across = (x) => l + (x - x0) / (x1 - x0 || 1) * (width - l - r), up = (y) => height - b - (y - y0) / (y1 - y0 || 1) * (height - t - b);
    const place = (trace, i) => `${across(trace.x[i]).toFixed(1)},${up(trace.y[i]).toFixed(1)}`;
    const pathOf = (trace) => trace.x.map((_, i) => trace.y[i] === null ? "" :
      `${i && trace.y[i - 1] !== null ? "L" : "M"}${place(trace, i)}`).join("");
    const parts = [];
    const text = (x, y, anchor, words, size = 11) =>
      shape("text", { x, y, "text-anchor": anchor, fill: css("--soft"), "font-size": size }, words);
    for (const x of ticksOf(x0, x1, Math.max(2, width / 110)))
      parts.push(shape("path", { d: `M${across(x)},${t}V${height - b}`, stroke: css("--grid") }), text(across(x), height - b + 15, "middle", compact(x)));
    for (const y of ticksOf(y0, y1, Math.max(2, height / 50)))
      parts.push(shape("path", { d: `M${l},${up(y)}H${width - r}`, stroke: css("--grid") }), text(l - 5, up(y) + 4, "end", compact(y)));
    traces.forEach((trace, number) => {
      if (trace.mode === "markers") for (let i = 0; i < trace.x.length; i++) {
        if (trace.y[i] !== null) parts.push(shape("circle", { cx: across(trace.x[i]), cy: up(trace.y[i]), r: 3, fill: trace.marker.color,
          stroke: trace.marker.line.color, "stroke-width": trace.marker.line.width }));
      } else if (trace.fill) {
        const below = traces[number - 1], known = trace.x.map((_, i) => i).filter((i) => trace.y[i] !== null && below.y[i] !== null);
        const outline = [...known.map((i) => place(trace, i)), ...known.reverse().map((i) => place(below, i))];
        parts.push(shape("polygon", { points: outline.join(" "), fill: trace.fillcolor }));
      } else if (trace.line.width) parts.push(shape("path", { d: pathOf(trace), fill: "none", stroke: trace.line.color, "stroke-width": trace.line.width,
        "stroke-dasharray": { dash: "9 9", dot: "3 3", dashdot: "9 3 3 3" }[trace.line.dash] || "none" }));
    });
    parts.push(text(l + (width - l - r) / 2, height - 10, "middle", layout.xaxis.title.text, 12));
    return shape("svg", { width, height, role: "img", "aria-label": "learning curves" }, ...parts);
  }

  function swatch(group) {
    const element = make("span", { className: "swatch" });
    element.style.borderTop = `3px ${{ dash: "dashed", dot: "dotted", dashdot: "dashed" }[group.dash] || "solid"} ${tint(group.colour)}`;
    return element;
  }
  const title = (metric) => ({ "episode/return": "episode return", "evaluation/return": "evaluation return" }[metric] || metric.replaceAll("/", " / "));

  // What lines, bands and circles are.
  function keyOf(panel) {
    const band = { ci: " and 95% CI", std: " ± std", none: "" }[$("band").value];
    const look = `${$("statistic").selectedOptions[0].textContent}${band} of the seeds`;
    return [panel.groups.some((group) => group.seeds > 1) ? look : "", panel.groups.some((group) => group.points.x.length) ? "○ evaluation" : ""]
      .filter(Boolean).join(" · ");
  }

  const cards = new Map();
  function drawPanels() {
    const x = $("x").value, found = [];
    for (const panel of panels) {
      const key = `${panel.metric}|${panel.env}`;
      if (!cards.has(key)) {
        const card = { title: make("h4"), plot: make("div", { className: "plot" }), legend: make("div", { className: "legend" }) };
        card.element = make("div", { className: "panel" }, card.title, card.plot, card.legend);
        cards.set(key, card);
      }
      const card = cards.get(key);
      card.title.replaceChildren(panel.env || "runs", " ", make("span", { textContent: title(panel.metric) }));
      card.legend.replaceChildren(...panel.groups.map((group) => make("button", {
        type: "button", title: "Show or hide", ariaPressed: String(!hiddenGroups.has(group.label)),
        onclick: () => { hiddenGroups.has(group.label) ? hiddenGroups.delete(group.label) : hiddenGroups.add(group.label); drawPanels(); },
      }, swatch(group), group.label + " ", make("small", { textContent: group.seeds > 1 ? `${group.seeds} seeds` : "" }))), make("small", { className: "key", textContent: keyOf(panel) }));
      found.push(card.element);
      const shows = JSON.stringify([x, dark.matches, panel.groups.map((group) => [group.digest, group.colour, group.dash, hiddenGroups.has(group.label)])]);
      card.draw = async () => {
        if (card.shows === shows) return;
        card.shows = shows;
        await drawPlot(card.plot, panel, x);
      };
    }
    for (const [key, card] of cards) if (!found.includes(card.element)) { if (window.Plotly) window.Plotly.purge(card.plot); cards.delete(key); }
    if (!found.length) found.push(make("p", { className: "empty", textContent:
      !chosen.size ? "Tick runs in the table to plot them." : "These runs have no values of this metric yet." }));
    const now = [...$("panels").children];
    if (now.length !== found.length || now.some((element, i) => element !== found[i])) $("panels").replaceChildren(...found);
    for (const card of cards.values()) card.draw().catch(complain);
  }

  function fillMetrics(metrics, shown) {
    const select = $("metric"), before = select.value;
    const names = metrics.length ? metrics : ["episode/return"];
    if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
      const groups = new Map();
      for (const name of names) {
        const group = name.includes("/") ? name.slice(0, name.indexOf("/")) : "other";
        if (!groups.has(group)) groups.set(group, make("optgroup", { label: group }));
        groups.get(group).append(make("option", { value: name, textContent: name }));
      }
      select.replaceChildren(...groups.values());
    }
    select.value = names.includes(before) ? before : names.includes(shown[0]) ? shown[0] : names[0];
  }

  let asking = false, again = false;
  async function drawCurves() {
    if (asking) { again = true; return; }
    asking = true;
    try {
      const x = $("x").value;
      const query = { runs: [...chosen].filter((name) => runs.has(name)), metric: $("metric").value || "episode/return", x,
        statistic: $("statistic").value, band: $("band").value, smooth: Number($("smooth").value) };
      const look = JSON.stringify([query.x, query.statistic, query.band, query.smooth]);
      if (have.look !== look) { have.clear(); have.look = look; }
      query.have = Object.fromEntries([...have].map(([key, group]) => [key, group.digest]));
      const found = await source.curves(query);
      complain(null);
      const kept = new Set();
      for (const panel of found.panels) panel.groups = panel.groups.map((group) => {
        const whole = group.lines ? group : { ...have.get(group.key), ...group };
        have.set(group.key, whole); kept.add(group.key);
        return whole;
      });
      for (const key of [...have.keys()]) if (!kept.has(key)) have.delete(key);
      panels = found.panels; colours = found.colours;
      fillMetrics(found.metrics, found.shown);
      $("reading").textContent = found.waiting ? `reading ${found.waiting} more runs…` : "";
      drawPanels(); drawDiffer(found.differ); drawRows();
      if (found.waiting) again = true;
    } catch (error) { complain(error); } finally {
      asking = false;
      if (again) { again = false; later("curves", drawCurves, 30); }
    }
  }

  function drawDiffer(differ) {
    $("differ").hidden = !differ.rows.length;
    $("differ-count").textContent = differ.rows.length ? `${differ.rows.length}` : "";
    const several = new Set(differ.columns.map((column) => column.env)).size > 1;
    const head = differ.columns.map((column) => make("th", { scope: "col" },
      `${several ? `${column.env}: ` : ""}${column.label}`, column.runs > 1 ? ` (${column.runs} seeds)` : ""));
    const rows = differ.rows.map((row) => make("tr", {}, make("td", {}, row.setting),
      ...row.values.map((value) => make("td", { textContent: value }))));
    $("differ-table").replaceChildren(make("tr", {}, make("th", {}, "Setting"), ...head), ...rows);
  }

  // One run

  const TABS = { Overview: overview, Settings: settings, Videos: videos, Maps: maps, System: system, Log: log };
  let shownDetail = "", lastUse = null;

  function open(name) {
    opened = name; shownDetail = ""; lastUse = null;
    $("detail").hidden = false;
    $("detail-name").textContent = name;
    $("pane").replaceChildren();
    drawRows(); drawDetail();
  }
  function close() { opened = ""; $("detail").hidden = true; drawRows(); }

  async function drawDetail() {
    if (!opened) return;
    const name = opened;
    let found;
    try { found = await source.run(name); } catch (error) { if (opened === name) close(); complain(error); return; }
    if (opened !== name) return;
    const row = found.row;
    $("detail-state").replaceChildren(badge(row), ...[[row.algorithm, row.env].filter(Boolean).join(" on "),
      row.share ? percent(row.share) : "", row.left ? `${duration(row.left)} left` : ""].filter(Boolean).map((text) => make("span", { textContent: text })));
    drawActions(found);
    const tabs = Object.keys(TABS).filter((word) => word !== "Maps" || found.maps.length);
    if (!tabs.includes(tab)) tab = "Overview";
    $("tabs").replaceChildren(...tabs.map((word) => make("button", { type: "button", role: "tab", textContent: word,
      ariaSelected: String(word === tab), onclick: () => { tab = word; shownDetail = ""; $("pane").replaceChildren(); drawDetail(); } })));
    TABS[tab](found, $("pane"));
  }
  function changed(...what) { // whether a pane shows something else than before
    const now = JSON.stringify([opened, tab, ...what]);
    const different = now !== shownDetail;
    shownDetail = now;
    return different;
  }

  let actionsShown = "";
  function drawActions(found) {
    const row = found.row, state = row.state, parent = row.parent;
    const now = JSON.stringify([row.name, state, row.error, parent]);
    if (now === actionsShown) return;
    actionsShown = now;
    const act = (does) => async (event) => {
      event.target.disabled = true;
      try { await does(); complain(null); } catch (error) { complain(error); event.target.disabled = false; }
      await look(); actionsShown = ""; drawDetail();
    };
    const parts = [];
    const whole = row.population || parent;
    if (state === "running" || state === "stopping") parts.push(make("button", { type: "button", className: "primary", id: "stop",
      textContent: state === "stopping" ? "Saving…" : whole ? "Stop the population and save" : "Stop and save", disabled: state === "stopping",
      onclick: act(() => source.stop(row.name)) }));
    else {
      const steps = make("input", { type: "number", min: 1, placeholder: "up to steps", ariaLabel: "Total steps", id: "resume-steps" });
      parts.push(make("button", { type: "button", className: "primary", id: "resume", disabled: state === "starting",
        textContent: state === "starting" ? "Starting…" : whole ? "Resume the population" : "Resume",
        onclick: act(() => source.resume(row.name, Math.max(0, Math.round(Number(steps.value) || 0)))) }));
      if (!whole) parts.push(steps);
    }
    if (row.error) parts.push(make("div", { className: "failure", textContent: row.error }));
    $("detail-actions").replaceChildren(...parts);
  }

  function facts(pairs) {
    return make("dl", {}, ...pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
      .flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", {}, value)]));
  }
  function processUse(process) {
    if (!process) return [];
    let cores = "";
    if (lastUse && lastUse.pid === process.pid && process.cpu_seconds !== undefined) {
      const span = clock() - lastUse.time;
      if (span > 0.5) cores = `${Math.max(0, (process.cpu_seconds - lastUse.cpu) / span).toFixed(1)} cores, `;
    }
    lastUse = { pid: process.pid, cpu: process.cpu_seconds, time: clock() };
    const more = process.processes > 1 ? ` in ${process.processes} processes` : "";
    return [["Process", `${process.pid} on ${process.host}`],
      ["Uses", process.memory === undefined ? "" : `${cores}${bytes(process.memory)}${more}`]];
  }
  function overview(found, pane) {
    const row = found.row;
    pane.replaceChildren(facts([
      ["Algorithm", row.algorithm], ["Environment", row.env], ["Seed", row.seed === null ? "" : String(row.seed)], ["Tag", row.tag],
      ["Population", row.parent], ["Steps", row.steps === null ? "" : row.steps.toLocaleString()],
      ["Episodes", row.episodes === null ? "" : row.episodes.toLocaleString()],
      [row.evaluated ? "Return (evaluation)" : "Return", number(row.return)], ["Steps per second", compact(row.rate)],
      ["Trained for", duration(row.elapsed)], ["Time left", duration(row.left)], ["Last written", ago(row.written)],
      ...processUse(found.process), ["Checkpoints", found.checkpoints.join(", ")], ["Folder", found.folder],
    ]));
  }
  function settings(found, pane) {
    if (!changed(found.settings)) return;
    const search = make("input", { type: "search", placeholder: "Search settings", ariaLabel: "Search settings", oninput: () => fill() });
    const table = make("table");
    const fill = () => table.replaceChildren(...Object.entries(found.settings)
      .filter(([key, value]) => `${key} ${value}`.toLowerCase().includes(search.value.toLowerCase()))
      .map(([key, value]) => make("tr", {}, make("td", { textContent: key }), make("td", { textContent: value }))));
    fill();
    pane.replaceChildren(search, table);
  }
  function videos(found, pane) {
    if (!changed(found.media)) return;
    if (!found.media.length) {
      pane.replaceChildren(make("p", { className: "hint" }, "There are no videos or pictures in this run yet. Record one: ",
        make("code", { textContent: `whorl eval ${found.folder} --video` })));
      return;
    }
    pane.replaceChildren(make("div", { className: "gallery" }, ...found.media.map((item) => {
      const src = source.file(found.row.name, item.path);
      const media = !src ? make("p", { className: "hint", textContent: "too large for this file" }) :
        item.kind.startsWith("video/") ? make("video", { src, controls: true, loop: true, muted: true, preload: "metadata", playsInline: true })
          : make("img", { src, alt: item.path, loading: "lazy" });
      return make("figure", {}, media, make("figcaption", { textContent: `${item.path} · ${ago(item.written)}` }));
    })));
  }
  function maps(found, pane) {
    if (!changed(found.maps, found.row.written)) return;
    pane.replaceChildren(make("div", { className: "gallery maps" }, ...found.maps.map((name) => {
      const src = source.map(found.row.name, name) + (report ? "" : `&at=${found.row.written}`);
      const about = name === "visits" ? "visits, on a logarithmic scale" : `mean reward of ${name}`;
      return make("figure", {}, make("img", { src, alt: about }), make("figcaption", { textContent: about }));
    })));
  }
  async function system(found, pane) {
    const name = found.row.name, use = processUse(found.process);
    const all = report ? report.system : (await source.curves({ runs: [name], metric: "time/steps_per_second" })).metrics;
    const names = all.filter((metric) => /(^|\/)(system\/|learner\/(updates_per_second|waiting)|time\/steps_per_second)/.test(metric)).slice(0, 10);
    if (changed(names)) {
      const top = make("div", { id: "system-use" });
      pane.replaceChildren(top, ...names.map((metric) => make("div", { className: "small" }, make("h4", { textContent: title(metric) }),
        make("div", { className: "plot", "data-metric": metric }))));
      if (!names.length) pane.append(make("p", { className: "hint", textContent: "This run has no metrics of the system." }));
    }
    $("system-use")?.replaceChildren(facts(use));
    for (const element of pane.querySelectorAll(".plot")) {
      const metric = element.dataset.metric;
      const answer = await source.curves({ runs: [name], metric, x: "steps", smooth: 0 });
      if (opened !== name || tab !== "System") return;
      const panel = answer.panels.find((one) => one.metric === metric);
      if (panel) await drawPlot(element, panel, "steps", true);
    }
  }
  function log(found, pane) {
    if (!changed(found.log)) return;
    const bottom = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 40;
    const about = found.log.name === "metrics.jsonl" ? "newest rows of metrics (--log-file true writes a log)" : found.log.name;
    pane.replaceChildren(make("p", { className: "hint", textContent: about }),
      make("pre", { textContent: found.log.lines.join("\n") || "empty" }));
    if (bottom) pane.scrollTop = pane.scrollHeight;
  }

  // Looking for changes

  function meter(name, share, about) {
    const fill = make("span", { className: share > 0.9 ? "fill high" : "fill" });
    fill.style.width = percent(Math.min(1, share));
    return make("span", { className: "meter", title: about }, name, make("span", { className: "track" }, fill), percent(share));
  }
  function drawMachine(machine) {
    if (!machine) return;
    $("machine").replaceChildren(meter("CPU", machine.cpu, `${machine.cores} cores`),
      meter("Memory", machine.memory, bytes(machine.memory_bytes)),
      ...machine.gpus.map((gpu, i) => meter(machine.gpus.length > 1 ? `GPU ${i}` : "GPU", gpu.busy, `memory ${percent(gpu.memory)}`)));
  }

  let looking = null;
  function look() {
    looking ??= lookOnce().finally(() => { looking = null; });
    return looking;
  }
  async function lookOnce() {
    const found = await source.runs(known);
    complain(null);
    const first = known.version < 0;
    Object.assign(known, { server: found.server, version: found.version });
    shift = found.now - Date.now() / 1000;
    $("root").textContent = found.root;
    $("root").title = found.root;
    drawMachine(found.machine);
    for (const row of found.rows) runs.set(row.name, row);
    if (found.names) {
      const names = new Set(found.names);
      for (const name of [...runs.keys()]) if (!names.has(name)) { runs.delete(name); chosen.delete(name); lines.delete(name); }
      if (opened && !names.has(opened)) close();
    }
    if (!touched && (first || !chosen.size || found.names)) chooseFirst();
    drawRows();
    if (first) drawCurves().finally(() => { limit = Math.max(limit, ROWS); drawRows(); }); // the screen first, then the rest
    else if (found.rows.some((row) => chosen.has(row.name)) || (found.names && !touched)) drawCurves();
  }

  for (const id of ["metric", "x", "statistic", "band", "smooth"]) $(id).addEventListener("change", drawCurves);
  $("filter").addEventListener("input", () => later("rows", () => { limit = ROWS; drawRows(); }, 60));
  $("more").addEventListener("click", () => { limit += ROWS; drawRows(); });
  $("plot-shown").addEventListener("click", () => {
    touched = true;
    chosen.clear();
    for (const row of visible()) if (!row.population) chosen.add(row.name);
    drawRows(); drawCurves();
  });
  $("detail-close").addEventListener("click", close);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && opened) close(); });
  dark.addEventListener("change", () => { styles.clear(); lines.clear(); drawRows(); drawPanels(); });

  if (report) {
    for (const option of [...$("x").options]) if (!report.axes.includes(option.value)) option.remove();
    for (const id of ["statistic", "band"]) $(id).value = report.style[id];
  }
  drawHead();
  look().catch(complain);
  if (!report) {
    const every = (act, delay) => setInterval(() => { if (!document.hidden) act(); }, delay);
    every(() => look().catch(complain), POLL);
    every(drawDetail, DETAIL_POLL);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) look().catch(complain); });
  }
})();
