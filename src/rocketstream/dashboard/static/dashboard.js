// What the pages do by themselves: scheme, exact times, pausing, charts, news of failures.
// Pages work without it; nothing here decides anything about a cluster.
(() => {
  "use strict";
  const root = document.documentElement;
  const refreshMs = Number(document.body.dataset.refreshS || 5) * 1000;
  const keep = (name, value) => {
    try {
      if (value === null) localStorage.removeItem(name);
      else localStorage.setItem(name, value);
    } catch { /* then it lasts as long as the page */ }
  };

  // --- scheme ------------------------------------------------------------------------------
  const theme = document.getElementById("theme");
  const showTheme = () => { theme.querySelector(".sr").textContent = "Theme: " + (root.dataset.theme || "system"); };
  theme.addEventListener("click", () => {
    const next = { undefined: "light", light: "dark", dark: undefined }[root.dataset.theme];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
    keep("theme", next || null);
    showTheme();
    charts.forEach((chart) => chart.draw());
  });

  // --- times -------------------------------------------------------------------------------
  const times = document.getElementById("times");
  const showTimes = () => times.setAttribute("aria-pressed", String(root.dataset.times === "exact"));
  times.addEventListener("click", () => {
    const exact = root.dataset.times !== "exact";
    if (exact) root.dataset.times = "exact";
    else delete root.dataset.times;
    keep("times", exact ? "exact" : null);
    showTimes();
  });

  // --- pausing -----------------------------------------------------------------------------
  const pause = document.getElementById("pause");
  let paused = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.querySelector(".sr").textContent = paused ? "Go on" : "Pause";
  });
  const polls = (element) => (element.getAttribute("hx-trigger") || "").includes("every ");
  const quiet = () => paused || document.hidden;
  const seen = new WeakSet();
  const drop = (event) => {
    const { sourceElement } = event.detail.ctx;
    if (!polls(sourceElement) || !quiet()) return;
    // A part that loads by itself is empty before its first answer.
    const isEmpty = sourceElement.getAttribute("hx-trigger").startsWith("load") && !seen.has(sourceElement);
    if (!isEmpty) event.preventDefault();
  };
  document.addEventListener("htmx:before:request", drop);
  document.addEventListener("htmx:before:swap", drop);  // one that was under way already
  document.addEventListener("htmx:after:swap", (event) => seen.add(event.detail.ctx.sourceElement));

  // --- news of failures --------------------------------------------------------------------
  const offline = document.getElementById("offline");
  const say = (text) => {
    if (offline.textContent !== text) offline.textContent = text;
    offline.hidden = !text;
  };
  const isLive = (event) => event.detail.ctx && ["live", "poll"].includes(event.detail.ctx.sourceElement.id);
  document.addEventListener("htmx:error", (event) => {
    if (isLive(event)) say("The dashboard does not answer. What is shown is older.");
  });
  document.addEventListener("htmx:response:error", (event) => {
    if (!isLive(event) || event.detail.ctx.response.status === 401) return;
    const text = new DOMParser().parseFromString(event.detail.ctx.text || "", "text/html");
    say(text.body.textContent.trim() || "The dashboard could not answer.");
  });
  document.addEventListener("htmx:after:swap", (event) => {
    if (isLive(event) && event.detail.ctx.response.status < 400) say("");
    nameTables();
  });

  // --- tables that stack keep what they are ------------------------------------------------
  const roles = [
    ["table.stack", "table"], ["table.stack thead, table.stack tbody", "rowgroup"],
    ["table.stack tr", "row"], ["table.stack td", "cell"],
    ["table.stack tbody th", "rowheader"], ["table.stack thead th", "columnheader"],
  ];
  const nameTables = () => {
    for (const [selector, role] of roles) {
      for (const element of document.querySelectorAll(selector)) element.setAttribute("role", role);
    }
  };

  // --- charts ------------------------------------------------------------------------------
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const shown = (value) => (value === null ? "unknown"
    : value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 }));
  const span = (seconds) => {
    if (seconds === null) return "unknown";
    if (seconds < 60) return `${Math.round(seconds * 10) / 10} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 86400) return `${Math.round(seconds / 360) / 10} h`;
    return `${Math.round(seconds / 8640) / 10} d`;
  };
  const pad = (number) => String(number).padStart(2, "0");
  const day = (date) => `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  const hour = (date) => `${pad(date.getHours())}:${pad(date.getMinutes())}`;
  const moment = (seconds) => {
    const date = new Date(seconds * 1000);
    return `${day(date)} ${hour(date)}:${pad(date.getSeconds())}`;
  };
  // Days stand below the first tick of each; between far ticks there is no time of day.
  const ticks = (self, found, index, space, step) => found.map((at, place) => {
    const date = new Date(at * 1000);
    if (step >= 86400) return day(date);
    const isNew = place === 0 || day(new Date(found[place - 1] * 1000)) !== day(date);
    return (step < 60 ? moment(at).slice(11) : hour(date)) + (isNew ? "\n" + day(date) : "");
  });
  const NAMES = { lag: "Lag", age: "Time lag", in: "In", out: "Out" };
  const STROKES = { lag: "--chart-1", age: "--chart-2", in: "--chart-1", out: "--chart-3" };

  class Chart {
    constructor(place) {
      this.place = place;
      this.names = place.dataset.series.split(",");
      this.data = null;
      this.plot = null;
    }
    take(told) {
      this.data = [told.at, ...this.names.map((name) => told[name])];
      if (this.plot) this.plot.setData(this.data);
      else this.draw();
    }
    draw() {
      if (!this.data) return;
      if (this.plot) this.plot.destroy();
      const text = colour("--muted"), line = colour("--line");
      const value = this.names[0] === "age" ? span : shown;
      const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
      this.plot = new uPlot({
        width: this.width(), height: 180,
        cursor: { drag: { x: false, y: false }, sync: { key: "history" } },
        scales: { y: { range: (self, low, high) => [0, Math.max(high * 1.1, 1)] } },
        axes: [{ ...axis, values: ticks }, { ...axis, size: 64, values: (self, ticks) => ticks.map(value) }],
        // Without a pointer the legend tells the newest figures.
        series: [{ label: "Time", value: (self, at) => moment(at ?? self.data[0].at(-1)) },
          ...this.names.map((name) => ({
            label: NAMES[name], stroke: colour(STROKES[name]), width: 2, spanGaps: false,
            points: { show: false },
            value: (self, found, series, index) => value((index == null ? self.data[series].at(-1) : found) ?? null),
            dash: name === "out" ? [6, 4] : undefined,
          }))],
      }, this.data, this.place);
    }
    width() { return Math.max(this.place.clientWidth, 200); }
    fit() { if (this.plot) this.plot.setSize({ width: this.width(), height: 180 }); }
  }

  const charts = [];
  const box = document.querySelector("[data-history]");
  const load = async () => {
    if (charts.length && charts[0].data && quiet()) return;
    try {
      const answer = await fetch(box.dataset.history, { headers: { "HX-Request": "true" } });
      if (answer.ok) {
        const told = await answer.json();
        charts.forEach((chart) => chart.take(told));
      }
    } catch { /* the live part says that nothing answers */ }
  };
  if (box) {
    for (const place of box.querySelectorAll("[data-series]")) charts.push(new Chart(place));
    load();
    setInterval(load, Math.max(refreshMs, 5000));
    new ResizeObserver(() => charts.forEach((chart) => chart.fit())).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.draw()));
  }

  // --- the switch of clusters closes when the focus goes elsewhere ----------------------------
  const chooser = document.querySelector("details.switch");
  if (chooser) {
    document.addEventListener("click", (event) => { if (!chooser.contains(event.target)) chooser.open = false; });
    chooser.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      chooser.open = false;
      chooser.querySelector("summary").focus();
    });
  }

  showTheme();
  showTimes();
  nameTables();
})();
