"use strict";
(() => {
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = getComputedStyle(root).colorScheme === "dark";
    root.dataset.theme = dark ? "light" : "dark";
  });

  const source = document.getElementById("timeline-data");
  if (!source) return;
  const log = JSON.parse(source.textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0)).buffer;
  const MISSING = -32768, LARGEST = 32767;
  for (const column of log.columns) {
    column.low = new Int16Array(bytes(column.low));
    column.high = column.high ? new Int16Array(bytes(column.high)) : column.low;
    column.value = (raw) => (column.from + column.to) / 2 + (raw / LARGEST) * ((column.to - column.from) / 2 || 1);
  }
  const belief = new Uint8Array(bytes(log.belief));
  const starts = new Int32Array(bytes(log.starts));
  const runs = (packed) => packed && { start: new Int32Array(bytes(packed.start)), value: new Int16Array(bytes(packed.value)) };
  const labels = runs(log.labels), truth = runs(log.truth);
  const numBins = belief.length / log.contexts;

  const box = document.getElementById("charts"), readout = document.getElementById("readout");
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 72, RIGHT = 8, SENSOR = 84, BELIEF = 56, STRIP = 22, GAP = 10;
  const FEWEST = 4;  // rows in view
  let from = 0, to = log.rows, selected = new Set(), width = 0, drawn = [], pointer = null;
  const moving = log.columns.map((_, i) => i).filter((i) => log.columns[i].to > log.columns[i].from);
  (moving.length ? moving : log.columns.map((_, i) => i)).slice(0, 3).forEach((i) => selected.add(i));

  const make = (name, attributes, parent, text) => {
    const node = document.createElementNS(SVG, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  };
  const colour = (k) => (k < 0 ? "var(--none)" : `var(--c${k})`);
  const across = (row) => LEFT + ((row - from) / (to - from)) * (width - LEFT - RIGHT);
  const rowAt = (x) => from + ((x - LEFT) / (width - LEFT - RIGHT)) * (to - from);
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  // The last entry of a sorted array that is not larger than a row.
  const place = (sorted, row) => {
    let low = 0, high = sorted.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (sorted[middle] <= row) low = middle; else high = middle - 1;
    }
    return low;
  };
  const short = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 1e5 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(4)));
  };
  const duration = (seconds) => {
    const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
    for (const [unit, size] of units) if (seconds >= 2 * size) return `${Number((seconds / size).toPrecision(4))} ${unit}`;
    return `${Number(seconds.toPrecision(3))} s`;
  };
  const episodeName = (number) => (log.names.length ? log.names[number] : `episode ${number}`);
  const stepName = (episode, row) => {
    const step = row - starts[episode];
    return log.dt && log.stamps.length ? `+${duration(step * log.dt)}` : `step ${step}`;
  };

  // The round number of rows, or of seconds where the clock is known, that is not smaller than `rough` rows.
  const niceStep = (rough) => {
    const clock = log.dt && log.stamps.length ? log.dt : 1;
    const least = Math.max(rough, 1) * clock;
    const seconds = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
    const power = 10 ** Math.floor(Math.log10(least));
    const found = (clock !== 1 || log.stamps.length) && least >= 1 ? seconds.find((n) => n >= least) : undefined;
    return Math.max(1, Math.round((found || [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least * 0.999)) / clock));
  };
  // What stands at the first row of an episode: its name, its time, or one above the other.
  const startWords = (episode) => {
    if (!log.stamps.length) return [episodeName(episode)];
    return log.names.length ? [episodeName(episode), log.stamps[episode]] : [log.stamps[episode]];
  };
  // A tick every so many rows that labels do not touch.
  const ticks = () => {
    const first = place(starts, Math.max(0, Math.ceil(from) - 1)), last = place(starts, to - 1);
    const room = Math.max(2, Math.floor((width - LEFT - RIGHT) / 120));
    if (last - first >= 2) {
      const every = Math.ceil((last - first + 1) / room), found = [];
      for (let e = Math.ceil(first / every) * every; e <= last; e += every)
        if (starts[e] >= from) found.push([starts[e], startWords(e)]);
      return found;
    }
    const found = [];
    for (let e = first; e <= last; e++) {
      const begin = Math.max(starts[e], from), end = Math.min(e + 1 < starts.length ? starts[e + 1] : log.rows, to);
      const every = niceStep((to - from) / room);
      for (let step = Math.ceil((begin - starts[e]) / every) * every; starts[e] + step < end; step += every)
        found.push([starts[e] + step, step === 0 ? startWords(e) : [stepName(e, starts[e] + step)]]);
    }
    return found;
  };

  const panel = (height, name) => {
    const svg = make("svg", { width, height: height + GAP, class: "strip" });
    make("rect", { class: "panel", x: LEFT, y: 0, width: width - LEFT - RIGHT, height }, svg);
    if (name) make("text", { class: "name", x: LEFT - 8, y: height > 40 ? 12 : height / 2 + 4, "text-anchor": "end" }, svg, name);
    box.appendChild(svg);
    return svg;
  };
  const edges = (svg, height) => {
    const first = place(starts, Math.max(0, from)), last = place(starts, to - 1);
    if (last - first > 60) return;
    for (let e = first; e <= last; e++)
      if (starts[e] > from) make("line", { class: "edge", x1: across(starts[e]), x2: across(starts[e]), y1: 0, y2: height }, svg);
  };

  const drawColumn = (column) => {
    const svg = panel(SENSOR);
    drawn.push([svg, { class: "inside", x: LEFT + 6, y: 13 }, column.name + (column.unit ? ` [${column.unit}]` : "")]);
    const bin = log.binRows, first = Math.max(0, Math.floor(from / bin)), last = Math.min(column.low.length - 1, Math.ceil(to / bin));
    let low = Infinity, high = -Infinity;
    for (let i = first; i <= last; i++) {
      if (column.low[i] !== MISSING && column.low[i] < low) low = column.low[i];
      if (column.high[i] !== MISSING && column.high[i] > high) high = column.high[i];
    }
    if (low > high) { make("text", { x: LEFT + 8, y: SENSOR / 2 }, svg, "no values here"); return; }
    const spread = high - low || 2, y = (raw) => (4 + (SENSOR - 8) * (1 - (raw - low + (high === low ? 1 : 0)) / spread)).toFixed(1);
    const pixels = width - LEFT - RIGHT, perPixel = (last - first + 1) / pixels;
    if (perPixel <= 1 && bin === 1) {  // every row is drawn
      let path = "", on = false;
      for (let i = first; i <= last; i++) {
        const gap = column.low[i] === MISSING;
        if (!gap) path += `${on && !isStart(i) ? "L" : "M"}${across(i).toFixed(1)} ${y(column.low[i])}`;
        on = !gap;
      }
      make("path", { class: "trace", d: path }, svg);
    } else {  // smallest and largest value of every pixel
      let path = "";
      const step = Math.max(1, perPixel);
      for (let i = first; i <= last; i += step) {
        let a = Infinity, b = -Infinity;
        let begin = Math.floor(i);
        if (bin === 1 && begin > 0 && !isStart(begin)) begin--;  // so that jumps between pixels are drawn
        for (let j = begin; j < Math.min(Math.floor(i + step) || 1, last + 1) || j <= Math.floor(i); j++) {
          if (column.low[j] !== MISSING) { a = Math.min(a, column.low[j]); b = Math.max(b, column.high[j]); }
        }
        if (a > b) continue;
        const x = Math.max(LEFT, across(Math.floor(i) * bin));
        const wide = Math.min(Math.max(1.1, across(Math.floor(i + step) * bin) - x), width - RIGHT - x);
        if (wide <= 0) continue;
        const top = Number(y(b)), tall = Math.max(1.1, Number(y(a)) - top);
        path += `M${x.toFixed(1)} ${top}h${wide.toFixed(1)}v${tall.toFixed(1)}h${(-wide).toFixed(1)}z`;
      }
      make("path", { class: "envelope", d: path }, svg);
    }
    make("text", { x: LEFT - 8, y: 11, "text-anchor": "end" }, svg, short(column.value(high)));
    make("text", { x: LEFT - 8, y: SENSOR - 2, "text-anchor": "end" }, svg, short(column.value(low)));
    edges(svg, SENSOR);
  };
  const isStart = (row) => starts[place(starts, row)] === row;

  const drawBelief = () => {
    const svg = panel(BELIEF, "belief");
    const pixels = Math.max(1, Math.floor(width - LEFT - RIGHT)), bin = log.binRows, k = log.contexts;
    const first = Math.max(0, Math.floor(from / bin)), last = Math.min(numBins, Math.ceil(to / bin));
    const step = Math.max(1, (last - first) / pixels), columns = [];
    for (let i = first; i < last; i += step) {
      const sums = new Float64Array(k);
      for (let j = Math.floor(i); j < Math.max(Math.floor(i) + 1, Math.floor(i + step)) && j < last; j++)
        for (let c = 0; c < k; c++) sums[c] += belief[j * k + c];
      const total = sums.reduce((a, b) => a + b, 0);
      columns.push([Math.max(LEFT, across(Math.floor(i) * bin)), Math.min(across(Math.floor(i + step) * bin), width - RIGHT), total ? sums.map((value) => value / total) : null]);
    }
    const paths = Array(k).fill("");
    for (const [left, right, shares] of columns) {
      if (!shares) continue;
      let below = 0;
      const wide = Math.max(right - left, 0.6) + 0.15;
      for (let c = 0; c < k; c++) {
        const tall = shares[c] * BELIEF;
        if (tall > 0.2) paths[c] += `M${left.toFixed(1)} ${(BELIEF - below - tall).toFixed(1)}h${wide.toFixed(1)}v${tall.toFixed(1)}h${(-wide).toFixed(1)}z`;
        below += tall;
      }
    }
    paths.forEach((path, c) => make("path", { d: path, style: `fill: ${colour(c)}` }, svg));
    make("text", { x: LEFT - 8, y: BELIEF - 1, "text-anchor": "end" }, svg, "0 to 1");
    edges(svg, BELIEF);
  };

  // Runs of labels, at most one rectangle a pixel; where several runs share one, the longest is shown.
  const drawRuns = (svg, found, shade, words, y, height, view) => {
    const [begin, end, at] = view;
    const parts = {};
    let i = place(found.start, begin);
    const finish = (n) => (n + 1 < found.start.length ? found.start[n + 1] : log.rows);
    while (i < found.start.length && found.start[i] < end) {
      const left = at(Math.max(found.start[i], begin));
      let best = i, last = i;
      while (finish(last) < end && at(finish(last)) - left < 1) {
        last++;
        if (finish(last) - found.start[last] > finish(best) - found.start[best]) best = last;
      }
      const right = at(Math.min(finish(last), end)), value = found.value[best];
      if (value >= 0) {
        const fill = shade(value);
        parts[fill] = (parts[fill] || "") + `M${left.toFixed(1)} ${y}h${(right - left).toFixed(1)}v${height}h${(left - right).toFixed(1)}z`;
        if (words && right - left > 8 * words(value).length + 8)
          drawn.push([svg, { class: "on", x: (left + right) / 2, y: y + height / 2 + 4, "text-anchor": "middle" }, words(value)]);
      }
      i = last + 1;
    }
    for (const fill in parts) make("path", { d: parts[fill], style: `fill: ${fill}` }, svg);
  };
  const strip = (name, found, shade, words) => {
    const svg = panel(STRIP, name);
    drawRuns(svg, found, shade, words, 0, STRIP, [from, to, across]);
    edges(svg, STRIP);
  };

  const drawAxis = () => {
    const marks = ticks(), lines = Math.max(...marks.map(([, words]) => words.length), 1);
    const svg = make("svg", { width, height: 6 + 14 * lines, class: "axis" }, box);
    const taken = Array(lines).fill(-Infinity);
    for (const [row, words] of marks) {
      const x = across(row), room = width - RIGHT - x, anchor = room < 40 ? "end" : x < LEFT + 30 ? "start" : "middle";
      words.forEach((word, line) => {
        const node = make("text", { x, y: 13 + 14 * line, "text-anchor": anchor }, svg, word.length > 24 ? `${word.slice(0, 23)}…` : word);
        const found = node.getBBox();
        if (found.x < taken[line] + 8 || found.x + found.width > width) node.remove();
        else taken[line] = found.x + found.width;
      });
    }
  };
  const drawOverview = () => {
    const svg = make("svg", { width, height: 30, class: "overview" }, box);
    make("text", { class: "name", x: LEFT - 8, y: 14, "text-anchor": "end" }, svg, "whole log");
    const at = (row) => LEFT + (row / log.rows) * (width - LEFT - RIGHT);
    drawRuns(svg, labels, colour, null, 4, 12, [0, log.rows, at]);
    const left = at(from), wide = Math.max(at(to) - left, 3);
    make("rect", { class: "window", x: left, y: 1, width: wide, height: 18, rx: 3 }, svg);
  };

  const draw = () => {
    width = box.clientWidth;
    if (width < 150) return;
    box.replaceChildren();
    drawn = [];
    for (const number of [...selected].sort((a, b) => a - b)) drawColumn(log.columns[number]);
    drawBelief();
    strip("most likely", labels, colour, (value) => `${value}`);
    if (truth) strip("truth", truth, (value) => colour(log.trueContexts[value].colour), (value) => log.trueContexts[value].name);
    for (const [svg, attributes, words] of drawn) make("text", attributes, svg, words);
    drawAxis();
    drawOverview();
    box.dataset.from = from.toFixed(3);
    box.dataset.to = to.toFixed(3);
  };
  let waiting = false;
  const redraw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  };
  const show = (begin, end) => {
    const size = clamp(end - begin, Math.min(FEWEST, log.rows), log.rows);
    from = clamp(begin, 0, log.rows - size);
    to = from + size;
    redraw();
  };
  const zoom = (factor, centre = (from + to) / 2) => show(centre - (centre - from) * factor, centre + (to - centre) * factor);
  const move = (share) => show(from + share * (to - from), to + share * (to - from));
  const actions = { in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.5), right: () => move(0.5), all: () => show(0, log.rows) };
  document.querySelectorAll("[data-do]").forEach((button) => button.addEventListener("click", actions[button.dataset.do]));

  const tell = (x) => {
    const row = clamp(Math.floor(rowAt(x)), 0, log.rows - 1), bin = Math.floor(row / log.binRows), episode = place(starts, row);
    const parts = [`${episodeName(episode)}, step ${row - starts[episode]}` + (log.dt && log.stamps.length ? ` (${log.stamps[episode]} + ${duration((row - starts[episode]) * log.dt)})` : "")];
    for (const number of selected) {
      const column = log.columns[number], low = column.low[bin], high = column.high[bin];
      const words = low === MISSING ? "missing" : low === high ? short(column.value(low)) : `${short(column.value(low))} to ${short(column.value(high))}`;
      parts.push(`${column.name} ${words}${column.unit && low !== MISSING ? ` ${column.unit}` : ""}`);
    }
    const label = labels.value[place(labels.start, row)];
    if (label >= 0) parts.push(`most likely context ${label}, belief ${Math.round((belief[bin * log.contexts + label] / 255) * 100)} %`);
    if (truth) {
      const known = truth.value[place(truth.start, row)];
      if (known >= 0) parts.push(`truth: ${log.trueContexts[known].name}`);
    }
    readout.textContent = parts.join(" · ");
  };
  const mark = (kind, left, right) => {
    box.querySelectorAll(`.${kind}`).forEach((node) => node.remove());
    if (left === null) return;
    box.querySelectorAll("svg.strip").forEach((svg) => {
      const height = svg.getAttribute("height") - GAP;
      if (kind === "cross") make("line", { class: kind, x1: left, x2: left, y1: 0, y2: height }, svg);
      else make("rect", { class: kind, x: Math.min(left, right), y: 0, width: Math.abs(right - left), height }, svg);
    });
  };
  const where = (event) => clamp(event.clientX - box.getBoundingClientRect().left, LEFT, width - RIGHT);

  let active = false;
  box.addEventListener("pointerdown", (event) => {
    active = true;
    pointer = { x: where(event), overview: !!event.target.closest(".overview") };
    box.setPointerCapture(event.pointerId);
    if (pointer.overview) glide(event);
  });
  const glide = (event) => {
    const row = ((where(event) - LEFT) / (width - LEFT - RIGHT)) * log.rows, half = (to - from) / 2;
    show(row - half, row + half);
  };
  box.addEventListener("pointermove", (event) => {
    const x = where(event);
    if (pointer && pointer.overview) return glide(event);
    if (pointer) mark("select", pointer.x, x);
    mark("cross", x);
    tell(x);
  });
  box.addEventListener("pointerup", (event) => {
    const begun = pointer, x = where(event);
    pointer = null;
    mark("select", null);
    if (begun && !begun.overview && Math.abs(x - begun.x) > 6) show(rowAt(Math.min(begun.x, x)), rowAt(Math.max(begun.x, x)));
  });
  box.addEventListener("pointercancel", () => { pointer = null; mark("select", null); });
  box.addEventListener("pointerleave", () => { mark("cross", null); if (!pointer) active = false; });
  box.addEventListener("dblclick", actions.all);
  box.addEventListener("wheel", (event) => {
    if (!active && !event.ctrlKey) return;  // the page scrolls until the chart was clicked
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, rowAt(where(event)));
  }, { passive: false });
  box.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: actions.left, ArrowRight: actions.right, "+": actions.in, "=": actions.in, "-": actions.out, Home: actions.all, Escape: actions.all };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  const sensors = document.getElementById("sensors");
  log.columns.forEach((column, number) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = column.name + (column.unit ? ` [${column.unit}]` : "") + (column.kind === "action" ? " (action)" : "");
    button.setAttribute("aria-pressed", selected.has(number));
    button.addEventListener("click", () => {
      if (!selected.delete(number)) selected.add(number);
      button.setAttribute("aria-pressed", selected.has(number));
      redraw();
    });
    sensors.appendChild(button);
  });
  // A log with many switches begins with as much of it as can be told apart.
  const MANY = 80;
  if (labels.start.length > 2 * MANY) to = Math.min(Math.max(labels.start[MANY], 400 * log.binRows), log.rows);
  new ResizeObserver(() => { if (box.clientWidth !== width) redraw(); }).observe(box);
  draw();
})();
